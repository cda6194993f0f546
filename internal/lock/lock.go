// Package lock is mutual exclusion by name. A lock only advises: whoever can
// outlive a lease shows its fencing token where the protected data is read and
// written, and the data's fence decides.
//
// Each backend is a folder of its own beside this file; locktest says whether
// it keeps its promises.
package lock

import (
	"context"
	"errors"
)

var (
	// ErrHeld is TryLock's answer while somebody else holds the lock.
	ErrHeld = errors.New("the lock is held")
	// ErrLost says that a lease ended before it was unlocked, so that somebody
	// else may have held the lock since.
	ErrLost = errors.New("the lock was lost")
)

// Locker grants locks by name: one holder a name at any time, as far as its
// backend can promise it. It is safe for concurrent use.
//
// No lock is reentrant: a holder that asks again waits for itself.
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

	// Unlock ends the lease. Called again it gives its first answer. ErrLost:
	// it was not held any more. Any other error leaves the lock to end by
	// itself. Call it on a context that has not ended.
	Unlock(ctx context.Context) error
}
