package ledger

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// Change changes an order in one transaction. It returns the order as it is afterwards, and
// the additions to stock that the outbox got with it. decide chooses the change under the
// order's row lock; its error ends the transaction and is returned, with the order that decide was
// called with. decide may run several times. An answer that changes nothing is as durable as the
// rows that it is based on.
//
// Errors: order.ErrUnknownOrder; stock.ErrRowChanged (the payment was recorded meanwhile) and
// stock.ErrBusy, after which nothing was changed; what decide returned; an error of the database,
// after which the change may have been made. If the caller repeats the call, decide sees whether it
// was made.
func (l *Ledger) Change(ctx context.Context, id uuid.UUID, options order.ChangeOptions, decide order.Decide) (order.Order, []stock.Change, error) {
	found, err := readOrders(ctx, l.db, []uuid.UUID{id}) // buyer and lines of an order never change
	if err != nil {
		return order.Order{}, nil, err
	}
	o, ok := found[id]
	if !ok || o.Status == order.Void || o.Status == shrink || cmp.Or(options.Buyer, o.Buyer) != o.Buyer {
		return order.Order{}, nil, order.ErrUnknownOrder
	}
	var skus []stock.SKU // those whose stock rows are locked
	if options.Returns { // a payment must not wait for changes that wait for stock rows
		skus = o.SKUs()
		end, err := l.turns.take(ctx, skus...)
		if err != nil {
			return order.Order{}, nil, err
		}
		defer end()
	}
	state, returned, err := l.change(ctx, *o, skus, options.Payment, decide)
	switch {
	case err == nil:
		return state.Order, returned, nil
	case options.Payment != "" && sqltx.IsDuplicate(err): // recorded after decide had looked, for this order or another
		err = fmt.Errorf("%w: %w", stock.ErrRowChanged, err)
	}
	return state.Order, nil, fmt.Errorf("changing order %s: %w", id, err)
}

// change is the transaction of Change. found is the order as it was read. The stock rows of the SKUs
// are locked before the order.
func (l *Ledger) change(ctx context.Context, found order.Order, skus []stock.SKU, payment string, decide order.Decide) (state order.Locked, returned []stock.Change, err error) {
	decided := false // decide chose to change nothing, or its error ended the transaction
	err = l.transact(ctx, transactionTimeout, func(ctx context.Context, tx *sqltx.Tx) error {
		returned = nil // those of an earlier try were rolled back
		var rows []StockRow
		if len(skus) > 0 {
			if rows, err = readRows(ctx, tx, skus, stockColumns, tx.Dialect().RowLock()); err != nil {
				return err
			}
		}
		if state, err = lockOrder(ctx, tx, found, payment); err != nil {
			return err
		}
		c, err := decide(state)
		if decided = err != nil || c == (order.Transition{}); decided {
			return cmp.Or(err, errUnchanged)
		}
		o := &state.Order
		if c.To != "" {
			o.Apply(c)
			tx.AtCommit(writeStep(tx.Dialect(), o)...)
		}
		if c.PaymentID != "" {
			known := state.Payment != nil || c.To == order.Refunded
			tx.AtCommit(writePayment(tx.Dialect(), known, order.Payment{ID: c.PaymentID, OrderID: o.ID, Status: c.PaymentStatus}))
		}
		if c.Returns {
			returned = l.returnUnits(tx, rows, o)
		}
		return nil
	})
	if decided { // the answer relies on rows that were read; a COMMIT would hold their locks until the standby is back
		err = cmp.Or(l.db.Confirm(ctx), err)
	}
	if errors.Is(err, errUnchanged) {
		err = nil
	}
	return state, returned, err
}

// errUnchanged ends a transaction that has nothing to change.
var errUnchanged = errors.New("nothing to change")

// lockOrder locks the order's row, and reads its changeable columns into a copy of o.
func lockOrder(ctx context.Context, tx *sqltx.Tx, o order.Order, payment string) (s order.Locked, err error) {
	var paidBy sql.NullString
	err = tx.QueryRow(ctx, []any{&o.TakeID, &o.Status, &o.Version, &paidBy, &o.Restocked, &s.Due},
		"SELECT take_id, status, version, payment_id, restocked, "+timeHasPassed(tx.Dialect())+" FROM orders WHERE id = ?"+tx.Dialect().RowLock(),
		tx.Dialect().UUID(o.ID))
	if err != nil {
		return s, fmt.Errorf("locking the order: %w", err)
	}
	o.PaymentID = paidBy.String
	s.Order = o
	if payment == "" {
		return s, nil
	}
	p, err := readPayment(ctx, tx, payment)
	if errors.Is(err, order.ErrUnknownPayment) {
		return s, nil
	}
	s.Payment = &p
	return s, err
}

// writeStep returns the statements that write the last change of the order, if its row has the
// version before, and add it to the history. Every change raises the version.
func writeStep(d sqltx.Dialect, o *order.Order) []sqltx.Statement {
	return []sqltx.Statement{{
		SQL: `UPDATE orders SET status = ?, version = ?, take_id = ?, payment_id = ?, restocked = ?
			WHERE id = ? AND version = ?`,
		Args: []any{
			string(o.Status), o.Version, d.UUID(o.TakeID), sql.NullString{String: o.PaymentID, Valid: o.PaymentID != ""}, o.Restocked,
			d.UUID(o.ID), o.Version - 1,
		},
	}, {
		SQL:  "INSERT INTO order_history (order_id, version, status, at) VALUES (?, ?, ?, " + d.Now() + ")",
		Args: []any{d.UUID(o.ID), o.Version, string(o.Status)},
	}}
}
