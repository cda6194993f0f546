package client

import (
	"context"
	"iter"
	"net/http"
	"time"
)

// PaymentStatus is the state of a payment.
type PaymentStatus string

// The statuses of a payment.
const (
	PaymentPaid      PaymentStatus = "paid"       // the payment paid its order
	PaymentRefundDue PaymentStatus = "refund-due" // the payment must be paid back to the buyer
	PaymentRefunded  PaymentStatus = "refunded"   // the payment was paid back
)

// Payment is a payment for an order.
type Payment struct {
	ID        string        `json:"id"`
	OrderID   string        `json:"order_id"`
	Status    PaymentStatus `json:"status"`
	CreatedAt time.Time     `json:"created_at"`
	ChangedAt time.Time     `json:"changed_at"` // when the payment got its status
}

func (p Payment) complete() bool { return p.ID != "" }

// PaymentFilter chooses payments of a list.
type PaymentFilter struct {
	Status PaymentStatus // empty: all
	After  string        // the page begins after this payment ID; empty: the first page
	Limit  int           // payments of a page, 1 to 1000; 0: 100
}

// PaymentPage is a page of payments.
type PaymentPage struct {
	Payments []Payment `json:"payments"`
	Next     *string   `json:"next"` // the After of the next page; nil on the last page
}

func (p PaymentPage) complete() bool { return p.Payments != nil }

// ListPayments returns a page of payments, sorted by ID, to an administrator.
func (c *Client) ListPayments(ctx context.Context, f PaymentFilter) (p PaymentPage, err error) {
	query := page(f.After, f.Limit)
	set(query, "status", string(f.Status))
	_, err = c.do(ctx, call{method: http.MethodGet, path: []string{"payments"}, query: query}, &p)
	return p, err
}

// AllPayments returns the payments of all pages, and asks for each page when it is
// reached. It ends with the first error.
func (c *Client) AllPayments(ctx context.Context, f PaymentFilter) iter.Seq2[Payment, error] {
	return all(f.After, func(after string) ([]Payment, *string, error) {
		f := f // each range over the sequence has its own
		f.After = after
		p, err := c.ListPayments(ctx, f)
		return p.Payments, p.Next, err
	})
}

// MarkRefunded records, as an administrator, that a payment was paid back. The payment's status
// must be PaymentRefundDue. Repeating the call returns the payment again.
func (c *Client) MarkRefunded(ctx context.Context, paymentID string) (p Payment, err error) {
	_, err = c.do(ctx, call{method: http.MethodPost, path: []string{"payments", paymentID, "refunded"}}, &p)
	return p, err
}
