// Package local locks within one process. It is the mutex of the broken
// strategy `mutex`: right alone, no use between two instances.
package local

import (
	"container/list"
	"context"
	"fmt"
	"sync"

	"github.com/holdfast-stock/holdfast/internal/lock"
)

// Locker is a lock.Locker for the goroutines of one process. It grants a name
// in the order in which it was asked for, never loses a lease, and remembers
// nothing of a name that is neither held nor waited for. Waiting costs no
// goroutine but the caller's.
type Locker struct {
	mu sync.Mutex
	// held has an entry for every held name: those who wait for it, in order.
	held map[string]*list.List
	// granted is the last fencing token. One counter serves all names, so that
	// a name's tokens go on rising though the name was forgotten meanwhile.
	granted uint64
}

var _ lock.Locker = (*Locker)(nil)

// New returns a Locker that holds no locks.
func New() *Locker { return &Locker{held: make(map[string]*list.List)} }

// waiter is granted the lock by its token, under the Locker's mutex.
type waiter struct {
	token   uint64 // 0: not granted
	granted chan struct{}
}

// Lock waits for the lock until ctx ends. Its only errors are ctx's.
func (l *Locker) Lock(ctx context.Context, name string) (lock.Lease, error) {
	if err := ctx.Err(); err != nil {
		return nil, failed(name, err)
	}
	l.mu.Lock()
	queue, held := l.held[name]
	if !held {
		defer l.mu.Unlock()
		return l.grant(ctx, name), nil
	}
	w := &waiter{granted: make(chan struct{})}
	place := queue.PushBack(w)
	l.mu.Unlock()

	select {
	case <-w.granted:
		return l.lease(ctx, name, w.token), nil
	case <-ctx.Done():
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if w.token != 0 {
		l.pass(name) // granted in the moment of giving up
	} else {
		queue.Remove(place)
	}
	return nil, failed(name, ctx.Err())
}

// TryLock takes the lock if nobody holds it. Its only errors are ctx's and
// lock.ErrHeld.
func (l *Locker) TryLock(ctx context.Context, name string) (lock.Lease, error) {
	if err := ctx.Err(); err != nil {
		return nil, failed(name, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, held := l.held[name]; held {
		return nil, failed(name, lock.ErrHeld)
	}
	return l.grant(ctx, name), nil
}

func failed(name string, err error) error { return fmt.Errorf("locking %s: %w", name, err) }

// grant takes a lock that nobody holds. l.mu is held.
func (l *Locker) grant(ctx context.Context, name string) *lease {
	l.held[name] = list.New()
	l.granted++
	return l.lease(ctx, name, l.granted)
}

// pass hands the lock to the next that waits for it. l.mu is held.
func (l *Locker) pass(name string) {
	queue := l.held[name]
	first := queue.Front()
	if first == nil {
		delete(l.held, name)
		return
	}
	w := queue.Remove(first).(*waiter)
	l.granted++
	w.token = l.granted
	close(w.granted)
}

func (l *Locker) lease(ctx context.Context, name string, token uint64) *lease {
	ctx, end := context.WithCancel(context.WithoutCancel(ctx))
	return &lease{locker: l, name: name, token: token, ctx: ctx, end: end}
}

type lease struct {
	locker *Locker
	name   string
	token  uint64
	ctx    context.Context
	end    context.CancelFunc
	once   sync.Once
}

func (l *lease) Context() context.Context { return l.ctx }

func (l *lease) Token() uint64 { return l.token }

// Unlock cannot fail: a lease ends by nothing else.
func (l *lease) Unlock(context.Context) error {
	l.once.Do(func() {
		l.end()
		l.locker.mu.Lock()
		defer l.locker.mu.Unlock()
		l.locker.pass(l.name)
	})
	return nil
}
