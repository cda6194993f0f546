package locktest

import (
	"context"
	"testing"
	"time"

	"github.com/holdfast-stock/holdfast/internal/lock"
)

// mustTimeout bounds MustLock: well over what a lock takes whose last holder has
// not crashed.
const mustTimeout = 20 * time.Second

// MustLock locks, or ends the test.
func MustLock(t testing.TB, l lock.Locker, name string) lock.Lease {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), mustTimeout)
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
