package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-stock/holdfast/internal/reconcile/findings"
	"github.com/holdfast-stock/holdfast/internal/service"
	"github.com/holdfast-stock/holdfast/internal/store"
)

// maxSilence is how long the database may be silent while reconcile reads a large
// table. Its statements may take longer than that.
const maxSilence = 30 * time.Second

// reconcileOnce compares the counts of all stock, beside the instances that sell it,
// and prints those that differ. With --repair it corrects them. It returns an error
// if a difference is left, or if the database has been silent for too long.
func reconcileOnce(ctx context.Context, c config, silence time.Duration, stdout io.Writer, log *slog.Logger) (err error) {
	store.LogRedis(log)
	c.DB = store.LongStatements(c.DB)
	stores, err := openStores(ctx, c)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stores.close()) }()
	stores.sql.LogTo(log)
	return stores.sql.WhileAnswering(ctx, silence, func(ctx context.Context) error {
		return reconcileOpened(ctx, c, stores, stdout, log)
	})
}

// reconcileOpened is reconcileOnce on open stores.
func reconcileOpened(ctx context.Context, c config, stores stores, stdout io.Writer, log *slog.Logger) (err error) {
	c.Migrate = false // the running instances need the schema as it is
	if err := prepareSchema(ctx, c, stores.sql); err != nil {
		return err
	}
	ledgerID, err := stores.sql.LedgerID(ctx)
	if err != nil {
		return err
	}
	built, closeStrategy, err := openStrategy(ctx, c, stores, ledgerID, log, prometheus.NewRegistry())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeStrategy()) }()
	instance := service.New(stores.sql.Ledger(), ledgerID, built, service.Options{
		TakeDeadline: c.TakeDeadline, Log: log, Metrics: prometheus.NewRegistry(),
	})
	defer instance.Close()
	if err := instance.Reconciler.Attach(ctx); err != nil {
		return err
	}
	return findings.Print(ctx, instance.Reconciler, findings.Options{Repair: c.Repair, JSON: c.JSON}, stdout, log)
}
