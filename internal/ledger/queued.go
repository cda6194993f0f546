package ledger

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// Pass makes a void order stay one, because its key moves on to another ID: two orders of
// one key would be live if Replace came afterwards. It waits for a Replace that is being
// committed. A refused order may still take the place of the void one.
//
// stock.ErrRowChanged: the order is not void any more, or another request has passed it.
func (l *Ledger) Pass(ctx context.Context, id uuid.UUID) error {
	ctx, cancel := context.WithTimeout(ctx, transactionTimeout)
	defer cancel()
	changed, err := l.db.Exec(ctx, "UPDATE orders SET version = ? WHERE id = ? AND status = ? AND version >= 0",
		order.PassedVersion, l.db.Dialect().UUID(id), string(order.Void))
	if err != nil {
		return fmt.Errorf("passing the void order %s: %w", id, err)
	}
	if changed == 0 {
		return stock.ErrRowChanged
	}
	return nil
}

// Replace records the queued order of a take in place of a void order, which bars the
// earlier takes under the order's ID. void is the void order as it was read, and must be
// Replaceable. In the same transaction, the new row takes over: it bars them too.
//
// Reasons to refuse: stock.ErrRowChanged (the void order has changed since it was read:
// another take has its place, or Resolve has barred this one); those of Record.
func (l *Ledger) Replace(ctx context.Context, void order.Order, t stock.Take) (order.Order, order.Outcome) {
	o, err := l.newOrder(t, order.Pending)
	if err != nil {
		return order.Order{}, order.Refused(fmt.Errorf("%w: %w", stock.ErrBusy, err))
	}
	out := l.cutAgain(ctx, t, func(ctx context.Context, tx *sqltx.Tx) error {
		now, expires, err := l.times() // the cut may have waited for the stock rows
		if err != nil {
			return err
		}
		o.RecordedAt(now, expires)
		removed, err := tx.Exec(ctx, "DELETE FROM orders WHERE id = ? AND status = ? AND version = ?",
			tx.Dialect().UUID(o.ID), string(order.Void), void.Version)
		if err != nil {
			return err
		}
		if removed == 0 {
			return stock.ErrRowChanged
		}
		return insertOrders(ctx, tx, o)
	})
	return o, out
}

// TurnDown records that the queued order of a take is refused. The row bars the
// order's ID: no transaction can commit the take afterwards. It replaces a void order,
// which another request of the same key can leave under the ID. If the database refuses
// the order's lines or its buyer, the row is without them.
//
// Refused: the take is not committed and never will be. Committed: the ledger has
// the take's order. Unknown: the database did not answer; the row may be there or
// not.
func (l *Ledger) TurnDown(ctx context.Context, t stock.Take) order.Outcome {
	o, err := l.newOrder(t, order.TurnedDown)
	if err != nil {
		return order.Unknown(err)
	}
	for try := 1; ; try++ {
		err := l.replaceVoid(ctx, o)
		if sqltx.IsValueError(err) {
			o.Lines, o.Buyer = nil, ""
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
		// A void order that was committed after the DELETE is not the end of this one.
		l.metrics.retries.Inc()
		pause(try)
	}
}

// replaceVoid inserts the order, in place of a void one if there is one.
func (l *Ledger) replaceVoid(ctx context.Context, o order.Order) error {
	return l.transact(ctx, func(ctx context.Context, tx *sqltx.Tx) error {
		_, err := tx.Exec(ctx, "DELETE FROM orders WHERE id = ? AND status = ?", tx.Dialect().UUID(o.ID), string(order.Void))
		if err != nil {
			return err
		}
		return insertOrders(ctx, tx, o)
	})
}
