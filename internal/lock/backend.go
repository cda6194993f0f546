package lock

import (
	"context"
	"time"
)

// Backend grants locks between processes. It is safe for concurrent use. The Locker that New
// returns runs at most one Acquire per name at a time.
type Backend interface {
	// Acquire takes the lock. If wait is true it waits until ctx ends, and then returns ctx's
	// error. If wait is false it returns ErrHeld without waiting.
	//
	// If Acquire fails, it removes what its request may have left on the servers, as far as it can
	// reach them. It does so even if ctx has ended.
	//
	// The backend calls lost, with a reason that wraps ErrLost, when the grant can no longer be
	// relied on. That can happen before Acquire returns. Only the first reason counts. The backend
	// frees the lock then, or when the grant is released. A backend that returns an ExpiringGrant
	// need not watch the time.
	Acquire(ctx context.Context, name string, wait bool, lost func(reason error)) (Grant, error)
}

// Grant is a lock that a backend has granted.
type Grant interface {
	// Token returns the fencing token, or 0 if the backend has no tokens.
	Token() uint64
	// Release frees the lock. It is called once, also after the grant was lost.
	// It returns ErrLost if the lock was no longer held.
	Release(ctx context.Context) error
}

// ExpiringGrant is a Grant with a lease that ends at a known time unless it is renewed. At that
// time the lock is lost, even if the backend does not call lost.
type ExpiringGrant interface {
	Grant
	// Until returns when the lease ends, at the earliest. It does not block. A
	// renewal that is answered later than that must not count.
	Until() time.Time
}

// WatchedGrant is a Grant that the backend can watch on its servers. An administrator may delete
// such a grant there.
type WatchedGrant interface {
	Grant
	// Watch waits until the servers no longer have the grant, and returns the
	// reason, which wraps ErrLost. It returns another error if ctx ends before.
	Watch(ctx context.Context) error
}

// HandoverGrant is a Grant that can be handed over to the next waiter of the same
// process. The lock is not free at any moment in between.
type HandoverGrant interface {
	Grant
	// HandOver ends this grant as Release does, and returns the next holder's
	// grant, with its own token, as Acquire does.
	HandOver(ctx context.Context, lost func(reason error)) (Grant, error)
}

// PipelinedGrant is a Grant of a backend that queues the waiters on its servers and processes the
// requests of one process in order. The next waiter of the process sends its request before the
// release has been answered, so that both share a round trip.
type PipelinedGrant interface {
	Grant
	// StartRelease sends the request of Release. The returned function waits for
	// the answer, and returns what Release returns.
	StartRelease() (wait func(ctx context.Context) error)
}
