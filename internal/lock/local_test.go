package lock

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/holdfast-stock/holdfast/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// waitForWaiters returns when n callers wait for the name.
func waitForWaiters(t *testing.T, l *locker, name string, n int) {
	t.Helper()
	testenv.Await(t, fmt.Sprintf("%d callers wait", n), func() bool {
		l.queue.mu.Lock()
		defer l.queue.mu.Unlock()
		return l.queue.lines[name] != nil && l.queue.lines[name].waiting.Len() == n
	})
}

// mustLock and mustUnlock are copies of those of locktest, which this package cannot import.
func mustLock(t *testing.T, l Locker, name string) Lease {
	t.Helper()
	lease, err := l.Lock(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

func mustUnlock(t *testing.T, lease Lease) {
	t.Helper()
	if err := lease.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestLocalCancelDuringUnlock cancels a waiter while the lock is unlocked. Either may happen first.
// In both cases the lock must be free afterwards, and no state of its name may be kept.
func TestLocalCancelDuringUnlock(t *testing.T) {
	t.Parallel()
	l := NewLocal()
	for i := range 2000 {
		lease := mustLock(t, l, "a")
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		all.Go(func() {
			if lease, err := l.Lock(WithOwner(ctx, "owner"), "a"); err == nil {
				mustUnlock(t, lease)
			}
		})
		waitForWaiters(t, l.locker, "a", 1)
		if i%2 == 0 {
			cancel() // the waiter may get the lock before it notices
		} else {
			all.Go(cancel)
		}
		mustUnlock(t, lease)
		all.Wait()
		mustBeEmpty(t, l.locker)
		lease, err := l.TryLock(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		mustUnlock(t, lease)
	}
}

// TestLocalTokensRise checks that tokens are not behind the clock after a restart.
func TestLocalTokensRise(t *testing.T) {
	t.Parallel()
	clock := uint64(time.Now().UnixMicro())
	restarted := mustLock(t, NewLocal(), "a")
	defer mustUnlock(t, restarted)
	if restarted.Token() < clock {
		t.Errorf("token %d after a restart at %d", restarted.Token(), clock)
	}
}

func BenchmarkLockUnlock(b *testing.B) {
	l := NewLocal()
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			lease, err := l.Lock(context.Background(), "a")
			if err != nil {
				b.Error(err)
				return
			}
			_ = lease.Unlock(context.Background())
		}
	})
}
