// Package recipe builds other kinds of locks on any lock.Locker: several locks at
// once, semaphores, read-write locks, leaders and jobs.
package recipe

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/holdfast-stock/holdfast/internal/lock"
)

// waitingLocker is the part of lock.Locker that LockAll uses.
type waitingLocker interface {
	Lock(ctx context.Context, name string) (lock.Lease, error)
}

// Locks are several locks that were taken together. They are safe for concurrent
// use.
type Locks struct {
	ctx    context.Context
	end    context.CancelCauseFunc
	leases []lock.Lease
	byName map[string]lock.Lease
}

// LockAll takes the locks of all names, or none. ctx bounds the wait for all of them
// together. LockAll takes them in the order of their names, so two callers cannot
// wait for each other. A name that is given twice is locked once.
//
// If a lock cannot be taken, or one that was taken is lost during the wait, LockAll
// frees the locks that it has taken and returns the error.
func LockAll(ctx context.Context, l waitingLocker, names ...string) (*Locks, error) {
	held := &Locks{byName: make(map[string]lock.Lease, len(names))}
	held.ctx, held.end = context.WithCancelCause(context.WithoutCancel(ctx))
	waiting, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	defer context.AfterFunc(held.ctx, func() { stop(context.Cause(held.ctx)) })()
	for _, name := range slices.Compact(slices.Sorted(slices.Values(names))) {
		lease, err := l.Lock(waiting, name)
		if err != nil {
			if lost := context.Cause(held.ctx); lost != nil {
				err = fmt.Errorf("waiting for %s: another of the locks: %w", name, lost)
			}
			_ = held.Unlock(ctx) // the error of the failed lock matters more
			return nil, err
		}
		held.add(name, lease)
	}
	return held, nil
}

func (l *Locks) add(name string, lease lock.Lease) {
	ctx := lease.Context()
	l.leases = append(l.leases, lease)
	context.AfterFunc(ctx, func() { l.end(context.Cause(ctx)) })
	l.byName[name] = lease
}

// Context returns a context with the values of the context that was passed to
// LockAll, but not with its end. It ends when the first of the locks is lost or
// Unlock is called. Its cause is lock.ErrLost if a lock was lost.
func (l *Locks) Context() context.Context { return l.ctx }

// Token returns the fencing token of the lock with the name, which must be one of those
// given to LockAll. 0 means that the backend has no tokens.
func (l *Locks) Token(name string) uint64 { return l.byName[name].Token() }

// Unlock frees all locks at the same time. It returns the errors of all of them, each as
// lock.Lease.Unlock returns it. Later calls return the same errors.
func (l *Locks) Unlock(ctx context.Context) error { return l.unlockAllBut(ctx, nil) }

// unlockAllBut frees all locks but kept, which can be nil. It frees them concurrently, because each
// can take seconds while the servers do not answer.
func (l *Locks) unlockAllBut(ctx context.Context, kept lock.Lease) error {
	l.end(nil)
	errs := make([]error, len(l.leases))
	var unlocking sync.WaitGroup
	for i, lease := range l.leases {
		if lease != kept {
			unlocking.Go(func() { errs[i] = lease.Unlock(ctx) })
		}
	}
	unlocking.Wait()
	return errors.Join(errs...)
}

// unlockOthers frees all locks but the one with the name, and returns its lease. It is called
// instead of Unlock. It returns ErrLost if one of the locks was lost; then all were freed. After
// any other error of a lock, that lock ends with its lease.
func (l *Locks) unlockOthers(ctx context.Context, name string) (lock.Lease, error) {
	kept := l.byName[name]
	if err := errors.Join(l.unlockAllBut(ctx, kept), context.Cause(kept.Context())); errors.Is(err, lock.ErrLost) {
		return nil, errors.Join(err, kept.Unlock(ctx))
	}
	return kept, nil
}
