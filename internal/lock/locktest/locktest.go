// Package locktest checks the promises of lock.Locker. [Table] lists which promises
// each backend makes. [Promise.Check] checks one of them.
package locktest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// Subject has the Lockers whose promises are checked.
type Subject struct {
	// Lockers share their locks, as the instances of a service do. At least one
	// is needed. Their leases must be long, so that a busy machine renews them in
	// time, except for promises that restart the servers.
	Lockers []lock.Locker
	// Tokens is true if the leases have fencing tokens.
	Tokens bool
	// Patience is how long a check waits before it concludes that a request is
	// waiting for a held lock. 0 means 50 ms.
	Patience time.Duration
	// Lease is how long a lock outlives a holder that a check kills, stops or cuts
	// off. It should be short, because the check waits for its end.
	Lease time.Duration
	// LongLease is the lease of other holders. It must outlast Bound, so that no check mistakes its
	// end for an event.
	LongLease time.Duration
	// Bound is how long a check waits for an event; 0 means testenv.Patience. If a check must fail,
	// less is enough.
	Bound time.Duration
	// Servers is nil for a backend without servers.
	Servers Servers
}

// Servers are the servers of a backend, and the faults that can be injected.
type Servers interface {
	// Process starts another instance in its own process. The program of that process calls Child.
	Process(lease time.Duration) (Process, error)
	// OverWire makes another instance in this process. Its connections go over
	// the returned wire.
	OverWire(ctx context.Context, lease time.Duration) (lock.Locker, Wire, error)
	// Restart kills all servers with SIGKILL and starts them again with the data
	// that they have on disk.
	Restart() error
	// Delete deletes the keys or nodes that the servers store for the lock, or ends the session
	// that holds it, as an administrator would. reason is the reason with which the holder must
	// lose the lock.
	Delete(ctx context.Context, name string) (reason, err error)
	// Traces returns how many keys or nodes the servers store for the lock.
	Traces(ctx context.Context, name string) (int, error)
}

// Wire is the network between an instance and the servers.
type Wire interface {
	// Cut closes the connections and returns how many there were.
	Cut() int
	// Freeze makes the network drop everything without closing a connection. It
	// returns how many connections there are.
	Freeze() int
	// Thaw ends Freeze.
	Thaw()
}

// Promise is one promise of a Locker.
type Promise struct {
	Name string
	// Statement is the promise in words.
	Statement string
	// Restarts is true if the check restarts the servers. Such a check must not
	// run at the same time as others on the same servers.
	Restarts bool

	check func(ctx context.Context, s Subject) error
}

// Promises returns all promises. Each check uses its own lock names. Checks can
// run at the same time on the same Lockers, except those that restart servers.
func Promises() []Promise {
	return []Promise{
		{Name: "OneHolder", Statement: "a held lock is not granted again", check: oneHolder},
		{Name: "NoOverlap", Statement: "when goroutines and instances contend, one of them holds the lock at a time", check: noOverlap},
		{Name: "TryLockHeld", Statement: "TryLock of a held lock returns ErrHeld at once", check: tryLockHeld},
		{Name: "NamesApart", Statement: "locks with different names are independent, also if one name is a prefix of the other, with or without a slash", check: namesApart},
		{Name: "InvalidNames", Statement: "an invalid name is refused with ErrName", check: invalidNames},
		{Name: "UnlockFrees", Statement: "Unlock lets the next waiter have the lock", check: unlockFrees},
		{Name: "UnlockTwice", Statement: "a second Unlock returns the result of the first, and does not free another holder's lock", check: unlockTwice},
		{Name: "CancelledContext", Statement: "nothing is granted on a context that has ended", check: cancelledContext},
		{Name: "AbandonedWaitLeavesNothing", Statement: "a waiter whose context ends leaves nothing behind", check: abandonedWaitLeavesNothing},
		{Name: "LeaseOutlivesRequest", Statement: "a lease does not end with the context of its request, and keeps the context's values", check: leaseOutlivesRequest},
		{Name: "LeaseEndsWithUnlock", Statement: "a lease's context ends with Unlock, and its cause is not ErrLost", check: leaseEndsWithUnlock},
		{Name: "Reentrant", Statement: "an owner that holds the lock is granted it again; an inner Unlock does not free it", check: reentrant},
		{Name: "OwnerInTwoGoroutines", Statement: "goroutines of one owner share the lock, and the last Unlock frees it", check: ownerInTwoGoroutines},
		{Name: "OrderWithinProcess", Statement: "waiters of one process are granted the lock in the order of their requests", check: orderWithinProcess},
		{Name: "TokensRise", Statement: "each grant has a greater fencing token than the one before", check: tokensRise},
		{Name: "OrderBetweenProcesses", Statement: "processes are granted the lock in the order of their requests", check: orderBetweenProcesses},
		{Name: "ProcessesExclude", Statement: "of 32 contenders in 4 processes, one holds the lock at a time, and tokens rise", check: processesExclude},
		{Name: "CancelledAtAnyMoment", Statement: "a request that is cancelled at any moment leaves nothing behind, neither in the process nor on the servers", check: cancelledAtAnyMoment},
		{Name: "KilledHolder", Statement: "the lock of a killed holder is free when its lease has ended", check: killedHolder},
		{Name: "StoppedHolder", Statement: "a holder that was stopped for longer than its lease finds its context ended when it continues", check: stoppedHolder},
		{Name: "HolderCutOff", Statement: "a holder whose network drops everything learns when its lease ends that it lost the lock, and at most shortly after another was granted it; its Unlock frees no other holder's lock", check: holderCutOff},
		{Name: "DeletedHolder", Statement: "a holder whose key or node is deleted on the servers, or whose session is ended there, learns within a second that it lost the lock", check: deletedHolder},
		{Name: "WaiterCutOff", Statement: "a waiter whose network drops everything returns when its context ends, and leaves nothing behind", check: waiterCutOff},
		{Name: "ConnectionCut", Statement: "a holder whose connections are cut still excludes others, or has learned that it lost the lock", check: connectionCut},
		{Name: "ResumesAfterRestart", Statement: "after all servers were killed and restarted, locks are granted again", Restarts: true, check: resumesAfterRestart},
		{Name: "HeldThroughRestart", Statement: "a lock that is held while all servers are killed and restarted is not granted to another, unless its holder has learned that it lost it", Restarts: true, check: heldThroughRestart},
	}
}

// Check checks the promise. It returns an error if the subject breaks it.
func (p Promise) Check(ctx context.Context, s Subject) error {
	ctx, cancel := context.WithTimeout(ctx, 2*testenv.Patience) // a check waits for several events
	defer cancel()
	return p.check(ctx, s)
}

func (s Subject) first() lock.Locker { return s.Lockers[0] }

// other returns a Locker other than the first, if there is one.
func (s Subject) other() lock.Locker { return s.Lockers[len(s.Lockers)-1] }

func (s Subject) patience() time.Duration { return cmp.Or(s.Patience, 50*time.Millisecond) }

func (s Subject) bound() time.Duration { return cmp.Or(s.Bound, testenv.Patience) }

// newName returns a lock name that no other check uses.
func newName() string { return "locktest/" + uuid.NewString() }

// mustWait returns an error unless a request for the held lock waits until its
// time is up.
func (s Subject) mustWait(ctx context.Context, l lock.Locker, name string) error {
	waiting, cancel := context.WithTimeout(ctx, s.patience())
	defer cancel()
	switch lease, err := l.Lock(waiting, name); {
	case err == nil:
		return errors.Join(errors.New("a held lock was granted again"), lease.Unlock(ctx))
	case !errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("a request that timed out returned %w, want its context's error", err)
	}
	return nil
}

// lockAndUnlock takes the lock and frees it.
func lockAndUnlock(ctx context.Context, l lock.Locker, name string) error {
	lease, err := l.Lock(ctx, name)
	if err != nil {
		return err
	}
	return lease.Unlock(ctx)
}

// rising returns an error unless the lease's token is greater than the last.
func (s Subject) rising(last uint64, lease lock.Lease) error {
	if s.Tokens && lease.Token() <= last {
		return fmt.Errorf("token %d was followed by token %d", last, lease.Token())
	}
	return nil
}

func oneHolder(ctx context.Context, s Subject) error {
	name := newName()
	lease, err := s.first().Lock(ctx, name)
	if err != nil {
		return err
	}
	for _, l := range s.Lockers {
		if err := s.mustWait(ctx, l, name); err != nil {
			return err
		}
	}
	return lease.Unlock(ctx)
}

func noOverlap(ctx context.Context, s Subject) error {
	const contenders, grants = 8, 20
	var (
		name     = newName()
		holders  atomic.Int64
		overlaps atomic.Int64
		count    int // guarded by the lock
		all      sync.WaitGroup
		errs     = make(chan error, contenders)
	)
	for i := range contenders {
		locker := s.Lockers[i%len(s.Lockers)]
		all.Go(func() {
			for range grants {
				lease, err := locker.Lock(ctx, name)
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
		return fmt.Errorf("%d grants overlapped with another", overlaps.Load())
	}
	for err := range errs {
		return err
	}
	if count != contenders*grants {
		return fmt.Errorf("%d of %d grants were counted", count, contenders*grants)
	}
	return nil
}

func tryLockHeld(ctx context.Context, s Subject) error {
	name := newName()
	lease, err := s.first().TryLock(ctx, name)
	if err != nil {
		return fmt.Errorf("TryLock of a free lock: %w", err)
	}
	for _, l := range s.Lockers {
		if _, err := l.TryLock(ctx, name); !errors.Is(err, lock.ErrHeld) {
			return fmt.Errorf("TryLock of a held lock returned %v", err)
		}
	}
	return lease.Unlock(ctx)
}

// namesApart holds locks whose names are prefixes of each other, taken in both orders. Then a
// waiter for the shortest name must get its lock while the other locks are held.
func namesApart(ctx context.Context, s Subject) error {
	for _, longestFirst := range []bool{false, true} {
		base := newName()
		names := []string{base, base + "b", base + "/b", base + "/b/c", base + "/0", base + "/lock-0", strings.ToUpper(base)}
		if longestFirst {
			slices.Reverse(names)
		}
		held := make(map[string]lock.Lease)
		for i, name := range names {
			lease, err := s.Lockers[i%len(s.Lockers)].TryLock(ctx, name)
			if err != nil {
				return fmt.Errorf("TryLock of %s while %v are held: %w", name, names[:i], err)
			}
			held[name] = lease
		}
		if err := s.mustWait(ctx, s.other(), base); err != nil {
			return err
		}
		waiter := make(chan error, 1)
		limited, cancel := context.WithTimeout(ctx, s.bound())
		defer cancel()
		go func() { waiter <- lockAndUnlock(limited, s.other(), base) }()
		if err := held[base].Unlock(ctx); err != nil {
			return err
		}
		if err := <-waiter; err != nil {
			return fmt.Errorf("the waiter for %s while longer names are held: %w", base, err)
		}
		delete(held, base)
		for name, lease := range held {
			if err := lease.Unlock(ctx); err != nil {
				return fmt.Errorf("unlocking %s: %w", name, err)
			}
		}
	}
	return nil
}

// invalidNames requests some of the names that lock.CheckName refuses, after it has locked their
// valid parts once.
func invalidNames(ctx context.Context, s Subject) error {
	base := newName()
	if err := lockAndUnlock(ctx, s.first(), base); err != nil {
		return err
	}
	for _, name := range []string{"", "/", "/" + base, base + "/", base + "//b", base + "/../b", base + "\x00", base + "{", base + "/_c_x-lock-0", "holdfast_token:{" + base + "}"} {
		for _, call := range []func(context.Context, string) (lock.Lease, error){s.first().Lock, s.first().TryLock} {
			if _, err := call(ctx, name); !errors.Is(err, lock.ErrName) {
				return fmt.Errorf("a request for %q returned %v, want %w", name, err, lock.ErrName)
			}
		}
	}
	return lockAndUnlock(ctx, s.other(), base)
}

func unlockFrees(ctx context.Context, s Subject) error {
	name := newName()
	lease, err := s.first().Lock(ctx, name)
	if err != nil {
		return err
	}
	waiter := make(chan error, 1)
	go func() { waiter <- lockAndUnlock(ctx, s.other(), name) }()
	if err := lease.Unlock(ctx); err != nil {
		return err
	}
	if err := <-waiter; err != nil {
		return fmt.Errorf("the waiter: %w", err)
	}
	return lockAndUnlock(ctx, s.first(), name)
}

func unlockTwice(ctx context.Context, s Subject) error {
	name := newName()
	lease, err := s.first().Lock(ctx, name)
	if err != nil {
		return err
	}
	first := lease.Unlock(ctx)
	next, err := s.other().Lock(ctx, name)
	if err != nil {
		return err
	}
	if again := lease.Unlock(ctx); !errors.Is(again, first) && again != first {
		return fmt.Errorf("unlocking twice returned %v, and then %v", first, again)
	}
	if err := s.mustWait(ctx, s.first(), name); err != nil {
		return fmt.Errorf("after the second Unlock of the last holder: %w", err)
	}
	return next.Unlock(ctx)
}

func cancelledContext(ctx context.Context, s Subject) error {
	name := newName()
	ended, cancel := context.WithCancel(ctx)
	cancel()
	for _, call := range []func(context.Context, string) (lock.Lease, error){s.first().Lock, s.first().TryLock} {
		if _, err := call(ended, name); !errors.Is(err, context.Canceled) {
			return fmt.Errorf("a request on a context that has ended returned %v", err)
		}
	}
	if err := lockAndUnlock(ctx, s.other(), name); err != nil {
		return fmt.Errorf("afterwards: %w", err)
	}
	return nil
}

func abandonedWaitLeavesNothing(ctx context.Context, s Subject) error {
	name := newName()
	lease, err := s.first().Lock(ctx, name)
	if err != nil {
		return err
	}
	for range 5 {
		if err := s.mustWait(ctx, s.other(), name); err != nil {
			return err
		}
	}
	if err := lease.Unlock(ctx); err != nil {
		return err
	}
	if err := lockAndUnlock(ctx, s.first(), name); err != nil {
		return fmt.Errorf("after the abandoned requests: %w", err)
	}
	return nil
}

type valueKey struct{}

func leaseOutlivesRequest(ctx context.Context, s Subject) error {
	request, cancel := context.WithCancel(context.WithValue(ctx, valueKey{}, "kept"))
	name := newName()
	lease, err := s.first().Lock(request, name)
	cancel()
	if err != nil {
		return err
	}
	if err := lease.Context().Err(); err != nil {
		return fmt.Errorf("the lease ended with the context of its request: %w", err)
	}
	if lease.Context().Value(valueKey{}) != "kept" {
		return errors.New("the lease's context has lost the values of the request's")
	}
	if err := s.mustWait(ctx, s.other(), name); err != nil {
		return err
	}
	return lease.Unlock(ctx)
}

func leaseEndsWithUnlock(ctx context.Context, s Subject) error {
	lease, err := s.first().Lock(ctx, newName())
	if err != nil {
		return err
	}
	if err := lease.Unlock(ctx); err != nil {
		return err
	}
	select {
	case <-lease.Context().Done():
	case <-ctx.Done():
		return errors.New("the lease's context did not end with Unlock")
	}
	if errors.Is(context.Cause(lease.Context()), lock.ErrLost) {
		return errors.New("the context of an unlocked lease ended with ErrLost")
	}
	return nil
}

func tokensRise(ctx context.Context, s Subject) error {
	name := newName()
	var last uint64
	for i := range 10 {
		lease, err := s.Lockers[i%len(s.Lockers)].Lock(ctx, name)
		if err != nil {
			return err
		}
		if err := lease.Unlock(ctx); err != nil {
			return err
		}
		token := lease.Token()
		if !s.Tokens && token != 0 {
			return fmt.Errorf("token %d from a backend without tokens", token)
		}
		if err := s.rising(last, lease); err != nil {
			return err
		}
		last = token
	}
	return nil
}
