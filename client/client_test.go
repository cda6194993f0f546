package client_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-stock/holdfast/client"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// one is a request for an order of one unit.
func one(buyer string) client.OrderRequest {
	return client.OrderRequest{BuyerID: buyer, Lines: []client.Line{{SKU: "10001", Quantity: 1}}}
}

// checkSold checks how many units the shop has sold, and that its counts agree.
func checkSold(t *testing.T, c *client.Client, sold int64) {
	t.Helper()
	a, err := c.Audit(t.Context(), "10001")
	if err != nil || a.Sold != sold || a.LedgerAvailable+sold != a.Total {
		t.Errorf("%+v %v, want %d sold", a, err, sold)
	}
}

// TestLife makes every call of the contract during the life of an order.
func TestLife(t *testing.T) {
	t.Parallel()
	s := newShop(t, false)
	c, ctx := s.client(t), t.Context()
	if err := c.Ready(ctx); err != nil {
		t.Error(err)
	}
	opens := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	set, created, err := c.SetStock(ctx, "coupon", client.Setting{Kind: client.Coupon, Total: 5, BuyerLimit: new(int64(2)), OpensAt: &opens})
	if err != nil || !created || set.BuyerLimit != 2 || set.OpensAt == nil || !set.OpensAt.Equal(opens) || set.ClosesAt != nil {
		t.Errorf("%+v %v %v", set, created, err)
	}
	set, created, err = c.SetStock(ctx, "coupon", client.Setting{Kind: client.Coupon, Total: 6, OpensAt: new(time.Time{})})
	if err != nil || created || set.Total != 6 || set.BuyerLimit != 2 || set.OpensAt != nil {
		t.Errorf("%+v %v %v", set, created, err)
	}

	r := client.OrderRequest{BuyerID: "u-1", Lines: []client.Line{{SKU: "coupon", Quantity: 1}, {SKU: "10001", Quantity: 2}}, Key: "k"}
	placed, err := c.Place(ctx, r)
	if err != nil || placed.Status != client.OrderPending || placed.Key != "k" || placed.Replayed || placed.Lines[0] != r.Lines[1] || placed.ExpiresAt == nil {
		t.Fatalf("%+v %v", placed, err)
	}
	again, err := c.Place(ctx, r)
	if err != nil || again.ID != placed.ID || !again.Replayed {
		t.Errorf("%+v %v", again, err)
	}
	if o, err := c.Wait(ctx, placed.ID); err != nil || o.Status != client.OrderPending || len(o.History) != 1 || o.PaymentID != nil {
		t.Errorf("%+v %v", o, err)
	}
	if o, err := c.Pay(ctx, placed.ID, "p-1"); err != nil || o.Status != client.OrderPaid {
		t.Errorf("%+v %v", o, err)
	}
	_, err = c.Pay(ctx, placed.ID, "p-2")
	if p, ok := errors.AsType[*client.Problem](err); !ok || !errors.Is(err, client.RefundDue) || p.PaymentID != "p-2" || p.OrderStatus != client.OrderPaid {
		t.Errorf("%v", err)
	}
	if o, err := c.Refund(ctx, placed.ID, true); err != nil || o.Status != client.OrderRefunded {
		t.Errorf("%+v %v", o, err)
	}
	for _, id := range []string{"p-1", "p-2"} {
		if p, err := c.MarkRefunded(ctx, id); err != nil || p.Status != client.PaymentRefunded || p.OrderID != placed.ID {
			t.Errorf("%+v %v", p, err)
		}
	}
	if o, err := c.Order(ctx, placed.ID); err != nil || len(o.History) != 3 || o.PaymentID == nil || *o.PaymentID != "p-1" {
		t.Errorf("%+v %v", o, err)
	}

	second, err := c.Place(ctx, one("u-1"))
	if err != nil || second.Key == "" {
		t.Errorf("%+v %v", second, err)
	}
	if o, err := c.Cancel(ctx, second.ID); err != nil || o.Status != client.OrderCancelled {
		t.Errorf("%+v %v", o, err)
	}
	var orders, payments, skus int
	allOrders := c.AllOrders(ctx, client.OrderFilter{BuyerID: "u-1", Limit: 1})
	allPayments := c.AllPayments(ctx, client.PaymentFilter{Status: client.PaymentRefunded, Limit: 1})
	allStock := c.AllStock(ctx, client.StockFilter{Limit: 1})
	for range 2 { // the second pass begins from the first page again
		for o, err := range allOrders {
			if err != nil || o.BuyerID != "u-1" {
				t.Errorf("%+v %v", o, err)
			}
			orders++
		}
		for p, err := range allPayments {
			if err != nil || p.OrderID != placed.ID {
				t.Errorf("%+v %v", p, err)
			}
			payments++
		}
		for s, err := range allStock {
			if err != nil || s.Available != s.Total {
				t.Errorf("%+v %v", s, err)
			}
			skus++
		}
	}
	if orders != 2*2 || payments != 2*2 || skus != 2*2 {
		t.Errorf("%d orders, %d payments, %d SKUs", orders, payments, skus)
	}
	if st, err := c.Strategies(ctx); err != nil || st.Running == "" || len(st.Strategies) != 1 || st.Strategies[0].Promise == "" || !st.Guard {
		t.Errorf("%+v %v", st, err)
	}
	checkSold(t, c, 0)
}

// TestProblems checks that every refusal is a Problem of its type, is sent once, and leaves the
// outcome certain.
func TestProblems(t *testing.T) {
	t.Parallel()
	s := newShop(t, false)
	c, ctx := s.client(t), t.Context()
	buyer := newClient(t, s.server.URL)
	opens := time.Now().Add(time.Hour)
	for sku, set := range map[string]client.Setting{
		"limited": {Kind: client.Product, Total: 5, BuyerLimit: new(int64(1))},
		"early":   {Kind: client.Product, Total: 5, OpensAt: &opens},
		"late":    {Kind: client.Product, Total: 5, ClosesAt: new(opens.Add(-24 * time.Hour))},
	} {
		if _, _, err := c.SetStock(ctx, sku, set); err != nil {
			t.Fatal(err)
		}
	}
	place := func(sku string, quantity int64) func() error {
		return func() error {
			_, err := c.Place(ctx, client.OrderRequest{BuyerID: "u-1", Lines: []client.Line{{SKU: sku, Quantity: quantity}}, Key: "k"})
			return err
		}
	}
	placed, err := c.Place(ctx, client.OrderRequest{BuyerID: "u-1", Lines: []client.Line{{SKU: "10001", Quantity: 1}}, Key: "used"})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name   string
		call   func() error
		status int
		is     client.ProblemType
		check  func(*client.Problem) bool
	}{
		{"sold out", place("10001", 100), 409, client.SoldOut, func(p *client.Problem) bool {
			return p.SKU == "10001" && strings.Contains(p.Error(), `SKU "10001".`)
		}},
		{"buyer limit", place("limited", 2), 409, client.BuyerLimit, func(p *client.Problem) bool { return p.SKU == "limited" }},
		{"not open", place("early", 1), 409, client.NotOpen, func(p *client.Problem) bool { return p.OpensAt.Equal(opens.Truncate(time.Microsecond)) }},
		{"closed", place("late", 1), 409, client.Closed, nil},
		{"unknown SKU", place("nowhere", 1), 404, client.UnknownSKU, nil},
		{"invalid", place("!", 0), 422, client.Invalid, func(p *client.Problem) bool {
			return len(p.Errors) == 2 && p.Errors[1].Field == "lines[0].quantity"
		}},
		{"key reused", func() error {
			_, err := c.Place(ctx, client.OrderRequest{BuyerID: "u-1", Lines: []client.Line{{SKU: "10001", Quantity: 2}}, Key: "used"})
			return err
		}, 422, client.KeyReused, nil},
		{"malformed", func() error {
			_, err := c.Place(ctx, client.OrderRequest{Key: "a key"})
			return err
		}, 400, client.Malformed, nil},
		{"wrong status", func() error {
			_, err := c.Refund(ctx, placed.ID, false)
			return err
		}, 409, client.WrongStatus, func(p *client.Problem) bool { return p.OrderStatus == client.OrderPending }},
		{"below sold", func() error {
			_, _, err := c.SetStock(ctx, "10001", client.Setting{Kind: client.Product})
			return err
		}, 409, client.BelowSold, nil},
		{"unauthorized", func() error {
			_, err := buyer.Refund(ctx, placed.ID, false)
			return err
		}, 401, client.Unauthorized, nil},
		{"unknown order", func() error {
			_, err := c.Order(ctx, "../stock/10001")
			return err
		}, 404, client.UnknownOrder, nil},
		{"unknown payment", func() error {
			_, err := c.MarkRefunded(ctx, "p-0")
			return err
		}, 404, client.UnknownPayment, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s.fail()
			err := tt.call()
			p, ok := errors.AsType[*client.Problem](err)
			if !ok || p.Status != tt.status || p.Type != tt.is || p.Title == "" || p.Detail == "" || p.RequestID == "" || tt.check != nil && !tt.check(p) {
				t.Fatalf("%v: %+v", err, p)
			}
			if !errors.Is(err, tt.is) || errors.Is(err, client.Internal) {
				t.Errorf("%v is not only %v", err, tt.is)
			}
			if _, open := errors.AsType[*client.UnknownOutcome](err); open {
				t.Errorf("%v leaves the outcome open", err)
			}
			if got := s.requests(); len(got) != 1 {
				t.Errorf("sent %v", got)
			}
		})
	}
	s.fail()
	for _, id := range []string{"", ".", ".."} {
		if _, err := c.Stock(ctx, id); err == nil || len(s.requests()) > 0 {
			t.Errorf("SKU %q: %v, sent %v", id, err, s.requests())
		}
	}
}

// TestRetries checks that a change is made once, whatever happens to its first tries.
func TestRetries(t *testing.T) {
	t.Parallel()
	s := newShop(t, false)
	admin, ctx := s.client(t), t.Context()
	busy := refused(503, "busy", "")
	proxyFails := func(status int) fault {
		return func(w http.ResponseWriter, _ *http.Request, _ http.Handler) { http.Error(w, "<html>", status) }
	}
	for _, tt := range []struct {
		name     string
		faults   []fault
		replayed bool
		timeout  time.Duration // timeout of a try; 0: the default
	}{
		{"nothing", nil, false, 0},
		{"busy", []fault{busy, busy, busy}, false, 0},
		{"too many requests", []fault{refused(429, "rate-limited", "")}, false, 0},
		{"not arrived in time", []fault{refused(408, "timeout", "")}, false, 0},
		{"unavailable", []fault{unsure("")}, true, 0},
		{"in progress", []fault{refused(409, "in-progress", ""), refused(409, "in-progress", "")}, false, 0},
		{"a proxy fails", []fault{proxyFails(http.StatusBadGateway), proxyFails(http.StatusGatewayTimeout)}, false, 0},
		{"request lost", []fault{requestLost}, false, 0},
		{"answer lost", []fault{answerLost}, true, 0},
		{"answer lost twice", []fault{answerLost, answerLost}, true, 0},
		{"answer cut", []fault{answerCut}, true, 0},
		{"answer held", []fault{answerHeld}, true, 500 * time.Millisecond},
		{"all of it", []fault{answerLost, busy, answerCut}, true, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			buyer := strings.ReplaceAll(tt.name, " ", "-")
			// Each client has a new connection: on a used one, package http repeats requests by
			// itself.
			fresh := func() *client.Client {
				options := []client.Option{client.WithMaxPause(5 * time.Millisecond)}
				if tt.timeout > 0 {
					// A slow machine may need more tries if their timeout is short.
					options = append(options, client.WithTryTimeout(tt.timeout), client.WithTries(1000))
				}
				return s.client(t, options...)
			}
			tries := len(tt.faults) + 1
			s.fail(tt.faults...)
			placed, err := fresh().Place(ctx, one(buyer))
			if err != nil || placed.Replayed != tt.replayed {
				t.Fatalf("%+v %v", placed, err)
			}
			for _, r := range s.requests() {
				if r.key != placed.Key || r.key == "" {
					t.Errorf("key %q, the order's is %q", r.key, placed.Key)
				}
			}
			page, err := admin.ListOrders(ctx, client.OrderFilter{BuyerID: buyer})
			if err != nil || len(page.Orders) != 1 || page.Orders[0].ID != placed.ID {
				t.Errorf("%+v %v, want order %s alone", page, err, placed.ID)
			}

			check := func(name string, call func(c *client.Client) error) {
				t.Helper()
				s.fail(tt.faults...)
				if err := call(fresh()); err != nil || len(s.requests()) < tries || tt.timeout == 0 && len(s.requests()) > tries {
					t.Errorf("%s: %v after %v", name, err, s.requests())
				}
			}
			check("Pay", func(c *client.Client) error {
				_, err := c.Pay(ctx, placed.ID, "p-"+buyer)
				return err
			})
			check("Refund", func(c *client.Client) error {
				_, err := c.Refund(ctx, placed.ID, true)
				return err
			})
			check("MarkRefunded", func(c *client.Client) error {
				_, err := c.MarkRefunded(ctx, "p-"+buyer)
				return err
			})
			check("Order", func(c *client.Client) error {
				o, err := c.Order(ctx, placed.ID)
				if err == nil && (o.Status != client.OrderRefunded || len(o.History) != 3) {
					return fmt.Errorf("%+v", o)
				}
				return err
			})
			checkSold(t, admin, 0)
		})
	}
}

// TestWithoutKeys checks that an order without a key is tried again only if no try can have placed
// it.
func TestWithoutKeys(t *testing.T) {
	t.Parallel()
	s := newShop(t, false)
	c, ctx := s.client(t, client.WithoutKeys(), client.WithMaxPause(5*time.Millisecond)), t.Context()
	busy := refused(503, "busy", "")
	s.fail(busy, busy)
	placed, err := c.Place(ctx, one("u-1"))
	if got := s.requests(); err != nil || placed.Key != "" || len(got) != 3 || got[0].key != "" || got[2].key != "" {
		t.Errorf("%+v %v after %v", placed, err, got)
	}
	for name, fault := range map[string]fault{"answer lost": answerLost, "unavailable": unsure("")} {
		s.fail(busy, fault)
		_, err = c.Place(ctx, one("u-2"))
		unknown, ok := errors.AsType[*client.UnknownOutcome](err)
		if got := s.requests(); !ok || unknown.Key != "" || len(got) != 2 {
			t.Errorf("%s: %v after %v", name, err, got)
		}
	}
	r := one("u-3")
	r.Key = "k"
	s.fail(answerLost)
	if placed, err = c.Place(ctx, r); err != nil || placed.Key != "k" || !placed.Replayed {
		t.Errorf("with a key: %+v %v", placed, err)
	}
}

// TestRetryAfter checks that a call waits as long as the service asks, but not longer than the call
// may.
func TestRetryAfter(t *testing.T) {
	t.Parallel()
	s := newShop(t, false)
	ctx := t.Context()
	s.fail(refused(503, "busy", "1"))
	begin := time.Now()
	if _, err := s.client(t).Place(ctx, one("u-1")); err != nil {
		t.Error(err)
	}
	if took := time.Since(begin); took < time.Second {
		t.Errorf("tried again after %v", took)
	}
	const long = time.Hour // the test would not end if a call waited for so long
	short, cancel := context.WithTimeout(ctx, testenv.Patience)
	defer cancel()
	for _, tt := range []struct {
		name       string
		ctx        context.Context
		option     client.Option
		retryAfter string
		want       time.Duration
	}{
		{"longer than the longest pause", ctx, client.WithMaxPause(long - time.Second), "3600", long},
		{"longer than the context", short, client.WithMaxPause(2 * long), "3600", long},
		{"no retries", ctx, client.WithTries(1), "3600", long},
		{"longer than a number can say", ctx, client.WithTries(4), "99999999999999999999", math.MaxInt32 * time.Second},
		{"a date that is past", ctx, client.WithTries(1), "Mon, 01 Jan 2001 00:00:00 GMT", 0},
		{"a date that is too far away for a number", ctx, client.WithTries(4), "Fri, 31 Dec 9999 23:59:59 GMT", math.MaxInt64},
	} {
		for reason, refusal := range map[client.ProblemType]fault{
			client.Busy: refused(503, "busy", tt.retryAfter), client.RateLimited: refused(429, "rate-limited", tt.retryAfter),
		} {
			s.fail(refusal)
			_, err := s.client(t, tt.option).Place(tt.ctx, one("u-1"))
			p, ok := errors.AsType[*client.Problem](err)
			if !ok || p.Type != reason || p.RetryAfter != tt.want || len(s.requests()) != 1 || tt.ctx.Err() != nil {
				t.Errorf("%s: %v", tt.name, err)
			}
			if _, open := errors.AsType[*client.UnknownOutcome](err); open {
				t.Errorf("%s: %v leaves the outcome open", tt.name, err)
			}
		}
	}
	gone, giveUp := context.WithCancel(ctx)
	s.fail(func(w http.ResponseWriter, r *http.Request, service http.Handler) {
		refused(503, "busy", "3600")(w, r, service)
		time.AfterFunc(50*time.Millisecond, giveUp)
	})
	if _, err := s.client(t, client.WithMaxPause(long)).Place(gone, one("u-1")); !errors.Is(err, context.Canceled) || len(s.requests()) != 1 {
		t.Errorf("given up while it waits: %v", err)
	}
	if _, err := s.client(t).Stock(ctx, "10001"); err != nil {
		t.Error(err)
	}
}

// TestUnknownOutcome checks that the error has the key if no try shows the outcome, and that a call
// with the key shows it.
func TestUnknownOutcome(t *testing.T) {
	t.Parallel()
	s := newShop(t, false)
	if _, _, err := s.client(t).SetStock(t.Context(), "10001", client.Setting{Kind: client.Product, Total: 30}); err != nil {
		t.Fatal(err)
	}
	busy := refused(503, "busy", "")
	notFound := func(w http.ResponseWriter, r *http.Request, _ http.Handler) { http.NotFound(w, r) }
	withoutType := func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, `{"title":"Not Found"}`)
	}
	redirected := func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
		http.Redirect(w, r, "/orders", http.StatusFound)
	}
	anyJSON := func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, `{"type":"no such page"}`)
	}
	for _, tt := range []struct {
		name   string
		faults []fault
		open   bool
		placed bool
	}{
		{"every answer lost", []fault{answerLost, answerLost, answerLost}, true, true},
		{"every request lost", []fault{requestLost, requestLost, requestLost}, true, false},
		{"one answer lost, then busy", []fault{answerLost, busy, busy}, true, true},
		{"one answer lost, then too many requests", []fault{answerLost, refused(429, "rate-limited", ""), refused(429, "rate-limited", "")}, true, true},
		{"one answer lost, then not in time", []fault{answerLost, refused(408, "timeout", ""), refused(408, "timeout", "")}, true, true},
		{"one answer lost, then not authorized", []fault{answerLost, refused(401, "unauthorized", "")}, true, true},
		{"one answer lost, then another buyer", []fault{answerLost, refused(403, "other-buyer", "")}, true, true},
		{"one answer lost, then not found by a proxy", []fault{answerLost, notFound}, true, true},
		{"one answer lost, then a problem without a type", []fault{answerLost, withoutType}, true, true},
		{"one answer lost, then an error of a proxy in JSON", []fault{answerLost, anyJSON}, true, true},
		{"a redirect of a proxy", []fault{redirected}, true, false},
		{"every answer cut", []fault{answerCut, answerCut, answerCut}, true, true},
		{"unavailable", []fault{busy, busy, unsure("")}, true, true},
		{"in progress", []fault{answerLost, refused(409, "in-progress", ""), refused(409, "in-progress", "")}, true, true},
		{"in progress every time", []fault{refused(409, "in-progress", ""), refused(409, "in-progress", ""), refused(409, "in-progress", "")}, true, false},
		{"an internal error", []fault{refused(500, "internal", "")}, true, false},
		{"a page of a proxy", []fault{says("text/html", "<html>Log in first</html>")}, true, false},
		{"JSON of a proxy", []fault{says("application/json", `{"message":"ok"}`)}, true, false},
		{"no content", []fault{says("application/json", "null")}, true, false},
		{"busy", []fault{busy, busy, busy}, false, false},
		{"superseded", []fault{refused(503, "superseded", ""), busy, refused(503, "superseded", "")}, false, false},
		{"sold out", []fault{busy, refused(409, "sold-out", "")}, false, false},
		{"one request lost, then sold out", []fault{requestLost, refused(409, "sold-out", "")}, true, false},
		{"one request lost, then unknown SKU", []fault{requestLost, refused(404, "unknown-sku", "")}, true, false},
		{"one answer lost, then the key of other lines", []fault{answerLost, refused(422, "key-reused", "")}, false, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, ctx := s.client(t, client.WithTries(3), client.WithMaxPause(5*time.Millisecond)), t.Context()
			s.fail(tt.faults...)
			r := one(strings.ReplaceAll(strings.ReplaceAll(tt.name, " ", "-"), ",", ""))
			_, err := c.Place(ctx, r)
			if err == nil || strings.Count(err.Error(), "/orders") != 1 || len(s.requests()) != len(tt.faults) {
				t.Fatalf("%v after %v", err, s.requests())
			}
			u, open := errors.AsType[*client.UnknownOutcome](err)
			if open != tt.open {
				t.Fatalf("%v", err)
			}
			if !open {
				return
			}
			s.fail()
			r.Key = u.Key
			placed, err := c.Place(ctx, r)
			if err != nil || placed.Replayed != tt.placed || u.Key == "" {
				t.Errorf("%+v %v", placed, err)
			}
		})
	}

	t.Run("NobodyListens", func(t *testing.T) {
		_, err := newClient(t, "http://127.0.0.1:1", client.WithTries(2)).Place(t.Context(), one("u-1"))
		if _, open := errors.AsType[*client.UnknownOutcome](err); err == nil || open {
			t.Errorf("%v", err)
		}
	})
	t.Run("Read", func(t *testing.T) {
		s.fail(answerLost)
		_, err := s.client(t, client.WithTries(1)).Stock(t.Context(), "10001")
		if _, open := errors.AsType[*client.UnknownOutcome](err); err == nil || open {
			t.Errorf("%v", err)
		}
	})
	t.Run("RefundDue", func(t *testing.T) { // one of the tries recorded the payment
		s.fail(answerLost, refused(409, "refund-due", ""))
		_, err := s.client(t).Pay(t.Context(), "1", "p-1")
		if _, open := errors.AsType[*client.UnknownOutcome](err); !errors.Is(err, client.RefundDue) || open {
			t.Errorf("%v", err)
		}
	})
	t.Run("OtherTransport", func(t *testing.T) { // it calls no hook of package httptrace, and so does not report whether it sent the request
		failing := testenv.Transport(func(*http.Request) (*http.Response, error) { return nil, io.ErrUnexpectedEOF })
		c := newClient(t, s.server.URL, client.WithTries(1), client.WithHTTPClient(&http.Client{Transport: failing}))
		_, err := c.Place(t.Context(), one("u-1"))
		if _, open := errors.AsType[*client.UnknownOutcome](err); !open {
			t.Errorf("%v", err)
		}
	})
	t.Run("NotSent", func(t *testing.T) {
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		for name, place := range map[string]func() error{
			"the context has ended": func() error {
				_, err := s.client(t).Place(ended, one("u-1"))
				return err
			},
			"the key cannot be sent": func() error {
				r := one("u-1")
				r.Key = "secret\n"
				_, err := s.client(t).Place(t.Context(), r)
				return err
			},
			"the token cannot be sent": func() error {
				_, err := s.client(t, client.WithTokenFrom(func(context.Context) (string, error) { return "secret\r\n", nil })).Place(t.Context(), one("u-1"))
				return err
			},
		} {
			s.fail()
			err := place()
			if _, open := errors.AsType[*client.UnknownOutcome](err); err == nil || open || strings.Contains(err.Error(), "secret") || len(s.requests()) != 0 {
				t.Errorf("%s: %v after %v", name, err, s.requests())
			}
		}
	})
	t.Run("CallerGivesUp", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		s.fail(func(w http.ResponseWriter, r *http.Request, service http.Handler) {
			service.ServeHTTP(httptest.NewRecorder(), r)
			cancel()
			<-r.Context().Done()
		})
		_, err := s.client(t).Place(ctx, one("u-9"))
		if u, open := errors.AsType[*client.UnknownOutcome](err); !open || !errors.Is(err, context.Canceled) || u.Key == "" || len(s.requests()) != 1 {
			t.Errorf("%v after %v", err, s.requests())
		}
	})
}

// TestUnknownOutcome_LateRequest lets the first try of an order arrive after the second one was
// refused. Units were added in between, so the first try is accepted. The refusal must not say that
// there is no order.
func TestUnknownOutcome_LateRequest(t *testing.T) {
	t.Parallel()
	s := newShop(t, false)
	admin, ctx := s.client(t), t.Context()
	setTotal := func(total int64) {
		t.Helper()
		if _, _, err := admin.SetStock(ctx, "10001", client.Setting{Kind: client.Product, Total: total}); err != nil {
			t.Fatal(err)
		}
	}
	setTotal(0)
	late := make(chan *http.Request, 1)
	s.fail(func(_ http.ResponseWriter, r *http.Request, _ http.Handler) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		held := r.Clone(context.WithoutCancel(r.Context()))
		held.Body = io.NopCloser(bytes.NewReader(body))
		late <- held
		panic(http.ErrAbortHandler)
	})
	c := s.client(t, client.WithMaxPause(5*time.Millisecond))
	_, err := c.Place(ctx, one("u-1"))
	u, open := errors.AsType[*client.UnknownOutcome](err)
	if !open || !errors.Is(err, client.SoldOut) || len(s.requests()) != 2 {
		t.Fatalf("%v after %v", err, s.requests())
	}
	setTotal(1)
	s.service.ServeHTTP(httptest.NewRecorder(), <-late)
	r := one("u-1")
	r.Key = u.Key
	if placed, err := c.Place(ctx, r); err != nil || !placed.Replayed {
		t.Errorf("%+v %v", placed, err)
	}
	checkSold(t, admin, 1)
}

// TestRush makes many calls at once over connections that break again and again. Every unit sold
// must belong to one order that one call has returned.
func TestRush(t *testing.T) {
	t.Parallel()
	s := newShop(t, false)
	admin := s.client(t)
	wire := testenv.NewWire(t, s.server.Listener.Addr().String())
	c := newClient(t, "http://"+wire.Addr(), client.WithTries(20), client.WithMaxPause(20*time.Millisecond))
	const units, buyers = 60, 8
	if _, _, err := admin.SetStock(t.Context(), "10001", client.Setting{Kind: client.Product, Total: units}); err != nil {
		t.Fatal(err)
	}
	var placed sync.Map
	var count atomic.Int64
	var all sync.WaitGroup
	for n := range buyers {
		all.Go(func() {
			for r := one(fmt.Sprintf("u-%d", n)); ; {
				p, err := c.Place(t.Context(), r)
				r.Key = ""
				var unknown *client.UnknownOutcome
				switch {
				case errors.As(err, &unknown) && t.Context().Err() == nil:
					r.Key = unknown.Key // an earlier try of this order may still be running, even if the last one was refused
					continue
				case errors.Is(err, client.SoldOut):
					return
				case err != nil:
					t.Error(err)
					return
				}
				if _, twice := placed.LoadOrStore(p.ID, true); twice {
					t.Errorf("order %s was returned to two calls", p.ID)
				}
				if count.Add(1)%5 == 0 {
					wire.Mute()
					wire.Cut()
					wire.Thaw()
				}
			}
		})
	}
	all.Wait()
	// A try that is cut off may hold a unit while other buyers are told "sold out".
	if n := count.Load(); n < units/2 || n > units {
		t.Errorf("%d orders were placed, of %d units", n, units)
	}
	checkSold(t, admin, count.Load())
}

// TestQueued waits for queued orders.
func TestQueued(t *testing.T) {
	t.Parallel()
	s := newShop(t, true)
	c, ctx := s.client(t, client.WithPoll(2*time.Millisecond)), t.Context()
	placed, err := c.Place(ctx, one("u-1"))
	if err != nil || placed.Status != client.OrderQueued || placed.ExpiresAt != nil {
		t.Fatalf("%+v %v", placed, err)
	}
	o, err := c.Wait(ctx, placed.ID)
	if err != nil || o.Status != client.OrderPending || len(o.History) != 2 || o.History[0].Status != client.OrderQueued {
		t.Errorf("%+v %v", o, err)
	}
	waiting, giveUp := context.WithCancel(ctx)
	defer giveUp()
	stuck := func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		if len(s.requests()) > 2 {
			giveUp()
		}
		_ = json.NewEncoder(w).Encode(client.OrderWithHistory{Order: placed.Order})
	}
	s.fail(slices.Repeat([]fault{stuck}, 1000)...)
	if o, err := c.Wait(waiting, placed.ID); !errors.Is(err, context.Canceled) || len(s.requests()) < 3 {
		t.Errorf("%+v %v after %d requests", o, err, len(s.requests()))
	}
	bounded, cancel := context.WithTimeout(ctx, testenv.Patience)
	defer cancel()
	hourly := s.client(t, client.WithPoll(time.Hour))
	if o, err := hourly.Wait(bounded, placed.ID); !errors.Is(err, context.DeadlineExceeded) || bounded.Err() != nil || o.ID != placed.ID {
		t.Errorf("the context ends before the next poll: %+v %v", o, err)
	}
}

// TestAnswersOfOthers checks that the client does not follow redirects, and reads a bounded number
// of bytes.
func TestAnswersOfOthers(t *testing.T) {
	t.Parallel()
	s := newShop(t, false)
	c, ctx := s.client(t), t.Context()
	s.fail(func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
		http.Redirect(w, r, "/stock/10001", http.StatusFound)
	})
	_, err := c.Order(ctx, "1")
	if p, ok := errors.AsType[*client.Problem](err); !ok || p.Status != 302 || p.Type != "about:blank" || len(s.requests()) != 1 {
		t.Errorf("%v after %v", err, s.requests())
	}
	closed := make(chan struct{})
	s.fail(func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		defer close(closed)
		w.Header().Set("Content-Type", "application/json")
		for part := []byte(strings.Repeat(" ", 64<<10)); ; {
			if _, err := w.Write(part); err != nil {
				return
			}
		}
	})
	if _, err := c.Stock(ctx, "10001"); err == nil || !strings.Contains(err.Error(), "bytes") {
		t.Errorf("%v", err)
	}
	testenv.Receive(t, "the client closes the connection", closed)
	s.fail(refused(503, "busy", ""))
	if err := c.Ready(ctx); !errors.Is(err, client.Busy) || len(s.requests()) != 1 {
		t.Errorf("%v after %v", err, s.requests())
	}
	s.fail(refused(401, "unauthorized", ""))
	var last error
	for _, err := range c.AllStock(ctx, client.StockFilter{}) {
		last = err
	}
	if !errors.Is(last, client.Unauthorized) {
		t.Errorf("a list that cannot be read ends with %v", last)
	}
	for name, call := range map[string]func() error{
		"Ready":        func() error { return c.Ready(ctx) },
		"Order":        func() error { _, err := c.Order(ctx, "1"); return err },
		"ListOrders":   func() error { _, err := c.ListOrders(ctx, client.OrderFilter{}); return err },
		"ListPayments": func() error { _, err := c.ListPayments(ctx, client.PaymentFilter{}); return err },
		"MarkRefunded": func() error { _, err := c.MarkRefunded(ctx, "1"); return err },
		"ListStock":    func() error { _, err := c.ListStock(ctx, client.StockFilter{}); return err },
		"Stock":        func() error { _, err := c.Stock(ctx, "1"); return err },
		"Audit":        func() error { _, err := c.Audit(ctx, "1"); return err },
		"Strategies":   func() error { _, err := c.Strategies(ctx); return err },
	} {
		for _, text := range []string{"<html>", "null", `{"status":"up"}`} {
			s.fail(says("application/json", text))
			if err := call(); err == nil || len(s.requests()) != 1 {
				t.Errorf("%s took %s for an answer of the service: %v after %v", name, text, err, s.requests())
			}
		}
	}
}

// TestTokens checks that every call requests its token, and that a call without a token is not
// sent.
func TestTokens(t *testing.T) {
	t.Parallel()
	s := newShop(t, false)
	type buyer struct{}
	c := newClient(t, s.server.URL+"/", client.WithTokenFrom(func(ctx context.Context) (string, error) {
		token, ok := ctx.Value(buyer{}).(string)
		if !ok {
			return "", errors.New("nobody is logged in")
		}
		return token, nil
	}))
	s.fail()
	if _, err := c.ListPayments(t.Context(), client.PaymentFilter{}); err == nil || !strings.Contains(err.Error(), "nobody is logged in") || len(s.requests()) != 0 {
		t.Errorf("%v after %v", err, s.requests())
	}
	for token, want := range map[string]error{adminToken: nil, "another": client.Unauthorized, "": client.Unauthorized} {
		_, err := c.ListPayments(context.WithValue(t.Context(), buyer{}, token), client.PaymentFilter{})
		if !errors.Is(err, want) {
			t.Errorf("token %q: %v", token, err)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	const base = "http://127.0.0.1:1"
	for _, tt := range []struct {
		url    string
		option client.Option
		want   string
	}{
		{"127.0.0.1:8080", nil, "cannot be parsed"},
		{"localhost:8080", nil, "http://"},
		{"ftp://host", nil, "http://"},
		{"http://", nil, "no host"},
		{"http://u:secret@host", nil, "WithToken"},
		{"http://host?q=1", nil, "query"},
		{"http://host?", nil, "query"},
		{"http://host#part", nil, "fragment"},
		{base, client.WithHTTPClient(nil), "WithHTTPClient"},
		{base, client.WithToken(""), "WithToken"},
		{base, client.WithToken("secret\n"), "line break"},
		{base, client.WithTokenFrom(nil), "WithTokenFrom"},
		{base, client.WithTries(0), "WithTries"},
		{base, client.WithTryTimeout(0), "WithTryTimeout"},
		{base, client.WithMaxPause(-1), "WithMaxPause"},
		{base, client.WithPoll(0), "WithPoll"},
	} {
		var options []client.Option
		if tt.option != nil {
			options = append(options, tt.option)
		}
		if _, err := client.New(tt.url, options...); err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v, want %s", tt.url, err, tt.want)
		}
	}
	own := &http.Client{Timeout: testenv.Patience}
	c, err := client.New(base+"/shop/", client.WithHTTPClient(own))
	if err != nil || c == nil || own.CheckRedirect != nil {
		t.Errorf("%v; the caller's client was changed: %v", err, own.CheckRedirect != nil)
	}
}

// TestStandardLibraryOnly checks that the package imports only the standard library, so that
// programs that use it compile nothing else.
func TestStandardLibraryOnly(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", ".").CombinedOutput()
	if got := strings.Fields(string(out)); err != nil || len(got) != 1 || got[0] != "github.com/holdfast-stock/holdfast/client" {
		t.Errorf("%v %s", err, out)
	}
}
