// Package redlock locks in several independent Redis servers at once, with the library redsync. The
// holder of a lock is the one that has it in a majority of the servers. See
// https://redis.io/docs/latest/develop/use/patterns/distributed-locks/.
//
// A minority of the servers may fail. Without a majority no lock is granted. The algorithm has no
// fencing token, so a holder that outlives its lease cannot be told from the next holder. Work that
// must not be done twice needs another backend.
//
// Waiters are not notified of a release: the first waiter of each process asks again every 20 to 80
// ms. Processes get a lock in no particular order.
package redlock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/google/uuid"
	goredis9 "github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/lock/address"
	"github.com/holdfast-stock/holdfast/internal/retry"
)

const (
	// renewalsPerLease is how many times a lease is renewed within its length.
	renewalsPerLease = 3
	// minPause and maxPause bound the pause before a waiter asks again.
	minPause, maxPause = 20 * time.Millisecond, 80 * time.Millisecond
	// cleanUpTimeout bounds deleting the traces of a failed request.
	cleanUpTimeout = 2 * time.Second
)

// CheckAddress returns an error if the list of servers (h1:p1,h2:p2,h3:p3) is invalid.
func CheckAddress(text string) error {
	a, err := address.Parse(text)
	switch {
	case err != nil:
		return err
	case a.User != "" || a.Path != "":
		return errors.New("only servers are allowed, as in h1:p1,h2:p2,h3:p3")
	}
	return checkNumber(len(a.Servers))
}

func checkNumber(servers int) error {
	if servers < 3 || servers%2 == 0 {
		return fmt.Errorf("%d servers; an odd number of at least 3 is required", servers)
	}
	return nil
}

// Locker locks in several Redis servers. Call Close when it is no longer used.
type Locker struct {
	lock.Locker
	backend *backend
}

// Close ends the Locker's requests to servers that did not answer. Held leases stay valid
// until they are unlocked.
func (l *Locker) Close() error {
	l.backend.leftovers.Close()
	return nil
}

// New returns a Locker on the clients. Their servers must be independent of each
// other, and their number must be odd and at least 3. lease is how long a lock can
// outlive its holder; 0 means lock.DefaultLease. The caller closes the clients.
func New(clients []goredis9.UniversalClient, lease time.Duration) (*Locker, error) {
	if err := checkNumber(len(clients)); err != nil {
		return nil, fmt.Errorf("redlock: %w", err)
	}
	if lease == 0 {
		lease = lock.DefaultLease
	}
	pools := make([]redis.Pool, len(clients))
	for i, client := range clients {
		pools[i] = goredis.NewPool(client)
	}
	b := &backend{redsync: redsync.New(pools...), lease: lease, quorum: len(clients)/2 + 1}
	return &Locker{Locker: lock.New(b), backend: b}, nil
}

type backend struct {
	redsync   *redsync.Redsync
	lease     time.Duration
	quorum    int
	leftovers lock.Leftovers
}

// Acquire need not report losses: a lease of Redlock is only lost by its end.
func (b *backend) Acquire(ctx context.Context, name string, wait bool, _ func(error)) (lock.Grant, error) {
	for {
		value := uuid.NewString()
		mutex := b.redsync.NewMutex(name, redsync.WithExpiry(b.lease),
			redsync.WithValue(value), redsync.WithGenValueFunc(func() (string, error) { return value, nil }))
		err := mutex.TryLockContext(ctx)
		if err == nil {
			g := &grant{backend: b, mutex: mutex, until: mutex.Until()}
			g.watch()
			return g, nil
		}
		if ctx.Err() != nil { // redsync has tried to clean up on the ended context
			b.cleanUp(ctx, mutex)
			return nil, ctx.Err()
		}
		if unanswered(err) >= b.quorum {
			b.cleanUp(ctx, mutex)
			return nil, fmt.Errorf("a majority of the servers does not answer: %v", err) // not %w: the timeout of a server is not that of ctx
		}
		if !wait {
			return nil, lock.ErrHeld
		}
		if err := retry.Sleep(ctx, minPause+rand.N(maxPause-minPause)); err != nil {
			return nil, err
		}
	}
}

// cleanUp deletes the traces of a failed request.
func (b *backend) cleanUp(ctx context.Context, mutex *redsync.Mutex) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUpTimeout)
	defer cancel()
	if _, err := b.unlock(ctx, mutex); err != nil {
		b.unlockLater(mutex)
	}
}

// unlock frees the lock. An error means that a majority of the servers has not answered.
func (b *backend) unlock(ctx context.Context, mutex *redsync.Mutex) (held bool, err error) {
	held, err = mutex.UnlockContext(ctx)
	if unanswered(err) < b.quorum {
		err = nil
	}
	return held, err
}

// unlockLater frees the lock once the servers answer again.
func (b *backend) unlockLater(mutex *redsync.Mutex) {
	b.leftovers.Add(time.Now().Add(b.lease), func(ctx context.Context) (bool, error) { return b.unlock(ctx, mutex) })
}

// unanswered returns how many servers gave no answer, by the error of redsync.
func unanswered(err error) int {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		n := 0
		for _, err := range joined.Unwrap() {
			n += unanswered(err)
		}
		return n
	}
	var server *redsync.RedisError
	if errors.As(err, &server) {
		return 1
	}
	return 0
}

type grant struct {
	backend *backend
	mutex   *redsync.Mutex

	mu    sync.Mutex
	until time.Time // when the lease ends, at the earliest

	stopWatching context.CancelFunc
	watching     sync.WaitGroup
}

func (g *grant) Token() uint64 { return 0 }

func (g *grant) Until() time.Time {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.until
}

// watch renews the lease until the grant is released, or the lease has ended.
func (g *grant) watch() {
	ctx, stop := context.WithCancel(context.Background())
	g.stopWatching = stop
	g.watching.Go(func() {
		for retry.Sleep(ctx, g.backend.lease/renewalsPerLease) == nil && g.renew(ctx) {
		}
	})
}

// renew renews the lease. It retries after failures until the lease ends, and
// reports whether the lease was renewed.
func (g *grant) renew(ctx context.Context) bool {
	until := g.Until()
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	for {
		renewed, _ := g.mutex.ExtendContext(ctx)
		if !time.Now().Before(until) {
			return false // stop even if this call has renewed the lease, because the holder has seen it end
		}
		if renewed {
			g.mu.Lock()
			g.until = g.mutex.Until()
			g.mu.Unlock()
			return true
		}
		if retry.Sleep(ctx, g.backend.lease/(10*renewalsPerLease)) != nil {
			return false
		}
	}
}

func (g *grant) Release(ctx context.Context) error {
	g.stopWatching()
	g.watching.Wait()
	held, err := g.backend.unlock(ctx, g.mutex)
	switch {
	case err != nil:
		g.backend.unlockLater(g.mutex)
	case !held:
		err = lock.ErrDeleted
	}
	return err
}
