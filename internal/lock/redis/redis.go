// Package redis locks in one Redis, a master with its replicas, or a slot of a
// cluster. It speaks the protocol of Redisson's RLock, so that a Java service
// and this one exclude each other:
//
//	NAME                              hash: UUID:NUMBER of the holder → 1, expiring with the lease
//	redisson_lock__channel:{NAME}     where a release is announced, by the message 0
//	redisson_unlock_latch:{NAME}:…    the answer to a release, for one that is sent again
//	holdfast_token:{NAME}             the last fencing token
//
// Only the first waiter of each process asks. It sleeps until a release is
// announced or the holder's lease runs out.
//
// A Redis that fails over, or restarts without its data, forgets locks that it
// has granted: two then hold one lock until the first lease ends. Its fencing
// token is the greater of the last one plus one and the server's clock in
// microseconds, so a lost counter does not take it back. A server's clock that
// is set back, while the counter is lost too, does.
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
	// DefaultLease is how long a dead holder keeps its lock.
	DefaultLease = 30 * time.Second
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
	// Lease is how long a lock outlives its holder, 0 for DefaultLease. At
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
		options.Lease = DefaultLease
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
	g := &grant{backend: b, name: name, field: b.id + ":" + strconv.FormatInt(b.grants.Add(1), 10), lost: lost}
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

// grant is a lock from its request to its release.
type grant struct {
	backend *backend
	name    string
	field   string
	lost    func()
	token   uint64
	until   time.Time // the lease's end as far as is known here
	stop    context.CancelFunc
	watched sync.WaitGroup
}

func (g *grant) Token() uint64 { return g.token }

// try asks for the lock. Without a token afterwards it is held, for so long at
// the most; negative: its end is unknown. After an error it leaves nothing that
// it can remove.
func (g *grant) try(ctx context.Context) (held time.Duration, err error) {
	defer func() {
		if err != nil {
			g.cleanUp(ctx)
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	asked := time.Now()
	answer, err := acquireScript.Run(ctx, g.backend.client, []string{g.name, keyed("holdfast_token", g.name)},
		g.field, g.backend.lease.Milliseconds(), tokenTime.Milliseconds()).Int64Slice()
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
	ctx, stop := context.WithCancel(context.Background())
	g.stop = stop
	g.watched.Go(func() {
		for {
			wait := time.Until(g.until)
			if !g.backend.fixed {
				wait = min(wait, g.backend.lease/renewals)
			}
			timer := time.NewTimer(wait)
			select {
			case <-ctx.Done():
				timer.Stop()
				return
			case <-timer.C:
			}
			if !g.renewed(ctx) {
				if ctx.Err() == nil {
					g.lost()
				}
				return
			}
		}
	})
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

func (g *grant) Release(ctx context.Context) error {
	g.stop()
	g.watched.Wait()
	held, err := g.release(ctx)
	if err == nil && !held {
		err = lock.ErrLost
	}
	return err
}

func (g *grant) release(ctx context.Context) (held bool, err error) {
	latch := keyed("redisson_unlock_latch", g.name) + ":" + g.field
	return releaseScript.Run(ctx, g.backend.client, []string{g.name, channel(g.name), latch},
		g.field, latchTime.Milliseconds()).Bool()
}
