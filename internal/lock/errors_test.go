package lock

import (
	"context"
	"errors"
	"net"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-stock/holdfast/internal/testenv"
)

var errBackend = errors.New("the backend has failed")

// scripted is a backend whose requests run the functions of the test.
type scripted struct {
	asked   int
	acquire func(ctx context.Context, wait bool, lost func(error)) (Grant, error) // nil: the request is granted
}

func (b *scripted) Acquire(ctx context.Context, _ string, wait bool, lost func(error)) (Grant, error) {
	b.asked++
	if b.acquire == nil {
		return localGrant(1), nil
	}
	return b.acquire(ctx, wait, lost)
}

// pastDeadline is a context that has not yet noticed that its deadline has passed.
type pastDeadline struct{ context.Context }

func (pastDeadline) Deadline() (time.Time, bool) { return time.Now().Add(-time.Millisecond), true }

// TestRefusals checks the error of each failed request. Afterwards the next request of the same
// owner must be granted.
func TestRefusals(t *testing.T) {
	t.Parallel()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, test := range []struct {
		name    string
		ctx     context.Context
		cancels bool // the context ends before the backend answers
		lock    string
		answer  error // of the backend
		want    error
		asked   int
	}{
		{"invalid name", t.Context(), false, "", nil, ErrName, 0},
		{"ended context", ended, false, "a", nil, context.Canceled, 0},
		{"failed backend", t.Context(), false, "a", errBackend, errBackend, 1},
		{"held elsewhere", t.Context(), false, "a", ErrHeld, ErrHeld, 1},
		{"failed as the time ran out", pastDeadline{t.Context()}, false, "a", errBackend, context.DeadlineExceeded, 1},
		{"held elsewhere as the time ran out", pastDeadline{t.Context()}, false, "a", ErrHeld, ErrHeld, 1},
		{"failed as it was cancelled", t.Context(), true, "a", errBackend, context.Canceled, 1}, // a client library may return its own error
	} {
		for name, request := range map[string]func(*locker, context.Context, string) (Lease, error){
			"Lock": (*locker).Lock, "TryLock": (*locker).TryLock,
		} {
			for _, owner := range []string{"", "owner"} {
				t.Run(name+" "+owner+" "+test.name, func(t *testing.T) {
					ctx, cancel := context.WithCancel(WithOwner(test.ctx, owner))
					defer cancel()
					b := &scripted{acquire: func(context.Context, bool, func(error)) (Grant, error) {
						if test.cancels {
							cancel()
						}
						return localGrant(1), test.answer
					}}
					l := newLocker(b)
					lease, err := request(l, ctx, test.lock)
					if lease != nil || !errors.Is(err, test.want) || b.asked != test.asked {
						t.Errorf("%v, %v after %d requests to the backend; want %v after %d", lease, err, b.asked, test.want, test.asked)
					}
					b.acquire = nil
					mustUnlock(t, mustLockBy(t, l, owner))
					mustBeEmpty(t, l)
				})
			}
		}
	}
}

func mustLockBy(t *testing.T, l *locker, owner string) Lease {
	t.Helper()
	lease, err := l.TryLock(WithOwner(t.Context(), owner), "a")
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

func mustBeEmpty(t *testing.T, l *locker) {
	t.Helper()
	if len(l.queue.lines) != 0 || len(l.holds) != 0 {
		t.Errorf("%d lines and %d holds are left", len(l.queue.lines), len(l.holds))
	}
}

// TestWaitersOfAnOwner makes further requests of one owner while the first one has no answer yet.
func TestWaitersOfAnOwner(t *testing.T) {
	t.Parallel()
	for _, answer := range []error{nil, errBackend} {
		synctest.Test(t, func(t *testing.T) {
			answers := make(chan error)
			b := &scripted{acquire: func(context.Context, bool, func(error)) (Grant, error) { return localGrant(1), <-answers }}
			l := newLocker(b)
			ctx := WithOwner(t.Context(), "owner")
			lock := func(ctx context.Context) <-chan error {
				done := make(chan error, 1)
				go func() {
					lease, err := l.Lock(ctx, "a")
					if err == nil {
						mustUnlock(t, lease)
					}
					done <- err
				}()
				synctest.Wait()
				return done
			}
			first := lock(ctx)
			if _, err := l.TryLock(ctx, "a"); !errors.Is(err, ErrHeld) {
				t.Errorf("TryLock before the answer: %v", err)
			}
			impatient, cancel := context.WithCancel(ctx)
			second, third := lock(impatient), lock(ctx)
			cancel()
			if err := <-second; !errors.Is(err, context.Canceled) {
				t.Errorf("the cancelled waiter: %v", err)
			}
			answers <- answer
			close(answers) // later requests are granted
			if err := <-first; !errors.Is(err, answer) {
				t.Errorf("the first request: %v, want %v", err, answer)
			}
			if err := <-third; err != nil {
				t.Errorf("the waiter: %v", err)
			}
			synctest.Wait()
			mustBeEmpty(t, l)
		})
	}
}

// TestCancelledAsTheHoldIsGranted cancels a waiter for another request of its owner. That request
// has been granted the lock, but has not returned.
func TestCancelledAsTheHoldIsGranted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLocker(&scripted{})
		h, _ := l.hold("owner", "a")
		ctx, cancel := context.WithCancel(WithOwner(t.Context(), "owner"))
		answer := make(chan error, 1)
		go func() {
			_, err := l.Lock(ctx, "a")
			answer <- err
		}()
		synctest.Wait()
		h.mu.Lock()
		h.setGrant(localGrant(1), time.Now())
		h.mu.Unlock()
		cancel()
		if err := <-answer; !errors.Is(err, context.Canceled) {
			t.Errorf("the cancelled waiter: %v, want %v", err, context.Canceled)
		}
	})
}

// refusesRelease is a grant whose release fails.
type refusesRelease struct{ localGrant }

func (refusesRelease) Release(context.Context) error { return errBackend }

// silentRelease is a grant whose server does not answer the release.
type silentRelease struct{ localGrant }

func (silentRelease) Release(ctx context.Context) error {
	<-ctx.Done()
	return errBackend
}

// refusesPipelined is a pipelined grant whose release fails.
type refusesPipelined struct{ refusesRelease }

func (g refusesPipelined) StartRelease() func(context.Context) error { return g.Release }

// refusesHandover is a grant that cannot be handed over.
type refusesHandover struct{ localGrant }

func (refusesHandover) HandOver(context.Context, func(error)) (Grant, error) { return nil, errBackend }

// TestFailedUnlock checks what Unlock returns if the backend fails or does not answer, with and
// without a waiter. The next waiter must still be granted the lock.
func TestFailedUnlock(t *testing.T) {
	t.Parallel()
	for _, waits := range []bool{false, true} {
		for _, grant := range []Grant{refusesRelease{}, silentRelease{}, refusesPipelined{}, refusesHandover{}} {
			synctest.Test(t, func(t *testing.T) {
				l := granting(grant, localGrant(2))
				lease := mustLock(t, l, "a")
				granted := make(chan Lease, 1)
				if waits {
					go func() { granted <- mustLock(t, l, "a") }()
					synctest.Wait()
				}
				_, handsOver := grant.(HandoverGrant)
				want := errBackend
				if handsOver && !waits {
					want = nil
				}
				if err := lease.Unlock(t.Context()); !errors.Is(err, want) || (err == nil) != (want == nil) {
					t.Errorf("Unlock of a %T: %v, want %v", grant, err, want)
				}
				if waits {
					mustUnlock(t, <-granted)
				}
				mustBeEmpty(t, l)
			})
		}
	}
}

// TestLossOfSharedLock loses a lock on which one owner has two leases. The owner can take the lock
// again before it has unlocked them. Each Unlock must report the loss. The last one must release
// the grant, although there is a waiter, and leave the owner its later grant.
func TestLossOfSharedLock(t *testing.T) {
	t.Parallel()
	b := handsOverBy(func(*fakeGrant) (Grant, error) { return nil, errBackend })
	l := newLocker(b)
	one, two := mustLockBy(t, l, "owner"), mustLockBy(t, l, "owner")
	(<-b.grants).lost(ErrDeleted)
	ctx, cancel := context.WithTimeout(WithOwner(t.Context(), "owner"), testenv.Patience)
	defer cancel()
	later, err := l.TryLock(ctx, "a")
	if err != nil {
		t.Fatalf("the owner's next request: %v", err)
	}
	w := startWaiter(t, l, 1)
	for _, lease := range []Lease{one, two} {
		if cause := context.Cause(lease.Context()); !errors.Is(cause, ErrDeleted) {
			t.Errorf("the lease has ended with %v", cause)
		}
		if err := lease.Unlock(t.Context()); !errors.Is(err, ErrDeleted) {
			t.Errorf("Unlock: %v, want %v", err, ErrDeleted)
		}
	}
	if b.released.Load() != 1 {
		t.Errorf("the grant was released %d times", b.released.Load())
	}
	mustUnlock(t, mustLockBy(t, l, "owner"))
	w.giveUp()
	<-w.failed
	mustUnlock(t, later)
	mustBeEmpty(t, l)
}

// TestLostBeforeTheGrant loses a lock before the backend returns its grant. The caller must get a
// lease that has ended, and whose Unlock releases the grant. The next waiter must not ask the
// backend before.
func TestLostBeforeTheGrant(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		proceed := make(chan struct{})
		b := &scripted{acquire: func(_ context.Context, _ bool, lost func(error)) (Grant, error) {
			lost(ErrDeleted)
			<-proceed
			return localGrant(1), nil
		}}
		l := newLocker(b)
		granted := make(chan Lease, 2)
		for range cap(granted) {
			go func() { granted <- mustLock(t, l, "a") }()
			synctest.Wait()
		}
		if b.asked != 1 {
			t.Errorf("the backend has %d requests at once", b.asked)
		}
		b.acquire = nil
		close(proceed)
		lost := <-granted
		if cause := context.Cause(lost.Context()); !errors.Is(cause, ErrDeleted) {
			t.Errorf("the lease has ended with %v, want %v", cause, ErrDeleted)
		}
		if err := lost.Unlock(t.Context()); !errors.Is(err, ErrDeleted) {
			t.Errorf("Unlock: %v, want %v", err, ErrDeleted)
		}
		mustUnlock(t, <-granted)
		mustBeEmpty(t, l)
	})
}

// TestHoldThatEnds ends the hold that another request of its owner has found, before that request
// adds its lease. The request must not get a lease on the lock, which may be another's by now.
func TestHoldThatEnds(t *testing.T) {
	t.Parallel()
	for what, end := range map[string]func(*testing.T, Lease){
		"unlocked": mustUnlock,
		"lost":     func(_ *testing.T, l Lease) { l.(*lease).hold.lose(ErrDeleted) },
	} {
		l := newLocker(&scripted{})
		held := mustLockBy(t, l, "owner")
		found, isNew := l.hold("owner", "a")
		if isNew {
			t.Fatal("the owner has two holds")
		}
		end(t, held)
		if late := found.lease(t.Context()); late != nil {
			t.Errorf("%s: a lease was added to the hold", what)
		}
		_ = held.Unlock(t.Context())
		mustUnlock(t, mustLockBy(t, l, "owner"))
		mustBeEmpty(t, l)
	}
}

// slowRelease is a watched grant whose release takes a second.
type slowRelease struct{ watched }

func (slowRelease) Release(ctx context.Context) error {
	time.Sleep(time.Second) // in a bubble
	return ctx.Err()
}

// TestWatchEndsWithUnlock unlocks a watched grant whose release is slow. The end of the watch must
// not let the next waiter ask the backend before the release. The context of Unlock has ended.
func TestWatchEndsWithUnlock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := granting(slowRelease{watched{localGrant(1), make(chan struct{}), make(chan error)}}, localGrant(2))
		lease := mustLock(t, l, "a")
		time.Sleep(2 * watchDelay)
		waiter := make(chan Lease, 1)
		go func() { waiter <- mustLock(t, l, "a") }()
		synctest.Wait()
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		unlocking, unlocked := time.Now(), make(chan error, 1)
		go func() { unlocked <- lease.Unlock(ended) }()
		next := <-waiter
		if took := time.Since(unlocking); took != time.Second {
			t.Errorf("the waiter was granted the lock after %v, want it after the release", took)
		}
		mustUnlock(t, next)
		if err := <-unlocked; err != nil {
			t.Error(err)
		}
	})
}

// dialed is a grant with a connection.
type dialed struct {
	localGrant
	conn syscall.RawConn
	err  error
}

func (g dialed) Connection() (syscall.RawConn, error) { return g.conn, g.err }

// TestConnection checks the connection of a lease.
func TestConnection(t *testing.T) {
	t.Parallel()
	conn, err := new(net.IPConn).SyscallConn()
	if conn != nil || err == nil {
		t.Fatal("a connection that is not open has a descriptor")
	}
	listener, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if conn, err = listener.SyscallConn(); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		grant Grant
		conn  syscall.RawConn
		err   error
	}{
		{localGrant(1), nil, nil},
		{dialed{conn: conn}, conn, nil},
		{dialed{conn: conn, err: errBackend}, nil, errBackend},
	} {
		lease := mustLock(t, granting(test.grant), "a")
		if conn, err := lease.(Connected).Connection(); conn != test.conn || !errors.Is(err, test.err) {
			t.Errorf("the connection of %T is %v, %v; want %v, %v", test.grant, conn, err, test.conn, test.err)
		}
		mustUnlock(t, lease)
	}
}
