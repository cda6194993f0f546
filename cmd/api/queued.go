package main

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/service"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/stock/strategy"
	"github.com/holdfast-stock/holdfast/internal/store"
)

// What an acknowledgement promises, as GET /strategies says it. The table in
// docs/operations.md and store.QueueWarning say the same of a 202.
const (
	committedPromise = "a 201 is never lost: the database has committed the order"
	queuedPromise    = "a 202 is as durable as Redis: with appendfsync always it survives a crash of Redis; with everysec a crash loses about the last second of 202s, with snapshots only those since the last snapshot, without persistence all that are queued; a failover loses what the replica does not have yet. " +
		"A queued order may still be refused if Redis lost its counts, or the ledger has fewer units; GET /orders/{id} says so"
	inProcessPromise = "a 202 is as durable as the in-process Redis: the end of this process loses every order that is still queued"
)

// queueWarning says which queued orders may be lost. It is empty if none are.
func queueWarning(ctx context.Context, c config, s stores) string {
	if c.redis == "" {
		return inProcessPromise
	}
	return store.QueueWarning(ctx, s.redis)
}

const (
	// finishLimit bounds how long a start waits for the queued orders of an earlier
	// run. They may be claimed some seconds after the instances that had them ended.
	finishLimit = 30 * time.Second
	// finishPause is the pause between two measurements of the journal meanwhile.
	finishPause = 50 * time.Millisecond
)

// finishQueued commits the orders that an earlier run left in the journal, if the
// strategy of this run does not read it. For that it runs an instance of the strategy
// that reads it, which owns the stock meanwhile. Call it before the strategy of this run
// takes over the stock. It logs a warning if orders may stay queued.
func finishQueued(ctx context.Context, c config, s stores, ledgerID uuid.UUID, log *slog.Logger) error {
	if c.strategy.Queues() || c.redis == "" {
		return nil
	}
	redis := s.redis
	if redis == nil { // the strategy has no gate
		client, err := store.OpenRedis(ctx, c.redis)
		if err != nil {
			log.Warn(cannotLook, "error", named("--redis", err))
			return nil
		}
		defer client.Close()
		redis = client
	}
	spec, _ := strategy.Find(strategy.Queueing()[0])
	built, closeGate := spec.Build(strategy.Backends{Redis: redis, LedgerID: ledgerID, Guard: c.guard})
	defer closeGate()
	if built.Journal == nil { // on a cluster
		return nil
	}
	orders, _, err := built.Journal.Backlog(ctx)
	if err != nil {
		log.Warn(cannotLook, "error", err)
	}
	if err != nil || orders == 0 {
		return nil
	}
	log.Info("committing queued orders of an earlier run", "orders", orders, "strategy", spec.Name)
	i := service.New(s.sql.Ledger(), ledgerID, built, service.Options{
		TakeDeadline: c.takeDeadline, PaymentWindow: c.paymentWindow, LatePayments: order.Late(c.latePayment),
		Log: log, Metrics: prometheus.NewRegistry(),
	})
	defer i.Close()
	if err := i.Reconciler.Start(ctx); err != nil {
		return fmt.Errorf("committing queued orders of an earlier run: %w", err)
	}
	if orders, err = emptyJournal(ctx, i, built.Journal); orders > 0 || err != nil {
		log.Warn("queued orders stay in Redis, and strategy "+c.strategy.Name+" does not commit them; "+
			"run an instance with --strategy "+spec.Name+" on the same stores until its metric holdfast_journal_orders is 0",
			"orders", orders, "error", err)
	}
	return nil
}

const cannotLook = "looking for queued orders of an earlier run failed; any that exist stay queued"

// emptyJournal commits queued orders until the journal is empty, finishLimit has passed
// or ctx ends. It returns the number of orders that are left.
func emptyJournal(ctx context.Context, i *service.Instance, journal stock.Journal) (orders int64, err error) {
	limited, stop := context.WithTimeout(ctx, finishLimit)
	var consuming sync.WaitGroup
	consuming.Go(func() { i.Consumer.Run(limited) })
	defer consuming.Wait()
	defer stop()
	ticker := time.NewTicker(finishPause)
	defer ticker.Stop()
	for {
		orders, _, err = journal.Backlog(ctx)
		if err == nil && orders == 0 {
			return 0, nil
		}
		select {
		case <-limited.Done():
			return orders, err
		case <-ticker.C:
		}
	}
}
