package recipe

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/retry"
)

// MaxHolders bounds the holders of a semaphore.
const MaxHolders = 64

// Semaphore lets up to a number of holders, in any process, hold a name at once. A waiter gets a
// slot when a holder unlocks or dies. The semaphore has no reentrancy: an owner that acquires it
// again takes another slot. It is safe for concurrent use.
//
// Each holder has one of the locks NAME#1 to NAME#N, the slots. A waiter first takes the lock
// NAME#queue. So only one waiter at a time waits for the slots, and it waits for all of them at
// once. The others wait in the queue of the backend, in its order. A waiter that dies is replaced
// when its lock of the queue ends with its lease. The queue only orders the waiters: if its lock is
// lost, no slot gets a second holder.
//
// A semaphore with one holder is the lock NAME itself. Its users, and those who take the lock
// without a semaphore, exclude each other.
//
// All users of a name must use the same number of holders. Otherwise there may be as many holders
// as the greatest of their numbers, or one more if one of the numbers is 1.
type Semaphore struct {
	locker  lock.Locker
	name    string
	holders int
}

// NewSemaphore returns a semaphore with 1 to MaxHolders holders. It returns lock.ErrName if the
// name, or the name of one of its locks, is invalid. With several holders, a name has at most 249
// bytes.
func NewSemaphore(l lock.Locker, name string, holders int) (*Semaphore, error) {
	if holders < 1 || holders > MaxHolders {
		return nil, fmt.Errorf("a semaphore has 1 to %d holders, not %d", MaxHolders, holders)
	}
	s := &Semaphore{l, name, holders}
	longest := s.queueName()
	if holders == 1 {
		longest = name
	}
	if err := lock.CheckName(longest); err != nil {
		return nil, err
	}
	return s, nil
}

// Slot is a held slot of a semaphore. Its context has no owner. Its token rises with
// every grant of the same slot.
type Slot struct {
	lock.Lease
	// Number is the slot's number, from 1.
	Number int

	hide func(context.Context)
	once sync.Once
}

// Unlock ends the lease, and at the same time the holder's place in the list of holders.
func (s *Slot) Unlock(ctx context.Context) error {
	var hiding sync.WaitGroup
	s.once.Do(func() { hiding.Go(func() { s.hide(ctx) }) })
	defer hiding.Wait()
	return s.Lease.Unlock(ctx)
}

// Confirm implements lock.Confirmer.
func (s *Slot) Confirm(ctx context.Context) (until time.Time, err error) {
	if c, ok := s.Lease.(lock.Confirmer); ok {
		return c.Confirm(ctx)
	}
	return time.Time{}, errors.ErrUnsupported
}

// Connection implements lock.Connected.
func (s *Slot) Connection() (syscall.RawConn, error) {
	if c, ok := s.Lease.(lock.Connected); ok {
		return c.Connection()
	}
	return nil, errors.ErrUnsupported
}

// Acquire waits for a slot until ctx ends, and then returns ctx's error. If the backend
// fails at the start, Acquire returns its error. If it fails while Acquire waits for all
// slots, Acquire asks again until ctx ends.
func (s *Semaphore) Acquire(ctx context.Context) (*Slot, error) {
	ctx = lock.WithOwner(ctx, "")
	if s.holders == 1 {
		lease, err := s.locker.Lock(ctx, s.name)
		if err != nil {
			return nil, err
		}
		return s.slot(1, lease), nil
	}
	turn, err := s.locker.Lock(ctx, s.queueName())
	if err != nil {
		return nil, err
	}
	defer func() { _ = turn.Unlock(ctx) }() // if Unlock fails, the lock ends with its lease
	slot, err := s.TryAcquire(ctx)
	if errors.Is(err, lock.ErrHeld) {
		return s.wait(ctx)
	}
	return slot, err
}

// TryAcquire takes a slot if one is free. Otherwise it returns lock.ErrHeld without
// waiting for a holder. It can overtake waiters.
func (s *Semaphore) TryAcquire(ctx context.Context) (*Slot, error) {
	ctx = lock.WithOwner(ctx, "")
	for number := 1; ; number++ {
		lease, err := s.locker.TryLock(ctx, s.slotName(number))
		if err == nil {
			return s.slot(number, lease), nil
		}
		if !errors.Is(err, lock.ErrHeld) || number == s.holders {
			return nil, err
		}
	}
}

// queueName returns the name of the lock whose holder waits for the slots.
func (s *Semaphore) queueName() string { return s.name + "#queue" }

// slotName returns the name of the slot's lock.
func (s *Semaphore) slotName(number int) string {
	if s.holders == 1 {
		return s.name
	}
	return s.name + "#" + strconv.Itoa(number)
}

// wait waits for all slots at once. It keeps the first that is granted.
func (s *Semaphore) wait(ctx context.Context) (*Slot, error) {
	type answer struct {
		number int
		lease  lock.Lease
		err    error
	}
	waiting, stop := context.WithCancel(ctx)
	defer stop()
	answers := make(chan answer, s.holders)
	for number := 1; number <= s.holders; number++ {
		go func() {
			lease, err := s.waitForSlot(waiting, number)
			answers <- answer{number, lease, err}
		}()
	}
	var granted answer
	for range s.holders {
		switch a := <-answers; {
		case a.err != nil: // the wait for this slot has failed
		case granted.lease != nil: // two slots were granted at once
			_ = a.lease.Unlock(ctx)
		default:
			granted = a
			stop()
		}
	}
	if granted.lease == nil {
		return nil, fmt.Errorf("waiting for a slot of %s: %w", s.name, ctx.Err())
	}
	return s.slot(granted.number, granted.lease), nil
}

// waitForSlot waits for the slot until ctx ends. If the backend fails, it requests the slot again
// after a pause, so that the waiter does not miss the slot's release.
func (s *Semaphore) waitForSlot(ctx context.Context, number int) (lock.Lease, error) {
	for {
		lease, err := s.locker.Lock(ctx, s.slotName(number))
		if err == nil {
			return lease, nil
		}
		if err := retry.Sleep(ctx, retryPause); err != nil {
			return nil, err
		}
	}
}
