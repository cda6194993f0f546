package ledger

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/retry"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// RecordRefusal records that a queued order is refused, although its request was answered 202. The
// row blocks the order's ID: no transaction can commit the take afterwards. It replaces a void
// order, which an instance of another strategy can leave under the ID of a key. If the database
// refuses the order's lines, the row is written without them. If the database then still refuses
// the row, it is written without its buyer.
//
// A refused outcome means that the take is not committed and never will be. A committed outcome
// means that the ledger has the take's order. After an unknown outcome, the row may exist or not,
// because the database did not answer.
func (l *Ledger) RecordRefusal(ctx context.Context, t stock.Take) order.Outcome {
	now, _, err := l.times()
	if err != nil {
		return order.Unknown(err)
	}
	o := order.New(t, order.TurnedDown, l.strategy)
	o.RecordedAt(now, time.Time{}) // it does not expire
	for try := 1; ; try++ {
		err := l.replaceVoid(ctx, o)
		if sqltx.IsValueError(err) {
			o.Lines = nil
			err = l.replaceVoid(ctx, o)
		}
		if sqltx.IsValueError(err) {
			o.Buyer = "" // the buyer's token then does not show the order
			err = l.replaceVoid(ctx, o)
		}
		switch {
		case err == nil:
			return order.Refused(errVoided)
		case !sqltx.IsDuplicate(err):
			return order.Unknown(fmt.Errorf("recording the refusal of order %s: %w", t.OrderID, err))
		}
		found, readErr := l.durable(ctx, []uuid.UUID{t.OrderID})
		switch row, ok := found[t.OrderID]; {
		case readErr != nil:
			return order.Unknown(readErr)
		case ok && row.Holds(t.TakeID):
			return order.Committed()
		case ok && row.Status != order.Void:
			return order.Refused(errVoided)
		case try == maxTries:
			return order.Unknown(fmt.Errorf("recording the refusal of order %s: %w", t.OrderID, err))
		}
		// A void order that is committed after the DELETE does not end this order; try again.
		l.metrics.retries.Inc()
		retry.Wait(ctx, try)
	}
}

// replaceVoid inserts the order, and replaces a void one if there is one.
func (l *Ledger) replaceVoid(ctx context.Context, o order.Order) error {
	return l.transact(ctx, transactionTimeout, func(ctx context.Context, tx *sqltx.Tx) error {
		_, err := tx.Exec(ctx, "DELETE FROM orders WHERE id = ? AND status = ?", tx.Dialect().UUID(o.ID), string(order.Void))
		if err != nil {
			return err
		}
		return insertOrder(ctx, tx, &o)
	})
}
