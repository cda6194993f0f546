package assembly

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/assembly/backends"
	"github.com/holdfast-stock/holdfast/internal/lock"
)

// openLocks opens the lock backend of p, if its strategy takes locks, and counts what happens to
// them.
func openLocks(ctx context.Context, p Parts, client redis.UniversalClient, metrics prometheus.Registerer) (l lock.Locker, close func() error, err error) {
	if !p.Strategy.NeedsLock {
		return nil, func() error { return nil }, nil
	}
	if l, close, err = p.Locks.Open(ctx, client, p.DB); err != nil {
		return nil, nil, err
	}
	return lock.Observed(l, newLockMetrics(metrics).observe), close, nil
}

// LockWarnings says in which cases the locks are too weak for what the strategy promises.
func (p Parts) LockWarnings() (warnings []string) {
	if !p.Strategy.NeedsLock {
		return nil
	}
	backend, _ := backends.Find(p.Locks.Backend)
	if backend.Flag == "" {
		warnings = append(warnings, "--lock local excludes within this process only: two instances oversell")
	}
	if !backend.Fences {
		warnings = append(warnings, "--lock "+backend.Name+" gives no fencing tokens: a lease that is outlived may oversell")
	} else if !p.Fence {
		warnings = append(warnings, "--fence off: a lease that is outlived may oversell")
	}
	return warnings
}
