package client

import (
	"context"
	"crypto/rand"
	"fmt"
	"iter"
	mathrand "math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// Line is a number of units of one SKU.
type Line struct {
	SKU      string `json:"sku"`
	Quantity int64  `json:"quantity"` // 1 to 1000
}

// OrderRequest asks for an order.
type OrderRequest struct {
	BuyerID string `json:"buyer_id"`
	Lines   []Line `json:"lines"` // 1 to 20, of distinct SKUs

	// Key is the Idempotency-Key: the name of the buyer's intent, 1 to 255 visible
	// ASCII characters. All requests of a buyer with the same key are one order, also
	// those of another process. If it is empty, every call of Place generates its own,
	// unless the client was made with WithoutKeys.
	Key string `json:"-"`
}

// NewKey returns a new random key for an [OrderRequest].
func NewKey() string { return rand.Text() }

// OrderStatus is the state of an order.
type OrderStatus string

// The statuses of an order.
const (
	OrderQueued    OrderStatus = "queued"  // the order waits to be recorded
	OrderPending   OrderStatus = "pending" // the order waits for its payment
	OrderPaid      OrderStatus = "paid"
	OrderCancelled OrderStatus = "cancelled"
	OrderExpired   OrderStatus = "expired"
	OrderRefunded  OrderStatus = "refunded"
	OrderRefused   OrderStatus = "refused" // the order was queued, and its units could not be cut
	OrderVoid      OrderStatus = "void"    // the order was never placed
)

// Order is an order.
type Order struct {
	ID        string      `json:"id"`
	BuyerID   string      `json:"buyer_id"`
	Status    OrderStatus `json:"status"`
	Lines     []Line      `json:"lines"` // by SKU
	Strategy  string      `json:"strategy"`
	CreatedAt time.Time   `json:"created_at"`
	ExpiresAt *time.Time  `json:"expires_at"` // nil while the order does not expire
}

func (o Order) complete() bool { return o.ID != "" }

// OrderWithHistory is an order with its payment and its history.
type OrderWithHistory struct {
	Order
	PaymentID *string `json:"payment_id"` // nil if no payment has paid the order
	History   []Step  `json:"history"`    // the oldest first; the last one is the current status
}

// Step is a status in the history of an order.
type Step struct {
	Status OrderStatus `json:"status"`
	At     time.Time   `json:"at"`
}

// Placed is an order that was placed, by this call or before.
type Placed struct {
	Order // as it was when it was placed
	// Key is the Idempotency-Key of the order; empty: none.
	Key string
	// Replayed reports that an earlier request with this key has placed the order. It
	// may have been an earlier try of this call.
	Replayed bool
}

// Place places an order, or returns the order of an earlier request with the same key.
// If the service queues orders, the status is [OrderQueued], and Wait waits for the
// order's end in the queue. Refusals are SoldOut, BuyerLimit, NotOpen, Closed,
// UnknownSKU, KeyReused and Invalid.
func (c *Client) Place(ctx context.Context, r OrderRequest) (Placed, error) {
	if r.Key == "" && !c.keyless {
		r.Key = NewKey()
	}
	if err := checkHeader("key", r.Key); err != nil {
		return Placed{}, fmt.Errorf("holdfast: %w", err)
	}
	p := Placed{Key: r.Key}
	a, err := c.do(ctx, call{method: http.MethodPost, path: []string{"orders"}, body: r, key: r.Key, twice: r.Key == ""}, &p.Order)
	if err != nil {
		return Placed{}, err
	}
	p.Replayed = a.replayed
	return p, nil
}

// Order returns an order. If there is none, the error is UnknownOrder.
func (c *Client) Order(ctx context.Context, id string) (o OrderWithHistory, err error) {
	_, err = c.do(ctx, call{method: http.MethodGet, path: []string{"orders", id}}, &o)
	return o, err
}

// Wait waits until an order is no longer queued, and returns it. The order is then pending, or
// refused if its units could not be cut; a refusal is not an error. Wait asks once a second
// (WithPoll), until ctx ends or a call fails. If the order is not queued, Wait returns at once.
func (c *Client) Wait(ctx context.Context, id string) (OrderWithHistory, error) {
	for {
		o, err := c.Order(ctx, id)
		if err != nil || o.Status != OrderQueued {
			return o, err
		}
		if !sleep(ctx, c.poll+mathrand.N(c.poll/4+1)) {
			err := ctx.Err()
			if err == nil {
				err = context.DeadlineExceeded // ctx would end before the next poll
			}
			return o, fmt.Errorf("holdfast: waiting for order %s, which is queued: %w", id, err)
		}
	}
}

// Pay reports a payment for an order. Call it for every payment that the provider
// reports, as often as it does. If the payment does not pay the order, the error is
// RefundDue: the payment is recorded, and must be paid back.
func (c *Client) Pay(ctx context.Context, id, paymentID string) (o Order, err error) {
	body := struct {
		PaymentID string `json:"payment_id"`
	}{paymentID}
	_, err = c.do(ctx, call{method: http.MethodPost, path: []string{"orders", id, "pay"}, body: body}, &o)
	return o, err
}

// Cancel cancels a pending order; its units return to stock. Cancelling a cancelled
// order returns it again. Any other status is the error WrongStatus.
func (c *Client) Cancel(ctx context.Context, id string) (o Order, err error) {
	_, err = c.do(ctx, call{method: http.MethodPost, path: []string{"orders", id, "cancel"}}, &o)
	return o, err
}

// Refund refunds a paid order, as an administrator. restock says whether its units
// return to stock. Refunding a refunded order returns it again, and changes nothing.
func (c *Client) Refund(ctx context.Context, id string, restock bool) (o Order, err error) {
	body := struct {
		Restock bool `json:"restock"`
	}{restock}
	_, err = c.do(ctx, call{method: http.MethodPost, path: []string{"orders", id, "refund"}, body: body}, &o)
	return o, err
}

// OrderFilter chooses orders of a list.
type OrderFilter struct {
	BuyerID string      // empty: of all buyers, for administrators only
	Status  OrderStatus // empty: all
	After   string      // the page begins after this order ID; empty: the first page
	Limit   int         // orders of a page, 1 to 1000; 0: 100
}

// OrderPage is a page of orders.
type OrderPage struct {
	Orders []Order `json:"orders"`
	Next   *string `json:"next"` // the After of the next page; nil on the last page
}

func (p OrderPage) complete() bool { return p.Orders != nil }

// ListOrders returns a page of orders, sorted by ID. Queued orders are not listed.
func (c *Client) ListOrders(ctx context.Context, f OrderFilter) (p OrderPage, err error) {
	query := page(f.After, f.Limit)
	set(query, "buyer_id", f.BuyerID)
	set(query, "status", string(f.Status))
	_, err = c.do(ctx, call{method: http.MethodGet, path: []string{"orders"}, query: query}, &p)
	return p, err
}

// AllOrders returns the orders of all pages, and asks for each page when it is reached.
// It ends with the first error.
func (c *Client) AllOrders(ctx context.Context, f OrderFilter) iter.Seq2[Order, error] {
	return all(f.After, func(after string) ([]Order, *string, error) {
		f := f // each range over the sequence has its own
		f.After = after
		p, err := c.ListOrders(ctx, f)
		return p.Orders, p.Next, err
	})
}

// all returns the entries of all pages. The first page begins after first. next is the after of the
// following page.
func all[T any](first string, list func(after string) (entries []T, next *string, err error)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for after := first; ; {
			entries, next, err := list(after)
			if err != nil {
				var none T
				yield(none, err)
				return
			}
			for _, e := range entries {
				if !yield(e, nil) {
					return
				}
			}
			if next == nil {
				return
			}
			after = *next
		}
	}
}

// page returns the query of a page.
func page(after string, limit int) url.Values {
	query := url.Values{}
	set(query, "after", after)
	if limit != 0 {
		query.Set("limit", strconv.Itoa(limit))
	}
	return query
}

// set sets a parameter, unless it is empty.
func set(query url.Values, name, value string) {
	if value != "" {
		query.Set(name, value)
	}
}
