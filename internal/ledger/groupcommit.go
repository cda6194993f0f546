package ledger

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-stock/holdfast/internal/ledger/cutter"
	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/tracing"
)

// commitGroup runs the one transaction of a group: it cuts the stock and inserts the orders of
// those takes that fit. It returns the recordings in the transaction, which are those that begin
// returns.
//
//	BEGIN
//	UPDATE stock …          by the strategy's cutter
//	INSERT INTO orders …
//	INSERT INTO order_lines …
//	COMMIT
//
// If the cutter supports that, the whole transaction is sent at once, and commits only if every
// take fits. If one does not fit, a second transaction decides each take.
//
// A transaction may wait for the stock rows. So the times of the orders, which were set before, are
// set again once the rows are locked. A transaction that is sent at once cannot set them again. It
// lasts at most transactionTimeout. If that is a large part of the payment window, the transaction
// is not sent at once, because no order may be committed after its payment window.
//
// If it returns no error, every recording has its outcome. After sqltx.ErrUnknownOutcome, every
// recording has one too. It is unknown for a recording that was cut. It is stock.ErrBusy for one
// that was refused because those units were cut. After any other error, no recording has an
// outcome, and nothing is committed.
func (l *Ledger) commitGroup(ctx context.Context, all []*recording) (rs []*recording, err error) {
	if rs, err = l.begin(all); err != nil || len(rs) == 0 {
		return rs, err
	}
	ctx, span := l.tracer.Start(ctx, "ledger.commit")
	if span.Recorded() {
		defer func() {
			span.Text("db.system.name", l.db.Dialect().System())
			span.Int("holdfast.group.orders", len(rs))
			if err != nil {
				span.Fail(cmp.Or(kindOf(err), "unavailable"))
			}
			span.End()
		}()
	}
	ctx, cancel := context.WithTimeout(ctx, transactionTimeout)
	defer cancel()
	plan, err := l.cutter.Plan(ctx, l.db, l.Generation(), takesOf(rs))
	if err != nil {
		return rs, err
	}
	err = l.cutAndInsert(ctx, rs, plan, plan.GroupCut != nil && l.mayWait && !l.cutFirst.Load())
	if errors.Is(err, sqltx.ErrUnmet) {
		err = l.cutAndInsert(ctx, rs, plan, false)
	}
	return rs, err
}

// cutAndInsert is the transaction of commitGroup. If atOnce is true, it is sent at once.
// It returns sqltx.ErrUnmet if a take does not fit.
func (l *Ledger) cutAndInsert(ctx context.Context, rs []*recording, plan cutter.Plan, atOnce bool) error {
	tx, err := l.db.Begin(ctx)
	if err != nil {
		return err
	}
	defer func(begun time.Time) { tracing.Observe(ctx, l.metrics.transaction, time.Since(begun)) }(time.Now())
	decisions := slices.Repeat([]cutter.Decision{{Taken: true}}, len(rs)) // at once, the COMMIT cuts every take or fails
	if !atOnce {
		if decisions, err = plan.Cut(ctx, tx); err == nil {
			_, err = l.begin(rs) // set the times again: the transaction may have waited for the rows
		}
		if err != nil {
			tx.Rollback()
			return err
		}
	}
	accepted := acceptedOrders(rs, decisions)
	if !atOnce {
		l.cutFirst.Store(len(accepted) < len(rs))
	}
	if len(accepted) == 0 {
		tx.Rollback()
		answer(rs, decisions, nil)
		return nil
	}
	first := idLiteral(accepted[0].ID)
	if atOnce {
		first = tx.Expect(plan.GroupCut.Rows, plan.GroupCut.Statement, first)
	}
	tx.AtCommit(inserts(tx.Dialect(), first, accepted...)...)
	if atOnce {
		tx.AtCommit(plan.GroupCut.Claims...)
	}
	if err = tx.Commit(); err == nil || errors.Is(err, sqltx.ErrUnknownOutcome) {
		answer(rs, decisions, err)
		return err
	}
	return fmt.Errorf("cutting, and inserting orders: %w", err)
}

func takesOf(rs []*recording) []stock.Take {
	takes := make([]stock.Take, len(rs))
	for i, r := range rs {
		takes[i] = r.take
	}
	return takes
}

// acceptedOrders returns the orders whose takes were cut, sorted by ID: all transactions
// insert in this order, so that two cannot wait for each other.
func acceptedOrders(rs []*recording, decisions []cutter.Decision) []*order.Order {
	accepted := make([]*order.Order, 0, len(rs))
	for i, r := range rs {
		if decisions[i].Taken {
			accepted = append(accepted, &r.order)
		}
	}
	slices.SortFunc(accepted, func(a, b *order.Order) int { return bytes.Compare(a.ID[:], b.ID[:]) })
	return accepted
}

// answer gives every recording its outcome after a COMMIT that returned err, which is nil or
// ErrUnknownOutcome. err applies to the recordings that were cut. It also applies to recordings
// that were refused for lack of units: if the COMMIT failed, more units are left.
func answer(rs []*recording, decisions []cutter.Decision, err error) {
	out := order.Committed()
	if err != nil {
		out = order.Unknown(err)
	}
	for i, r := range rs {
		if decisions[i].Taken {
			r.answer(out)
			continue
		}
		reason := decisions[i].Reason()
		if err != nil && (errors.Is(reason, stock.ErrSoldOut) || errors.Is(reason, stock.ErrBuyerLimit)) {
			reason = stock.Busy(err)
		}
		r.answer(order.Refused(reason))
	}
}
