package lock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// releaseTimeout bounds how long freeing a lock may take.
const releaseTimeout = 3 * time.Second

// Backend grants locks between processes. It is safe for concurrent use, but
// New's Locker asks it for one name once at a time.
type Backend interface {
	// Acquire takes the lock. With wait it waits until ctx ends, and then
	// returns ctx's error; without, it answers ErrHeld at once.
	//
	// After any error it leaves nothing behind that it can still remove, by
	// means that do not end with ctx.
	//
	// lost is called, once and possibly before Acquire returns, when the grant
	// can no longer be relied on. Afterwards the backend removes by itself
	// what it can of it.
	Acquire(ctx context.Context, name string, wait bool, lost func()) (Grant, error)
}

// Grant is a lock that a backend has granted.
type Grant interface {
	// Token is the fencing token; 0: the backend can give none.
	Token() uint64
	// Release frees the lock. It is called once, also after it was lost.
	// ErrLost: it was not held any more.
	Release(ctx context.Context) error
}

// Passer is a Grant that can be passed on to the next waiter of the process, with
// no moment in between in which the lock is free.
type Passer interface {
	Grant
	// Pass ends the grant, as Release does, and returns the next holder's, with
	// a token of its own, as Acquire does.
	Pass(ctx context.Context, lost func()) (Grant, error)
}

// Follower is a Grant that can be freed and asked for again in one request, for
// the next waiter of the process.
type Follower interface {
	Grant
	// Follow ends the grant, as Release does, and takes a place in the backend's
	// queue. It may return a place beside an error, or none: then the waiter
	// asks by itself.
	Follow(ctx context.Context) (Place, error)
}

// Place is a place in a backend's queue. Either Acquire or Leave is called, once.
type Place interface {
	// Acquire waits there for the lock, as Backend's Acquire does.
	Acquire(ctx context.Context, lost func()) (Grant, error)
	// Leave gives the place up.
	Leave(ctx context.Context)
}

const (
	// passesMost and passFor bound how often and for how long a process passes a
	// lock on within itself before it lets others have their turn.
	passesMost = 16
	passFor    = 10 * time.Millisecond
)

// New makes a Locker of the backend.
func New(b Backend) Locker { return newLocker(b) }

func newLocker(b Backend) *locker {
	return &locker{backend: b, owned: make(map[owned]*hold)}
}

type locker struct {
	backend Backend
	queue   queue

	mu    sync.Mutex
	owned map[owned]*hold // what owners hold or are about to
}

type owned struct{ owner, name string }

func (l *locker) Lock(ctx context.Context, name string) (Lease, error) {
	return l.lock(ctx, name, true)
}

func (l *locker) TryLock(ctx context.Context, name string) (Lease, error) {
	return l.lock(ctx, name, false)
}

func failed(name string, err error) error { return fmt.Errorf("locking %s: %w", name, err) }

func (l *locker) lock(ctx context.Context, name string, wait bool) (Lease, error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, failed(name, err)
		}
		h, mine := l.hold(ownerOf(ctx), name)
		if mine {
			if err := h.acquire(ctx, wait); err != nil {
				return nil, failed(name, err)
			}
		} else if !wait {
			select {
			case <-h.decided:
			default: // another goroutine of the owner is asking
				return nil, failed(name, ErrHeld)
			}
		} else {
			select {
			case <-h.decided:
			case <-ctx.Done():
				return nil, failed(name, ctx.Err())
			}
		}
		if lease := h.lease(ctx); lease != nil {
			return lease, nil
		}
		// What the owner held, or was about to, came to nothing meanwhile.
	}
}

// hold finds what the owner holds, or makes a hold that the caller must
// acquire.
func (l *locker) hold(owner, name string) (h *hold, mine bool) {
	h = &hold{locker: l, key: owned{owner, name}, decided: make(chan struct{}), leases: make(map[*lease]bool)}
	if owner == "" {
		return h, true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if held := l.owned[h.key]; held != nil {
		return held, false
	}
	l.owned[h.key] = h
	return h, true
}

// hold is one grant of the backend, and the leases of its owner that share it.
type hold struct {
	locker  *locker
	key     owned
	decided chan struct{} // closed once it was acquired or was not

	mu     sync.Mutex
	place  Place // what the holder before left for it; nil: nothing
	grant  Grant // nil: not acquired
	lost   bool
	over   bool // lost, or the last lease ended
	begun  bool // it has had a lease
	passes int  // so often was the lock passed on before, within the process
	since  time.Time
	leases map[*lease]bool
}

// acquire takes the lock from the backend, once it is this caller's turn.
func (h *hold) acquire(ctx context.Context, wait bool) (err error) {
	l, name := h.locker, h.key.name
	defer close(h.decided)
	defer func() {
		if err != nil {
			h.forget()
		}
	}()
	if !wait {
		if !l.queue.try(name, h) {
			return ErrHeld
		}
	} else if err := l.queue.enter(ctx, name, h); err != nil {
		return err
	}
	grant, place := h.given()
	if grant != nil { // the holder before has passed it on
		return nil
	}
	if place != nil {
		grant, err = place.Acquire(ctx, h.lose)
	} else {
		grant, err = l.backend.Acquire(ctx, name, wait, h.lose)
	}
	if err != nil {
		h.pass()
		if ended := ended(ctx); ended != nil && !errors.Is(err, ErrHeld) {
			return ended // whatever a library made of it
		}
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.grant, h.since = grant, time.Now()
	return nil
}

// ended is ctx's error. A connection's deadline, taken from the context's, may
// pass a moment before the context hears of it.
func ended(ctx context.Context) error {
	if deadline, ok := ctx.Deadline(); ok && !time.Now().Before(deadline) {
		return context.DeadlineExceeded
	}
	return ctx.Err()
}

// given is what the holder before has handed over.
func (h *hold) given() (Grant, Place) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.grant, h.place
}

// handOver ends the grant in favour of the next waiter of the process. It reports
// false, and does nothing, if the grant must be released instead.
func (h *hold) handOver(ctx context.Context) (ended bool, err error) {
	next := h.locker.queue.first(h.key.name)
	if next == nil {
		return false, nil
	}
	switch g := h.grant.(type) {
	case Passer:
		if h.passes == passesMost || time.Since(h.since) > passFor {
			return false, nil
		}
		return true, h.passOn(ctx, g, next)
	case Follower:
		return true, h.follow(ctx, g, next)
	}
	return false, nil
}

// passOn passes the lock on to the waiter.
func (h *hold) passOn(ctx context.Context, p Passer, next *waiter) error {
	var loss handedLoss
	grant, err := p.Pass(ctx, loss.lose)
	if err != nil {
		h.pass()
		return err
	}
	if h.hand(next, func(n *hold) { n.grant, n.passes, n.since = grant, h.passes+1, h.since }) {
		loss.hand(next.hold)
		return nil
	}
	err = grant.Release(ctx) // the waiter gave up meanwhile
	h.pass()
	return err
}

// handedLoss is the loss of a grant that is being handed over. It ends the leases
// of the hold that gets the grant, and nothing if none does. It never blocks: a
// grant's Release may wait for it.
type handedLoss struct {
	mu   sync.Mutex
	lost bool
	hold *hold
}

func (l *handedLoss) lose() {
	l.mu.Lock()
	l.lost = true
	h := l.hold
	l.mu.Unlock()
	if h != nil {
		h.lose()
	}
}

func (l *handedLoss) hand(h *hold) {
	l.mu.Lock()
	l.hold = h
	lost := l.lost
	l.mu.Unlock()
	if lost {
		h.lose()
	}
}

// follow frees the lock, and leaves the waiter a place in the backend's queue.
func (h *hold) follow(ctx context.Context, f Follower, next *waiter) error {
	place, err := f.Follow(ctx)
	if place != nil && h.hand(next, func(n *hold) { n.place = place }) {
		return err
	}
	if place != nil {
		place.Leave(ctx) // he gave up meanwhile
	}
	h.pass()
	return err
}

// hand transfers h's turn to the next waiter, with what the waiter is given. It
// reports false if the turn is no longer h's, or that waiter no longer the next.
func (h *hold) hand(next *waiter, give func(n *hold)) bool {
	return h.locker.queue.hand(h.key.name, h, next, func() {
		next.hold.mu.Lock()
		defer next.hold.mu.Unlock()
		give(next.hold)
	})
}

// forget keeps the owner's next request from finding the hold.
func (h *hold) forget() {
	h.mu.Lock()
	h.over = true
	h.mu.Unlock()
	if h.key.owner == "" {
		return
	}
	h.locker.mu.Lock()
	defer h.locker.mu.Unlock()
	if h.locker.owned[h.key] == h {
		delete(h.locker.owned, h.key)
	}
}

// pass lets the next of the process ask the backend, if the turn is still h's.
func (h *hold) pass() { h.locker.queue.leave(h.key.name, h) }

// lose ends all leases.
func (h *hold) lose() {
	h.mu.Lock()
	h.lost = true
	acquired := h.grant != nil
	for l := range h.leases {
		l.end(ErrLost)
	}
	h.mu.Unlock()
	h.forget()
	if acquired { // else acquire passes, or the lease's Unlock
		h.pass()
	}
}

// lease adds a lease to the hold, or returns nil if that is over. The first
// lease is given in any case, so that its Unlock frees what was granted.
func (h *hold) lease(ctx context.Context) *lease {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.grant == nil || h.over && h.begun {
		return nil
	}
	h.begun = true
	l := &lease{hold: h}
	l.ctx, l.end = context.WithCancelCause(context.WithoutCancel(ctx))
	h.leases[l] = true
	if h.lost {
		l.end(ErrLost)
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
	h.over = h.over || last
	h.mu.Unlock()
	l.end(nil)
	if !last {
		if lost {
			return unlocking(h.key.name, ErrLost)
		}
		return nil
	}
	h.forget()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	var (
		ended bool
		err   error
	)
	if !lost {
		ended, err = h.handOver(ctx)
	}
	if !ended {
		err = h.grant.Release(ctx)
		h.pass()
	}
	if lost {
		err = ErrLost
	}
	return unlocking(h.key.name, err)
}

func unlocking(name string, err error) error {
	if err != nil {
		return fmt.Errorf("unlocking %s: %w", name, err)
	}
	return nil
}
