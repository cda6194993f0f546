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
func (b *fakeBackend) beginHandover() {
	close(b.handingOver)
	<-b.proceed
}

// handsOver is a grant whose handover is made by the function to. next has the callback of the
// waiter.
type handsOver struct {
	*fakeGrant
	to func(next *fakeGrant) (Grant, error)
}

func (g handsOver) HandOver(_ context.Context, lost func(error)) (Grant, error) {
	return g.to(&fakeGrant{g.backend, lost})
}

// handsOverBy returns a backend whose grants hand themselves over by the function.
func handsOverBy(to func(next *fakeGrant) (Grant, error)) *fakeBackend {
	return newFakeBackend(func(g *fakeGrant) Grant { return handsOver{g, to} })
}

// handsOverItself hands over a plain grant, when the test lets it.
func handsOverItself(next *fakeGrant) (Grant, error) {
	next.backend.beginHandover()
	next.backend.grants <- next
	return next, nil
}

// contender is a request for the lock a.
type contender struct {
	granted chan Lease // delivers nil if the request has failed
	failed  chan error
	giveUp  context.CancelFunc
}

// startWaiter requests the lock a, and returns when n requests wait for it.
func startWaiter(t *testing.T, l *locker, n int) contender {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	c := contender{make(chan Lease, 1), make(chan error, 1), cancel}
	go func() {
		lease, err := l.Lock(ctx, "a")
		if err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		c.failed <- err
		c.granted <- lease
	}()
	waitForWaiters(t, l, "a", n)
	return c
}

// unlock unlocks the lease meanwhile. The channel receives the answer.
func unlock(t *testing.T, lease Lease) <-chan error {
	unlocked := make(chan error, 1)
	go func() { unlocked <- lease.Unlock(t.Context()) }()
	return unlocked
}

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
	for _, test := range []struct {
		name      string
		meanwhile func(t *testing.T, l *locker, holder *fakeGrant, w contender)
		granted   bool  // the waiter gets the grant that is handed over
		released  int64 // number of grants released when the handover has ended
	}{
		{"waiter stays", func(*testing.T, *locker, *fakeGrant, contender) {}, true, 0},
		{"waiter gives up", func(_ *testing.T, _ *locker, _ *fakeGrant, w contender) {
			w.giveUp()
			<-w.granted
		}, false, 1},
		{"waiter gives up before another one", func(t *testing.T, l *locker, _ *fakeGrant, w contender) {
			another := startWaiter(t, l, 2)
			w.giveUp()
			<-w.granted
			go func() { w.granted <- <-another.granted }()
		}, false, 1},
		{"holder loses its lease", func(t *testing.T, _ *locker, holder *fakeGrant, w contender) {
			holder.lost(ErrDeleted) // the waiter asks the backend itself, and unlocks before the handover ends
			mustUnlock(t, <-w.granted)
		}, false, 2},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			b := handsOverBy(handsOverItself)
			l := newLocker(b)
			lease := mustLockAnew(t, l, "a")
			w := startWaiter(t, l, 1)
			unlocked := unlock(t, lease)
			<-b.handingOver
			test.meanwhile(t, l, <-b.grants, w)
			close(b.proceed)
			if err := <-unlocked; err != nil {
				t.Error(err)
			}
			if n := b.released.Load(); n != test.released {
				t.Errorf("released %d grants, want %d", n, test.released)
			}
			if strings.Contains(test.name, "another") {
				mustUnlock(t, testenv.Receive(t, "the other waiter has the lock", w.granted))
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
			mustBeEmpty(t, l)
		})
	}
}

// TestLeaseLostAfterHandover loses the holder's lease just after its turn has been given to the
// next waiter. The waiter must keep the turn.
func TestLeaseLostAfterHandover(t *testing.T) {
	t.Parallel()
	b := handsOverBy(handsOverItself)
	close(b.proceed)
	l := newLocker(b)
	first := mustLockAnew(t, l, "a")
	holder := <-b.grants
	w := startWaiter(t, l, 1)

	next := l.queue.nextWaiter("a").hold
	next.mu.Lock() // stops the handover while the handover has the queue locked
	unlocked := unlock(t, first)
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
	if err := <-unlocked; err != nil {
		t.Error(err)
	}
	<-lost

	second := <-w.granted
	if _, err := l.TryLock(t.Context(), "a"); !errors.Is(err, ErrHeld) {
		t.Errorf("TryLock while the waiter holds the lock: %v", err)
	}
	mustUnlock(t, second)
	mustBeEmpty(t, l)
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
	b := handsOverBy(handsOverItself)
	l := newLocker(b)
	first := mustLockAnew(t, l, "a")
	holder := <-b.grants
	w := startWaiter(t, l, 1)
	unlocked := unlock(t, first)
	<-b.handingOver
	holder.lost(ErrDeleted)
	second := <-w.granted
	<-b.grants // the waiter's own grant
	close(b.proceed)
	(<-b.grants).lost(ErrDeleted) // the grant that was handed over
	if err := <-unlocked; err != nil {
		t.Error(err)
	}
	if err := context.Cause(second.Context()); err != nil {
		t.Errorf("the waiter's lease ended: %v", err)
	}
	mustUnlock(t, second)
}

// pipelined is a grant whose release is answered when the test allows it.
type pipelined struct{ *fakeGrant }

func (g pipelined) StartRelease() (wait func(context.Context) error) {
	return func(ctx context.Context) error {
		g.backend.beginHandover()
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
	w := startWaiter(t, l, 1)
	unlocked := unlock(t, first)
	<-b.handingOver
	second := testenv.Receive(t, "the waiter asks", w.granted) // the backend grants every request
	if n := b.released.Load(); n != 0 {
		t.Errorf("%d grants were released before the answer", n)
	}
	close(b.proceed)
	if err := <-unlocked; err != nil {
		t.Error(err)
	}
	if _, err := l.TryLock(t.Context(), "a"); !errors.Is(err, ErrHeld) {
		t.Errorf("TryLock while the waiter holds the lock: %v", err)
	}
	mustUnlock(t, second)
	mustBeEmpty(t, l)
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

// TestUnwantedHandover makes a waiter give up while a grant is handed over to it. The grant is then
// lost while it is being released, or its release fails. The lost callback must not block, because
// Release would then never return.
func TestUnwantedHandover(t *testing.T) {
	t.Parallel()
	for want, handedOver := range map[error]func(next *fakeGrant) Grant{
		nil:        func(next *fakeGrant) Grant { return losesOnRelease{next} },
		errBackend: func(*fakeGrant) Grant { return refusesRelease{} },
	} {
		b := handsOverBy(func(next *fakeGrant) (Grant, error) {
			next.backend.beginHandover()
			return handedOver(next), nil
		})
		l := newLocker(b)
		first := mustLockAnew(t, l, "a")
		w := startWaiter(t, l, 1)
		unlocked := unlock(t, first)
		<-b.handingOver
		w.giveUp()
		if err := <-w.failed; !errors.Is(err, context.Canceled) {
			t.Errorf("Lock of the cancelled waiter: %v", err)
		}
		close(b.proceed)
		if err := testenv.Receive(t, "Unlock returns", unlocked); !errors.Is(err, want) {
			t.Errorf("Unlock: %v, want %v", err, want)
		}
		mustBeEmpty(t, l)
	}
}

// TestLossDuringHandover loses a grant before the waiter receives it. The
// waiter's lease must end.
func TestLossDuringHandover(t *testing.T) {
	t.Parallel()
	l := newLocker(handsOverBy(func(next *fakeGrant) (Grant, error) {
		next.lost(ErrDeleted)
		next.lost(ErrDisconnected) // only the first reason counts
		return next, nil
	}))
	first := mustLockAnew(t, l, "a")
	second := unlockToWaiter(t, l, first)
	testenv.Receive(t, "the lease ends", second.Context().Done())
	if err := second.Unlock(t.Context()); !errors.Is(err, ErrDeleted) {
		t.Errorf("Unlock of a lost lease: %v, want %v", err, ErrDeleted)
	}
}

// handsOverAgain hands over a grant that hands itself over again.
func handsOverAgain(next *fakeGrant) (Grant, error) { return handsOver{next, handsOverAgain}, nil }

// unlockToWaiter unlocks the lease of the lock a while a waiter waits, and returns the waiter's
// lease.
func unlockToWaiter(t *testing.T, l *locker, held Lease) Lease {
	t.Helper()
	w := startWaiter(t, l, 1)
	mustUnlock(t, held)
	return testenv.Receive(t, "the waiter has the lock", w.granted)
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
			b := handsOverBy(handsOverAgain)
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
