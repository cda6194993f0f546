package ledger

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// newOrder returns the order of a take as the ledger would record it now, by the
// database's clock.
func (l *Ledger) newOrder(t stock.Take, status Status) (Order, error) {
	now, expires, err := l.times()
	if err != nil {
		return Order{}, err
	}
	o := Order{
		ID: t.OrderID, TakeID: t.TakeID, Buyer: t.Buyer, Status: status, Lines: t.Lines,
		Strategy: l.strategy, CreatedAt: now,
	}
	if status == Pending {
		o.ExpiresAt = expires
	}
	if !t.QueuedAt.IsZero() {
		o.Strategy, o.CreatedAt, o.QueuedUntil = l.queuedBy, t.QueuedAt, now
	}
	return o, nil
}

// Now returns the time by the database's clock, in UTC and whole microseconds. It
// asks no database.
func (l *Ledger) Now() (time.Time, error) { return l.clock.now() }

// Queued returns the order of a take that is in the gate's journal. It reads
// nothing.
func (l *Ledger) Queued(t stock.Take) Order {
	return Order{
		ID: t.OrderID, TakeID: t.TakeID, Buyer: t.Buyer, Status: Queued, Lines: t.Lines,
		Strategy: l.queuedBy, CreatedAt: t.QueuedAt,
	}
}

// TurnDown records that the queued order of a take is refused. The row bars the
// order's ID: no transaction can commit the take afterwards. It replaces a void order,
// which another request of the same key can leave under the ID.
//
// Refused: the take is not committed and never will be. Committed: the ledger has
// the take's order. Unknown: the database did not answer; the row may be there or
// not.
func (l *Ledger) TurnDown(ctx context.Context, t stock.Take) Outcome {
	o, err := l.newOrder(t, TurnedDown)
	if err != nil {
		return Unknown(err)
	}
	err = l.transact(ctx, func(tx *sqltx.Tx) error {
		_, err := tx.Exec(ctx, "DELETE FROM orders WHERE id = ? AND status = ?", tx.Dialect().UUID(o.ID), string(Void))
		if err != nil {
			return err
		}
		return insertOrders(ctx, tx, o)
	})
	if err == nil {
		return Refused(errVoided)
	}
	if !sqltx.IsDuplicate(err) {
		return Unknown(fmt.Errorf("recording the refusal of order %s: %w", t.OrderID, err))
	}
	found, err := l.durable(ctx, []uuid.UUID{t.OrderID})
	if err != nil {
		return Unknown(err)
	}
	switch o, ok := found[t.OrderID]; {
	case !ok:
		return Unknown(fmt.Errorf("order %s: %w", t.OrderID, ErrNoOrder))
	case o.Holds(t.TakeID):
		return Committed()
	}
	return Refused(errVoided)
}

// Queued reports whether the order is in the gate's journal, and not in the ledger.
func (o *Order) Queued() bool { return o.Status == Queued }

// Holds reports whether the take cut the order's units. The row of an order that
// was refused, or never committed, names a take that did not.
func (o *Order) Holds(take uuid.UUID) bool {
	return o.TakeID == take && o.Status != Void && o.Status != TurnedDown
}
