package locktest

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/holdfast-stock/holdfast/internal/lock"
)

const (
	// lockTimeout bounds MustLock. It is much longer than a lock takes whose last
	// holder has not crashed.
	lockTimeout = 20 * time.Second
	// eventTimeout bounds the waits for events that are due. It is much shorter
	// than a lease of 30 s, so that the end of such a lease does not count as the
	// event.
	eventTimeout = 15 * time.Second
	// pollInterval is the pause between two looks at a condition.
	pollInterval = 2 * time.Millisecond
)

// MustLock takes the lock, or ends the test.
func MustLock(t testing.TB, l lock.Locker, name string) lock.Lease {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), lockTimeout)
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

// MustBeLost ends the test unless the lease's context ends within the given time.
// Its cause must be ErrLost.
func MustBeLost(t testing.TB, lease lock.Lease, within time.Duration) {
	t.Helper()
	select {
	case <-lease.Context().Done():
	case <-time.After(within):
		t.Fatalf("the lost lease has not ended within %v", within)
	}
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
	select {
	case a := <-answers:
		if a.Err != nil {
			t.Fatal(a.Err)
		}
		return a
	case <-time.After(eventTimeout):
		t.Fatalf("the lock was not granted within %v", eventTimeout)
		panic("unreachable")
	}
}

// MustWait ends the test if Lock returns within the given time.
func MustWait(t testing.TB, answers <-chan Answer, during time.Duration) {
	t.Helper()
	select {
	case a := <-answers:
		t.Fatalf("Lock of a held lock returned: error %v", a.Err)
	case <-time.After(during):
	}
}

// MustEndGoroutines ends the test unless all goroutines end, except those that before
// ignores.
func MustEndGoroutines(t testing.TB, before goleak.Option) {
	t.Helper()
	for deadline := time.Now().Add(eventTimeout); ; {
		err := goleak.Find(before) // waits for less than a second
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

// Eventually waits until condition holds, or ends the test.
func Eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(eventTimeout); !condition(); time.Sleep(pollInterval) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", eventTimeout, what)
		}
	}
}
