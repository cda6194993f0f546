package lock

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Confirmer is a Lease or a Grant that can ask the backend whether it is still held. The leases of
// the Locker that New returns implement it. The Confirm of a Grant must be safe to call while the
// backend renews the lease.
type Confirmer interface {
	// Confirm asks the backend whether the lock is still held, and extends it. The servers grant
	// the lock to no other holder before the returned time. The exceptions: the servers have lost
	// the lock, or the SQL connection that holds it was closed.
	//
	// ErrLost means that the lock is no longer held; the error contains the reason.
	// errors.ErrUnsupported means that the backend cannot answer. After any other error the answer
	// is unknown.
	Confirm(ctx context.Context) (until time.Time, err error)
}

// Confirm implements Confirmer.
func (l *lease) Confirm(ctx context.Context) (until time.Time, err error) {
	if err := context.Cause(l.ctx); err != nil {
		return time.Time{}, confirmingError(l.hold.key.name, err)
	}
	g, ok := l.hold.grant.(Confirmer)
	if !ok {
		return time.Time{}, confirmingError(l.hold.key.name, errors.ErrUnsupported)
	}
	if until, err = g.Confirm(ctx); err != nil {
		return time.Time{}, confirmingError(l.hold.key.name, err)
	}
	return until, nil
}

func confirmingError(name string, err error) error { return fmt.Errorf("confirming %s: %w", name, err) }
