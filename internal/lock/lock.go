// Package lock is mutual exclusion by name. A lock only advises: whoever can
// outlive a lease shows its fencing token where the protected data is read and
// written, and the data's fence decides.
//
// [New] makes a Locker of a [Backend], with all that happens inside the process:
// the queue of waiters, reentrancy, the life of a lease. Backends over servers
// are in the folders beside this file, [Local] needs none, and locktest says
// what each of them promises.
package lock

import (
	"context"
	"errors"
	"time"
)

var (
	// ErrHeld is TryLock's answer while somebody else holds the lock.
	ErrHeld = errors.New("the lock is held")
	// ErrLost says that a lease ended before it was unlocked, so that somebody
	// else may have held the lock since.
	ErrLost = errors.New("the lock was lost")
)

// DefaultLease is how long a dead holder keeps its lock, unless a backend is told
// otherwise.
const DefaultLease = 30 * time.Second

// Locker grants locks by name: one holder a name at any time, as far as its
// backend can promise it. It is safe for concurrent use.
//
// Whoever asks again on a context with the same owner (see WithOwner) is granted
// the lock again while it holds it; without an owner it waits for itself.
//
// Waiters of one process are granted a name in the order in which they asked,
// and only the first of them asks the backend.
//
// An error that is neither ErrHeld nor ctx's leaves open whether the backend
// granted the lock; it is then freed by the backend's own means, within its
// lease.
type Locker interface {
	// Lock waits for the lock until ctx ends, and then returns ctx's error and
	// leaves nothing waiting. It never grants a lock on a context that had
	// ended when it was called. ctx bounds the waiting, not the lease.
	Lock(ctx context.Context, name string) (Lease, error)

	// TryLock takes the lock if nobody holds it, and otherwise returns ErrHeld
	// without waiting for the holder.
	TryLock(ctx context.Context, name string) (Lease, error)
}

// Lease is a held lock. It is safe for concurrent use.
type Lease interface {
	// Context has the values of the context that the lock was asked with, but
	// not its end: it ends when the lease does, with the cause ErrLost if the
	// lease was lost rather than unlocked.
	Context() context.Context

	// Token is the fencing token: a number that rises with every grant of the
	// name. 0: the backend can give none.
	Token() uint64

	// Unlock ends the lease, and frees the lock with the last lease of its
	// owner. Called again it gives its first answer. ErrLost: it was not held
	// any more. Any other error leaves the lock to end by itself.
	//
	// It does not end with ctx, whose end is often the reason for unlocking,
	// but within a few seconds.
	Unlock(ctx context.Context) error
}
