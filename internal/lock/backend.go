package lock

import "context"

// Backend grants locks between processes. It is safe for concurrent use. The
// Locker that New returns has at most one request per name under way.
type Backend interface {
	// Acquire takes the lock. If wait is true it waits until ctx ends, and then
	// returns ctx's error. If wait is false it returns ErrHeld without waiting.
	//
	// If Acquire fails, it removes what its request may have left on the servers,
	// as far as it can reach them. It does so even if ctx has ended.
	//
	// The backend calls lost once, when the grant can no longer be relied on.
	// That can happen before Acquire returns. The backend then frees the lock by
	// itself, as far as it can.
	Acquire(ctx context.Context, name string, wait bool, lost func()) (Grant, error)
}

// Grant is a lock that a backend has granted.
type Grant interface {
	// Token returns the fencing token, or 0 if the backend has no tokens.
	Token() uint64
	// Release frees the lock. It is called once, also after the grant was lost.
	// It returns ErrLost if the lock was no longer held.
	Release(ctx context.Context) error
}

// HandoverGrant is a Grant that can be handed over to the next waiter of the same
// process. The lock is not free at any moment in between.
type HandoverGrant interface {
	Grant
	// HandOver ends this grant as Release does, and returns the next holder's
	// grant, with its own token, as Acquire does.
	HandOver(ctx context.Context, lost func()) (Grant, error)
}

// RequeueGrant is a Grant that can be released in the same request that puts the
// next waiter of the process into the backend's queue.
type RequeueGrant interface {
	Grant
	// ReleaseAndQueue ends this grant as Release does, and takes a place in the
	// queue. It may return a place together with an error. If it returns no place,
	// the waiter calls Backend.Acquire.
	ReleaseAndQueue(ctx context.Context) (Place, error)
}

// Place is a place in a backend's queue. Exactly one of its methods is called,
// once.
type Place interface {
	// Acquire waits for the lock, as Backend.Acquire does.
	Acquire(ctx context.Context, lost func()) (Grant, error)
	// Leave gives the place up.
	Leave(ctx context.Context)
}
