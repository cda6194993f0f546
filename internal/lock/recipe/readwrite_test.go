package recipe_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/lock/recipe"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

func readWrite(t *testing.T, l lock.Locker, name string, readers int) *recipe.ReadWrite {
	t.Helper()
	rw, err := recipe.NewReadWrite(l, name, readers)
	if err != nil {
		t.Fatal(err)
	}
	return rw
}

func rlock(t *testing.T, rw *recipe.ReadWrite) lock.Lease {
	t.Helper()
	lease, err := rw.RLock(bounded(t))
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

func wlock(t *testing.T, rw *recipe.ReadWrite) *recipe.WriteLease {
	t.Helper()
	lease, err := rw.Lock(bounded(t))
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

// mustNotLock and mustNotRLock check that a request waits.
func mustNotLock(t *testing.T, rw *recipe.ReadWrite) {
	t.Helper()
	mustTimeOut(t, func(ctx context.Context) error { _, err := rw.Lock(ctx); return err })
}

func mustNotRLock(t *testing.T, rw *recipe.ReadWrite) {
	t.Helper()
	mustTimeOut(t, func(ctx context.Context) error { _, err := rw.RLock(ctx); return err })
}

// readersShare checks that two readers hold the lock at once, while a third reader and a writer
// wait.
func readersShare(t *testing.T, r *rig) {
	name := newName()
	one, two := readWrite(t, r.open(t), name, 2), readWrite(t, r.open(t), name, 2)
	first, second := rlock(t, one), rlock(t, two)
	mustNotRLock(t, one)
	mustNotLock(t, two)
	mustUnlock(t, first)
	mustNotLock(t, one)
	mustUnlock(t, second)
	mustUnlock(t, wlock(t, two))
}

// writerIsAlone lets readers and writers of two instances contend. No writer may overlap with
// another holder, and tokens of writers must rise.
func writerIsAlone(t *testing.T, r *rig) {
	const rounds = 4
	name := newName()
	locks := []*recipe.ReadWrite{readWrite(t, r.open(t), name, 2), readWrite(t, r.open(t), name, 2)}
	var (
		all              sync.WaitGroup
		readers, writers atomic.Int64
		last             uint64 // guarded by the lock
		ctx              = bounded(t)
	)
	for i := range 4 {
		rw := locks[i%2]
		all.Go(func() {
			for range rounds {
				if i < 2 {
					lease, err := rw.Lock(ctx)
					if err != nil {
						t.Error(err)
						return
					}
					if writers.Add(1) != 1 || readers.Load() != 0 {
						t.Error("a writer is not alone")
					}
					if r.backend.Fences && lease.Token() <= last {
						t.Errorf("token %d was followed by token %d", last, lease.Token())
					}
					last = lease.Token()
					testenv.Dither() // stands for the work
					writers.Add(-1)
					mustUnlock(t, lease)
					continue
				}
				lease, err := rw.RLock(ctx)
				if err != nil {
					t.Error(err)
					return
				}
				readers.Add(1)
				if writers.Load() != 0 {
					t.Error("a reader beside a writer")
				}
				testenv.Dither() // stands for the work
				readers.Add(-1)
				mustUnlock(t, lease)
			}
		})
	}
	all.Wait()
}

// writerIsNotOvertaken checks that a reader that requests the lock after a writer waits for the
// writer.
func writerIsNotOvertaken(t *testing.T, r *rig) {
	l, name := r.open(t), newName()
	rw := readWrite(t, l, name, 2)
	reader := rlock(t, rw)
	written := make(chan error, 1)
	go func() {
		lease, err := rw.Lock(bounded(t))
		if err == nil {
			err = lease.Unlock(context.WithoutCancel(t.Context()))
		}
		written <- err
	}()
	testenv.Await(t, "the writer is first in the queue", func() bool {
		free, err := l.TryLock(bounded(t), name+"#queue")
		if err == nil {
			mustUnlock(t, free)
		} else if !errors.Is(err, lock.ErrHeld) {
			t.Fatal(err)
		}
		return err != nil
	})
	mustNotRLock(t, rw)
	mustUnlock(t, reader)
	if err := <-written; err != nil {
		t.Error(err)
	}
}

// downgradeButNoUpgrade checks that a writer becomes a reader without another writer in between. A
// reader that requests the lock for writing must wait for itself.
func downgradeButNoUpgrade(t *testing.T, r *rig) {
	name := newName()
	one, two := readWrite(t, r.open(t), name, 2), readWrite(t, r.open(t), name, 2)
	writer := wlock(t, one)
	mustNotRLock(t, two)
	reader, err := writer.Downgrade(bounded(t))
	if err != nil {
		t.Fatal(err)
	}
	if writer.Context().Err() == nil || reader.Context().Err() != nil {
		t.Error("Downgrade must end the context of the writer, and only that")
	}
	if _, err := writer.Downgrade(bounded(t)); err == nil {
		t.Error("a writer was downgraded twice")
	}
	mustUnlock(t, writer) // has no effect
	mustNotLock(t, two)
	mustNotLock(t, one)
	mustUnlock(t, rlock(t, two))
	mustUnlock(t, reader)
	mustUnlock(t, wlock(t, two))

	owner := lock.WithOwner(bounded(t), "owner") // a writer's lock has no reentrancy
	again, err := one.Lock(owner)
	if err != nil {
		t.Fatal(err)
	}
	mustTimeOut(t, func(ctx context.Context) error { _, err := one.Lock(lock.WithOwner(ctx, "owner")); return err })
	mustUnlock(t, again)
}

// TestDowngradeOfLostLock checks that a writer that has lost one of its locks does not become a
// reader, and keeps no lock. The writer may learn of the loss only from an unlock.
func TestDowngradeOfLostLock(t *testing.T) {
	t.Parallel()
	local := lock.NewLocal()
	losing := losable{local, make(map[string]context.CancelCauseFunc)}
	for what, l := range map[string]lock.Locker{
		"a#1 is lost": losing,
		"a#2 was lost": unlocking{local, func(ctx context.Context, name string, lease lock.Lease) error {
			if err := lease.Unlock(ctx); err != nil || name != "a#2" {
				return err
			}
			return lock.ErrDeleted
		}},
	} {
		writer := wlock(t, readWrite(t, l, "a", 3))
		if lose := losing.lose["a#1"]; lose != nil {
			lose(lock.ErrLost)
		}
		if reader, err := writer.Downgrade(t.Context()); reader != nil || !errors.Is(err, lock.ErrLost) {
			t.Fatalf("%s: Downgrade returned %v, %v; want %v", what, reader, err, lock.ErrLost)
		}
		all, err := recipe.LockAll(bounded(t), local, "a#1", "a#2", "a#3")
		if err != nil {
			t.Fatal(err)
		}
		mustUnlock(t, all)
	}
}
