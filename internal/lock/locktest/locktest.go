// Package locktest says whether a lock.Locker keeps its promises. Table says
// which promises each backend makes; Check checks one of them.
package locktest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/lock"
)

// checkTimeout bounds one check.
const checkTimeout = 90 * time.Second

// Backend is what the promises are checked on.
type Backend struct {
	// Lockers share their locks, as instances of a service do. One will do
	// where a backend has no more.
	Lockers []lock.Locker
	// Tokens: the backend gives fencing tokens.
	Tokens bool
	// Waits is how long a check believes that somebody waits who has not been
	// granted a lock. 0: 50 ms.
	Waits time.Duration
	// Lease is how long a lock outlives its holder.
	Lease time.Duration
	// Servers are nil for a backend without servers.
	Servers Servers
}

// Servers are what a backend locks in, and the faults that befall it.
type Servers interface {
	// Process starts another instance in a process of its own, see Child.
	Process(ctx context.Context) (*Process, error)
	// OverWire makes another instance in this process, whose connections can be
	// broken.
	OverWire(ctx context.Context) (lock.Locker, Wire, error)
	// Restart kills all servers with SIGKILL and starts them again, with what
	// they keep on disk.
	Restart() error
	// Traces counts what the servers keep under the lock's name.
	Traces(ctx context.Context, name string) (int, error)
}

// Wire is a connection to the servers that breaks as networks do.
type Wire interface {
	// Cut cuts the connections, and returns how many there were.
	Cut() int
	// Freeze makes it a black hole, and returns how many connections it holds.
	Freeze() int
	// Thaw ends the black hole.
	Thaw()
}

// Promise is one thing that a Locker promises.
type Promise struct {
	Name string
	// Says is the promise in words.
	Says string
	// Restarts: its check restarts the servers, under whatever else uses them.
	Restarts bool

	check func(ctx context.Context, b Backend) error
}

// Promises returns all promises. Their checks use lock names of their own, and
// but for those that restart servers may run at once on the same Lockers.
func Promises() []Promise {
	return []Promise{
		{Name: "OneHolder", Says: "a held lock is not granted again", check: oneHolder},
		{Name: "NoOverlap", Says: "of goroutines and instances that contend, one holds the lock at a time", check: noOverlap},
		{Name: "TryLockHeld", Says: "TryLock answers ErrHeld at once", check: tryLockHeld},
		{Name: "NamesApart", Says: "locks of different names do not know of each other", check: namesApart},
		{Name: "UnlockFrees", Says: "Unlock lets the next waiter in", check: unlockFrees},
		{Name: "UnlockTwice", Says: "a second Unlock gives the first answer, and frees nobody else's lock", check: unlockTwice},
		{Name: "EndedContext", Says: "nothing is granted on a context that has ended", check: endedContext},
		{Name: "GivingUpLeavesNothing", Says: "a waiter that gives up leaves nothing behind", check: givingUpLeavesNothing},
		{Name: "LeaseOutlivesItsAsking", Says: "a lease does not end with the context it was asked with, and keeps its values", check: leaseOutlivesItsAsking},
		{Name: "LeaseEndsWithUnlock", Says: "a lease's context ends with Unlock, and not as lost", check: leaseEndsWithUnlock},
		{Name: "Reentrant", Says: "an owner that holds the lock is granted it again; an inner Unlock does not free it", check: reentrant},
		{Name: "OwnerInTwoGoroutines", Says: "two goroutines of one owner share the lock, and the last Unlock frees it", check: ownerInTwoGoroutines},
		{Name: "OrderWithinProcess", Says: "waiters of one process are granted the lock in the order of asking", check: orderWithinProcess},
		{Name: "TokensRise", Says: "every grant has a greater fencing token than the one before", check: tokensRise},
		{Name: "OrderBetweenProcesses", Says: "processes are granted the lock in the order of asking", check: orderBetweenProcesses},
		{Name: "ProcessesExclude", Says: "of 32 contenders in 4 processes one holds the lock at a time, and tokens rise", check: processesExclude},
		{Name: "WaiterCancelledAtEachStep", Says: "a request that is cancelled at any moment leaves nothing behind, on the servers either", check: waiterCancelledAtEachStep},
		{Name: "KilledHolder", Says: "a killed holder's lock is free within its lease", check: killedHolder},
		{Name: "StoppedHolder", Says: "a holder stopped past its lease finds its context ended when it goes on", check: stoppedHolder},
		{Name: "HolderCutOff", Says: "a holder that a network swallows hears that it lost the lock, no later than another gets it by much; its Unlock frees nobody", check: holderCutOff},
		{Name: "WaiterCutOff", Says: "a waiter that a network swallows gives up with its context, and leaves nothing behind", check: waiterCutOff},
		{Name: "ConnectionCut", Says: "a holder whose connections are cut still excludes, or has heard that it lost the lock", check: connectionCut},
		{Name: "ResumesAfterRestart", Says: "when all servers were killed and started again, contenders go on", Restarts: true, check: resumesAfterRestart},
		{Name: "HeldThroughRestart", Says: "a lock that is held when all servers are killed and started again is not granted to another, unless its holder has heard that it lost it", Restarts: true, check: heldThroughRestart},
	}
}

// Check checks the promise, and returns what speaks against the backend.
func (p Promise) Check(ctx context.Context, b Backend) error {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	return p.check(ctx, b)
}

func (b Backend) first() lock.Locker { return b.Lockers[0] }

// other is another instance where there is one.
func (b Backend) other() lock.Locker { return b.Lockers[len(b.Lockers)-1] }

func (b Backend) waits() time.Duration {
	if b.Waits == 0 {
		return 50 * time.Millisecond
	}
	return b.Waits
}

func name() string { return "locktest/" + uuid.NewString() }

// soon asks for a lock for as long as the backend's waits.
func (b Backend) soon(ctx context.Context, l lock.Locker, name string) (lock.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, b.waits())
	defer cancel()
	return l.Lock(ctx, name)
}

// waitsInVain is the check's word on a second grant of a held lock.
func (b Backend) waitsInVain(ctx context.Context, l lock.Locker, name string) error {
	switch lease, err := b.soon(ctx, l, name); {
	case err == nil:
		return errors.Join(errors.New("a held lock was granted again"), lease.Unlock(ctx))
	case !errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("waiting ended with %w, not with its context's error", err)
	}
	return nil
}

func oneHolder(ctx context.Context, b Backend) error {
	n := name()
	lease, err := b.first().Lock(ctx, n)
	if err != nil {
		return err
	}
	for _, l := range b.Lockers {
		if err := b.waitsInVain(ctx, l, n); err != nil {
			return err
		}
	}
	return lease.Unlock(ctx)
}

func noOverlap(ctx context.Context, b Backend) error {
	const contenders, grants = 8, 20
	var (
		n        = name()
		holders  atomic.Int64
		overlaps atomic.Int64
		count    int // the lock is what makes it safe
		all      sync.WaitGroup
		errs     = make(chan error, contenders)
	)
	for i := range contenders {
		locker := b.Lockers[i%len(b.Lockers)]
		all.Go(func() {
			for range grants {
				lease, err := locker.Lock(ctx, n)
				if err != nil {
					errs <- err
					return
				}
				if holders.Add(1) != 1 {
					overlaps.Add(1)
				} else {
					count++
				}
				holders.Add(-1)
				if err := lease.Unlock(ctx); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	all.Wait()
	close(errs)
	if overlaps.Load() > 0 {
		return fmt.Errorf("%d grants overlapped another", overlaps.Load())
	}
	for err := range errs {
		return err
	}
	if count != contenders*grants {
		return fmt.Errorf("%d of %d grants counted", count, contenders*grants)
	}
	return nil
}

func tryLockHeld(ctx context.Context, b Backend) error {
	n := name()
	lease, err := b.first().TryLock(ctx, n)
	if err != nil {
		return fmt.Errorf("a free lock: %w", err)
	}
	for _, l := range b.Lockers {
		if _, err := l.TryLock(ctx, n); !errors.Is(err, lock.ErrHeld) {
			return fmt.Errorf("a held lock answered %v", err)
		}
	}
	return lease.Unlock(ctx)
}

func namesApart(ctx context.Context, b Backend) error {
	one, err := b.first().Lock(ctx, name())
	if err != nil {
		return err
	}
	another, err := b.other().TryLock(ctx, name())
	if err != nil {
		return fmt.Errorf("another name: %w", err)
	}
	return errors.Join(one.Unlock(ctx), another.Unlock(ctx))
}

func unlockFrees(ctx context.Context, b Backend) error {
	n := name()
	lease, err := b.first().Lock(ctx, n)
	if err != nil {
		return err
	}
	granted := make(chan error, 1)
	go func() {
		next, err := b.other().Lock(ctx, n)
		if err == nil {
			err = next.Unlock(ctx)
		}
		granted <- err
	}()
	if err := lease.Unlock(ctx); err != nil {
		return err
	}
	if err := <-granted; err != nil {
		return fmt.Errorf("who waited: %w", err)
	}
	last, err := b.first().Lock(ctx, n)
	if err != nil {
		return err
	}
	return last.Unlock(ctx)
}

func unlockTwice(ctx context.Context, b Backend) error {
	n := name()
	lease, err := b.first().Lock(ctx, n)
	if err != nil {
		return err
	}
	first := lease.Unlock(ctx)
	next, err := b.other().Lock(ctx, n)
	if err != nil {
		return err
	}
	if again := lease.Unlock(ctx); !errors.Is(again, first) && again != first {
		return fmt.Errorf("unlocking answered %v, then %v", first, again)
	}
	if err := b.waitsInVain(ctx, b.first(), n); err != nil {
		return fmt.Errorf("after another's second unlock: %w", err)
	}
	return next.Unlock(ctx)
}

func endedContext(ctx context.Context, b Backend) error {
	n := name()
	ended, cancel := context.WithCancel(ctx)
	cancel()
	for _, ask := range []func(context.Context, string) (lock.Lease, error){b.first().Lock, b.first().TryLock} {
		if _, err := ask(ended, n); !errors.Is(err, context.Canceled) {
			return fmt.Errorf("an ended context was answered %v", err)
		}
	}
	lease, err := b.other().Lock(ctx, n)
	if err != nil {
		return fmt.Errorf("afterwards: %w", err)
	}
	return lease.Unlock(ctx)
}

func givingUpLeavesNothing(ctx context.Context, b Backend) error {
	n := name()
	lease, err := b.first().Lock(ctx, n)
	if err != nil {
		return err
	}
	for range 5 {
		if err := b.waitsInVain(ctx, b.other(), n); err != nil {
			return err
		}
	}
	if err := lease.Unlock(ctx); err != nil {
		return err
	}
	next, err := b.first().Lock(ctx, n)
	if err != nil {
		return fmt.Errorf("the lock is kept by those who gave up: %w", err)
	}
	return next.Unlock(ctx)
}

type valueKey struct{}

func leaseOutlivesItsAsking(ctx context.Context, b Backend) error {
	asking, cancel := context.WithCancel(context.WithValue(ctx, valueKey{}, "kept"))
	n := name()
	lease, err := b.first().Lock(asking, n)
	cancel()
	if err != nil {
		return err
	}
	if err := lease.Context().Err(); err != nil {
		return fmt.Errorf("the lease ended with the context it was asked with: %w", err)
	}
	if lease.Context().Value(valueKey{}) != "kept" {
		return errors.New("the lease's context lost the values of the one it was asked with")
	}
	if err := b.waitsInVain(ctx, b.other(), n); err != nil {
		return err
	}
	return lease.Unlock(ctx)
}

func leaseEndsWithUnlock(ctx context.Context, b Backend) error {
	lease, err := b.first().Lock(ctx, name())
	if err != nil {
		return err
	}
	if err := lease.Unlock(ctx); err != nil {
		return err
	}
	select {
	case <-lease.Context().Done():
	case <-ctx.Done():
		return errors.New("the lease's context goes on after Unlock")
	}
	if errors.Is(context.Cause(lease.Context()), lock.ErrLost) {
		return errors.New("an unlocked lease says that it was lost")
	}
	return nil
}

func tokensRise(ctx context.Context, b Backend) error {
	n := name()
	var last uint64
	for i := range 10 {
		lease, err := b.Lockers[i%len(b.Lockers)].Lock(ctx, n)
		if err != nil {
			return err
		}
		token := lease.Token()
		if err := lease.Unlock(ctx); err != nil {
			return err
		}
		if !b.Tokens {
			if token != 0 {
				return fmt.Errorf("token %d from a backend that gives none", token)
			}
			continue
		}
		if token <= last {
			return fmt.Errorf("token %d came after %d", token, last)
		}
		last = token
	}
	return nil
}
