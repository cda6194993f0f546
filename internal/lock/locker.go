package lock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// releaseTimeout bounds how long Unlock may take to free the lock.
const releaseTimeout = 3 * time.Second

// New returns a Locker on the backend.
func New(b Backend) Locker { return newLocker(b) }

func newLocker(b Backend) *locker {
	return &locker{backend: b, holds: make(map[holdKey]*hold)}
}

// watchDelay is how long a lock must be held before its grant is watched. Locks that
// are held for less cost their servers no watch.
const watchDelay = 250 * time.Millisecond

type locker struct {
	backend Backend
	queue   queue

	mu    sync.Mutex
	holds map[holdKey]*hold // of owners: acquired, or being acquired
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
		// The owner's hold ended meanwhile, or its request failed: ask again.
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
	lost      error       // why the lock was lost; nil: it was not
	expiry    *time.Timer // of an ExpiringGrant, otherwise nil
	watch     *time.Timer // of a WatchedGrant, otherwise nil
	unwatch   func()      // ends the watch; nil: it has not begun
	ended     bool        // lost, or the last lease was unlocked
	leased    bool        // lease has returned a lease
	handovers int         // how many times in a row the lock was handed over within the process
	since     time.Time
	leases    map[*lease]bool
}

// awaitDecision waits until another goroutine of the owner has acquired the hold,
// or has failed to.
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
			return ctxErr // a client library may have wrapped or replaced it
		}
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.setGrant(grant, time.Now())
	return nil
}

// setGrant gives h the grant, which the process has had since then. The caller
// holds h.mu.
func (h *hold) setGrant(g Grant, since time.Time) {
	h.grant, h.since = g, since
	if g, ok := g.(ExpiringGrant); ok && !h.ended {
		h.expiry = time.AfterFunc(time.Until(g.Until()), func() { h.expire(g) })
	}
	if g, ok := g.(WatchedGrant); ok && !h.ended {
		h.watch = time.AfterFunc(watchDelay, func() { h.watchGrant(g) })
	}
}

// watchGrant ends the leases when the servers no longer have the grant.
func (h *hold) watchGrant(g WatchedGrant) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	h.mu.Lock()
	h.unwatch = cancel
	ended := h.ended
	h.mu.Unlock()
	if ended {
		return
	}
	if reason := g.Watch(ctx); ctx.Err() == nil {
		h.lose(reason)
	}
}

// expire ends the leases if the grant's lease has ended. If the lease was renewed
// meanwhile, expire is called again at its new end.
func (h *hold) expire(g ExpiringGrant) {
	left := time.Until(g.Until())
	if left <= 0 {
		h.lose(ErrExpired)
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.ended {
		h.expiry.Reset(left)
	}
}

// contextError returns ctx's error. It also checks the deadline itself: a
// connection deadline that was taken from ctx can pass a moment before ctx ends.
func contextError(ctx context.Context) error {
	if deadline, ok := ctx.Deadline(); ok && !time.Now().Before(deadline) {
		return context.DeadlineExceeded
	}
	return ctx.Err()
}

// hasReceived reports whether the hold before has handed its grant over.
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

// lose ends all leases, with the first reason that it is called with.
func (h *hold) lose(reason error) {
	h.mu.Lock()
	if h.lost == nil {
		h.lost = reason
	}
	acquired := h.grant != nil
	for l := range h.leases {
		l.end(h.lost)
	}
	h.end()
	h.mu.Unlock()
	h.forget()
	if acquired { // otherwise acquire or the lease's Unlock leaves the queue
		h.leaveQueue()
	}
}

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

type lease struct {
	hold *hold
	ctx  context.Context
	end  context.CancelCauseFunc
	once sync.Once
	err  error
}

func (l *lease) Context() context.Context { return l.ctx }

func (l *lease) Token() uint64 { return l.hold.grant.Token() }

func (l *lease) Unlock(ctx context.Context) error {
	l.once.Do(func() { l.err = l.unlock(ctx) })
	return l.err
}

func (l *lease) unlock(ctx context.Context) error {
	h := l.hold
	h.mu.Lock()
	delete(h.leases, l)
	last, lost := len(h.leases) == 0, h.lost
	if last {
		h.end()
	}
	h.mu.Unlock()
	l.end(nil)
	if !last {
		return unlockingError(h.key.name, lost)
	}
	h.forget()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	var (
		handedOver bool
		err        error
	)
	if lost == nil {
		handedOver, err = h.handOver(ctx)
	}
	if !handedOver {
		err = h.release(ctx)
	}
	return unlockingError(h.key.name, cmp.Or(lost, err))
}

// release releases the grant and gives the turn to the next waiter of the process.
func (h *hold) release(ctx context.Context) error {
	defer h.leaveQueue()
	g, ok := h.grant.(PipelinedGrant)
	if !ok {
		return h.grant.Release(ctx)
	}
	wait := g.StartRelease()
	h.leaveQueue()
	return wait(ctx)
}

func unlockingError(name string, err error) error {
	if err != nil {
		return fmt.Errorf("unlocking %s: %w", name, err)
	}
	return nil
}
