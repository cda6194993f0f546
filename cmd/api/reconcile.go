package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-stock/holdfast/internal/assembly"
	"github.com/holdfast-stock/holdfast/internal/reconcile/findings"
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
	c.Migrate = false // the running instances need the schema as it is
	stores, err := assembly.OpenStores(ctx, c.parts(), log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stores.Close()) }()
	return stores.SQL.WhileAnswering(ctx, silence, func(ctx context.Context) error {
		return reconcileOpened(ctx, c, stores, stdout, log)
	})
}

// reconcileOpened is reconcileOnce on open stores.
func reconcileOpened(ctx context.Context, c config, stores assembly.Stores, stdout io.Writer, log *slog.Logger) (err error) {
	if err := stores.PrepareSchema(ctx, false); err != nil {
		return err
	}
	instance, err := assembly.Build(ctx, stores, c.parts(), c.options(log, prometheus.NewRegistry()))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, instance.Close()) }()
	if err := instance.Reconciler.Attach(ctx); err != nil {
		return err
	}
	return findings.Print(ctx, instance.Reconciler, findings.Options{Repair: c.Repair, JSON: c.JSON}, stdout, log)
}
