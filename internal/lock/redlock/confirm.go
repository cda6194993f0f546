package redlock

import (
	"context"
	"errors"
	"time"

	"github.com/go-redsync/redsync/v4"

	"github.com/holdfast-stock/holdfast/internal/lock"
)

// Confirm extends the lease as watch does. It uses its own redsync mutex, because redsync's mutexes
// are not safe for concurrent use.
func (g *grant) Confirm(ctx context.Context) (until time.Time, err error) {
	mutex := g.backend.redsync.NewMutex(g.mutex.Name(), redsync.WithExpiry(g.backend.lease), redsync.WithValue(g.mutex.Value()))
	renewed, err := mutex.ExtendContext(ctx)
	if renewed {
		return mutex.Until(), nil
	}
	var refused *redsync.ErrTaken // refused by a majority of the servers
	if errors.As(err, &refused) {
		err = lock.ErrDeleted
	}
	return time.Time{}, err
}
