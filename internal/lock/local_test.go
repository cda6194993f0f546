package lock

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// waitFor waits until so many wait for the name.
func waitFor(l *locker, name string, waiting int) {
	for {
		l.queue.mu.Lock()
		there := l.queue.lines[name] != nil && l.queue.lines[name].waiting.Len() == waiting
		l.queue.mu.Unlock()
		if there {
			return
		}
		runtime.Gosched()
	}
}

func held(t *testing.T, l Locker, name string) Lease {
	t.Helper()
	lease, err := l.Lock(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

func unlock(t *testing.T, lease Lease) {
	t.Helper()
	if err := lease.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestGrantsInTheOrderOfAsking(t *testing.T) {
	t.Parallel()
	var (
		l     = NewLocal()
		first = held(t, l, "a")
		order []int // the lock guards it
		all   sync.WaitGroup
	)
	for i := range 20 {
		all.Go(func() {
			lease, err := l.Lock(t.Context(), "a")
			if err != nil {
				t.Error(err)
				return
			}
			order = append(order, i)
			unlock(t, lease)
		})
		waitFor(l.locker, "a", i+1)
	}
	unlock(t, first)
	all.Wait()
	if len(order) != 20 || !slices.IsSorted(order) {
		t.Errorf("granted in the order %v", order)
	}
}

func TestNothingIsKeptOfANameAtRest(t *testing.T) {
	t.Parallel()
	l := NewLocal()
	lease := held(t, l, "a")
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() {
			if _, err := l.Lock(ctx, "a"); !errors.Is(err, context.Canceled) {
				t.Errorf("got %v", err)
			}
		})
	}
	waitFor(l.locker, "a", 10)
	cancel()
	all.Wait()
	waitFor(l.locker, "a", 0)
	unlock(t, lease)
	for i := range 1000 {
		unlock(t, held(t, l, fmt.Sprint(i)))
	}
	if len(l.queue.lines) != 0 {
		t.Errorf("%d names are kept", len(l.queue.lines))
	}
}

func TestAGrantToSomeoneGivingUpIsPassedOn(t *testing.T) {
	t.Parallel()
	l := NewLocal()
	for range 2000 { // whichever comes first, cancel or grant, somebody must have the lock next
		lease := held(t, l, "a")
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		all.Go(func() {
			if lease, err := l.Lock(ctx, "a"); err == nil {
				unlock(t, lease)
			}
		})
		waitFor(l.locker, "a", 1)
		all.Go(cancel)
		unlock(t, lease)
		all.Wait()
		unlock(t, held(t, l, "a"))
	}
}

func TestTokensGoOnRisingThoughTheNameWasForgotten(t *testing.T) {
	t.Parallel()
	l := NewLocal()
	var last uint64
	for range 100 {
		lease := held(t, l, "a")
		unlock(t, lease)
		unlock(t, held(t, l, "b"))
		if lease.Token() <= last {
			t.Fatalf("token %d after %d", lease.Token(), last)
		}
		last = lease.Token()
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
