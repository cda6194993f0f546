package locktest

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// LongLease is a lease that outlasts a test's wait for an event, so its end cannot be mistaken for
// the event.
const LongLease = 10 * testenv.Patience

// ShortLease returns the lease of holders of the backend that a test kills, stops or cuts off. It is
// short, so that their locks are soon free. Redlock gives each server a twentieth of the lease to
// answer: of 3 s, that is too little on a busy machine.
func ShortLease(backend string) time.Duration {
	if backend == "redlock" {
		return 6 * time.Second
	}
	return 3 * time.Second
}

// MustLock takes the lock, or ends the test.
func MustLock(t testing.TB, l lock.Locker, name string) lock.Lease {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
	defer cancel()
	lease, err := l.Lock(ctx, name)
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

// MustUnlock frees a lock that is still held, or ends the test.
func MustUnlock(t testing.TB, lease lock.Lease) {
	t.Helper()
	if err := lease.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// MustBeHeld ends the test unless TryLock returns ErrHeld.
func MustBeHeld(t testing.TB, l lock.Locker, name string) {
	t.Helper()
	lease, err := l.TryLock(t.Context(), name)
	if err == nil {
		_ = lease.Unlock(t.Context())
	}
	if !errors.Is(err, lock.ErrHeld) {
		t.Fatalf("TryLock of a held lock: %v, want %v", err, lock.ErrHeld)
	}
}

// MustBeLost ends the test unless the lease's context ends. Its cause must be ErrLost.
func MustBeLost(t testing.TB, lease lock.Lease) {
	t.Helper()
	testenv.Receive(t, "the lost lease ends", lease.Context().Done())
	if cause := context.Cause(lease.Context()); !errors.Is(cause, lock.ErrLost) {
		t.Errorf("the lease ended with the cause %v, want %v", cause, lock.ErrLost)
	}
}

// Answer is the result of a call of Lock.
type Answer struct {
	Lease lock.Lease
	Err   error
	At    time.Time
}

// LockAsync calls Lock in a goroutine. The channel delivers its answer.
func LockAsync(ctx context.Context, l lock.Locker, name string) <-chan Answer {
	answers := make(chan Answer, 1)
	go func() {
		lease, err := l.Lock(ctx, name)
		answers <- Answer{lease, err, time.Now()}
	}()
	return answers
}

// MustGrant waits for an answer that grants the lock, or ends the test.
func MustGrant(t testing.TB, answers <-chan Answer) Answer {
	t.Helper()
	a := testenv.Receive(t, "the lock is granted", answers)
	if a.Err != nil {
		t.Fatal(a.Err)
	}
	return a
}

// MustWait ends the test if Lock has returned, or returns at once: a Locker does not show
// who waits.
func MustWait(t testing.TB, answers <-chan Answer) {
	t.Helper()
	testenv.Quiet(t, "Lock of a held lock returned", answers)
}

// MustBeClosed ends the test if the leftovers of a Locker that was closed are still freed.
func MustBeClosed(t testing.TB, l *lock.Leftovers) {
	t.Helper()
	freed := make(chan time.Time, 1)
	l.Add(time.Now().Add(LongLease), func(context.Context) (bool, error) {
		freed <- time.Now()
		return true, nil
	})
	testenv.Quiet(t, "a leftover was freed after Close", freed)
}

// MustEndGoroutines ends the test unless all goroutines end, except those that before
// ignores.
func MustEndGoroutines(t testing.TB, before goleak.Option) {
	t.Helper()
	// Each call waits for less than a second.
	testenv.AwaitSuccess(t, "the goroutines end", func() error { return goleak.Find(before) })
}
