package ledger

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// Revive pays an expired order late. It cuts the units again, under the take t, and records the
// payment. expired is the order as it was read, and t has an ID from its NextTake. An order is
// revived at most once.
//
// Reasons to refuse: stock.ErrRowChanged (the order or the payment has changed since it was read);
// those of Record.
func (l *Ledger) Revive(ctx context.Context, expired order.Order, t stock.Take, payment string) (order.Order, order.Outcome) {
	o, c := expired, order.Revival(expired, payment)
	o.Apply(c)
	o.TakeID = t.TakeID
	end, err := l.turns.take(ctx, stock.SKUsOf(t)...)
	if err != nil {
		return o, order.Refused(err)
	}
	defer end()
	paid := order.Payment{ID: payment, OrderID: o.ID, Status: c.PaymentStatus}
	err = l.retried(ctx, func() error { return l.tryRevive(ctx, t, &o, paid) })
	switch {
	case err == nil:
		return o, order.Committed()
	case errors.Is(err, sqltx.ErrUnknownOutcome):
		return o, order.Unknown(err)
	case sqltx.IsDuplicate(err): // a duplicate in the order's history, or of the payment: another take was faster
		return o, order.Refused(fmt.Errorf("%w: %w", stock.ErrRowChanged, err))
	case errors.As(err, new(*stock.Refusal)), errors.Is(err, stock.ErrRowChanged):
		return o, order.Refused(err)
	}
	return o, order.Refused(notRecorded(err))
}

// tryRevive is one transaction of Revive. o is the order as it is after the revival.
func (l *Ledger) tryRevive(ctx context.Context, t stock.Take, o *order.Order, paid order.Payment) error {
	ctx, cancel := context.WithTimeout(ctx, transactionTimeout)
	defer cancel()
	plan, err := l.cutter.Plan(ctx, l.db, l.Generation(), []stock.Take{t})
	if err != nil {
		return err
	}
	return l.db.Transact(ctx, func(tx *sqltx.Tx) error {
		decisions, err := plan.Cut(ctx, tx)
		if err != nil {
			return err
		}
		if !decisions[0].Taken {
			return decisions[0].Reason()
		}
		updated, err := tx.ExecAll(ctx, writeStep(tx.Dialect(), o)...)
		if err != nil {
			return fmt.Errorf("writing the order: %w", err)
		}
		if updated[0] == 0 {
			return stock.ErrRowChanged
		}
		tx.AtCommit(writePayment(tx.Dialect(), false, paid))
		return nil
	})
}

// blockRevivals raises the version of the order's row, so that each Revive that has read the order
// before fails. It waits for a Revive that is being committed.
func (l *Ledger) blockRevivals(ctx context.Context, id uuid.UUID) error {
	_, err := l.db.Exec(ctx, "UPDATE orders SET version = version + 1 WHERE id = ? AND status = ?",
		l.db.Dialect().UUID(id), string(order.Expired))
	if err != nil {
		return fmt.Errorf("blocking other takes of order %s: %w", id, err)
	}
	return nil
}
