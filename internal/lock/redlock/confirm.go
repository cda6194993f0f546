package redlock

import (
	"context"
	"time"

	"github.com/go-redsync/redsync/v4"

	"github.com/holdfast-stock/holdfast/internal/lock"
)

// Confirm extends the lease as watch does. It uses a mutex of its own, because those
// of redsync are not safe for concurrent use.
func (g *grant) Confirm(ctx context.Context) (until time.Time, err error) {
	mutex := g.backend.redsync.NewMutex(g.mutex.Name(), redsync.WithExpiry(g.backend.lease), redsync.WithValue(g.mutex.Value()))
	renewed, err := mutex.ExtendContext(ctx)
	switch {
	case renewed:
		return mutex.Until(), nil
	case ctx.Err() != nil:
		return time.Time{}, ctx.Err()
	case unanswered(err) >= g.backend.quorum:
		return time.Time{}, err
	}
	return time.Time{}, lock.ErrDeleted
}
