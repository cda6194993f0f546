package recipe

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/holdfast-stock/holdfast/internal/lock"
)

// ReadWrite is a lock that up to a number of readers share, in any process, and that a writer holds
// alone. It has no reentrancy. It is safe for concurrent use.
//
// It is built on a semaphore: a reader holds one of the slots, a writer all of them. Readers and
// writers wait in one queue, so readers do not overtake a waiting writer. A writer sends as many
// requests as there are slots: use as few slots as you need.
//
// A writer can become a reader. A reader cannot become a writer: if it asks for the lock to write,
// it waits for itself until its context ends.
type ReadWrite struct{ slots *Semaphore }

// NewReadWrite returns a read-write lock with 1 to MaxHolders readers. All users of the
// name must give the same number.
func NewReadWrite(l lock.Locker, name string, readers int) (*ReadWrite, error) {
	slots, err := NewSemaphore(l, name, readers)
	if err != nil {
		return nil, err
	}
	return &ReadWrite{slots}, nil
}

// RLock waits until it can share the lock with other readers, or ctx ends. Lease.Token has no
// meaning, because readers are not ordered.
func (rw *ReadWrite) RLock(ctx context.Context) (lock.Lease, error) {
	slot, err := rw.slots.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	return slot, nil
}

// Lock waits until it holds the lock and no reader or other writer does, or until ctx ends.
func (rw *ReadWrite) Lock(ctx context.Context) (*WriteLease, error) {
	ctx = lock.WithOwner(ctx, "")
	s := rw.slots
	if s.holders > 1 {
		turn, err := s.locker.Lock(ctx, s.queueName())
		if err != nil {
			return nil, err
		}
		defer func() { _ = turn.Unlock(ctx) }() // if Unlock fails, the lock ends with its lease
	}
	var names []string
	for number := 1; number <= s.holders; number++ {
		names = append(names, s.slotName(number))
	}
	held, err := LockAll(ctx, s.locker, names...)
	if err != nil {
		return nil, err
	}
	return &WriteLease{held: held, first: names[0]}, nil
}

// WriteLease is a read-write lock that is held for writing.
type WriteLease struct {
	held  *Locks
	first string // name of the first slot's lock
	once  sync.Once
	err   error
}

var _ lock.Lease = (*WriteLease)(nil)

// Context returns a context as lock.Lease does. Downgrade ends it, too.
func (w *WriteLease) Context() context.Context { return w.held.Context() }

// Token returns the fencing token. It rises with every writer of the name.
func (w *WriteLease) Token() uint64 { return w.held.Token(w.first) }

// Unlock frees the lock, as lock.Lease does. After Downgrade it does nothing.
func (w *WriteLease) Unlock(ctx context.Context) error {
	w.once.Do(func() { w.err = w.held.Unlock(ctx) })
	return w.err
}

// Downgrade makes the writer a reader. No other writer has the lock in between. The
// caller unlocks the lease that Downgrade returns.
func (w *WriteLease) Downgrade(ctx context.Context) (reader lock.Lease, err error) {
	err = errors.New("the write lock has been unlocked or downgraded")
	w.once.Do(func() {
		reader, err = w.held.unlockOthers(ctx, w.first)
	})
	if err != nil {
		return nil, fmt.Errorf("downgrading %s: %w", w.first, err)
	}
	return reader, nil
}
