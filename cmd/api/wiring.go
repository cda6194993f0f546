package main

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/httpapi"
	"github.com/holdfast-stock/holdfast/internal/lock/backends"
	"github.com/holdfast-stock/holdfast/internal/service"
	"github.com/holdfast-stock/holdfast/internal/stock/strategy"
	"github.com/holdfast-stock/holdfast/internal/store"
)

// openStrategy builds the strategy that the flags name, with its locks. Call close
// after the last use of its gate.
func openStrategy(ctx context.Context, c config, s stores, ledgerID uuid.UUID, log *slog.Logger, metrics prometheus.Registerer) (built strategy.Strategy, close func() error, err error) {
	on := strategy.Backends{
		Redis: s.redis, LedgerID: ledgerID, Guard: c.Guard,
		LockName: c.Locks.Backend, Fence: c.Fence, Segments: c.Segments,
	}
	closeLocks := func() error { return nil }
	if c.strategy.NeedsLock() {
		if on.Locker, closeLocks, err = c.Locks.Open(ctx, s.redis, c.DB, newLockMetrics(metrics).observe); err != nil {
			return strategy.Strategy{}, nil, err
		}
		for _, warning := range c.lockWarnings() {
			log.Warn(warning)
		}
	}
	built, closeGate := c.strategy.Build(on)
	return built, func() error {
		closeGate()
		return closeLocks()
	}, nil
}

// lockWarnings returns the cases in which the locks do not hold what the strategy
// promises.
func (c config) lockWarnings() (warnings []string) {
	backend, _ := backends.Find(c.Locks.Backend)
	if backend.Flag == "" {
		warnings = append(warnings, "--lock local excludes within this process only: two instances oversell")
	}
	if !backend.Fences {
		warnings = append(warnings, "--lock "+backend.Name+" gives no fencing tokens: a lease that is outlived may oversell")
	} else if !c.Fence {
		warnings = append(warnings, "--fence off: a lease that is outlived may oversell")
	}
	return warnings
}

// start takes over the stock, and sets the demo stock of an embedded service.
func start(ctx context.Context, i *service.Instance, c config) error {
	if err := i.Start(ctx); err != nil {
		return err
	}
	if !c.embedded() {
		return nil
	}
	for _, set := range demoStock {
		if _, _, err := i.Stock.SetStock(ctx, set); err != nil {
			return fmt.Errorf("setting the demo stock: %w", err)
		}
	}
	return nil
}

// reconcileBeside reconciles, and commits queued orders, in the background, also
// after ctx has ended, until stop is called. stop waits for it to end. redis is nil
// without a gate.
func reconcileBeside(ctx context.Context, i *service.Instance, redis redis.UniversalClient, log *slog.Logger) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	running.Go(func() { i.Run(ctx) })
	if redis != nil {
		running.Go(func() {
			store.WatchRedis(ctx, redis, watchPause, func() {
				log.Warn("a Redis master was replaced or restarted; every count will be refilled")
				i.Reconciler.StoreChanged()
			})
		})
	}
	return func() {
		cancel()
		running.Wait()
	}
}

// describe returns the table of strategies as GET /strategies shows it.
func describe(c config) httpapi.Strategies {
	d := httpapi.Strategies{Running: c.strategy.Name, Guard: c.Guard}
	for _, s := range strategy.Table() {
		d.All = append(d.All, httpapi.Strategy{Name: s.Name, Gate: s.Gate, Cutter: s.Cutter, Sound: s.Sound, Detail: s.Detail, Promise: s.Promise})
	}
	return d
}
