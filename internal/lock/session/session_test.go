package session

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/lock/locktest"
)

// TestTokenAfterGrant checks that a token is minted after its lock was granted, because an earlier
// token could be smaller than that of an earlier holder. A waiter gets both in one round trip.
func TestTokenAfterGrant(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer()
		l := f.locker(t)
		f.log()
		locktest.MustUnlock(t, locktest.MustLock(t, l, "a"))
		if got, want := f.log(), []string{"wait", "unlock"}; !slices.Equal(got, want) {
			t.Errorf("the statements are %q, want %q", got, want)
		}
		lease, err := l.TryLock(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		locktest.MustUnlock(t, lease)
		if got, want := f.log(), []string{"try", "mint", "unlock"}; !slices.Equal(got, want) {
			t.Errorf("the statements of TryLock are %q, want %q", got, want)
		}
	})
}

// TestLeaseAfterAWait waits for longer than a lease. The lease counts from a statement that was
// answered at once. If that statement shows that the lock is lost, the lock must not be granted.
func TestLeaseAfterAWait(t *testing.T) {
	t.Parallel()
	for _, fails := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			f := newFakeServer()
			held, l := locktest.MustLock(t, f.locker(t), "a"), f.locker(t)
			time.Sleep(time.Minute) // in the bubble's time: the idle session ends
			f.log()
			waiting := locktest.LockAsync(t.Context(), l, "a")
			time.Sleep(10 * time.Second)
			if fails {
				f.failChecks()
			}
			_ = held.Unlock(t.Context())
			answer := <-waiting
			if fails {
				if !errors.Is(answer.Err, lock.ErrDeleted) {
					t.Errorf("a lock that is gone was granted, or refused with %v", answer.Err)
				}
				return
			}
			synctest.Wait()
			if answer.Err != nil || context.Cause(answer.Lease.Context()) != nil {
				t.Fatalf("the lease has ended: %v", answer.Err)
			}
			locktest.MustUnlock(t, answer.Lease)
		})
	}
}

// TestLeaseCountsFromTheRequest delays the answers to the statements that grant and check a lock.
// The server may count the length of the lease from a moment before its answer.
func TestLeaseCountsFromTheRequest(t *testing.T) {
	t.Parallel()
	for _, wait := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			const late, length = checkInterval / 2, 2 * time.Second * 2 / 3
			f := newFakeServer()
			l := f.locker(t)
			mint, waitFor := l.backend.database.Mint, l.backend.database.Wait
			l.backend.database.Mint = func(ctx context.Context, conn *sql.Conn, key any) (int64, error) {
				defer time.Sleep(late) // in the bubble's time
				return mint(ctx, conn, key)
			}
			l.backend.database.Wait = func(ctx context.Context, conn *sql.Conn, key any) (Taken, error) {
				defer time.Sleep(late)
				return waitFor(ctx, conn, key)
			}
			asked := time.Now()
			acquired, err := l.backend.Acquire(t.Context(), "a", wait, func(err error) { t.Errorf("lost: %v", err) })
			if err != nil {
				t.Fatal(err)
			}
			g := acquired.(*grant)
			if until := g.Until(); !until.Equal(asked.Add(length)) {
				t.Errorf("wait %v: granted for %v from the request, want %v", wait, until.Sub(asked), length)
			}
			f.silence(true)
			time.AfterFunc(late, func() { f.silence(false) })
			asked = time.Now()
			if until, err := g.Confirm(t.Context()); err != nil || !until.Equal(asked.Add(length)) {
				t.Errorf("confirmed for %v from the request, want %v (%v)", until.Sub(asked), length, err)
			}
			if err := g.Release(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestConnectionIsKept makes the check of a lock fail while its session continues. If the holder
// has requested the lock's connection, only Unlock may close it.
func TestConnectionIsKept(t *testing.T) {
	t.Parallel()
	for _, asked := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			f := newFakeServer()
			lease := locktest.MustLock(t, f.locker(t), "a")
			sessions := f.openSessions()
			if asked {
				_, _ = lease.(lock.Connected).Connection() // the fake connection has no descriptor
			}
			f.failChecks()
			<-lease.Context().Done()
			synctest.Wait()
			if kept := f.openSessions() == sessions; kept != asked {
				t.Errorf("asked for the connection: %v, kept after the loss: %v", asked, kept)
			}
			if err := lease.Unlock(t.Context()); !errors.Is(err, lock.ErrLost) {
				t.Errorf("Unlock of the lost lease: %v", err)
			}
			if f.openSessions() >= sessions {
				t.Error("Unlock of the lost lease keeps the connection")
			}
		})
	}
}

// TestSilentServer uses a server that answers nothing, and a driver that waits for an answer even
// if the context of the statement has ended. The lease must still end.
func TestSilentServer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer()
		l := f.locker(t)
		lease := locktest.MustLock(t, l, "a")
		silent := time.Now()
		f.silence(true)
		select {
		case <-lease.Context().Done():
		case <-time.After(2*time.Second - time.Millisecond): // the server frees the lock after 2 s
			t.Fatal("the lease has not ended before the server freed the lock")
		}
		if age := time.Since(silent); age < time.Second {
			t.Errorf("the lease has ended after only %v", age)
		}
		if cause := context.Cause(lease.Context()); !errors.Is(cause, lock.ErrExpired) {
			t.Errorf("the lease ended with the cause %v, want %v", cause, lock.ErrExpired)
		}
		f.silence(false)
		if err := lease.Unlock(t.Context()); !errors.Is(err, lock.ErrLost) {
			t.Errorf("Unlock of the lost lease: %v", err)
		}
	})
}

// TestConfirm confirms a lock at a server that answers, one that does not, and one that
// has ended the session.
func TestConfirm(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer()
		lease := locktest.MustLock(t, f.locker(t), "a")
		confirm := lease.(lock.Confirmer).Confirm
		granted := time.Now()
		// A confirmation holds for two thirds of the lease.
		if until, err := confirm(t.Context()); err != nil || time.Since(granted) > 0 || time.Until(until) != 2*time.Second*2/3 {
			t.Errorf("confirmed for %v: %v", time.Until(until), err)
		}
		time.Sleep(time.Minute) // in the bubble's time: the checks continue
		f.silence(true)
		ctx, cancel := context.WithTimeout(t.Context(), checkInterval)
		defer cancel()
		if _, err := confirm(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a server that does not answer: %v", err)
		}
		f.silence(false)
		if _, err := confirm(t.Context()); err != nil {
			t.Errorf("after a request without an answer: %v", err)
		}
		f.kill()
		if _, err := confirm(t.Context()); !errors.Is(err, lock.ErrDisconnected) {
			t.Errorf("after the end of the session: %v", err)
		}
		_ = lease.Unlock(t.Context())
	})
}

// TestPoolerIsRefused uses three poolers and a proxy to several servers. The first pooler runs
// every statement in one session, the second in one of two sessions in turn, and the third resets
// the session before each statement. TestPgBouncer in package postgres uses a real pooler.
func TestPoolerIsRefused(t *testing.T) {
	t.Parallel()
	for name, set := range map[string]func(*fakeServer){
		"one session":     func(f *fakeServer) { f.pooled = true },
		"two sessions":    func(f *fakeServer) { f.alternates = true },
		"resets":          func(f *fakeServer) { f.resets = true },
		"several servers": func(f *fakeServer) { f.apart = true },
	} {
		f := newFakeServer()
		set(f)
		_, err := New(t.Context(), f.pool(t), fakeDatabase(f), 0)
		if !errors.Is(err, errStranded) {
			t.Fatalf("%s: New behind a pooler: %v", name, err)
		}
		if slices.Contains(f.log(), "prepare") {
			t.Errorf("%s: the settings of the pooler's session were changed", name)
		}
	}
}

// TestPoolerThatAppearsLater moves a holder's statements to another session.
func TestPoolerThatAppearsLater(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer()
		l := f.locker(t)
		lease := locktest.MustLock(t, l, "a")
		f.mu.Lock()
		f.pooled = true
		f.mu.Unlock()
		moved := time.Now()
		locktest.MustBeLost(t, lease)
		if cause := context.Cause(lease.Context()); !errors.Is(cause, errStranded) || time.Since(moved) > checkInterval {
			t.Errorf("the lease ended after %v with the cause %v, want %v", time.Since(moved), cause, errStranded)
		}
		if err := lease.Unlock(t.Context()); !errors.Is(err, lock.ErrLost) {
			t.Errorf("Unlock of the lost lease: %v", err)
		}
	})
}

// TestServerThatHasJustStarted checks that no lock is granted while holders from
// before a restart may not have noticed it. The server's clock may have been set back.
func TestServerThatHasJustStarted(t *testing.T) {
	t.Parallel()
	for uptime, want := range map[time.Duration]time.Duration{settleTime / 4: settleTime * 3 / 4, -time.Hour: settleTime} {
		synctest.Test(t, func(t *testing.T) {
			f := newFakeServer()
			f.uptime = uptime
			started := time.Now()
			l := f.locker(t)
			locktest.MustUnlock(t, locktest.MustLock(t, l, "a"))
			if waited := time.Since(started); waited != want {
				t.Errorf("up for %v: the lock was granted after %v, want %v", uptime, waited, want)
			}
		})
	}
}

// TestLongWait waits for longer than a statement may wait. PostgreSQL then returns an error, and
// MySQL a row that says that the lock is not granted.
func TestLongWait(t *testing.T) {
	t.Parallel()
	for _, mysql := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			f := newFakeServer()
			f.mysql = mysql
			holder, waiter := f.locker(t), f.locker(t)
			held := locktest.MustLock(t, holder, "a")
			answers := locktest.LockAsync(t.Context(), waiter, "a")
			time.Sleep(3*MaxWait + time.Second) // in the bubble's time
			if n := f.asked("wait"); n != 1+4 {
				t.Errorf("the waiter has asked %d times, want 4", n-1)
			}
			locktest.MustUnlock(t, held)
			locktest.MustUnlock(t, locktest.MustGrant(t, answers).Lease)
		})
	}
}

// TestLockGrantedWithTimeout uses a server that grants a lock at the moment at which it ends the
// wait. After Unlock the lock must be free.
func TestLockGrantedWithTimeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer()
		l, other := f.locker(t), f.locker(t)
		f.mu.Lock()
		f.late = true
		f.mu.Unlock()
		locktest.MustUnlock(t, locktest.MustLock(t, l, "a"))
		lease, err := other.TryLock(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		locktest.MustUnlock(t, lease)
	})
}

// TestSessionsAreBounded takes as many locks as there are sessions.
func TestSessionsAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer()
		l := f.locker(t)
		var leases []lock.Lease
		for i := range maxSessions {
			leases = append(leases, locktest.MustLock(t, l, strings.Repeat("a", i+1)))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := l.Lock(ctx, "b"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Lock without a free session: %v", err)
		}
		answers := locktest.LockAsync(t.Context(), l, "b")
		for _, lease := range leases {
			locktest.MustUnlock(t, lease)
		}
		locktest.MustUnlock(t, locktest.MustGrant(t, answers).Lease)
		if n := f.openSessions(); n != maxSessions {
			t.Errorf("%d sessions are open, want %d", n, maxSessions)
		}
		time.Sleep(time.Minute) // in the bubble's time
		if n := f.openSessions(); n != 0 {
			t.Errorf("%d sessions are open after a minute without locks", n)
		}
		locktest.MustUnlock(t, locktest.MustLock(t, l, "a"))
	})
}

// TestLeaseIsRounded checks the lease that is sent to the server.
func TestLeaseIsRounded(t *testing.T) {
	t.Parallel()
	for lease, want := range map[time.Duration]time.Duration{
		0: lock.DefaultLease, time.Millisecond: 2 * time.Second, 2100 * time.Millisecond: 3 * time.Second, time.Minute: time.Minute,
	} {
		f := newFakeServer()
		database, told := fakeDatabase(f), time.Duration(0)
		database.Prepare = func(_ context.Context, _ *sql.Conn, lease time.Duration) (Server, error) {
			told = lease
			return Server{}, errors.New("no more is needed")
		}
		if _, err := New(t.Context(), f.pool(t), database, lease); err == nil || told != want {
			t.Errorf("a lease of %v: the server is told %v, want %v (%v)", lease, told, want, err)
		}
	}
}

// TestWaiterMoved lets a pooler move a waiter's statement to another session.
func TestWaiterMoved(t *testing.T) {
	t.Parallel()
	f := newFakeServer()
	database := fakeDatabase(f)
	wait := database.Wait
	database.Wait = func(ctx context.Context, conn *sql.Conn, key any) (Taken, error) {
		taken, err := wait(ctx, conn, key)
		taken.Session++
		return taken, err
	}
	if _, err := f.lockerWith(t, database).Lock(t.Context(), "a"); !errors.Is(err, errStranded) {
		t.Errorf("a lock of another session was granted, or refused with %v", err)
	}
}
