package ledger

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
)

// PaymentStatus is what became of a payment.
type PaymentStatus string

// The statuses of a payment. Every payment that is reported has one of them.
const (
	PaymentPaid      PaymentStatus = "paid"       // it pays its order
	PaymentRefundDue PaymentStatus = "refund-due" // it must go back to the buyer
	PaymentRefunded  PaymentStatus = "refunded"   // it went back to the buyer
)

// Payment is a payment that a payment provider reported for an order.
type Payment struct {
	ID        string // the provider's, unique
	OrderID   uuid.UUID
	Status    PaymentStatus
	CreatedAt time.Time // when it was first reported, by the database's clock
	ChangedAt time.Time // when its status last changed
}

// ErrNoPayment: the ledger has no payment with the ID.
var ErrNoPayment = errors.New("no such payment")

const paymentColumns = "id, order_id, status, created_at, changed_at"

func (p *Payment) columns() []any {
	return []any{&p.ID, &p.OrderID, &p.Status, &p.CreatedAt, &p.ChangedAt}
}

// Payment reads one payment. ErrNoPayment: there is none.
func (l *Ledger) Payment(ctx context.Context, id string) (Payment, error) {
	return readPayment(ctx, l.db, id)
}

func readPayment(ctx context.Context, db rowReader, id string) (p Payment, err error) {
	err = db.QueryRow(ctx, p.columns(), "SELECT "+paymentColumns+" FROM payments WHERE id = ?", id)
	if errors.Is(err, sql.ErrNoRows) {
		return p, ErrNoPayment
	}
	if err != nil {
		return p, fmt.Errorf("reading payment %s: %w", id, err)
	}
	return p.inUTC(), nil
}

func (p Payment) inUTC() Payment {
	p.CreatedAt, p.ChangedAt = p.CreatedAt.UTC(), p.ChangedAt.UTC()
	return p
}

// PaymentFilter selects payments.
type PaymentFilter struct {
	Status PaymentStatus // empty: any
	After  string        // only IDs that follow this one
	Limit  int
}

// Payments reads the payments that the filter selects, sorted by ID.
func (l *Ledger) Payments(ctx context.Context, f PaymentFilter) (page []Payment, err error) {
	query, args := "SELECT "+paymentColumns+" FROM payments WHERE id > ?", []any{f.After}
	if f.Status != "" {
		query, args = query+" AND status = ?", append(args, string(f.Status))
	}
	err = l.db.QueryEach(ctx, func(rows *sql.Rows) error {
		var p Payment
		err := rows.Scan(p.columns()...)
		page = append(page, p.inUTC())
		return err
	}, query+" ORDER BY id LIMIT ?", append(args, f.Limit)...)
	if err != nil {
		return nil, fmt.Errorf("reading payments: %w", err)
	}
	return page, nil
}

// RefundsDue counts the payments that are due back to their buyers, up to limit, and
// returns how long the oldest of them has been due, by the database's clock. 0: there
// are none.
func (l *Ledger) RefundsDue(ctx context.Context, limit int) (n int, oldest time.Duration, err error) {
	var since time.Time
	err = l.db.QueryEach(ctx, func(rows *sql.Rows) error {
		var at time.Time
		err := rows.Scan((*sqltx.Time)(&at))
		if n++; n == 1 || at.Before(since) {
			since = at
		}
		return err
	}, "SELECT changed_at FROM payments WHERE status = ? LIMIT ?", string(PaymentRefundDue), limit)
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

// Refunded records that a payment that was due went back to the buyer, and returns
// the payment as it is afterwards. It changes no payment with another status.
// ErrNoPayment: there is none.
func (l *Ledger) Refunded(ctx context.Context, id string) (p Payment, err error) {
	err = l.transact(ctx, func(ctx context.Context, tx *sqltx.Tx) error {
		_, err := tx.Exec(ctx, "UPDATE payments SET status = ?, changed_at = "+tx.Dialect().Now()+" WHERE id = ? AND status = ?",
			string(PaymentRefunded), id, string(PaymentRefundDue))
		if err != nil {
			return fmt.Errorf("recording the refund of payment %s: %w", id, err)
		}
		p, err = readPayment(ctx, tx, id)
		return err
	})
	return p, err
}

// savePayment inserts the payment of an order, or changes its status if known.
func savePayment(ctx context.Context, tx *sqltx.Tx, known bool, p Payment) error {
	now := tx.Dialect().Now()
	var err error
	if known {
		_, err = tx.Exec(ctx, "UPDATE payments SET status = ?, changed_at = "+now+" WHERE id = ?", string(p.Status), p.ID)
	} else {
		_, err = tx.Exec(ctx, "INSERT INTO payments ("+paymentColumns+") VALUES (?, ?, ?, "+now+", "+now+")",
			p.ID, tx.Dialect().UUID(p.OrderID), string(p.Status))
	}
	if err != nil {
		return fmt.Errorf("recording payment %s: %w", p.ID, err)
	}
	return nil
}
