package ledger

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/order"
)

const paymentColumns = "id, order_id, status, created_at, changed_at"

func paymentFields(p *order.Payment) []any {
	return []any{&p.ID, &p.OrderID, &p.Status, (*sqltx.Time)(&p.CreatedAt), (*sqltx.Time)(&p.ChangedAt)}
}

// readPayment reads one payment. order.ErrUnknownPayment: there is none.
func readPayment(ctx context.Context, db sqltx.Reader, id string) (p order.Payment, err error) {
	err = db.QueryRow(ctx, paymentFields(&p), "SELECT "+paymentColumns+" FROM payments WHERE id = ?", id)
	if errors.Is(err, sql.ErrNoRows) {
		return p, order.ErrUnknownPayment
	}
	if err != nil {
		return p, fmt.Errorf("reading payment %s: %w", id, err)
	}
	return p, nil
}

// Payments reads the payments that the filter selects, sorted by ID. It returns once they are as
// durable as after a COMMIT.
func (l *Ledger) Payments(ctx context.Context, f order.PaymentFilter) (page []order.Payment, err error) {
	query, args := "SELECT "+paymentColumns+" FROM payments WHERE id > ?", []any{f.After}
	if f.Status != "" {
		query, args = query+" AND status = ?", append(args, string(f.Status))
	}
	page, err = sqltx.ReadAll(ctx, l.db, paymentFields, query+" ORDER BY id LIMIT ?", append(args, f.Limit)...)
	if err == nil && len(page) > 0 {
		err = l.db.Confirm(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("reading payments: %w", err)
	}
	return page, nil
}

// RefundsDue counts the payments that must be paid back, up to limit. It returns how long the
// oldest has been due by the database's clock, or 0 if there are none.
func (l *Ledger) RefundsDue(ctx context.Context, limit int) (n int, oldest time.Duration, err error) {
	var since time.Time
	err = l.db.QueryRow(ctx, []any{&n, (*sqltx.Time)(&since)},
		"SELECT COUNT(*), MIN(changed_at) FROM (SELECT changed_at FROM payments WHERE status = ? LIMIT ?) AS due", string(order.PaymentRefundDue), limit)
	if err != nil {
		return 0, 0, fmt.Errorf("counting the payments that are due back: %w", err)
	}
	if n == 0 {
		return 0, 0, nil
	}
	now, err := l.db.Now(ctx)
	if err != nil {
		return 0, 0, fmt.Errorf("reading the database's clock: %w", err)
	}
	return n, max(now.Sub(since), 0), nil
}

// Refunded records that a payment that was due has been paid back, and returns the changed payment.
// If the payment has another status, Refunded does not change it, but returns once it is as durable
// as after a COMMIT. It returns order.ErrUnknownPayment if there is none.
func (l *Ledger) Refunded(ctx context.Context, id string) (p order.Payment, err error) {
	var changed int64
	err = l.transact(ctx, transactionTimeout, func(ctx context.Context, tx *sqltx.Tx) error {
		changed, err = tx.Exec(ctx, "UPDATE payments SET status = ?, changed_at = "+tx.Dialect().Now()+" WHERE id = ? AND status = ?",
			string(order.PaymentRefunded), id, string(order.PaymentRefundDue))
		if err != nil {
			return fmt.Errorf("recording the refund of payment %s: %w", id, err)
		}
		p, err = readPayment(ctx, tx, id)
		return err
	})
	if err == nil && changed == 0 {
		err = l.db.Confirm(ctx)
	}
	return p, err
}

// writePayment inserts the payment of an order. If known is true, it changes the payment's status
// instead.
func writePayment(d sqltx.Dialect, known bool, p order.Payment) sqltx.Statement {
	if known {
		return sqltx.Statement{
			SQL:  "UPDATE payments SET status = ?, changed_at = " + d.Now() + " WHERE id = ?",
			Args: []any{string(p.Status), p.ID},
		}
	}
	return sqltx.Statement{
		SQL:  "INSERT INTO payments (" + paymentColumns + ") VALUES (?, ?, ?, " + d.Now() + ", " + d.Now() + ")",
		Args: []any{p.ID, d.UUID(p.OrderID), string(p.Status)},
	}
}
