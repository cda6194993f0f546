package redis

import (
	"context"
	"time"

	"github.com/holdfast-stock/holdfast/internal/lock"
)

// Confirm extends the lease as the watchdog does. It does not extend a fixed lease.
func (g *grant) Confirm(ctx context.Context) (until time.Time, err error) {
	if g.backend.fixed {
		return g.confirmFixed(ctx)
	}
	return g.requestRenewal(ctx)
}

func (g *grant) confirmFixed(ctx context.Context) (until time.Time, err error) {
	held, err := g.backend.client.HExists(ctx, g.name, g.field).Result()
	switch {
	case err != nil:
		return time.Time{}, err
	case !held:
		return time.Time{}, lock.ErrDeleted
	}
	return g.Until(), nil
}
