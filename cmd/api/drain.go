package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-stock/holdfast/internal/assembly"
	"github.com/holdfast-stock/holdfast/internal/retry"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/store"
)

// drainQueued takes the stock from the instances that queue orders, commits what is
// queued, and gives the stock up, so that any strategy can take it over. It also works
// with a journal that is lost or empty, and changes nothing if no order can be queued. It
// stops, with an error, when ctx ends or another instance takes over the stock; the orders
// that are left stay queued.
func drainQueued(ctx context.Context, c config, stdout io.Writer, log *slog.Logger) (err error) {
	store.LogRedis(log)
	if err := assembly.CheckFile(c.DB); err != nil { // even if the schema may be migrated
		return err
	}
	parts := c.parts()
	parts.Draining = true
	instance, err := assembly.Open(ctx, parts, c.options(log, prometheus.NewRegistry()))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, instance.Close()) }()
	ownership, err := instance.Reconciler.Ownership(ctx)
	if err != nil {
		return err
	}
	found, err := instance.Consumer.Queued(ctx)
	if err != nil {
		return err
	}
	switch {
	case found == 0 && !ownership.Owner.Queues: // the stock may belong to instances that sell
		_, err := fmt.Fprintln(stdout, "0 orders were queued, none is left; nothing was changed")
		return err
	case c.Redis == "":
		if err := stopped(ctx, instance); err != nil {
			return err
		}
	case ownership.Mark == (stock.Mark{}):
		log.Warn("this Redis has never seen the ledger, or has lost its data: orders that are queued elsewhere will not be committed")
	}
	instance.Reconciler.TakeOverFrom(ownership.Owner)
	if err := instance.Start(ctx); err != nil {
		return err
	}
	defer instance.RunBeside(ctx)()
	if err := releaseDrained(ctx, instance, found, log); err != nil {
		return err
	}
	_, err = fmt.Fprintf(stdout, "%d orders were queued, none is left; any strategy can take over the stock\n", found)
	return err
}

// beatPause is longer than a running instance takes to raise the ledger's beat again.
const beatPause = 3 * time.Second

// stopped returns an error if an instance raises the ledger's beat. The journal may be in the Redis
// of that instance's process, and would end with it.
func stopped(ctx context.Context, i *assembly.Instance) error {
	before, err := i.Ledger.Owner(ctx)
	if err != nil {
		return err
	}
	if err := retry.Sleep(ctx, beatPause); err != nil {
		return err
	}
	after, err := i.Ledger.Owner(ctx)
	if err == nil && after.Beat != before.Beat {
		err = errors.New("draining: an instance is running, and the orders may be queued in the Redis of its process: stop it first, or use its --redis")
	}
	return err
}

const (
	drainPause = 50 * time.Millisecond // pause between two reads of the journal
	// progressPause is the pause between two log lines that say how far the drain is.
	progressPause = 5 * time.Second
)

// releaseDrained waits until no order is queued, and gives the stock up. found is the number of
// orders that were queued at the start.
func releaseDrained(ctx context.Context, i *assembly.Instance, found int64, log *slog.Logger) error {
	log.Info("committing queued orders", "orders", found)
	for told := time.Now(); ; {
		left, err := i.Consumer.Queued(ctx)
		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("draining: stopped, orders may be left: run api drain again: %w", ctx.Err())
		case err == nil && left == 0:
			if err := i.Reconciler.Release(ctx); err != nil {
				return fmt.Errorf("giving up the stock: %w", err)
			}
			return nil
		}
		if err := i.Reconciler.Usable(ctx); errors.Is(err, stock.ErrSuperseded) {
			return fmt.Errorf("draining: %w", err)
		}
		if time.Since(told) > progressPause {
			told = time.Now()
			log.Info("committing queued orders", "orders", found, "left", left, "error", err)
		}
		_ = retry.Sleep(ctx, drainPause)
	}
}
