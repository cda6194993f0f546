package ratelimit

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestTake checks the burst, the rate, and that the wait is exact.
func TestTake(t *testing.T) {
	t.Parallel()
	l := New[string](10, 5)
	now := time.Unix(1, 0)
	for n := range 5 {
		if wait := l.Take("a", now); wait != 0 {
			t.Fatalf("use %d of the burst waits %v", n, wait)
		}
	}
	for range 3 { // a refused use does not count
		if wait := l.Take("a", now); wait != 100*time.Millisecond {
			t.Fatalf("after the burst: %v", wait)
		}
	}
	if wait := l.Take("b", now); wait != 0 {
		t.Errorf("another client waits %v", wait)
	}
	now = now.Add(99 * time.Millisecond)
	if wait := l.Take("a", now); wait < 999*time.Microsecond || wait > 1001*time.Microsecond {
		t.Errorf("1 ms before its time: %v", wait)
	}
	now = now.Add(time.Millisecond)
	if wait := l.Take("a", now); wait != 0 {
		t.Errorf("at its time: %v", wait)
	}
	allowed := 0
	for range 1000 {
		now = now.Add(10 * time.Millisecond)
		if l.Take("a", now) == 0 {
			allowed++
		}
	}
	if allowed < 99 || allowed > 101 {
		t.Errorf("%d uses in 10 s, want 100", allowed)
	}
}

// TestSlowRate checks a rate of less than one a second.
func TestSlowRate(t *testing.T) {
	t.Parallel()
	l := New[string](0.5, 1)
	now := time.Unix(1, 0)
	if wait := l.Take("a", now); wait != 0 {
		t.Errorf("the first use waits %v", wait)
	}
	if wait := l.Take("a", now); wait != 2*time.Second {
		t.Errorf("the second use waits %v", wait)
	}
	if wait := l.Take("a", now.Add(2*time.Second)); wait != 0 {
		t.Errorf("two seconds later: %v", wait)
	}
}

// TestForgets checks that the memory is bounded, and that active clients are kept.
func TestForgets(t *testing.T) {
	t.Parallel()
	l := sized[int](1, 1, 100)
	now := time.Unix(1, 0)
	l.Take(-1, now)
	for n := range 10_000 {
		l.Take(n, now)
		if l.Take(-1, now) == 0 {
			t.Fatalf("an active client is forgotten after %d others", n)
		}
	}
	if n := l.clients.Len(); n != 100 {
		t.Errorf("%d clients are remembered", n)
	}
	if l.Take(0, now) != 0 {
		t.Error("a silent client is remembered beside 10,000 newer ones")
	}
}

// TestConcurrentUse checks that clients that share a bucket get only the tokens that it has.
func TestConcurrentUse(t *testing.T) {
	t.Parallel()
	l := New[int](1, 50)
	now := time.Unix(1, 0)
	var allowed atomic.Int64
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 100 {
				if l.Take(0, now) == 0 {
					allowed.Add(1)
				}
			}
		})
	}
	all.Wait()
	if allowed.Load() != 50 {
		t.Errorf("%d uses, want 50", allowed.Load())
	}
}

func BenchmarkTake(b *testing.B) {
	l := New[int](1_000_000, 1_000_000)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for n := 0; pb.Next(); n++ {
			l.Take(n%1000, time.Now())
		}
	})
}
