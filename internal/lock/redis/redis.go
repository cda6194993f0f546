// Package redis locks in Redis: in a single server, in a master with replicas, or
// in one slot of a cluster. It uses the protocol of Redisson's RLock, so that a
// Java service and this one exclude each other. These are its keys and channels:
//
//	NAME                              hash: UUID:NUMBER of the holder → 1; expires with the lease
//	redisson_lock__channel:{NAME}     receives the message 0 at each release
//	redisson_unlock_latch:{NAME}:UUID the holder that this instance released last, in case a release is sent again
//	holdfast_token:{NAME}             the last fencing token
//
// Only the first waiter of each process asks Redis. It sleeps until a release is
// published or the holder's lease has run out.
//
// A Redis that fails over, or restarts without its data, forgets locks that it
// has granted: two holders then have the same lock until the first lease ends.
// The fencing token is the greater of the last token plus one and the server's
// clock in microseconds, so tokens keep rising if only the counter is lost. They
// fall back if the counter is lost and the clock is also behind: because it is
// slow, was set back, or belongs to another server after a failover.
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
	// renewalsPerLease is how many times a lease is renewed within its length.
	renewalsPerLease = 3
	// callTimeout bounds one call to Redis.
	callTimeout = 2 * time.Second
	// latchTTL is how long Redis keeps the answer to a release.
	latchTTL = 15 * time.Second
	// tokenTTL is how long Redis keeps a token after its grant. The clock makes
	// later tokens greater even without it.
	tokenTTL = 24 * time.Hour
)

// Options configure a Locker. The zero value is valid.
type Options struct {
	// Lease is how long a lock outlives its holder. It must be at least 10 ms;
	// 0 means lock.DefaultLease.
	Lease time.Duration
	// Fixed leases are not renewed: they end after Lease even if their holder
	// lives. Other leases are renewed while their holder lives.
	Fixed bool
}

// Locker locks in Redis. Call Close when it is no longer used.
type Locker struct {
	lock.Locker
	backend *backend
}

// New returns a Locker on the client. Close does not close the client.
func New(client goredis.UniversalClient, options Options) *Locker {
	if options.Lease == 0 {
		options.Lease = lock.DefaultLease
	}
	b := &backend{
		client: client, lease: options.Lease, fixed: options.Fixed,
		id: uuid.NewString(), releases: newSubscriptions(client),
	}
	return &Locker{Locker: lock.New(b), backend: b}
}

// Close closes the connection that receives release messages. No caller may be
// waiting for a lock. Held leases stay valid until they are unlocked.
func (l *Locker) Close() error { return l.backend.releases.close() }

type backend struct {
	client   goredis.UniversalClient
	lease    time.Duration
	fixed    bool
	id       string // of this instance, like the ID of a Redisson client
	grants   atomic.Int64
	releases *subscriptions
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

// lockKey returns prefix and the lock's name as one key, as Redisson does. The
// key is in the hash slot of the lock.
func lockKey(prefix, name string) string {
	if strings.Contains(name, "{") {
		return prefix + ":" + name
	}
	return prefix + ":{" + name + "}"
}

func tokenKey(name string) string { return lockKey("holdfast_token", name) }

func releaseChannel(name string) string { return lockKey("redisson_lock__channel", name) }

func (b *backend) Acquire(ctx context.Context, name string, wait bool, lost func()) (lock.Grant, error) {
	g := b.newGrant(name, lost)
	if wait {
		b.releases.yield(ctx, releaseChannel(name))
	}
	remaining, err := g.try(ctx)
	if err == nil && g.token == 0 && wait {
		err = g.wait(ctx, remaining)
	}
	switch {
	case err != nil:
		return nil, err
	case g.token == 0:
		return nil, lock.ErrHeld
	}
	g.startWatchdog()
	return g, nil
}

func (b *backend) newGrant(name string, lost func()) *grant {
	return &grant{backend: b, name: name, field: b.id + ":" + strconv.FormatInt(b.grants.Add(1), 10), lost: lost}
}

// grant is a lock from its request to its release.
type grant struct {
	backend    *backend
	name       string
	field      string // of the lock's hash
	lost       func()
	token      uint64    // 0: not granted yet
	until      time.Time // when the lease ends, at the earliest
	handedOver bool      // received from another grant of this process

	mu            sync.Mutex
	watchdog      *time.Timer
	stopped       bool
	cancelRenewal context.CancelFunc // of the last renewal; nil: there was none
	renewals      sync.WaitGroup
}

func (g *grant) Token() uint64 { return g.token }

// try asks for the lock once. With from, the field of another grant, it takes
// the lock over from that grant.
//
// If the lock is held, g.token is 0 afterwards and remaining is how long the
// holder's lease lasts at most; negative: it has no end. After an error, try
// removes what it can of the request.
func (g *grant) try(ctx context.Context, from ...any) (remaining time.Duration, err error) {
	defer func() {
		if err != nil {
			g.cleanUp(ctx)
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	asked := time.Now()
	answer, err := acquireScript.Run(ctx, g.backend.client, []string{g.name, tokenKey(g.name)},
		append([]any{g.field, g.backend.lease.Milliseconds(), tokenTTL.Milliseconds()}, from...)...).Int64Slice()
	if err != nil {
		return 0, err
	}
	if len(answer) != 2 {
		return 0, fmt.Errorf("acquire.lua returned %v", answer)
	}
	if answer[0] == 1 {
		g.token, g.until = uint64(answer[1]), asked.Add(g.backend.lease)
		return 0, nil
	}
	return time.Duration(answer[1]) * time.Millisecond, nil
}

// wait tries again whenever the lock is released or its lease should have ended.
func (g *grant) wait(ctx context.Context, remaining time.Duration) (err error) {
	releases := g.backend.releases.wait(ctx, releaseChannel(g.name))
	defer releases.leave()
	for g.token == 0 {
		if remaining < 0 { // a foreign lock without an expiry
			remaining = g.backend.lease / renewalsPerLease
		}
		timer := time.NewTimer(remaining + time.Millisecond)
		select {
		case <-releases.notified:
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
		timer.Stop()
		if remaining, err = g.try(ctx); err != nil {
			return err
		}
	}
	return nil
}

// cleanUp removes what a request without an answer may have left in Redis.
func (g *grant) cleanUp(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer cancel()
	_, _ = g.release(ctx) // if it fails, the lock ends with its lease
}

// startWatchdog starts the timer that renews the lease, or ends it if it is
// fixed.
func (g *grant) startWatchdog() {
	wait := time.Until(g.until)
	if !g.backend.fixed {
		wait = min(wait, g.backend.lease/renewalsPerLease)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.stopped {
		g.watchdog = time.AfterFunc(wait, g.runWatchdog)
	}
}

// runWatchdog renews the lease and starts the timer again, or reports that the
// lease was lost.
func (g *grant) runWatchdog() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	g.mu.Lock()
	if g.stopped {
		g.mu.Unlock()
		return
	}
	g.cancelRenewal = cancel
	g.renewals.Add(1)
	g.mu.Unlock()
	defer g.renewals.Done()
	if g.renew(ctx) {
		g.startWatchdog()
	} else if ctx.Err() == nil {
		g.lost()
	}
}

// stopWatchdog returns when no renewal is under way and none will start.
func (g *grant) stopWatchdog() {
	g.mu.Lock()
	g.stopped = true
	g.watchdog.Stop()
	if g.cancelRenewal != nil {
		g.cancelRenewal()
	}
	g.mu.Unlock()
	g.renewals.Wait()
}

// renew renews the lease. It retries after errors until the lease ends, and
// reports whether the lease was renewed.
func (g *grant) renew(ctx context.Context) bool {
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
		select {
		case <-ctx.Done():
			return false
		case <-time.After(min(g.backend.lease/(10*renewalsPerLease), time.Until(g.until))):
		}
	}
	return false
}

// HandOver replaces g by another grant in one request.
func (g *grant) HandOver(ctx context.Context, lost func()) (lock.Grant, error) {
	g.stopWatchdog()
	next := g.backend.newGrant(g.name, lost)
	next.handedOver = true
	switch _, err := next.try(ctx, g.field); {
	case err != nil: // it is unknown which of the two has the lock: next is cleaned up already
		g.cleanUp(ctx)
		return nil, err
	case next.token == 0:
		return nil, lock.ErrLost
	}
	next.startWatchdog()
	return next, nil
}

func (g *grant) Release(ctx context.Context) error {
	g.stopWatchdog()
	held, err := g.release(ctx)
	if err == nil && !held {
		err = lock.ErrLost
	}
	return err
}

func (g *grant) release(ctx context.Context) (held bool, err error) {
	latch := lockKey("redisson_unlock_latch", g.name) + ":" + g.backend.id
	channel := releaseChannel(g.name)
	answer, err := releaseScript.Run(ctx, g.backend.client, []string{g.name, channel, latch},
		g.field, latchTTL.Milliseconds()).Int64Slice()
	if err != nil {
		return false, err
	}
	if len(answer) != 2 {
		return false, fmt.Errorf("release.lua returned %v", answer)
	}
	if g.handedOver { // the waiters of this process have had their turn
		g.backend.releases.noteRelease(channel, answer[1])
	}
	return answer[0] == 1, nil
}
