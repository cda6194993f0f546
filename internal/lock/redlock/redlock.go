// Package redlock locks in several independent Redis servers at once, with the
// library redsync. The holder of a lock is the one that has it in a majority of
// the servers. See
// https://redis.io/docs/latest/develop/use/patterns/distributed-locks/.
//
// A minority of the servers may fail. Without a majority no lock is granted. The
// algorithm has no fencing token, so a holder that outlives its lease cannot be
// told from the next holder. Work that must not be done twice needs another
// backend.
//
// A release is not announced. The first waiter of each process asks again every 20
// to 80 ms. Processes are granted a lock in no particular order.
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
)

const (
	// renewalsPerLease is how many times a lease is renewed within its length.
	renewalsPerLease = 3
	// minPause and maxPause bound the pause before a waiter asks again.
	minPause, maxPause = 20 * time.Millisecond, 80 * time.Millisecond
	// cleanUpTimeout bounds deleting what a failed request may have left.
	cleanUpTimeout = 2 * time.Second
)

// New returns a Locker on the clients. Their servers must be independent of each
// other, and their number must be odd and at least 3. lease is how long a lock can
// outlive its holder; 0 means lock.DefaultLease. The caller closes the clients.
func New(clients []goredis9.UniversalClient, lease time.Duration) (lock.Locker, error) {
	if len(clients) < 3 || len(clients)%2 == 0 {
		return nil, fmt.Errorf("redlock needs an odd number of independent servers, at least 3, but has %d", len(clients))
	}
	if lease == 0 {
		lease = lock.DefaultLease
	}
	pools := make([]redis.Pool, len(clients))
	for i, client := range clients {
		pools[i] = goredis.NewPool(client)
	}
	return lock.New(&backend{redsync: redsync.New(pools...), lease: lease, quorum: len(clients)/2 + 1}), nil
}

type backend struct {
	redsync *redsync.Redsync
	lease   time.Duration
	quorum  int
}

func (b *backend) Acquire(ctx context.Context, name string, wait bool, lost func()) (lock.Grant, error) {
	for {
		value := uuid.NewString()
		mutex := b.redsync.NewMutex(name, redsync.WithExpiry(b.lease),
			redsync.WithValue(value), redsync.WithGenValueFunc(func() (string, error) { return value, nil }))
		err := mutex.TryLockContext(ctx)
		if err == nil {
			g := &grant{backend: b, mutex: mutex, lost: lost}
			g.watch()
			return g, nil
		}
		if ctx.Err() != nil { // redsync has tried to clean up on the ended context
			b.cleanUp(ctx, mutex)
			return nil, ctx.Err()
		}
		if unanswered(err) >= b.quorum {
			b.cleanUp(ctx, mutex)
			return nil, fmt.Errorf("a majority of the servers does not answer: %w", err)
		}
		if !wait {
			return nil, lock.ErrHeld
		}
		timer := time.NewTimer(minPause + rand.N(maxPause-minPause))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, ctx.Err()
		}
	}
}

// cleanUp deletes what a failed request may have left.
func (b *backend) cleanUp(ctx context.Context, mutex *redsync.Mutex) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUpTimeout)
	defer cancel()
	_, _ = mutex.UnlockContext(ctx) // if it fails, the rest ends with its lease
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
	lost    func()

	stopWatching context.CancelFunc
	watching     sync.WaitGroup
}

func (g *grant) Token() uint64 { return 0 }

// watch renews the lease until the grant is released, and reports when the lease
// is lost.
func (g *grant) watch() {
	ctx, stop := context.WithCancel(context.Background())
	g.stopWatching = stop
	g.watching.Go(func() {
		for {
			timer := time.NewTimer(min(g.backend.lease/renewalsPerLease, time.Until(g.mutex.Until())))
			select {
			case <-ctx.Done():
				timer.Stop()
				return
			case <-timer.C:
			}
			if !g.renew(ctx) {
				if ctx.Err() == nil {
					g.lost()
				}
				return
			}
		}
	})
}

// renew renews the lease. It retries after failures until the lease ends, and
// reports whether the lease was renewed.
func (g *grant) renew(ctx context.Context) bool {
	for until := g.mutex.Until(); time.Now().Before(until); {
		call, cancel := context.WithDeadline(ctx, until)
		renewed, _ := g.mutex.ExtendContext(call)
		cancel()
		if renewed {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(min(g.backend.lease/(10*renewalsPerLease), time.Until(until))):
		}
	}
	return false
}

func (g *grant) Release(ctx context.Context) error {
	g.stopWatching()
	g.watching.Wait()
	released, err := g.mutex.UnlockContext(ctx)
	switch {
	case released:
		return nil
	case err == nil || unanswered(err) < g.backend.quorum:
		return lock.ErrLost
	}
	return err
}
