// Package redis locks in one Redis, a master with its replicas, or a slot of a
// cluster. It speaks the protocol of Redisson's RLock, so that a Java service
// and this one exclude each other:
//
//	NAME                              hash: UUID:NUMBER of the holder → 1, expiring with the lease
//	redisson_lock__channel:{NAME}     where a release is announced, by the message 0
//	redisson_unlock_latch:{NAME}:UUID the holder that this instance released last, for a release that is sent again
//	holdfast_token:{NAME}             the last fencing token
//
// Only the first waiter of each process asks. It sleeps until a release is
// announced or the holder's lease runs out.
//
// A Redis that fails over, or restarts without its data, forgets locks that it
// has granted: two then hold one lock until the first lease ends. Its fencing
// token is the greater of the last one plus one and the server's clock in
// microseconds, so a lost counter does not take it back. A clock that is behind,
// set back or another server's after a failover, does so while the counter is
// lost too.
package redis

import (
	"context"
	_ "embed"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	goredis "github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/lock"
)

const (
	// renewals is how many times a lease is renewed before it would end.
	renewals = 3
	// callTimeout bounds one call to Redis.
	callTimeout = 2 * time.Second
	// latchTime is how long the answer to a release is kept.
	latchTime = 15 * time.Second
	// tokenTime is how long a token is remembered after its grant. The clock
	// keeps later ones above it anyhow.
	tokenTime = 24 * time.Hour
)

// Options of a Locker. The zero value is good.
type Options struct {
	// Lease is how long a lock outlives its holder, 0 for lock.DefaultLease. At
	// least 10 ms.
	Lease time.Duration
	// Fixed leases end after Lease whatever their holder does. Others are
	// renewed while it lives.
	Fixed bool
}

// Locker locks in Redis. Close stops it.
type Locker struct {
	lock.Locker
	backend *backend
}

// New returns a Locker on the client, which stays the caller's.
func New(client goredis.UniversalClient, options Options) *Locker {
	if options.Lease == 0 {
		options.Lease = lock.DefaultLease
	}
	b := &backend{
		client: client, lease: options.Lease, fixed: options.Fixed,
		id: uuid.NewString(), releases: newListener(client),
	}
	return &Locker{Locker: lock.New(b), backend: b}
}

// Close stops listening for releases. Nobody may wait for a lock any more.
// Leases go on until they are unlocked.
func (l *Locker) Close() error { return l.backend.releases.close() }

type backend struct {
	client   goredis.UniversalClient
	lease    time.Duration
	fixed    bool
	id       string // of this instance, as a Redisson client has one
	grants   atomic.Int64
	releases *listener
}

var (
	//go:embed acquire.lua
	acquireLua string
	//go:embed renew.lua
	renewLua string
	//go:embed release.lua
	releaseLua string

	acquireScript = goredis.NewScript(acquireLua)
	renewScript   = goredis.NewScript(renewLua)
	releaseScript = goredis.NewScript(releaseLua)
)

// keyed is Redisson's name of what belongs to a lock, in the lock's hash slot.
func keyed(prefix, name string) string {
	if strings.Contains(name, "{") {
		return prefix + ":" + name
	}
	return prefix + ":{" + name + "}"
}

func channel(name string) string { return keyed("redisson_lock__channel", name) }

func (b *backend) Acquire(ctx context.Context, name string, wait bool, lost func()) (lock.Grant, error) {
	g := b.grant(name, lost)
	if wait {
		b.releases.yield(ctx, channel(name))
	}
	held, err := g.try(ctx)
	if err == nil && g.token == 0 && wait {
		err = g.wait(ctx, held)
	}
	switch {
	case err != nil:
		return nil, err
	case g.token == 0:
		return nil, lock.ErrHeld
	}
	g.watch()
	return g, nil
}

// grant is a new contender for the lock.
func (b *backend) grant(name string, lost func()) *grant {
	return &grant{backend: b, name: name, field: b.id + ":" + strconv.FormatInt(b.grants.Add(1), 10), lost: lost}
}

// grant is a lock from its request to its release.
type grant struct {
	backend *backend
	name    string
	field   string
	lost    func()
	token   uint64
	until   time.Time // the lease's end as far as is known here
	passed  bool      // from another of this process

	mu       sync.Mutex
	watchdog *time.Timer
	stopped  bool
	stop     context.CancelFunc // of a renewal under way; nil: none is
	renewals sync.WaitGroup
}

func (g *grant) Token() uint64 { return g.token }

// try asks for the lock, or for another's who passes it on. Without a token afterwards it is held, for so long at
// the most; negative: its end is unknown. After an error it leaves nothing that
// it can remove.
func (g *grant) try(ctx context.Context, from ...any) (held time.Duration, err error) {
	defer func() {
		if err != nil {
			g.cleanUp(ctx)
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	asked := time.Now()
	answer, err := acquireScript.Run(ctx, g.backend.client, []string{g.name, keyed("holdfast_token", g.name)},
		append([]any{g.field, g.backend.lease.Milliseconds(), tokenTime.Milliseconds()}, from...)...).Int64Slice()
	if err != nil {
		return 0, err
	}
	if len(answer) != 2 {
		return 0, fmt.Errorf("acquire.lua answered %v", answer)
	}
	if answer[0] == 1 {
		g.token, g.until = uint64(answer[1]), asked.Add(g.backend.lease)
		return 0, nil
	}
	return time.Duration(answer[1]) * time.Millisecond, nil
}

// wait tries again whenever the lock is released, or its lease should be over.
func (g *grant) wait(ctx context.Context, held time.Duration) (err error) {
	releases := g.backend.releases.listen(ctx, channel(g.name))
	defer releases.leave()
	for g.token == 0 {
		if held < 0 { // a foreign lock without an end
			held = g.backend.lease / renewals
		}
		timer := time.NewTimer(held + time.Millisecond)
		select {
		case <-releases.heard:
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
		timer.Stop()
		if held, err = g.try(ctx); err != nil {
			return err
		}
	}
	return nil
}

// cleanUp removes what a request without an answer may have left.
func (g *grant) cleanUp(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer cancel()
	_, _ = g.release(ctx) // what it misses ends with its lease
}

// watch renews the lease, unless it is fixed, and reports when it is lost.
func (g *grant) watch() {
	wait := time.Until(g.until)
	if !g.backend.fixed {
		wait = min(wait, g.backend.lease/renewals)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.stopped {
		g.watchdog = time.AfterFunc(wait, g.renew)
	}
}

func (g *grant) renew() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	g.mu.Lock()
	if g.stopped {
		g.mu.Unlock()
		return
	}
	g.stop = stop
	g.renewals.Add(1)
	g.mu.Unlock()
	defer g.renewals.Done()
	if g.renewed(ctx) {
		g.watch()
	} else if ctx.Err() == nil {
		g.lost()
	}
}

// unwatch ends the watchdog. Afterwards nothing of it is under way.
func (g *grant) unwatch() {
	g.mu.Lock()
	g.stopped = true
	g.watchdog.Stop()
	if g.stop != nil {
		g.stop()
	}
	g.mu.Unlock()
	g.renewals.Wait()
}

// renewed reports whether the lease goes on.
func (g *grant) renewed(ctx context.Context) bool {
	for !g.backend.fixed && time.Now().Before(g.until) {
		call, cancel := context.WithDeadline(ctx, g.until)
		call, cancelCall := context.WithTimeout(call, callTimeout)
		asked := time.Now()
		held, err := renewScript.Run(call, g.backend.client, []string{g.name}, g.field, g.backend.lease.Milliseconds()).Bool()
		cancelCall()
		cancel()
		switch {
		case err == nil && held:
			g.until = asked.Add(g.backend.lease)
			return true
		case err == nil || ctx.Err() != nil:
			return false
		}
		select { // it may be there again before the lease ends
		case <-ctx.Done():
			return false
		case <-time.After(min(g.backend.lease/(10*renewals), time.Until(g.until))):
		}
	}
	return false
}

// Pass makes the lock another grant's, in one request.
func (g *grant) Pass(ctx context.Context, lost func()) (lock.Grant, error) {
	g.unwatch()
	next := g.backend.grant(g.name, lost)
	next.passed = true
	switch _, err := next.try(ctx, g.field); {
	case err != nil: // whoever has it now, it is to be free
		g.cleanUp(ctx)
		return nil, err
	case next.token == 0:
		return nil, lock.ErrLost
	}
	next.watch()
	return next, nil
}

func (g *grant) Release(ctx context.Context) error {
	g.unwatch()
	held, err := g.release(ctx)
	if err == nil && !held {
		err = lock.ErrLost
	}
	return err
}

func (g *grant) release(ctx context.Context) (held bool, err error) {
	latch := keyed("redisson_unlock_latch", g.name) + ":" + g.backend.id
	answer, err := releaseScript.Run(ctx, g.backend.client, []string{g.name, channel(g.name), latch},
		g.field, latchTime.Milliseconds()).Int64Slice()
	if err != nil {
		return false, err
	}
	if len(answer) != 2 {
		return false, fmt.Errorf("release.lua answered %v", answer)
	}
	if g.passed { // its own waiters had their turn
		g.backend.releases.released(channel(g.name), answer[1])
	}
	return answer[0] == 1, nil
}
