// Package redlock locks in several independent Redis servers at once, by
// redsync: whoever has the lock in most of them has it. See
// https://redis.io/docs/latest/develop/use/patterns/distributed-locks/.
//
// A minority of the servers may be lost. With most of them lost nothing is
// granted. The algorithm gives no fencing token, so a holder that outlives its
// lease cannot be told from the next one: what must not be done twice needs
// another backend.
//
// Nothing announces a release: the first waiter of each process asks again and
// again, 20 to 80 ms apart, and no order is kept between processes.
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
	// renewals is how many times a lease is renewed before it would end.
	renewals = 3
	// pauseLeast and pauseMost bound the pause before a waiter asks again.
	pauseLeast, pauseMost = 20 * time.Millisecond, 80 * time.Millisecond
	// cleanUpTimeout bounds removing what an attempt may have left.
	cleanUpTimeout = 2 * time.Second
)

// New returns a Locker on the clients of servers that know nothing of each
// other, at least three and an odd number. A lock outlives its holder by lease
// at the most; 0: lock.DefaultLease. The clients stay the caller's.
func New(clients []goredis9.UniversalClient, lease time.Duration) (lock.Locker, error) {
	if len(clients) < 3 || len(clients)%2 == 0 {
		return nil, fmt.Errorf("redlock needs an odd number of independent servers, at least 3, and has %d", len(clients))
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
		if ctx.Err() != nil { // then redsync has cleaned up on an ended context
			b.cleanUp(ctx, mutex)
			return nil, ctx.Err()
		}
		if silent(err) >= b.quorum {
			b.cleanUp(ctx, mutex)
			return nil, fmt.Errorf("most servers do not answer: %w", err)
		}
		if !wait {
			return nil, lock.ErrHeld
		}
		timer := time.NewTimer(pauseLeast + rand.N(pauseMost-pauseLeast))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, ctx.Err()
		}
	}
}

func (b *backend) cleanUp(ctx context.Context, mutex *redsync.Mutex) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUpTimeout)
	defer cancel()
	_, _ = mutex.UnlockContext(ctx) // what it misses ends with its lease
}

// silent counts the servers that gave no answer.
func silent(err error) int {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		n := 0
		for _, err := range joined.Unwrap() {
			n += silent(err)
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
	stop    context.CancelFunc
	watched sync.WaitGroup
}

func (g *grant) Token() uint64 { return 0 }

// watch extends the lease while its holder lives, and reports when it is lost.
func (g *grant) watch() {
	ctx, stop := context.WithCancel(context.Background())
	g.stop = stop
	g.watched.Go(func() {
		for {
			timer := time.NewTimer(min(g.backend.lease/renewals, time.Until(g.mutex.Until())))
			select {
			case <-ctx.Done():
				timer.Stop()
				return
			case <-timer.C:
			}
			if !g.extended(ctx) {
				if ctx.Err() == nil {
					g.lost()
				}
				return
			}
		}
	})
}

// extended reports whether the lease goes on. A failure may pass before the
// lease ends.
func (g *grant) extended(ctx context.Context) bool {
	for until := g.mutex.Until(); time.Now().Before(until); {
		call, cancel := context.WithDeadline(ctx, until)
		extended, _ := g.mutex.ExtendContext(call)
		cancel()
		if extended {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(min(g.backend.lease/(10*renewals), time.Until(until))):
		}
	}
	return false
}

func (g *grant) Release(ctx context.Context) error {
	g.stop()
	g.watched.Wait()
	released, err := g.mutex.UnlockContext(ctx)
	if !released && (err == nil || silent(err) < g.backend.quorum) {
		return lock.ErrLost
	}
	if released {
		return nil
	}
	return err
}
