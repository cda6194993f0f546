package locktest

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/lock"
)

func reentrant(ctx context.Context, s Subject) error {
	name := newName()
	outer, err := s.first().Lock(lock.WithOwner(ctx, uuid.NewString()), name)
	if err != nil {
		return err
	}
	if err := s.unlockInner(ctx, outer, name); err != nil {
		return err
	}
	if err := s.unlockOuterFirst(ctx, outer, name); err != nil {
		return err
	}
	if err := lockAndUnlock(ctx, s.other(), name); err != nil {
		return fmt.Errorf("after all Unlocks: %w", err)
	}
	return nil
}

// unlockInner takes the lock again for outer's owner and unlocks that second lease twice. The lock
// must stay held.
func (s Subject) unlockInner(ctx context.Context, outer lock.Lease, name string) error {
	inner, err := s.first().TryLock(outer.Context(), name) // the lease's context has the owner
	if err != nil {
		return fmt.Errorf("re-entry by the owner: %w", err)
	}
	if inner.Token() != outer.Token() {
		return fmt.Errorf("the outer lease has token %d, the inner %d", outer.Token(), inner.Token())
	}
	for who, other := range map[string]context.Context{"no owner": ctx, "another owner": lock.WithOwner(ctx, uuid.NewString())} {
		if _, err := s.first().TryLock(other, name); !errors.Is(err, lock.ErrHeld) {
			return fmt.Errorf("TryLock with %s returned %v", who, err)
		}
	}
	if err := inner.Unlock(ctx); err != nil {
		return fmt.Errorf("the inner Unlock: %w", err)
	}
	if inner.Context().Err() == nil || outer.Context().Err() != nil {
		return errors.New("the inner Unlock must end the inner lease's context, and only that")
	}
	if err := inner.Unlock(ctx); err != nil {
		return fmt.Errorf("the second inner Unlock: %w", err)
	}
	if err := s.mustWait(ctx, s.other(), name); err != nil {
		return fmt.Errorf("after the inner Unlock: %w", err)
	}
	return nil
}

// unlockOuterFirst takes the lock again for outer's owner and unlocks outer first.
// The lock must stay held until the inner lease is unlocked.
func (s Subject) unlockOuterFirst(ctx context.Context, outer lock.Lease, name string) error {
	inner, err := s.first().Lock(outer.Context(), name)
	if err != nil {
		return err
	}
	if err := outer.Unlock(ctx); err != nil {
		return err
	}
	if err := s.mustWait(ctx, s.other(), name); err != nil {
		return fmt.Errorf("after the outer Unlock: %w", err)
	}
	return inner.Unlock(ctx)
}

func ownerInTwoGoroutines(ctx context.Context, s Subject) error {
	name := newName()
	held, err := s.other().Lock(ctx, name)
	if err != nil {
		return err
	}
	owner := lock.WithOwner(ctx, uuid.NewString())
	const goroutines = 4
	leases, errs := make(chan lock.Lease, goroutines), make(chan error, goroutines)
	request := func(ctx context.Context) {
		lease, err := s.first().Lock(ctx, name)
		if err != nil {
			errs <- err
			return
		}
		leases <- lease
	}
	// The first goroutine requests the lock for all of them, and has a short timeout.
	short, cancel := context.WithTimeout(owner, s.patience())
	defer cancel()
	var all sync.WaitGroup
	all.Go(func() { request(short) })
	_ = endsWithin(ctx, s.patience()/4) // a Locker does not show who waits
	for range goroutines - 1 {
		all.Go(func() { request(owner) })
	}
	if err := <-errs; !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("the request with the short timeout returned %w", err)
	}
	if err := held.Unlock(ctx); err != nil {
		return err
	}
	all.Wait()
	close(leases)
	select {
	case err := <-errs:
		return err
	default:
	}
	left := goroutines - 1
	for lease := range leases {
		if err := s.mustWait(ctx, s.other(), name); err != nil {
			return fmt.Errorf("while %d of the owner's goroutines hold the lock: %w", left, err)
		}
		if err := lease.Unlock(ctx); err != nil {
			return err
		}
		left--
	}
	if left != 0 {
		return fmt.Errorf("%d of the owner's goroutines were not granted the lock", left)
	}
	return lockAndUnlock(ctx, s.other(), name)
}

// orderedWaiters is the number of waiters in the checks of the order of grants.
const orderedWaiters = 6

func orderWithinProcess(ctx context.Context, s Subject) error {
	return s.grantsInOrder(ctx, newName(), func(int) lock.Locker { return s.first() }, func(int) error {
		_ = endsWithin(ctx, 2*s.patience()) // a Locker does not show who waits
		return nil
	})
}

// orderBetweenProcesses runs one waiter in each instance, because only the first waiter of a
// process is in the servers' queue.
func orderBetweenProcesses(ctx context.Context, s Subject) error {
	lockers := make([]lock.Locker, orderedWaiters)
	for i := range lockers {
		var err error
		if lockers[i], _, err = s.Servers.OverWire(ctx, s.LongLease); err != nil {
			return err
		}
	}
	name := newName()
	return s.grantsInOrder(ctx, name, func(i int) lock.Locker { return lockers[i] }, func(waiters int) error {
		// The holder also leaves a trace.
		return s.waitForTraces(ctx, name, func(traces int) bool { return traces > waiters })
	})
}

// grantsInOrder makes requests one after the other while the lock is held. After each it calls
// queued, which returns when that many waiters are in the queue.
func (s Subject) grantsInOrder(ctx context.Context, name string, locker func(int) lock.Locker, queued func(waiters int) error) error {
	held, err := s.other().Lock(ctx, name)
	if err != nil {
		return err
	}
	var (
		granted = make(chan int, orderedWaiters)
		errs    = make(chan error, orderedWaiters)
		all     sync.WaitGroup
	)
	for i := range orderedWaiters {
		all.Go(func() {
			lease, err := locker(i).Lock(ctx, name)
			if err != nil {
				errs <- err
				return
			}
			granted <- i
			if err := lease.Unlock(ctx); err != nil {
				errs <- err
			}
		})
		if err := queued(i + 1); err != nil {
			return err
		}
	}
	if err := held.Unlock(ctx); err != nil {
		return err
	}
	all.Wait()
	close(granted)
	select {
	case err := <-errs:
		return err
	default:
	}
	want := 0
	for got := range granted {
		if got != want {
			return fmt.Errorf("waiter %d was granted the lock before waiter %d", got, want)
		}
		want++
	}
	return nil
}
