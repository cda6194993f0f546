// Package redis locks in Redis: in a single server, in a master with replicas, or in one slot of a
// cluster. It uses the protocol of Redisson's RLock, so that a Java service and this one exclude
// each other. These are its keys and channels:
//
//	NAME                              hash: UUID:NUMBER of the holder → 1; expires with the lease
//	redisson_lock__channel:{NAME}     receives the message 0 at each release
//	redisson_unlock_latch:{NAME}:UUID the holder that this instance released last, in case a release
//	                                  is sent again
//	holdfast_token:{NAME}             the last fencing token
//	holdfast_queue:{NAME}             sorted set: UUID:NUMBER of the waiters, by the time of their
//	                                  first refusal
//	holdfast_wake:UUID                receives the name of a lock for which this instance must ask
//	                                  again
//
// The numbers begin with 0, which distinguishes them from the thread IDs of Redisson.
//
// Only the first waiter of each process asks Redis. If it is refused, the same script puts it into
// the queue. A release wakes the first waiter in the queue, by a message to its instance. If that
// instance no longer listens, the release wakes the next one. A waiter that gives up after it was
// woken wakes the next. The first waiter, and every waiter that finds the lock held by Redisson,
// also listens to Redisson's channel. In a cluster, Redisson uses sharded channels, so there the
// messages are published and received in both ways.
//
// A message can be lost, because its receiver has died or is cut off. A waiter therefore asks again
// after two seconds at the latest. A connection on which nothing has arrived for three seconds, not
// even answers to pings, is replaced. The order of the queue is not a promise: the first request
// gets a free lock.
//
// A Redis that fails over, or restarts without its data, forgets locks that it has granted: two
// holders then have the same lock until the first lease ends. The fencing token is the greater of
// the last token plus one and the server's clock in microseconds, so tokens keep rising if only the
// counter is lost. Tokens fall back only if the counter is lost and the clock is also behind. A
// clock is behind if it is slow, was set back, or belongs to another server after a failover.
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
	// minLease is the shortest lease that can be renewed in time.
	minLease = 10 * time.Millisecond
	// callTimeout bounds one call to Redis.
	callTimeout = 2 * time.Second
	// latchTTL is how long Redis keeps the answer to a release.
	latchTTL = 15 * time.Second
	// placeTTL is how long a waiter keeps its place in the queue. The place of a dead waiter stays
	// no longer. A waiter that waits longer gets a new place, at the end.
	placeTTL = time.Minute
	// maxSleep is how long a waiter sleeps at most before it asks again.
	maxSleep = 2 * time.Second
	// tokenTTL is how long Redis keeps a token after its grant. Even after that, the clock makes
	// later tokens greater.
	tokenTTL = 24 * time.Hour
)

// Options configure a Locker. The zero value is valid.
type Options struct {
	// Lease is how long a lock outlives its holder; 0 means lock.DefaultLease. With
	// less than 10 ms, all requests fail.
	Lease time.Duration
	// Fixed leases are not renewed: they end after Lease even if the holder is alive. Other leases
	// are renewed while the holder is alive.
	Fixed bool
}

// Locker locks in Redis. Call Close when it is no longer used.
type Locker struct {
	lock.Locker
	backend *backend
}

// New returns a Locker on the client. Close does not close the client. A client
// without ContextTimeoutEnabled can delay the return of Lock and Unlock by seconds,
// but not the report of a lost lease.
func New(client goredis.UniversalClient, options Options) *Locker {
	if options.Lease == 0 {
		options.Lease = lock.DefaultLease
	}
	id := uuid.NewString()
	_, cluster := client.(*goredis.ClusterClient)
	b := &backend{
		client: client, lease: options.Lease, fixed: options.Fixed,
		id: id, cluster: cluster, maxSleep: maxSleep, releases: newSubscriptions(client, wakePrefix+id, cluster),
	}
	return &Locker{Locker: lock.New(b), backend: b}
}

// Close closes the connection that receives release messages. No caller may be
// waiting for a lock. Held leases stay valid until they are unlocked.
func (l *Locker) Close() error {
	l.backend.leftovers.Close()
	l.backend.releases.close()
	return nil
}

type backend struct {
	client   goredis.UniversalClient
	lease    time.Duration
	fixed    bool
	id       string // ID of this instance, like the ID of a Redisson client
	cluster  bool
	maxSleep time.Duration // maximum sleep of a waiter
	grants   atomic.Int64
	releases *subscriptions

	leftovers lock.Leftovers
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

func queueKey(name string) string { return lockKey("holdfast_queue", name) }

// wakePrefix followed by an instance's ID is the name of the instance's channel.
const wakePrefix = "holdfast_wake:"

func releaseChannel(name string) string { return lockKey("redisson_lock__channel", name) }

func (b *backend) Acquire(ctx context.Context, name string, wait bool, lost func(error)) (lock.Grant, error) {
	if err := b.checkLease(); err != nil {
		return nil, err
	}
	g := b.newGrant(name, lost)
	refused, err := g.try(ctx, request{waits: wait})
	switch {
	case err != nil:
		return nil, err
	case g.token == 0 && !wait:
		return nil, lock.ErrHeld
	case g.token == 0:
		if err := g.wait(ctx, refused); err != nil {
			return nil, err
		}
	}
	g.startWatchdog()
	return g, nil
}

// checkLease returns an error if the lease cannot be renewed in time.
func (b *backend) checkLease() error {
	if b.lease < minLease {
		return fmt.Errorf("a lease of %v is too short: at least %v is required", b.lease, minLease)
	}
	return nil
}

func (b *backend) newGrant(name string, lost func(error)) *grant {
	return &grant{backend: b, name: name, field: b.id + ":0" + strconv.FormatInt(b.grants.Add(1), 10), lost: lost}
}

// grant is a lock from its request to its release.
type grant struct {
	backend    *backend
	name       string
	field      string // field of the lock's hash
	place      int64  // place in the queue; 0: none yet
	lost       func(error)
	token      uint64 // 0: not granted yet
	handedOver bool   // the lock was handed over from another grant of this process

	mu            sync.Mutex
	until         time.Time // when the lease ends, at the earliest
	watchdog      *time.Timer
	stopped       bool
	cancelRenewal context.CancelFunc // cancels the last renewal; nil: the lease was not renewed
}

func (g *grant) Token() uint64 { return g.token }

func (g *grant) Until() time.Time {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.until
}

// request holds the details of a grant's request for the lock.
type request struct {
	waits bool   // if the grant is refused, it gets a place in the queue
	from  string // the field of the grant that is handed over; empty: no grant is handed over
}

// refusal is the answer to a request for a lock that is held.
type refusal struct {
	remaining time.Duration // the time after which the lock may be free; negative: unknown
	listen    bool          // the waiter must listen to Redisson's channel
}

// try asks for the lock once. If the lock is held, g.token is 0 afterwards. After an
// error, try removes what it can of the request.
func (g *grant) try(ctx context.Context, r request) (refused refusal, err error) {
	defer func() {
		if err != nil {
			g.cleanUp(ctx)
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var (
		placeMillis int64
		yield       yield
	)
	if r.waits {
		placeMillis = placeTTL.Milliseconds()
		yield = g.backend.releases.yield(releaseChannel(g.name))
	}
	asked := time.Now()
	answer, err := acquireScript.Run(ctx, g.backend.client, []string{g.name, tokenKey(g.name), queueKey(g.name)},
		g.field, g.backend.lease.Milliseconds(), tokenTTL.Milliseconds(), r.from, placeMillis, g.place, yield.token).Int64Slice()
	switch {
	case err != nil:
		return refusal{}, err
	case len(answer) == 2 && answer[0] == 1:
		g.token, g.until = uint64(answer[1]), asked.Add(g.backend.lease) // g is not shared yet
		return refusal{}, nil
	case len(answer) == 4 && answer[0] == 0:
		g.place = answer[2]
		refused = refusal{remaining: time.Duration(answer[1]) * time.Millisecond, listen: answer[3] == 1}
		if answer[1] == -2 {
			refused.remaining = max(time.Until(yield.until), 0)
		}
		return refused, nil
	}
	return refusal{}, fmt.Errorf("acquire.lua returned %v", answer)
}

// wait tries again whenever the waiter is woken, and when the holder's lease should
// have ended.
func (g *grant) wait(ctx context.Context, refused refusal) (err error) {
	releases := g.backend.releases.wait(releaseChannel(g.name))
	defer releases.leave()
	for g.token == 0 {
		releases.listen(refused.listen)
		sleep := g.backend.maxSleep
		if refused.remaining >= 0 {
			sleep = min(sleep, refused.remaining+time.Millisecond)
		}
		timer := time.NewTimer(sleep)
		select {
		case <-releases.notified:
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			g.cleanUp(ctx)
			return ctx.Err()
		}
		timer.Stop()
		if refused, err = g.try(ctx, request{waits: true}); err != nil {
			return err
		}
	}
	return nil
}

// cleanUp removes the traces of a failed request from Redis, and its place in the queue.
func (g *grant) cleanUp(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer cancel()
	if _, err := g.release(ctx); err != nil {
		g.releaseLater()
	}
}

// releaseLater releases the grant once Redis answers again.
func (g *grant) releaseLater() { g.backend.leftovers.Add(time.Now().Add(g.backend.lease), g.release) }

// HandOver replaces g with another grant in one request.
func (g *grant) HandOver(ctx context.Context, lost func(error)) (lock.Grant, error) {
	g.stopWatchdog()
	next := g.backend.newGrant(g.name, lost)
	next.handedOver = true
	switch _, err := next.try(ctx, request{from: g.field}); {
	case err != nil: // it is unknown which of the two grants has the lock, and next is cleaned up already
		g.cleanUp(ctx)
		return nil, err
	case next.token == 0:
		return nil, lock.ErrDeleted
	}
	next.startWatchdog()
	return next, nil
}

func (g *grant) Release(ctx context.Context) error {
	g.stopWatchdog()
	held, err := g.release(ctx)
	switch {
	case err != nil:
		g.releaseLater()
	case !held:
		err = lock.ErrDeleted
	}
	return err
}

func (g *grant) release(ctx context.Context) (held bool, err error) {
	latch := lockKey("redisson_unlock_latch", g.name) + ":" + g.backend.id
	channel := releaseChannel(g.name)
	answer, err := releaseScript.Run(ctx, g.backend.client, []string{g.name, channel, latch, queueKey(g.name)},
		g.field, latchTTL.Milliseconds(), wakePrefix, g.backend.cluster).Int64Slice()
	if err != nil {
		return false, err
	}
	if len(answer) != 3 {
		return false, fmt.Errorf("release.lua returned %v", answer)
	}
	receivers := answer[2]
	if !g.handedOver { // otherwise this process has given its own waiters enough turns
		receivers = 0
	}
	g.backend.releases.noteRelease(channel, g.token, answer[1] == 1, receivers)
	return answer[0] == 1, nil
}
