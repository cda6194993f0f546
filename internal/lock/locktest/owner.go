package locktest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/lock"
)

func reentrant(ctx context.Context, b Backend) error {
	n := name()
	owner := lock.WithOwner(ctx, uuid.NewString())
	outer, err := b.first().Lock(owner, n)
	if err != nil {
		return err
	}
	inner, err := b.first().TryLock(outer.Context(), n) // the lease's context knows its owner
	if err != nil {
		return fmt.Errorf("again, by its owner: %w", err)
	}
	if inner.Token() != outer.Token() {
		return fmt.Errorf("token %d on re-entry into %d", inner.Token(), outer.Token())
	}
	for who, other := range map[string]context.Context{"nobody": ctx, "another owner": lock.WithOwner(ctx, uuid.NewString())} {
		if _, err := b.first().TryLock(other, n); !errors.Is(err, lock.ErrHeld) {
			return fmt.Errorf("%s was answered %v", who, err)
		}
	}
	if err := inner.Unlock(ctx); err != nil {
		return fmt.Errorf("the inner Unlock: %w", err)
	}
	if inner.Context().Err() == nil || outer.Context().Err() != nil {
		return errors.New("the inner Unlock ends the inner lease's context and no other")
	}
	if err := inner.Unlock(ctx); err != nil {
		return fmt.Errorf("the inner Unlock again: %w", err)
	}
	if err := b.waitsInVain(ctx, b.other(), n); err != nil {
		return fmt.Errorf("after the inner Unlock: %w", err)
	}
	// The outer lease may end before an inner one.
	if inner, err = b.first().Lock(outer.Context(), n); err != nil {
		return err
	}
	if err := outer.Unlock(ctx); err != nil {
		return err
	}
	if err := b.waitsInVain(ctx, b.other(), n); err != nil {
		return fmt.Errorf("after the outer Unlock: %w", err)
	}
	if err := inner.Unlock(ctx); err != nil {
		return err
	}
	next, err := b.other().Lock(ctx, n)
	if err != nil {
		return fmt.Errorf("after all of them: %w", err)
	}
	return next.Unlock(ctx)
}

func ownerInTwoGoroutines(ctx context.Context, b Backend) error {
	n := name()
	held, err := b.other().Lock(ctx, n)
	if err != nil {
		return err
	}
	owner := lock.WithOwner(ctx, uuid.NewString())
	const goroutines = 4
	leases, errs := make(chan lock.Lease, goroutines), make(chan error, goroutines)
	ask := func(ctx context.Context) {
		lease, err := b.first().Lock(ctx, n)
		if err != nil {
			errs <- err
			return
		}
		leases <- lease
	}
	// The goroutine that asks for the others gives up.
	impatient, cancel := context.WithTimeout(owner, b.waits())
	defer cancel()
	var all sync.WaitGroup
	all.Go(func() { ask(impatient) })
	time.Sleep(b.waits() / 4)
	for range goroutines - 1 {
		all.Go(func() { ask(owner) })
	}
	if err := <-errs; !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("the impatient one was answered %w", err)
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
		if err := b.waitsInVain(ctx, b.other(), n); err != nil {
			return fmt.Errorf("while %d of the owner's goroutines hold it: %w", left, err)
		}
		if err := lease.Unlock(ctx); err != nil {
			return err
		}
		left--
	}
	if left != 0 {
		return fmt.Errorf("%d goroutines were not granted it", left)
	}
	next, err := b.other().Lock(ctx, n)
	if err != nil {
		return err
	}
	return next.Unlock(ctx)
}

// orderWithinProcess has goroutines ask one after the other, each long enough
// after the one before that it stands behind it.
func orderWithinProcess(ctx context.Context, b Backend) error {
	return order(ctx, b, func(int) lock.Locker { return b.first() })
}

// orderBetweenProcesses does the same with instances that have a waiter each: of
// each process only the first waiter stands in the servers' queue.
func orderBetweenProcesses(ctx context.Context, b Backend) error {
	lockers := make([]lock.Locker, orderWaiters)
	for i := range lockers {
		var err error
		if lockers[i], _, err = b.Servers.OverWire(ctx); err != nil {
			return err
		}
	}
	return order(ctx, b, func(i int) lock.Locker { return lockers[i] })
}

// orderWaiters is how many ask one after the other.
const orderWaiters = 6

func order(ctx context.Context, b Backend, locker func(int) lock.Locker) error {
	n := name()
	held, err := b.other().Lock(ctx, n)
	if err != nil {
		return err
	}
	var (
		granted = make(chan int, orderWaiters)
		errs    = make(chan error, orderWaiters)
		all     sync.WaitGroup
	)
	for i := range orderWaiters {
		all.Go(func() {
			lease, err := locker(i).Lock(ctx, n)
			if err != nil {
				errs <- err
				return
			}
			granted <- i
			if err := lease.Unlock(ctx); err != nil {
				errs <- err
			}
		})
		time.Sleep(2 * b.waits())
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
			return fmt.Errorf("asker %d was granted the lock where asker %d was the next", got, want)
		}
		want++
	}
	return nil
}
