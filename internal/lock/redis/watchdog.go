package redis

import (
	"context"
	_ "embed"
	"errors"
	"time"

	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/retry"
)

// startWatchdog starts the timer that renews the lease, unless the lease is fixed.
func (g *grant) startWatchdog() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.stopped && !g.backend.fixed {
		g.watchdog = time.AfterFunc(g.backend.lease/renewalsPerLease, g.runWatchdog)
	}
}

// runWatchdog renews the lease and starts the timer again, or reports that the
// lease was lost.
func (g *grant) runWatchdog() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	g.mu.Lock()
	if g.stopped {
		g.mu.Unlock()
		return
	}
	g.cancelRenewal = cancel
	g.mu.Unlock()
	if err := g.renew(ctx); err == nil {
		g.startWatchdog()
	} else if ctx.Err() == nil {
		g.lost(err)
	}
}

// stopWatchdog cancels the renewal under way, and keeps others from starting. The script does not
// renew a lock that has been released or handed over, so nothing waits for the renewal to end.
func (g *grant) stopWatchdog() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.stopped = true
	if g.watchdog != nil {
		g.watchdog.Stop()
	}
	if g.cancelRenewal != nil {
		g.cancelRenewal()
	}
}

// renew renews the lease. It retries after errors until the lease ends.
func (g *grant) renew(ctx context.Context) error {
	until := g.Until()
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	for ctx.Err() == nil {
		call, cancelCall := context.WithTimeout(ctx, callTimeout)
		renewed, err := g.requestRenewal(call)
		cancelCall()
		switch {
		case !time.Now().Before(until): // return ErrExpired even if this call has renewed the lease, because the holder has seen it end
		case err == nil:
			g.mu.Lock()
			g.until = renewed
			g.mu.Unlock()
			return nil
		case errors.Is(err, lock.ErrDeleted):
			return err
		}
		_ = retry.Sleep(ctx, g.backend.lease/(10*renewalsPerLease))
	}
	return lock.ErrExpired
}

// requestRenewal renews the lease once, and returns its new end. It returns lock.ErrDeleted if the
// lock is no longer held.
func (g *grant) requestRenewal(ctx context.Context) (until time.Time, err error) {
	asked := time.Now()
	held, err := renewScript.Run(ctx, g.backend.client, []string{g.name}, g.field, g.backend.lease.Milliseconds()).Bool()
	switch {
	case err != nil:
		return time.Time{}, err
	case !held:
		return time.Time{}, lock.ErrDeleted
	}
	return asked.Add(g.backend.lease), nil
}
