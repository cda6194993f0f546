package lock

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// fakeBackend grants every request. Its handovers stop halfway until proceed is
// closed.
type fakeBackend struct {
	wrap        func(*fakeGrant) Grant
	grants      chan *fakeGrant // every grant that was made
	handingOver chan struct{}   // closed when the first handover or release has begun
	proceed     chan struct{}
	released    atomic.Int64
}

func newFakeBackend(wrap func(*fakeGrant) Grant) *fakeBackend {
	return &fakeBackend{
		wrap: wrap, grants: make(chan *fakeGrant, 10),
		handingOver: make(chan struct{}), proceed: make(chan struct{}),
	}
}

func (b *fakeBackend) Acquire(_ context.Context, _ string, _ bool, lost func(error)) (Grant, error) {
	g := &fakeGrant{b, lost}
	b.grants <- g
	return b.wrap(g), nil
}

type fakeGrant struct {
	backend *fakeBackend
	lost    func(error)
}

func (*fakeGrant) Token() uint64 { return 1 }

func (g *fakeGrant) Release(context.Context) error {
	g.backend.released.Add(1)
	return nil
}

// beginHandover returns when the test lets the handover proceed.
func (g *fakeGrant) beginHandover() {
	close(g.backend.handingOver)
	<-g.backend.proceed
}

// handsOver is a grant that hands itself over.
type handsOver struct{ *fakeGrant }

func (g handsOver) HandOver(_ context.Context, lost func(error)) (Grant, error) {
	g.beginHandover()
	next := &fakeGrant{g.backend, lost}
	g.backend.grants <- next
	return next, nil
}

func handsOverItself(g *fakeGrant) Grant { return handsOver{g} }

// mustLockAnew locks a name. The bounded time in which the process may keep the lock does not pass
// meanwhile, even on a slow machine.
func mustLockAnew(t *testing.T, l *locker, name string) Lease {
	t.Helper()
	held := mustLock(t, l, name)
	held.(*lease).hold.since = time.Now().Add(time.Hour)
	return held
}

// TestHandover lets one event happen in the middle of a handover. Either the next waiter gets the
// grant that is handed over, or the grant must be released.
func TestHandover(t *testing.T) {
	t.Parallel()
	type waiter struct {
		locker  *locker
		granted chan Lease // delivers nil if the waiter has given up
		giveUp  context.CancelFunc
		another chan Lease // delivers the lease of a second waiter
	}
	for _, test := range []struct {
		name      string
		meanwhile func(t *testing.T, holder *fakeGrant, w waiter)
		granted   bool  // the waiter gets the grant that is handed over
		released  int64 // number of grants released when the handover has ended
	}{
		{"waiter stays", func(*testing.T, *fakeGrant, waiter) {}, true, 0},
		{"waiter gives up", func(_ *testing.T, _ *fakeGrant, w waiter) {
			w.giveUp()
			<-w.granted
		}, false, 1},
		{"waiter gives up before another one", func(t *testing.T, _ *fakeGrant, w waiter) {
			go func() { w.another <- mustLock(t, w.locker, "a") }()
			waitForWaiters(t, w.locker, "a", 2)
			w.giveUp()
			<-w.granted
		}, false, 1},
		{"holder loses its lease", func(t *testing.T, holder *fakeGrant, w waiter) {
			holder.lost(ErrDeleted) // the waiter asks the backend itself, and unlocks before the handover ends
			mustUnlock(t, <-w.granted)
		}, false, 2},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			b := newFakeBackend(handsOverItself)
			l := newLocker(b)
			lease := mustLockAnew(t, l, "a")
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			w := waiter{l, make(chan Lease, 1), cancel, make(chan Lease, 1)}
			go func() {
				lease, err := l.Lock(ctx, "a")
				if err != nil && !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
				w.granted <- lease
			}()
			waitForWaiters(t, l, "a", 1)
			unlocked := make(chan struct{})
			go func() {
				defer close(unlocked)
				mustUnlock(t, lease)
			}()
			<-b.handingOver
			test.meanwhile(t, <-b.grants, w)
			close(b.proceed)
			<-unlocked
			if n := b.released.Load(); n != test.released {
				t.Errorf("released %d grants, want %d", n, test.released)
			}
			if strings.Contains(test.name, "another") {
				mustUnlock(t, testenv.Receive(t, "the other waiter has the lock", w.another))
			}
			if test.granted { // the loss of the grant that was handed over ends the lease
				lease := testenv.Receive(t, "the waiter has the lock", w.granted)
				(<-b.grants).lost(ErrDeleted)
				if cause := context.Cause(lease.Context()); !errors.Is(cause, ErrDeleted) {
					t.Errorf("the lease has ended with %v", cause)
				}
				_ = lease.Unlock(t.Context())
			}
			mustUnlock(t, mustLock(t, l, "a")) // the lock is free again
			if len(l.queue.lines) != 0 {
				t.Error("the queue still has state for the name")
			}
		})
	}
}

// TestLeaseLostAfterHandover loses the holder's lease just after its turn has been given to the
// next waiter. The waiter must keep the turn.
func TestLeaseLostAfterHandover(t *testing.T) {
	t.Parallel()
	b := newFakeBackend(handsOverItself)
	close(b.proceed)
	l := newLocker(b)
	first := mustLockAnew(t, l, "a")
	holder := <-b.grants
	granted := make(chan Lease, 1)
	go func() { granted <- mustLock(t, l, "a") }()
	waitForWaiters(t, l, "a", 1)

	next := l.queue.nextWaiter("a").hold
	next.mu.Lock() // stops the handover while the handover has the queue locked
	unlocked := make(chan struct{})
	go func() {
		defer close(unlocked)
		mustUnlock(t, first)
	}()
	<-b.handingOver
	testenv.Await(t, "the queue is in use", func() bool {
		free := l.queue.mu.TryLock()
		if free {
			l.queue.mu.Unlock()
		}
		return !free
	})
	lost := make(chan struct{})
	go func() {
		defer close(lost)
		holder.lost(ErrDeleted)
	}()
	testenv.Await(t, "the holder has lost the lock", first.(*lease).hold.isLost)
	next.mu.Unlock()
	<-unlocked
	<-lost

	second := <-granted
	if _, err := l.TryLock(t.Context(), "a"); !errors.Is(err, ErrHeld) {
		t.Errorf("TryLock while the waiter holds the lock: %v", err)
	}
	mustUnlock(t, second)
	if len(l.queue.lines) != 0 {
		t.Error("the queue still has state for the name")
	}
}

func (h *hold) isLost() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lost != nil
}

// TestHandoverTooLate loses a grant that was handed over to a waiter that has acquired the lock by
// itself meanwhile. The waiter's own lease must not end.
func TestHandoverTooLate(t *testing.T) {
	t.Parallel()
	b := newFakeBackend(handsOverItself)
	l := newLocker(b)
	first := mustLockAnew(t, l, "a")
	holder := <-b.grants
	granted := make(chan Lease, 1)
	go func() { granted <- mustLock(t, l, "a") }()
	waitForWaiters(t, l, "a", 1)
	unlocked := make(chan struct{})
	go func() {
		defer close(unlocked)
		mustUnlock(t, first)
	}()
	<-b.handingOver
	holder.lost(ErrDeleted)
	second := <-granted
	<-b.grants // the waiter's own grant
	close(b.proceed)
	(<-b.grants).lost(ErrDeleted) // the grant that was handed over
	<-unlocked
	if err := context.Cause(second.Context()); err != nil {
		t.Errorf("the waiter's lease ended: %v", err)
	}
	mustUnlock(t, second)
}

// pipelined is a grant whose release is answered when the test allows it.
type pipelined struct{ *fakeGrant }

func (g pipelined) StartRelease() (wait func(context.Context) error) {
	return func(ctx context.Context) error {
		g.beginHandover()
		return g.Release(ctx)
	}
}

// TestNextWaiterAsksDuringRelease delays the answer to a pipelined release. The next waiter must
// ask the backend meanwhile.
func TestNextWaiterAsksDuringRelease(t *testing.T) {
	t.Parallel()
	b := newFakeBackend(nil)
	b.wrap = func(g *fakeGrant) Grant {
		if len(b.grants) == 1 {
			return pipelined{g}
		}
		return g
	}
	l := newLocker(b)
	first := mustLock(t, l, "a")
	granted := make(chan Lease, 1)
	go func() { granted <- mustLock(t, l, "a") }()
	waitForWaiters(t, l, "a", 1)
	unlocked := make(chan struct{})
	go func() {
		defer close(unlocked)
		mustUnlock(t, first)
	}()
	<-b.handingOver
	second := testenv.Receive(t, "the waiter asks", granted) // the backend grants every request
	if n := b.released.Load(); n != 0 {
		t.Errorf("%d grants were released before the answer", n)
	}
	close(b.proceed)
	<-unlocked
	if _, err := l.TryLock(t.Context(), "a"); !errors.Is(err, ErrHeld) {
		t.Errorf("TryLock while the waiter holds the lock: %v", err)
	}
	mustUnlock(t, second)
	if len(l.queue.lines) != 0 {
		t.Error("the queue still has state for the name")
	}
}

// losesOnRelease is a grant whose Release waits for the lost callback.
type losesOnRelease struct{ grant *fakeGrant }

func (g losesOnRelease) Token() uint64 { return g.grant.Token() }

func (g losesOnRelease) Release(ctx context.Context) error {
	returned := make(chan struct{})
	go func() {
		defer close(returned)
		g.grant.lost(ErrDeleted)
	}()
	<-returned
	return g.grant.Release(ctx)
}

// handsOverLosing hands over a losesOnRelease.
type handsOverLosing struct{ *fakeGrant }

func (g handsOverLosing) HandOver(_ context.Context, lost func(error)) (Grant, error) {
	g.beginHandover()
	return losesOnRelease{&fakeGrant{g.backend, lost}}, nil
}

// TestUnwantedHandoverLost loses a grant while it is released because its waiter has given up. The
// lost callback must not block, because Release would then never return.
func TestUnwantedHandoverLost(t *testing.T) {
	t.Parallel()
	b := newFakeBackend(func(g *fakeGrant) Grant { return handsOverLosing{g} })
	l := newLocker(b)
	first := mustLockAnew(t, l, "a")
	ctx, giveUp := context.WithCancel(t.Context())
	gaveUp := make(chan error, 1)
	go func() {
		_, err := l.Lock(ctx, "a")
		gaveUp <- err
	}()
	waitForWaiters(t, l, "a", 1)
	unlocked := make(chan error, 1)
	go func() { unlocked <- first.Unlock(t.Context()) }()
	<-b.handingOver
	giveUp()
	if err := <-gaveUp; !errors.Is(err, context.Canceled) {
		t.Errorf("Lock of the cancelled waiter: %v", err)
	}
	close(b.proceed)
	if err := testenv.Receive(t, "Unlock returns", unlocked); err != nil {
		t.Error(err)
	}
}

// handsOverLost hands over a grant that has already been lost.
type handsOverLost struct{ *fakeGrant }

func (g handsOverLost) HandOver(_ context.Context, lost func(error)) (Grant, error) {
	lost(ErrDeleted)
	return &fakeGrant{g.backend, lost}, nil
}

// TestLossDuringHandover loses a grant before the waiter receives it. The
// waiter's lease must end.
func TestLossDuringHandover(t *testing.T) {
	t.Parallel()
	l := newLocker(newFakeBackend(func(g *fakeGrant) Grant { return handsOverLost{g} }))
	first := mustLockAnew(t, l, "a")
	granted := make(chan Lease, 1)
	go func() { granted <- mustLock(t, l, "a") }()
	waitForWaiters(t, l, "a", 1)
	mustUnlock(t, first)
	second := <-granted
	testenv.Receive(t, "the lease ends", second.Context().Done())
	if err := second.Unlock(t.Context()); !errors.Is(err, ErrLost) {
		t.Errorf("Unlock of a lost lease: %v", err)
	}
}

// handsOverAgain is a grant that hands itself over any number of times.
type handsOverAgain struct{ *fakeGrant }

func (g handsOverAgain) HandOver(_ context.Context, lost func(error)) (Grant, error) {
	return handsOverAgain{&fakeGrant{g.backend, lost}}, nil
}

// unlockToWaiter unlocks the lease of the lock a while a waiter waits, and returns the waiter's
// lease.
func unlockToWaiter(t *testing.T, l *locker, held Lease) Lease {
	t.Helper()
	granted := make(chan Lease, 1)
	go func() { granted <- mustLock(t, l, "a") }()
	waitForWaiters(t, l, "a", 1)
	mustUnlock(t, held)
	return testenv.Receive(t, "the waiter has the lock", granted)
}

// TestOtherProcessesGetATurn hands a lock over within the process until it is released: after
// maxHandovers, or as soon as the process has kept the lock for maxHandoverTime.
func TestOtherProcessesGetATurn(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name      string
		since     time.Duration // when the process got the lock, from now
		handovers int
	}{
		{"number", time.Hour, maxHandovers}, // the time does not pass
		{"time", -time.Hour, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			b := newFakeBackend(func(g *fakeGrant) Grant { return handsOverAgain{g} })
			l := newLocker(b)
			held := mustLock(t, l, "a")
			since := time.Now().Add(test.since)
			held.(*lease).hold.since = since
			handovers := -1
			for b.released.Load() == 0 && handovers <= test.handovers {
				held = unlockToWaiter(t, l, held)
				handovers++
				if got := held.(*lease).hold.since; b.released.Load() == 0 && !got.Equal(since) {
					t.Errorf("after %d handovers, the process has had the lock since %v, want %v", handovers+1, got, since)
				}
			}
			if handovers != test.handovers {
				t.Errorf("%d handovers, want %d", handovers, test.handovers)
			}
			mustUnlock(t, held)
		})
	}
}
