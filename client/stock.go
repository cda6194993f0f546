package client

import (
	"context"
	"encoding/json"
	"iter"
	"net/http"
	"time"
)

// Kind is the kind of a SKU. It cannot change.
type Kind string

// The kinds of SKUs.
const (
	Product Kind = "product"
	Coupon  Kind = "coupon"
)

// Stock is the stock of a SKU.
type Stock struct {
	SKU        string     `json:"sku"`
	Kind       Kind       `json:"kind"`
	Total      int64      `json:"total"`       // units ever put in
	Available  int64      `json:"available"`   // negative after a strategy has oversold
	Sold       int64      `json:"sold"`        // total minus the available of the stock row
	BuyerLimit int64      `json:"buyer_limit"` // the most units that one buyer can hold; 0: no limit
	OpensAt    *time.Time `json:"opens_at"`    // nil: sales have begun
	ClosesAt   *time.Time `json:"closes_at"`   // nil: sales do not end
}

func (s Stock) complete() bool { return s.SKU != "" }

// Setting is what an administrator sets of a SKU.
type Setting struct {
	Kind  Kind
	Total int64 // units ever put in, 0 to 1,000,000,000

	// BuyerLimit is the most units that one buyer can hold; 0 means no limit. nil
	// leaves the limit as it is.
	BuyerLimit *int64
	// OpensAt and ClosesAt are when sales begin and end, by the database's clock. nil
	// leaves a time as it is. The zero time removes it.
	OpensAt, ClosesAt *time.Time
}

// MarshalJSON writes the setting as the service reads it.
func (s Setting) MarshalJSON() ([]byte, error) {
	fields := map[string]any{"kind": s.Kind, "total": s.Total}
	if s.BuyerLimit != nil {
		fields["buyer_limit"] = *s.BuyerLimit
	}
	for name, at := range map[string]*time.Time{"opens_at": s.OpensAt, "closes_at": s.ClosesAt} {
		switch {
		case at == nil:
		case at.IsZero():
			fields[name] = nil
		default:
			fields[name] = at
		}
	}
	return json.Marshal(fields)
}

// SetStock creates a SKU, or changes its total and its rules, as an administrator.
// available changes by the same number as total, also during a sale. created reports
// whether the answer was 201; a retry after a lost answer gets 200. A total below what
// is sold or in flight is the error BelowSold.
func (c *Client) SetStock(ctx context.Context, sku string, set Setting) (s Stock, created bool, err error) {
	a, err := c.do(ctx, call{method: http.MethodPut, path: []string{"stock", sku}, body: set}, &s)
	return s, a.status == http.StatusCreated, err
}

// Stock returns the stock of a SKU. If there is none, the error is UnknownSKU.
func (c *Client) Stock(ctx context.Context, sku string) (s Stock, err error) {
	_, err = c.do(ctx, call{method: http.MethodGet, path: []string{"stock", sku}}, &s)
	return s, err
}

// StockFilter chooses a page of stock.
type StockFilter struct {
	After string // the page begins after this SKU; empty: the first page
	Limit int    // SKUs of a page, 1 to 1000; 0: 100
}

// StockPage is a page of stock.
type StockPage struct {
	Stock []Stock `json:"stock"`
	Next  *string `json:"next"` // the After of the next page; nil on the last page
}

func (p StockPage) complete() bool { return p.Stock != nil }

// ListStock returns a page of stock, sorted by SKU.
func (c *Client) ListStock(ctx context.Context, f StockFilter) (p StockPage, err error) {
	_, err = c.do(ctx, call{method: http.MethodGet, path: []string{"stock"}, query: page(f.After, f.Limit)}, &p)
	return p, err
}

// AllStock returns the stock of all pages, and asks for each page when it is reached.
// It ends with the first error.
func (c *Client) AllStock(ctx context.Context, f StockFilter) iter.Seq2[Stock, error] {
	return all(f.After, func(after string) ([]Stock, *string, error) {
		f := f // each range over the sequence has its own
		f.After = after
		p, err := c.ListStock(ctx, f)
		return p.Stock, p.Next, err
	})
}

// Audit compares the counts of a SKU. It is exact while no orders are placed.
type Audit struct {
	SKU             string `json:"sku"`
	Total           int64  `json:"total"`
	Sold            int64  `json:"sold"` // recounted from order lines
	Oversold        int64  `json:"oversold"`
	GateAvailable   *int64 `json:"gate_available"` // nil without a gate
	GateInFlight    *int64 `json:"gate_in_flight"` // nil without a gate
	LedgerAvailable int64  `json:"ledger_available"`
	Drift           int64  `json:"drift"` // 0 while all counts agree
}

func (a Audit) complete() bool { return a.SKU != "" }

// Audit recounts the units of a SKU. If there is none, the error is UnknownSKU.
func (c *Client) Audit(ctx context.Context, sku string) (a Audit, err error) {
	_, err = c.do(ctx, call{method: http.MethodGet, path: []string{"stock", sku, "audit"}}, &a)
	return a, err
}

// Strategy is a way to cut stock.
type Strategy struct {
	Name   string  `json:"name"`
	Gate   *string `json:"gate"` // nil: none
	Cutter string  `json:"cutter"`
	Sound  bool    `json:"sound"` // the strategy never sells a unit twice, even without the guard
	Detail string  `json:"detail"`
	// Promise says what the strategy promises about an order that was answered 201, or 202 if it
	// was queued.
	Promise string `json:"promise"`
}

// Strategies says how the service cuts stock.
type Strategies struct {
	Running    string     `json:"running"` // the Name of the strategy in use, one of Strategies
	Guard      bool       `json:"guard"`
	Strategies []Strategy `json:"strategies"`
}

func (s Strategies) complete() bool { return s.Running != "" }

// Strategies returns how the service cuts stock.
func (c *Client) Strategies(ctx context.Context) (s Strategies, err error) {
	_, err = c.do(ctx, call{method: http.MethodGet, path: []string{"strategies"}}, &s)
	return s, err
}

// readiness is the answer of a service that is ready.
type readiness struct {
	Status string `json:"status"`
}

func (r readiness) complete() bool { return r.Status == "ready" }

// Ready returns nil if orders can be placed. It does not try again: the error is the
// current state.
func (c *Client) Ready(ctx context.Context) error {
	_, err := c.do(ctx, call{method: http.MethodGet, path: []string{"readyz"}, once: true}, new(readiness))
	return err
}
