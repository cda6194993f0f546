package httpapi

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-stock/holdfast/internal/admin"
	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

var (
	testID   = uuid.MustParse("01990a3c-9b8e-7c31-a5d2-3f6f0e7a1b22")
	testTime = time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)
)

var (
	_ Orders = (*order.Service)(nil)
	_ Stock  = (*admin.Admin)(nil)
)

// fakeOrders returns the results that a test sets, and records its calls.
type fakeOrders struct {
	place    func(ctx context.Context, r order.Request) (order.Order, bool, error)
	err      error // result of all calls, if set
	blocks   bool  // all calls wait until their context ends
	order    order.Order
	replayed bool
	created  bool
	page     []admin.Stock
	next     stock.SKU
	audit    admin.Audit
	orders   []order.Order
	after    uuid.UUID // after of the next page of orders
	payments []order.Payment
	later    string // after of the next page of payments

	mu      sync.Mutex
	asked   int
	request order.Request
	id      uuid.UUID
	set     stock.Setting
	sku     stock.SKU
	limit   int
	filter  order.Filter
	due     order.PaymentFilter
	payment string
	restock bool
}

// called counts a call, records its arguments and returns its error.
func (f *fakeOrders) called(ctx context.Context, record func()) error {
	if f.blocks {
		<-ctx.Done()
		return fmt.Errorf("%w: %w", stock.ErrUnavailable, ctx.Err())
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked++
	record()
	return f.err
}

func (f *fakeOrders) Place(ctx context.Context, r order.Request) (order.Order, bool, error) {
	err := f.called(ctx, func() { f.request = r })
	switch {
	case f.place != nil:
		return f.place(ctx, r)
	case err != nil:
		return order.Order{}, false, err
	}
	if f.order.ID != uuid.Nil {
		return f.order, f.replayed, nil
	}
	lines := append([]stock.Line(nil), r.Lines...)
	stock.SortLines(lines)
	return order.Order{
		ID: testID, Buyer: r.Buyer, Status: order.Pending, Lines: lines,
		Strategy: "lua", CreatedAt: testTime,
	}, f.replayed, nil
}

func (f *fakeOrders) Order(ctx context.Context, id uuid.UUID) (order.Order, error) {
	err := f.called(ctx, func() { f.id = id })
	return f.order, err
}

func (f *fakeOrders) List(ctx context.Context, filter order.Filter) ([]order.Order, uuid.UUID, error) {
	err := f.called(ctx, func() { f.filter = filter })
	return f.orders, f.after, err
}

func (f *fakeOrders) Pay(ctx context.Context, id uuid.UUID, payment string) (order.Order, error) {
	err := f.called(ctx, func() { f.id, f.payment = id, payment })
	return f.order, err
}

func (f *fakeOrders) Cancel(ctx context.Context, id uuid.UUID, buyer string) (order.Order, error) {
	err := f.called(ctx, func() { f.id = id })
	if err == nil && buyer != "" && buyer != f.order.Buyer {
		return order.Order{}, order.ErrUnknownOrder
	}
	return f.order, err
}

func (f *fakeOrders) Refund(ctx context.Context, id uuid.UUID, restock bool) (order.Order, error) {
	err := f.called(ctx, func() { f.id, f.restock = id, restock })
	return f.order, err
}

func (f *fakeOrders) Payments(ctx context.Context, filter order.PaymentFilter) ([]order.Payment, string, error) {
	err := f.called(ctx, func() { f.due = filter })
	return f.payments, f.later, err
}

func (f *fakeOrders) Refunded(ctx context.Context, payment string) (order.Payment, error) {
	err := f.called(ctx, func() { f.payment = payment })
	return order.Payment{ID: payment, OrderID: testID, Status: "refunded", CreatedAt: testTime, ChangedAt: testTime}, err
}

func (f *fakeOrders) SetStock(ctx context.Context, set stock.Setting) (admin.Stock, bool, error) {
	err := f.called(ctx, func() { f.set = set })
	st := admin.Stock{SKU: set.SKU, Kind: set.Kind, Total: set.Total, Available: set.Total}
	if set.BuyerLimit != nil {
		st.BuyerLimit = *set.BuyerLimit
	}
	if set.OpensAt != nil {
		st.OpensAt = *set.OpensAt
	}
	if set.ClosesAt != nil {
		st.ClosesAt = *set.ClosesAt
	}
	return st, f.created, err
}

func (f *fakeOrders) Stock(ctx context.Context, sku stock.SKU) (admin.Stock, error) {
	err := f.called(ctx, func() { f.sku = sku })
	return admin.Stock{SKU: sku, Kind: stock.Product, Total: 1000, Available: 998, Sold: 2}, err
}

func (f *fakeOrders) ListStock(ctx context.Context, after stock.SKU, limit int) ([]admin.Stock, stock.SKU, error) {
	err := f.called(ctx, func() { f.sku, f.limit = after, limit })
	return f.page, f.next, err
}

func (f *fakeOrders) Audit(ctx context.Context, sku stock.SKU) (admin.Audit, error) {
	err := f.called(ctx, func() { f.sku = sku })
	a := f.audit
	a.SKU = sku
	return a, err
}

func (f *fakeOrders) Ready(ctx context.Context) error {
	return f.called(ctx, func() {})
}

// backend is the service behind the API.
type backend interface {
	Orders
	Stock
	Ready(context.Context) error
}

func testConfig(orders backend) Config {
	return Config{
		Orders: orders, Stock: orders, Ready: orders.Ready,
		Strategies: Strategies{Running: "lua", Guard: true, All: []Strategy{
			{Name: "lua", Gate: new("script"), Cutter: "count", Sound: true, Detail: "one atomic script", Promise: "a 201 is never lost"},
			{Name: "db-none", Cutter: "readwrite", Detail: `SELECT, "check", UPDATE …`},
		}},
		Loopback: true,
		Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
			_, _ = io.WriteString(w, "holdfast_orders_total 1\n")
		}),
		Registry:       prometheus.NewRegistry(),
		Log:            slog.New(slog.DiscardHandler),
		Draining:       func() bool { return false },
		RequestTimeout: 5 * time.Second,
	}
}

// newAPI returns the API in front of orders. The test fails if the OpenAPI document does not allow
// an answer.
func newAPI(t testing.TB, orders *fakeOrders, change ...func(*Config)) http.Handler {
	t.Helper()
	c := testConfig(orders)
	for _, f := range change {
		f(&c)
	}
	return judged(t, New(c))
}

// call is one request of a table.
type call struct {
	method, path string
	header       http.Header // replaces the default Content-Type, which is application/json with a body
	body         string
}

func (c call) request() *http.Request {
	r := httptest.NewRequest(c.method, c.path, strings.NewReader(c.body))
	r.Host, r.RemoteAddr = "localhost:8080", "127.0.0.1:40000"
	r.Header.Set("X-Request-ID", "req-1")
	if c.body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for name, values := range c.header {
		r.Header[name] = values
		if values == nil {
			delete(r.Header, name)
		}
	}
	return r
}

func do(h http.Handler, c call) *httptest.ResponseRecorder { return serveRequest(h, c.request()) }

func serveRequest(h http.Handler, r *http.Request) *httptest.ResponseRecorder {
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, r)
	return rec
}

// logBuffer is the log of a service.
type logBuffer struct{ testenv.Buffer }

// lines returns the lines that contain text.
func (l *logBuffer) lines(text string) []string {
	var found []string
	for line := range strings.Lines(l.String()) {
		if strings.Contains(line, text) {
			found = append(found, line)
		}
	}
	return found
}

func loggingTo(l *logBuffer, level slog.Level) func(*Config) {
	return func(c *Config) {
		c.Log = slog.New(LogHandler(slog.NewTextHandler(l, &slog.HandlerOptions{Level: level})))
	}
}
