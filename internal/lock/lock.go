// Package lock provides mutual exclusion by name. A lock only advises: a holder can outlive its
// lease without noticing. A holder that must not do so passes its fencing token to the place where
// the protected data is read and written, and the fence there refuses stale tokens.
//
// [New] makes a Locker of a [Backend]. The Locker does the work inside the process: it queues
// waiters, counts re-entries and ends leases. The subpackages implement backends over servers;
// [Local] needs no server. Package locktest lists what each backend promises, and checks it.
package lock

import (
	"context"
	"errors"
	"fmt"
	"time"
)

var (
	// ErrHeld is returned by TryLock while another holder has the lock.
	ErrHeld = errors.New("the lock is held")
	// ErrLost means that a lease ended before it was unlocked. Another holder
	// may have had the lock since. It is wrapped in one of the reasons below.
	ErrLost = errors.New("the lock was lost")

	// ErrNotMigrated means that a database cannot mint fencing tokens.
	ErrNotMigrated = errors.New("the database has no fencing_tokens; run api migrate up with the same --db")
)

// The reasons for which a lock is lost. Each wraps ErrLost.
var (
	// ErrExpired means that the lease ended before it could be renewed.
	ErrExpired = fmt.Errorf("%w: its lease has expired", ErrLost)
	// ErrDeleted means that the servers no longer have the holder's key or node:
	// it was deleted, or the servers have lost data.
	ErrDeleted = fmt.Errorf("%w: the servers no longer have it", ErrLost)
	// ErrSessionExpired means that the servers have ended the holder's session.
	ErrSessionExpired = fmt.Errorf("%w: its session has expired", ErrLost)
	// ErrDisconnected means that the connection that the lock depends on was lost.
	ErrDisconnected = fmt.Errorf("%w: the connection was lost", ErrLost)
)

// DefaultLease is how long a lock outlives a dead holder unless the backend is
// configured otherwise.
const DefaultLease = 30 * time.Second

// Locker grants locks by name. It grants each name to one holder at a time, within the promises of
// its backend. It refuses invalid names, see CheckName. It is safe for concurrent use.
//
// Locks are reentrant by owner: while an owner (see WithOwner) holds a lock, another request on a
// context with the same owner is granted at once. Requests without an owner are not reentrant: a
// holder that requests its lock again waits for itself.
//
// Waiters of one process get a lock in the order of their requests. Only the first of them sends a
// request to the backend.
//
// After an error other than ErrHeld, ErrName and ctx's error it is unknown whether the backend
// granted the lock. In that case the backend frees the lock within its lease.
type Locker interface {
	// Lock waits for the lock until ctx ends. It then returns ctx's error and leaves no request
	// behind. If ctx has already ended when Lock is called, Lock returns its error. ctx bounds the
	// wait, not the lease.
	Lock(ctx context.Context, name string) (Lease, error)

	// TryLock takes the lock if it is free. Otherwise it returns ErrHeld without
	// waiting for the holder.
	TryLock(ctx context.Context, name string) (Lease, error)
}

// Lease is a held lock. It must be unlocked even after it was lost: some backends free
// the lock only then. It is safe for concurrent use.
type Lease interface {
	// Context returns a context with the values of the context that was passed to Lock, but not
	// with its end: it ends when the lease ends. If the lease was lost, the cause wraps ErrLost and
	// tells the reason.
	Context() context.Context

	// Token returns the fencing token: a number that rises with every grant of
	// the name. 0 means that the backend has no tokens.
	Token() uint64

	// Unlock ends the lease. The last Unlock of an owner frees the lock. Later
	// calls return the result of the first. ErrLost means that the lock was no
	// longer held. After any other error the lock ends by itself, within its
	// lease.
	//
	// Unlock also works on a ctx that has ended, as the end of ctx is often the
	// reason for unlocking. It returns within a few seconds.
	Unlock(ctx context.Context) error
}
