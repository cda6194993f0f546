package ledger

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/holdfast-stock/holdfast/internal/ledger/cutter"
	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// commitGroup runs the one transaction of a group: it cuts the stock and inserts
// the orders of those takes that fit.
//
//	BEGIN
//	UPDATE stock …          by the strategy's cutter
//	INSERT INTO orders …
//	INSERT INTO order_lines …
//	COMMIT
//
// A transaction may wait for the stock rows. So the times of the orders, which were set
// before, are set again once the rows are locked. A transaction that is sent whole cannot
// do that. It takes at most transactionTimeout, and is not used if that is a large part of
// the payment window: no order is committed when its time to be paid has passed.
//
// If it returns nil, every recording has its outcome. If it returns
// sqltx.ErrUnknownOutcome, too, and the outcome of those that would be committed is
// unknown. With another error no recording has an outcome, and nothing is
// committed.
func (l *Ledger) commitGroup(ctx context.Context, rs []*recording) error {
	ctx, cancel := context.WithTimeout(sqltx.WithOrders(ctx, len(rs)), transactionTimeout)
	defer cancel()
	plan, err := l.cutter.Plan(ctx, l.db, l.Generation(), takesOf(rs))
	if err != nil {
		return err
	}
	if plan.Whole != nil && l.mayWait() && !l.misfit.Load() {
		fits, err := l.commitWhole(ctx, rs, plan.Whole)
		if err != nil || fits {
			return err
		}
		l.misfit.Store(true)
	}

	tx, err := l.db.Begin(ctx)
	if err != nil {
		return err
	}
	decisions, err := plan.Cut(ctx, tx)
	if err != nil {
		tx.Rollback()
		return err
	}
	if err := l.setTimes(rs); err != nil {
		tx.Rollback()
		return err
	}
	accepted := acceptedOrders(rs, decisions)
	l.misfit.Store(len(accepted) < len(rs))
	if len(accepted) == 0 {
		tx.Rollback()
		answer(rs, decisions, nil)
		return nil
	}
	if err := insertOrders(ctx, tx, accepted...); err != nil {
		tx.Rollback()
		return fmt.Errorf("inserting orders: %w", err)
	}
	err = tx.Commit()
	if err == nil || errors.Is(err, sqltx.ErrUnknownOutcome) {
		answer(rs, decisions, err)
	}
	return err
}

// mayWait reports whether orders may wait for stock rows after their times have been set.
func (l *Ledger) mayWait() bool {
	return l.paymentWindow == 0 || l.paymentWindow >= 2*transactionTimeout
}

// setTimes sets the times of the orders to now.
func (l *Ledger) setTimes(rs []*recording) error {
	created, expires, err := l.times()
	if err != nil {
		return err
	}
	for _, r := range rs {
		r.setTimes(created, expires)
	}
	return nil
}

// commitWhole is commitGroup for a group that is expected to fit whole: it sends
// the whole transaction at once, as one text if the database allows it. If fits is
// false, nothing is committed and no recording has an outcome.
func (l *Ledger) commitWhole(ctx context.Context, rs []*recording, cut *cutter.Whole) (fits bool, err error) {
	orders := make([]order.Order, len(rs))
	for i, r := range rs {
		orders[i] = r.order
	}
	sortByID(orders)
	fits, err = l.db.CommitIf(ctx, cut.Statement, cut.Rows, func(guard sqltx.Guard) []sqltx.Statement {
		return append(inserts(l.db.Dialect(), orders, guard), cut.Claims...)
	})
	switch {
	case fits || errors.Is(err, sqltx.ErrUnknownOutcome):
		for _, r := range rs {
			r.answer(commitOutcome(err))
		}
	case err != nil:
		return false, fmt.Errorf("cutting, and inserting orders: %w", err)
	}
	return fits, err
}

func takesOf(rs []*recording) []stock.Take {
	takes := make([]stock.Take, len(rs))
	for i, r := range rs {
		takes[i] = r.take
	}
	return takes
}

// acceptedOrders returns the orders whose takes were cut, sorted by ID.
func acceptedOrders(rs []*recording, decisions []cutter.Decision) []order.Order {
	accepted := make([]order.Order, 0, len(rs))
	for i, r := range rs {
		if decisions[i].Taken() {
			accepted = append(accepted, r.order)
		}
	}
	sortByID(accepted)
	return accepted
}

// sortByID sorts orders by ID. All transactions insert in this order, so that two
// cannot wait for each other.
func sortByID(orders []order.Order) {
	slices.SortFunc(orders, func(a, b order.Order) int { return bytes.Compare(a.ID[:], b.ID[:]) })
}

// answer gives every recording its outcome after a COMMIT that returned err. err
// concerns those that were cut.
func answer(rs []*recording, decisions []cutter.Decision, err error) {
	for i, r := range rs {
		if decisions[i].Taken() {
			r.answer(commitOutcome(err))
		} else {
			r.answer(order.Refused(decisions[i].Reason()))
		}
	}
}

// commitOutcome returns the outcome of orders whose COMMIT returned err, which is
// nil or ErrUnknownOutcome.
func commitOutcome(err error) order.Outcome {
	if err != nil {
		return order.Unknown(err)
	}
	return order.Committed()
}
