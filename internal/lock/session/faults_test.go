package session

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-stock/holdfast/internal/faults"
	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/lock/locktest"
)

// eachFault runs the test with each statement failing in turn, in each way, until the operation has
// no more statements.
func eachFault(t *testing.T, test func(t *testing.T, f *fakeServer, n int, kind faults.Kind) (failed bool)) {
	t.Parallel()
	for _, kind := range []faults.Kind{faults.Refused, faults.Lost, faults.HungDone} {
		for n, failed := 1, true; failed; n++ {
			failed = false // a subtest that fails or does not run is the last one
			t.Run(fmt.Sprintf("%s %d", kind, n), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { failed = test(t, newFakeServer(), n, kind) })
			})
			if n == 1 && !failed {
				t.Fatal("no statement has failed")
			}
		}
	}
}

// mustBeFault checks that the error is the one of the failed statement.
func mustBeFault(t *testing.T, kind faults.Kind, err error) {
	t.Helper()
	want := errFault
	if kind == faults.HungDone {
		want = errNoAnswer
	}
	if !errors.Is(err, want) {
		t.Errorf("the error is %v, want %v", err, want)
	}
}

func (f *fakeServer) mustBeFree(t *testing.T) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.holders) != 0 {
		t.Errorf("the server still has the locks %v", f.holders)
	}
}

// mustBeClean checks that the lock is free, and that the Locker leaves nothing behind once it is
// closed and its last lease is unlocked.
func mustBeClean(t *testing.T, f *fakeServer, l *Locker) {
	t.Helper()
	f.mustBeFree(t)
	if n := len(l.backend.slots); n != 0 {
		t.Errorf("%d sessions are in use", n)
	}
	first, last := locktest.MustLock(t, l, "first"), locktest.MustLock(t, l, "last")
	locktest.MustUnlock(t, first) // so that a session is idle
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	locktest.MustUnlock(t, last)
	if n := f.openSessions(); n != 0 {
		t.Errorf("%d sessions are left", n)
	}
}

// TestNewFails makes each statement of New fail.
func TestNewFails(t *testing.T) {
	eachFault(t, func(t *testing.T, f *fakeServer, n int, kind faults.Kind) bool {
		pool := f.pool(t)
		f.Arm(faults.Fault{Kind: kind, Nth: n})
		l, err := New(t.Context(), pool, fakeDatabase(f), time.Second)
		if !f.heal() {
			l.Close()
			return false
		}
		const rollback = 7 // number of the ROLLBACK
		if n == rollback { // a failed ROLLBACK does not matter
			if err != nil {
				t.Fatal(err)
			}
			mustBeClean(t, f, l)
			return true
		}
		if kind == faults.HungDone && n < rollback {
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("the error is %v", err)
			}
		} else {
			mustBeFault(t, kind, err)
		}
		if f.openSessions() != 0 {
			t.Errorf("%d sessions are left", f.openSessions())
		}
		return true
	})
}

// TestRequestFails makes each statement of a request fail, in a session that has been idle and in a
// new one. The request must fail, or be granted in another session.
func TestRequestFails(t *testing.T) {
	for _, idle := range []bool{true, false} {
		for name, request := range map[string]func(*Locker, context.Context, string) (lock.Lease, error){
			"Lock": (*Locker).Lock, "TryLock": (*Locker).TryLock,
		} {
			t.Run(fmt.Sprint(name, ", idle: ", idle), func(t *testing.T) {
				eachFault(t, func(t *testing.T, f *fakeServer, n int, kind faults.Kind) bool {
					l := f.locker(t)
					if !idle {
						time.Sleep(time.Minute) // in the bubble's time: the session ends
					}
					f.Arm(faults.Fault{Kind: kind, Nth: n})
					lease, err := request(l, t.Context(), "a")
					failed := f.heal()
					if err != nil {
						mustBeFault(t, kind, err)
						if idle { // an idle session may have ended
							t.Error("the request was not repeated in another session")
						}
						mustBeClean(t, f, l)
						return failed
					}
					// A waiter whose session breaks continues in another one, if the first had been
					// opened.
					if again := idle || name == "Lock" && kind == faults.Lost && n > 2; failed && !again {
						t.Error("the request was granted")
					}
					other := f.locker(t)
					locktest.MustBeHeld(t, other, "a")
					time.Sleep(time.Minute)
					if err := context.Cause(lease.Context()); err != nil {
						t.Errorf("the lease has ended: %v", err)
					}
					locktest.MustUnlock(t, lease)
					other.Close()
					mustBeClean(t, f, l)
					return failed
				})
			})
		}
	}
}

// TestHolderFails makes each statement of a holder fail: a check, and the one of Unlock. The loss
// must be reported, and the lock must be free afterwards.
func TestHolderFails(t *testing.T) {
	eachFault(t, func(t *testing.T, f *fakeServer, n int, kind faults.Kind) bool {
		l := f.locker(t)
		lease := locktest.MustLock(t, l, "a")
		f.Arm(faults.Fault{Kind: kind, Nth: n})
		time.Sleep(checkInterval * 3 / 2) // the bubble's clock passes one check
		if n == 1 {
			want := lock.ErrDisconnected
			if kind == faults.HungDone {
				want = lock.ErrExpired
			}
			<-lease.Context().Done()
			if cause := context.Cause(lease.Context()); !errors.Is(cause, want) || kind != faults.HungDone && !errors.Is(cause, errFault) {
				t.Errorf("the lease has ended with %v", cause)
			}
			synctest.Wait()
			f.mustBeFree(t)
			if err := lease.Unlock(t.Context()); !errors.Is(err, want) {
				t.Errorf("Unlock: %v, want %v", err, want)
			}
			mustBeClean(t, f, l)
			return f.heal()
		}
		if err := context.Cause(lease.Context()); err != nil {
			t.Errorf("the lease has ended before Unlock: %v", err)
		}
		err := lease.Unlock(t.Context())
		failed := f.heal()
		switch {
		case !failed && err != nil:
			t.Errorf("Unlock: %v", err)
		case failed && kind == faults.HungDone:
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Unlock without an answer: %v", err)
			}
		case failed:
			mustBeFault(t, kind, err)
		}
		mustBeClean(t, f, l)
		return failed
	})
}

// TestUnlockDuringCheck releases a lock while a check has no answer.
func TestUnlockDuringCheck(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		kill, cancel bool // the check fails; the caller gives up
		want         error
	}{
		"answered": {}, "failing": {kill: true, want: lock.ErrDisconnected}, "given up": {cancel: true, want: lock.ErrDisconnected},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFakeServer()
				l := f.locker(t)
				g, err := l.backend.Acquire(t.Context(), "a", true, func(error) {})
				if err != nil {
					t.Fatal(err)
				}
				f.silence(true)
				time.Sleep(checkInterval) // the bubble's clock reaches the time of the check
				synctest.Wait()
				unlocked := make(chan error, 1)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				go func() { unlocked <- g.Release(ctx) }()
				synctest.Wait()
				if test.kill {
					f.kill()
				}
				if test.cancel {
					cancel()
					synctest.Wait()
				}
				f.silence(false)
				if err := <-unlocked; !errors.Is(err, test.want) {
					t.Errorf("Release: %v, want %v", err, test.want)
				}
				locktest.MustUnlock(t, locktest.MustLock(t, l, "a"))
				mustBeClean(t, f, l)
			})
		})
	}
}

// TestUnlockOfFreedLock unlocks a lock that an administrator has freed.
func TestUnlockOfFreedLock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer()
		l := f.locker(t)
		lease := locktest.MustLock(t, l, "a")
		f.mu.Lock()
		clear(f.holders)
		f.mu.Unlock()
		if err := lease.Unlock(t.Context()); !errors.Is(err, lock.ErrDeleted) {
			t.Errorf("Unlock: %v, want %v", err, lock.ErrDeleted)
		}
		mustBeClean(t, f, l)
	})
}

// TestIdleSessionIsTakenAsItExpires takes an idle session when its timer has fired already. The
// timer must not end it.
func TestIdleSessionIsTakenAsItExpires(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer()
		l := f.locker(t)
		locktest.MustUnlock(t, locktest.MustLock(t, l, "a"))
		idle := l.backend.idle[0]
		lease := locktest.MustLock(t, l, "a")
		l.backend.expire(idle) // what the timer runs
		locktest.MustUnlock(t, lease)
		mustBeClean(t, f, l)
	})
}

// TestRefusedRequest tries a lock that is held. The request must keep its session, and take no
// token.
func TestRefusedRequest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer()
		held, l := locktest.MustLock(t, f.locker(t), "a"), f.locker(t)
		sessions := f.openSessions()
		for range 3 {
			locktest.MustBeHeld(t, l, "a")
		}
		if n := f.openSessions(); n != sessions {
			t.Errorf("%d sessions are open, want %d", n, sessions)
		}
		if n := f.asked("mint"); n != 0 {
			t.Errorf("%d tokens were minted", n)
		}
		locktest.MustUnlock(t, held)
		locktest.MustUnlock(t, locktest.MustLock(t, l, "a"))
	})
}

// TestSilentAfterFailure makes a server refuse a waiter and then stop answering. The waiter must
// not make another request, because its session may continue and be granted the lock.
func TestSilentAfterFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer()
		l := f.locker(t)
		time.Sleep(time.Minute) // in the bubble's time: the idle session ends
		f.Arm(faults.Fault{Kind: faults.Refused, Nth: 3}, faults.Fault{Kind: faults.HungDone, Nth: 4})
		if _, err := l.Lock(t.Context(), "a"); !errors.Is(err, errFault) || !f.heal() {
			t.Errorf("the error is %v", err)
		}
		mustBeClean(t, f, l)
	})
}

// TestUnknownConnection checks that Connection returns an error for a lock whose pool has not
// called Dialed.
func TestUnknownConnection(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer()
		f.hidden = true
		lease := locktest.MustLock(t, f.locker(t), "a")
		if conn, err := lease.(lock.Connected).Connection(); conn != nil || err == nil {
			t.Errorf("the connection is %v, %v", conn, err)
		}
		locktest.MustUnlock(t, lease)
	})
}

// TestCancelledAsTheTokenComes checks a request whose context ends as it is answered. A driver may
// end the session then, so the lock must not be granted, and it must be free.
func TestCancelledAsTheTokenComes(t *testing.T) {
	t.Parallel()
	for _, request := range []func(*Locker, context.Context, string) (lock.Lease, error){(*Locker).Lock, (*Locker).TryLock} {
		testCancelledAsTheTokenComes(t, request)
	}
}

func testCancelledAsTheTokenComes(t *testing.T, request func(*Locker, context.Context, string) (lock.Lease, error)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer()
		ctx, cancel := context.WithCancel(t.Context())
		database := fakeDatabase(f)
		mint, wait := database.Mint, database.Wait
		database.Mint = func(ctx context.Context, conn *sql.Conn, key any) (int64, error) {
			defer cancel()
			return mint(ctx, conn, key)
		}
		database.Wait = func(ctx context.Context, conn *sql.Conn, key any) (Taken, error) {
			defer cancel()
			return wait(ctx, conn, key)
		}
		if _, err := request(f.lockerWith(t, database), ctx, "a"); !errors.Is(err, context.Canceled) {
			t.Fatalf("the lock was granted, or refused with %v", err)
		}
		locktest.MustUnlock(t, locktest.MustLock(t, f.locker(t), "a"))
	})
}

// TestCancelledWaiter cancels waiters. Each must end only its own session, and idle sessions must
// stay.
func TestCancelledWaiter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer()
		held := locktest.MustLock(t, f.locker(t), "a")
		for range 8 {
			l := f.locker(t)
			one, two := locktest.MustLock(t, l, "b"), locktest.MustLock(t, l, "c")
			locktest.MustUnlock(t, one)
			locktest.MustUnlock(t, two)
			sessions := f.openSessions()
			ctx, cancel := context.WithCancel(t.Context())
			waiting := locktest.LockAsync(ctx, l, "a")
			synctest.Wait()
			cancel()
			if answer := <-waiting; !errors.Is(answer.Err, context.Canceled) {
				t.Errorf("the waiter has ended with %v", answer.Err)
			}
			if n := f.openSessions(); n != sessions-1 {
				t.Errorf("%d sessions are open, want %d", n, sessions-1)
			}
			l.Close()
		}
		locktest.MustUnlock(t, held)
	})
}
