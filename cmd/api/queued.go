package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/holdfast-stock/holdfast/internal/retry"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/store"
)

// What an acknowledgement promises, as GET /strategies says it. The table in
// docs/operations.md and store.QueueWarning say the same of a 202.
const (
	committedPromise = "a 201 is never lost: the database has committed the order"
	queuedPromise    = "a 202 is as durable as Redis: with appendfsync always it survives a crash of Redis; with everysec a crash loses about the last second of 202s, with appendfsync no a crash of its machine loses those that are not on disk yet, with snapshots only those since the last snapshot, without persistence all that are queued; a failover loses what the replica does not have yet. " +
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

// finishLimit bounds how long a start waits for queued orders. Those of instances that
// were killed may be claimed some seconds after that. The others are committed while
// the instance serves. finishPause is the pause between two looks.
const finishLimit, finishPause = 10 * time.Second, 50 * time.Millisecond

// awaitQueued waits until the orders that another strategy has queued are committed, so
// that new orders of this instance do not compete with them for units. It waits at most
// for finishLimit, whatever the ledger does. Call it once the instance has taken over
// the stock, and while its consumer runs. Then other instances of its strategy sell
// meanwhile.
func awaitQueued(ctx context.Context, queued stock.QueuedOrders, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(ctx, finishLimit)
	defer cancel()
	for {
		orders, _, err := queued.Backlog(ctx)
		switch {
		case ctx.Err() == nil && err != nil:
			log.Warn("looking for orders that another strategy has queued failed", "error", err)
			return
		case err == nil && orders == 0:
			return
		}
		if retry.Sleep(ctx, finishPause) != nil {
			log.Warn("some orders that another strategy has queued are still being committed", "orders", orders)
			return
		}
	}
}
