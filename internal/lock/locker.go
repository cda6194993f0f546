package lock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// New returns a Locker on the backend.
func New(b Backend) Locker { return newLocker(b) }

func newLocker(b Backend) *locker {
	return &locker{backend: b, holds: make(map[holdKey]*hold)}
}

type locker struct {
	backend Backend
	queue   queue

	mu    sync.Mutex
	holds map[holdKey]*hold // holds of owners: acquired, or being acquired
}

type holdKey struct{ owner, name string }

func (l *locker) Lock(ctx context.Context, name string) (Lease, error) {
	return l.lock(ctx, name, true)
}

func (l *locker) TryLock(ctx context.Context, name string) (Lease, error) {
	return l.lock(ctx, name, false)
}

func lockingError(name string, err error) error { return fmt.Errorf("locking %s: %w", name, err) }

func (l *locker) lock(ctx context.Context, name string, wait bool) (Lease, error) {
	if err := CheckName(name); err != nil {
		return nil, err
	}
	for {
		if err := ctx.Err(); err != nil {
			return nil, lockingError(name, err)
		}
		h, isNew := l.hold(ownerOf(ctx), name)
		var err error
		if isNew {
			err = h.acquire(ctx, wait)
		} else {
			err = h.awaitDecision(ctx, wait)
		}
		if err != nil {
			return nil, lockingError(name, err)
		}
		if lease := h.lease(ctx); lease != nil {
			return lease, nil
		}
		// The owner's hold has ended, or its request failed: request the lock again.
	}
}

// hold returns the owner's hold of the name. If there is none it returns a new
// hold, which the caller must acquire.
func (l *locker) hold(owner, name string) (h *hold, isNew bool) {
	h = &hold{locker: l, key: holdKey{owner, name}, decided: make(chan struct{}), leases: make(map[*lease]bool)}
	if owner == "" {
		return h, true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if held := l.holds[h.key]; held != nil {
		return held, false
	}
	l.holds[h.key] = h
	return h, true
}

// hold is one grant of the backend, and the leases of its owner that share it.
type hold struct {
	locker  *locker
	key     holdKey
	decided chan struct{} // closed when acquire has returned

	mu        sync.Mutex
	grant     Grant       // nil: not acquired
	lost      error       // why the lock was lost; nil: the lock was not lost
	expiry    *time.Timer // timer of an ExpiringGrant, otherwise nil
	watch     *time.Timer // timer of a WatchedGrant, otherwise nil
	unwatch   func()      // ends the watch; nil: the watch has not begun
	ended     bool        // the lock was lost, or the last lease was unlocked
	leased    bool        // lease has returned a lease
	handovers int         // how many times in a row the lock was handed over within the process
	since     time.Time
	leases    map[*lease]bool
}

// awaitDecision waits until another goroutine of the owner has acquired the hold or failed to
// acquire it.
func (h *hold) awaitDecision(ctx context.Context, wait bool) error {
	if !wait {
		select {
		case <-h.decided:
			return nil
		default:
			return ErrHeld
		}
	}
	select {
	case <-h.decided:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// acquire waits for the hold's turn in the process and then takes the lock from
// the backend.
func (h *hold) acquire(ctx context.Context, wait bool) (err error) {
	l, name := h.locker, h.key.name
	defer close(h.decided)
	defer func() {
		if err != nil {
			h.forget()
		}
	}()
	if !wait {
		if !l.queue.tryEnter(name, h) {
			return ErrHeld
		}
	} else if err := l.queue.enter(ctx, name, h); err != nil {
		return err
	}
	if h.hasReceived() {
		return nil
	}
	grant, err := l.backend.Acquire(ctx, name, wait, h.lose)
	if err != nil {
		h.leaveQueue()
		if ctxErr := contextError(ctx); ctxErr != nil && !errors.Is(err, ErrHeld) {
			return ctxErr // a client library may have wrapped or replaced ctx's error
		}
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.setGrant(grant, time.Now())
	return nil
}

// setGrant gives h the grant, which the process has had since the given time. The caller holds
// h.mu.
func (h *hold) setGrant(g Grant, since time.Time) {
	h.grant, h.since = g, since
	if g, ok := g.(ExpiringGrant); ok && !h.ended {
		h.expiry = time.AfterFunc(time.Until(g.Until()), func() { h.expire(g) })
	}
	if g, ok := g.(WatchedGrant); ok && !h.ended {
		h.watch = time.AfterFunc(watchDelay, func() { h.watchGrant(g) })
	}
}

// contextError returns ctx's error. It also checks the deadline itself: a connection deadline taken
// from ctx can pass a moment before ctx ends.
func contextError(ctx context.Context) error {
	if deadline, ok := ctx.Deadline(); ok && !time.Now().Before(deadline) {
		return context.DeadlineExceeded
	}
	return ctx.Err()
}

// hasReceived reports whether the previous hold has handed its grant over.
func (h *hold) hasReceived() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.grant != nil
}

// forget makes the owner's next request create a new hold.
func (h *hold) forget() {
	if h.key.owner == "" {
		return
	}
	h.locker.mu.Lock()
	defer h.locker.mu.Unlock()
	if h.locker.holds[h.key] == h {
		delete(h.locker.holds, h.key)
	}
}

// end marks h as ended and stops watching its grant. The caller holds h.mu.
func (h *hold) end() {
	h.ended = true
	if h.expiry != nil {
		h.expiry.Stop()
	}
	if h.watch != nil {
		h.watch.Stop()
	}
	if h.unwatch != nil {
		h.unwatch()
	}
}

// leaveQueue gives the turn to the next waiter of the process. It does nothing
// if h no longer has the turn.
func (h *hold) leaveQueue() { h.locker.queue.leave(h.key.name, h) }

// lease adds a lease to the hold. It returns nil if the hold has ended. The first
// lease is returned even then, so that its Unlock frees the grant.
func (h *hold) lease(ctx context.Context) *lease {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.grant == nil || h.ended && h.leased {
		return nil
	}
	h.leased = true
	l := &lease{hold: h}
	l.ctx, l.end = context.WithCancelCause(context.WithoutCancel(ctx))
	h.leases[l] = true
	if h.lost != nil {
		l.end(h.lost)
	}
	return l
}
