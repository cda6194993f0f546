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

// passed is the version of a void order that its key has passed.
const passed = -1

// Pass makes a void order stay one, because its key moves on to another ID: two orders of
// one key would be live if Replace came afterwards. It waits for a Replace that is being
// committed. A refused order may still take the place of the void one.
//
// ErrRowChanged: the order is not void any more, or another request has passed it.
func (l *Ledger) Pass(ctx context.Context, id uuid.UUID) error {
	ctx, cancel := context.WithTimeout(ctx, transactionTimeout)
	defer cancel()
	changed, err := l.db.Exec(ctx, "UPDATE orders SET version = ? WHERE id = ? AND status = ? AND version >= 0",
		passed, l.db.Dialect().UUID(id), string(Void))
	if err != nil {
		return fmt.Errorf("passing the void order %s: %w", id, err)
	}
	if changed == 0 {
		return ErrRowChanged
	}
	return nil
}

// Passed reports whether the order was void, and its key has moved on to another ID.
func (o *Order) Passed() bool { return o.Version == passed }

// Replaceable reports whether a queued order may take the place of this one: it is void,
// and its key has not passed it.
func (o *Order) Replaceable() bool { return o.Status == Void && !o.Passed() }

// Replace records the queued order of a take in place of a void order, which bars the
// earlier takes under the order's ID. void is the void order as it was read, and must be
// Replaceable. In the same transaction, the new row takes over: it bars them too.
//
// Reasons to refuse: ErrRowChanged (the void order has changed since it was read: another
// take has its place, or Resolve has barred this one); those of Record.
func (l *Ledger) Replace(ctx context.Context, void Order, t stock.Take) (Order, Outcome) {
	o, err := l.newOrder(t, Pending)
	if err != nil {
		return Order{}, Refused(fmt.Errorf("%w: %w", stock.ErrBusy, err))
	}
	return o, l.cutAgain(ctx, t, func(ctx context.Context, tx *sqltx.Tx) error {
		removed, err := tx.Exec(ctx, "DELETE FROM orders WHERE id = ? AND status = ? AND version = ?",
			tx.Dialect().UUID(o.ID), string(Void), void.Version)
		if err != nil {
			return err
		}
		if removed == 0 {
			return ErrRowChanged
		}
		return insertOrders(ctx, tx, o)
	})
}

// TurnDown records that the queued order of a take is refused. The row bars the
// order's ID: no transaction can commit the take afterwards. It replaces a void order,
// which another request of the same key can leave under the ID. If the database refuses the
// order's lines or its buyer, the row is without them.
//
// Refused: the take is not committed and never will be. Committed: the ledger has
// the take's order. Unknown: the database did not answer; the row may be there or
// not.
func (l *Ledger) TurnDown(ctx context.Context, t stock.Take) Outcome {
	o, err := l.newOrder(t, TurnedDown)
	if err != nil {
		return Unknown(err)
	}
	err = l.replaceVoid(ctx, o)
	if sqltx.IsValueError(err) {
		o.Lines, o.Buyer = nil, ""
		err = l.replaceVoid(ctx, o)
	}
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

// replaceVoid inserts the order, in place of a void one if there is one.
func (l *Ledger) replaceVoid(ctx context.Context, o Order) error {
	return l.transact(ctx, func(ctx context.Context, tx *sqltx.Tx) error {
		_, err := tx.Exec(ctx, "DELETE FROM orders WHERE id = ? AND status = ?", tx.Dialect().UUID(o.ID), string(Void))
		if err != nil {
			return err
		}
		return insertOrders(ctx, tx, o)
	})
}

// Queued reports whether the order is in the gate's journal, and not in the ledger.
func (o *Order) Queued() bool { return o.Status == Queued }

// Holds reports whether the take cut the order's units. The row of an order that
// was refused, or never committed, names a take that did not.
func (o *Order) Holds(take uuid.UUID) bool {
	return o.TakeID == take && o.Status != Void && o.Status != TurnedDown
}
