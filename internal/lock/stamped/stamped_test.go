package stamped_test

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/lock/stamped"
)

// account has two balances whose sum is always 0.
type account struct {
	lock      stamped.Lock
	one, two  atomic.Int64
	transfers int64 // guarded by lock
}

func (a *account) transfer() {
	a.lock.Lock()
	defer a.lock.Unlock()
	a.transfers++
	a.one.Add(1)
	a.two.Add(-1)
}

// TestReadsAreConsistent checks that no read sees half of a write.
func TestReadsAreConsistent(t *testing.T) {
	t.Parallel()
	const readers, writers, rounds = 3, 2, 2000
	var (
		a   account
		all sync.WaitGroup
	)
	for range writers {
		all.Go(func() {
			for range rounds {
				a.transfer()
			}
		})
	}
	for range readers {
		all.Go(func() {
			for range rounds {
				var one, two int64
				a.lock.Read(func() { one, two = a.one.Load(), a.two.Load() })
				if one+two != 0 {
					t.Errorf("read %d and %d", one, two)
					return
				}
			}
		})
	}
	all.Wait()
	a.lock.RLock()
	defer a.lock.RUnlock()
	if a.transfers != writers*rounds {
		t.Errorf("%d transfers, want %d", a.transfers, writers*rounds)
	}
}

// yield lets the goroutines that were started run until they wait.
func yield() {
	for range 100 {
		runtime.Gosched()
	}
}

// TestStamps checks when an optimistic read is valid. A reader and another writer wait while a
// writer has the lock.
func TestStamps(t *testing.T) {
	t.Parallel()
	var l stamped.Lock
	stamp, ok := l.TryRead()
	if !ok || !l.Valid(stamp) {
		t.Error("a read without a writer is not valid")
	}
	l.RLock()
	if !l.Valid(stamp) {
		t.Error("a reader makes a read invalid")
	}
	l.RUnlock()
	var (
		held    atomic.Bool
		waiting sync.WaitGroup
	)
	l.Lock()
	held.Store(true)
	if l.Valid(stamp) {
		t.Error("a read is valid although a writer has the lock")
	}
	waiting.Go(func() {
		l.Read(func() {
			if held.Load() {
				t.Error("Read reads while a writer has the lock")
			}
		})
	})
	waiting.Go(func() {
		l.Lock()
		l.Unlock() //nolint:staticcheck // an empty critical section is a write
	})
	yield()
	if _, ok := l.TryRead(); ok {
		t.Error("a read begins while a writer has the lock")
	}
	held.Store(false)
	l.Unlock()
	waiting.Wait()
	if l.Valid(stamp) {
		t.Error("a read is valid although a writer had the lock")
	}
}

// TestReadUnderWriters checks that Read takes the lock when writers keep it from reading
// optimistically.
func TestReadUnderWriters(t *testing.T) {
	t.Parallel()
	var l stamped.Lock
	write := func() {
		l.Lock()
		l.Unlock() //nolint:staticcheck // an empty critical section is a write
	}
	var (
		calls   int
		written atomic.Bool
		writing sync.WaitGroup
	)
	l.Read(func() {
		if calls++; calls <= 3 {
			write()
			return
		}
		writing.Go(func() {
			write()
			written.Store(true)
		})
		yield()
		if written.Load() {
			t.Error("a writer gets the lock while Read has it")
		}
	})
	writing.Wait()
	if calls != 4 {
		t.Errorf("read was called %d times, want 4", calls)
	}
}

// BenchmarkReadMostly reads two numbers from all processors, and writes them once in
// 1,000 operations.
func BenchmarkReadMostly(b *testing.B) {
	var (
		one, two atomic.Int64
		mutex    sync.Mutex
		shared   sync.RWMutex
		stamp    stamped.Lock
		local    = lock.NewLocal()
	)
	read := func() { _ = one.Load() + two.Load() }
	write := func() { one.Add(1); two.Add(-1) }
	under := func(l sync.Locker, work func()) {
		l.Lock()
		defer l.Unlock()
		work()
	}
	underLease := func(take func(context.Context, string) (lock.Lease, error), work func()) {
		lease, err := take(b.Context(), "name")
		if err != nil {
			b.Error(err)
			return
		}
		work()
		if err := lease.Unlock(b.Context()); err != nil {
			b.Error(err)
		}
	}
	for _, way := range []struct {
		name        string
		read, write func()
	}{
		{"sync.Mutex", func() { under(&mutex, read) }, func() { under(&mutex, write) }},
		{"sync.RWMutex", func() { under(shared.RLocker(), read) }, func() { under(&shared, write) }},
		{"stamped.Lock", func() { stamp.Read(read) }, func() { under(&stamp, write) }},
		{"lock.Local/Lock", func() { underLease(local.Lock, read) }, func() { underLease(local.Lock, write) }},
	} {
		b.Run(way.name, func(b *testing.B) {
			b.RunParallel(func(pb *testing.PB) {
				for i := 0; pb.Next(); i++ {
					if i%1000 == 0 {
						way.write()
					} else {
						way.read()
					}
				}
			})
		})
	}
}
