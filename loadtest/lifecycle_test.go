package main

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-stock/holdfast/client"
	"github.com/holdfast-stock/holdfast/internal/assembly"
	"github.com/holdfast-stock/holdfast/internal/lab/command"
	"github.com/holdfast-stock/holdfast/internal/lab/load"
	"github.com/holdfast-stock/holdfast/internal/testenv"
	"github.com/holdfast-stock/holdfast/loadtest/results"
)

// newTestLoad returns a lifecycle load of one buyer, with a SQLite ledger that the test
// fills.
func newTestLoad(t *testing.T) (*lifecycleLoad, *ledger) {
	t.Helper()
	rec := newRecord()
	l := newLedger(t, rec)
	return &lifecycleLoad{
		loading: l.loading, calls: make(map[string][]call),
		goods: goods{product: "lt-sku", coupon: "lt-sku-coupon"}, buyers: []string{numbered(1).BuyerID},
	}, l
}

// steps are the statuses of an order after the first.
type steps = []client.OrderStatus

// storeEnded inserts the order with its history and payments.
func (l *ledger) storeEnded(t *testing.T, o *storedOrder) {
	t.Helper()
	l.store(t, o.order)
	l.exec(t, "UPDATE orders SET payment_id = ?, restocked = ? WHERE id = ?", o.payment, o.restocked, l.id(t, o.order))
	for i, status := range o.history {
		l.exec(t, "INSERT INTO order_history (order_id, version, status, at) VALUES (?, ?, ?, '2026-01-01')", l.id(t, o.order), 2*i+1, status)
	}
	if o.early {
		l.exec(t, "UPDATE orders SET expires_at = '2026-01-02' WHERE id = ?", l.id(t, o.order))
	}
	for id, status := range o.payments {
		l.exec(t, "INSERT INTO payments (id, order_id, status, created_at, changed_at) VALUES (?, ?, ?, '2026-01-01', '2026-01-01')", id, l.id(t, o.order), status)
	}
}

// TestCheckOrders has one row for each contradiction between the answers and the end of an
// order.
func TestCheckOrders(t *testing.T) {
	t.Parallel()
	id := numbered(1).ID
	first, second := paymentIDs(id)[0], paymentIDs(id)[1]
	ok := func(action, payment string, status client.OrderStatus) call {
		return call{action: action, payment: payment, status: http.StatusOK, got: order{ID: id, Status: status}}
	}
	due := func(payment string) call {
		return call{action: pay, payment: payment, status: http.StatusConflict, problem: client.RefundDue}
	}
	restocked := ok(refund, "", "refunded")
	restocked.restock = true
	type statuses = map[string]string
	for _, test := range []struct {
		name      string
		status    client.OrderStatus
		payment   *string // the payment that paid the order
		restocked bool
		history   steps
		payments  statuses
		calls     []call
		want      []results.Kind
	}{
		{"expired", "expired", nil, false, steps{"expired"}, nil, nil, nil},
		{"paid", "paid", &first, false, steps{"paid"}, statuses{first: "paid"}, []call{ok(pay, first, "paid")}, nil},
		{"paid twice", "paid", &first, false, steps{"paid"}, statuses{first: "paid", second: "refund-due"}, []call{ok(pay, first, "paid"), due(second)}, nil},
		{"revived", "paid", &first, false, steps{"expired", "paid"}, statuses{first: "paid"}, []call{ok(pay, first, "paid")}, nil},
		{"paid late and not revived", "expired", nil, false, steps{"expired"}, statuses{first: "refund-due"}, []call{due(first)}, nil},
		{"cancelled", "cancelled", nil, false, steps{"cancelled"}, statuses{first: "refund-due"}, []call{ok(cancel, "", "cancelled"), due(first)}, nil},
		{"refunded", "refunded", &first, true, steps{"paid", "refunded"}, statuses{first: "refund-due"}, []call{ok(pay, first, "paid"), restocked, ok(pay, first, "refunded")}, nil},
		{"cancelled in vain", "paid", &first, false, steps{"paid"}, statuses{first: "paid"}, []call{ok(pay, first, "paid"), {action: cancel, status: 409, problem: client.WrongStatus}}, nil},

		{"pending", "pending", nil, false, nil, nil, nil, []results.Kind{results.Unfinished}},
		{"no final answer", "expired", nil, false, steps{"expired"}, nil, []call{{action: pay, payment: first}}, []results.Kind{results.Unanswered}},
		{"no final answer and paid", "paid", &first, false, steps{"paid"}, statuses{first: "paid"}, []call{{action: pay, payment: first}}, []results.Kind{results.Unanswered}},
		{"answered paid and expired", "expired", nil, false, steps{"expired"}, statuses{first: "refund-due"}, []call{ok(pay, first, "paid")}, []results.Kind{results.Contradicted}},
		{"answered with another order", "paid", &first, false, steps{"paid"}, statuses{first: "paid"}, []call{{action: pay, payment: first, status: 200, got: order{ID: numbered(2).ID, Status: "paid"}}}, []results.Kind{results.Contradicted}},
		{"answered paid with another status", "paid", &first, false, steps{"paid"}, statuses{first: "paid"}, []call{ok(pay, first, "pending")}, []results.Kind{results.Contradicted}},
		{"answered due and paid", "paid", &first, false, steps{"paid"}, statuses{first: "paid"}, []call{due(first)}, []results.Kind{results.Contradicted}},
		{"answered paid and due", "paid", &first, false, steps{"paid"}, statuses{first: "paid"}, []call{ok(pay, first, "paid"), due(first)}, []results.Kind{results.Contradicted}},
		{"answered paid for both payments", "paid", &first, false, steps{"paid"}, statuses{first: "paid", second: "refund-due"}, []call{ok(pay, first, "paid"), ok(pay, second, "paid")}, []results.Kind{results.Contradicted}},
		{"answered cancelled and paid", "paid", &first, false, steps{"paid"}, statuses{first: "paid"}, []call{ok(cancel, "", "cancelled"), ok(pay, first, "paid")}, []results.Kind{results.Contradicted}},
		{"answered wrong status and cancelled", "cancelled", nil, false, steps{"cancelled"}, nil, []call{{action: cancel, status: 409, problem: client.WrongStatus}}, []results.Kind{results.Contradicted}},
		{"paid without a payment", "paid", nil, false, steps{"paid"}, nil, nil, []results.Kind{results.Contradicted}},
		{"cancelled without a call", "cancelled", nil, false, steps{"cancelled"}, nil, nil, []results.Kind{results.Contradicted}},
		{"refunded without a call", "refunded", &first, true, steps{"paid", "refunded"}, statuses{first: "refund-due"}, []call{ok(pay, first, "paid")}, []results.Kind{results.Contradicted}},
		{"refunded without the restock", "refunded", &first, false, steps{"paid", "refunded"}, statuses{first: "refund-due"}, []call{ok(pay, first, "paid"), restocked}, []results.Kind{results.Contradicted}},
		{"answered refunded and paid", "paid", &first, false, steps{"paid"}, statuses{first: "paid"}, []call{ok(pay, first, "paid"), ok(refund, "", "refunded")}, []results.Kind{results.Contradicted}},
		{"no final answer, and the payment is lost", "paid", &first, false, steps{"paid"}, nil, []call{{action: pay, payment: first}}, []results.Kind{results.Unanswered, results.LostPayment}},
		{"refund refused", "paid", &first, false, steps{"paid"}, statuses{first: "paid"}, []call{ok(pay, first, "paid"), {action: refund, status: 409, problem: client.WrongStatus}}, []results.Kind{results.Contradicted}},
		{"order unknown", "expired", nil, false, steps{"expired"}, nil, []call{{action: cancel, status: 404, problem: client.UnknownOrder}}, []results.Kind{results.Contradicted}},
		{"history ends early", "paid", &first, false, steps{"expired"}, statuses{first: "paid"}, []call{ok(pay, first, "paid")}, []results.Kind{results.BadHistory}},
		{"paid after cancellation", "paid", &first, false, steps{"cancelled", "paid"}, statuses{first: "paid"}, []call{ok(pay, first, "paid")}, []results.Kind{results.BadHistory}},
		{"expired after payment", "expired", nil, false, steps{"paid", "expired"}, nil, nil, []results.Kind{results.BadHistory}},
		{"payment lost", "paid", &first, false, steps{"paid"}, nil, []call{ok(pay, first, "paid")}, []results.Kind{results.LostPayment}},
		{"due payment lost", "cancelled", nil, false, steps{"cancelled"}, nil, []call{ok(cancel, "", "cancelled"), due(first)}, []results.Kind{results.LostPayment}},
		{"due payment stored as paid", "expired", nil, false, steps{"expired"}, statuses{first: "paid"}, []call{due(first)}, []results.Kind{results.WrongPayment}},
		{"refunded payment stored as paid", "refunded", &first, true, steps{"paid", "refunded"}, statuses{first: "paid"}, []call{ok(pay, first, "paid"), restocked}, []results.Kind{results.WrongPayment}},
		{"payment that nobody reported", "expired", nil, false, steps{"expired"}, statuses{second: "refund-due"}, nil, []results.Kind{results.ExtraPayment}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			v, l := newTestLoad(t)
			o := &storedOrder{order: numbered(1), payment: test.payment, restocked: test.restocked, history: test.history, payments: test.payments}
			o.Status = test.status
			l.storeEnded(t, o)
			v.rec.add(answered(numbered(1), accepted, 201, ""))
			v.calls[id] = test.calls
			expectFindings(t, v, test.want)
		})
	}
}

// expectFindings audits the orders and claims of the ledger.
func expectFindings(t *testing.T, v *lifecycleLoad, want []results.Kind) {
	t.Helper()
	stored, err := v.stored(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	v.checkOrders(stored)
	if err := v.checkClaims(t.Context(), stored); err != nil {
		t.Fatal(err)
	}
	expectKinds(t, v.rec, want)
}

// TestLifecycleAudit audits a load with one paid order of the product and a coupon.
func TestLifecycleAudit(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, change string
		result       results.Result
		sample       error
		want, says   string // verdict, and a fault
	}{
		{"as answered", "SELECT 1", results.Result{Accepted: 1}, nil, results.AsPromised, ""},
		{"no order", "SELECT 1", results.Result{}, nil, results.Broken, "no order was accepted"},
		{"failures", "SELECT 1", results.Result{Accepted: 1, Failed: 1}, nil, results.Broken, "failed, more than 0%"},
		{"coupon sold twice", "UPDATE order_lines SET quantity = 2 WHERE sku = 'lt-sku-coupon'", results.Result{Accepted: 1}, nil, results.Broken, "lt-sku-coupon: oversold 1 units"},
		{"coupons left", "UPDATE stock SET available = 5 WHERE sku = 'lt-sku-coupon'", results.Result{Accepted: 1}, nil, results.Broken, "lt-sku-coupon: the stock row has 5"},
		{"another buyer", "UPDATE orders SET buyer_id = 'another'", results.Result{Accepted: 1}, nil, results.Broken, results.OtherBuyer.String()},
		{"another buyer by GET", "UPDATE orders SET buyer_id = 'another'", results.Result{Accepted: 1}, nil, results.Broken, results.Unread.String()},
		{"over the limit during the load", "SELECT 1", results.Result{Accepted: couponLimit + 1}, nil, results.Broken, results.OverLimit.String()},
		{"order lost", "DELETE FROM orders", results.Result{Accepted: 1}, nil, results.Broken, results.Missing.String()},
		{"unreadable counts", "DROP TABLE stock_parts", results.Result{Accepted: 1}, nil, results.Undecided, ""},
		{"unreadable orders", "ALTER TABLE orders RENAME COLUMN payment_id TO gone", results.Result{Accepted: 1}, nil, results.Undecided, ""},
		{"unreadable payments", "DROP TABLE payments", results.Result{Accepted: 1}, nil, results.Undecided, ""},
		{"unreadable claims", "DROP TABLE claims", results.Result{Accepted: 1}, nil, results.Undecided, ""},
		{"unreadable sample", "SELECT 1", results.Result{Accepted: 1}, io.ErrUnexpectedEOF, results.Undecided, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			v, l := newTestLoad(t)
			v.PaymentWindow, v.goods.units, v.goods.coupons, v.rec.sampleErr = time.Second, 1, 1, test.sample
			v.watch = v.startWatch(t.Context())
			o := numbered(1)
			payment := paymentIDs(o.ID)[0]
			o.Status, o.Lines = "paid", append(o.Lines, line{SKU: v.goods.coupon, Quantity: 1})
			l.storeEnded(t, &storedOrder{order: o, payment: &payment, history: steps{"paid"}, payments: map[string]string{payment: "paid"}})
			l.exec(t, "INSERT INTO stock (sku, kind, total, available) SELECT sku, 'product', 1, 0 FROM order_lines")
			l.exec(t, "INSERT INTO claims (sku, buyer_id, units) VALUES (?, ?, 1)", v.goods.coupon, v.buyers[0])
			l.exec(t, test.change)
			v.calls[o.ID] = []call{{action: pay, payment: payment, status: http.StatusOK, got: o, sent: v.PaymentWindow}}
			o.CreatedAt = time.Now()
			o.ExpiresAt = new(o.CreatedAt.Add(v.PaymentWindow))
			r := &test.result
			for range max(r.Accepted, 1) {
				v.rec.add(answer{outcome: accepted, asked: o, order: o})
			}
			r.Verdict = results.Undecided
			err := v.judge(t.Context(), r, terms{spec: assembly.Spec{Sound: true}})
			if says := strings.Join(r.Faults, "; "); (err != nil) != (test.want == results.Undecided) || r.Verdict != test.want || !strings.Contains(says, test.says) {
				t.Errorf("%s: %v; %s", r.Verdict, err, says)
			}
		})
	}
}

// TestCheckEarly audits an order that expired before its time.
func TestCheckEarly(t *testing.T) {
	t.Parallel()
	id := numbered(1).ID
	payment := paymentIDs(id)[0]
	paid := []call{{action: pay, payment: payment, status: http.StatusOK, got: order{ID: id, Status: "paid"}}}
	for _, test := range []struct {
		name    string
		history steps
		calls   []call
		want    []results.Kind
	}{
		{"expired", steps{"expired"}, nil, []results.Kind{results.ExpiredEarly}},
		{"expired and revived", steps{"expired", "paid"}, paid, []results.Kind{results.ExpiredEarly}},
		{"paid", steps{"paid"}, paid, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			v, l := newTestLoad(t)
			o := &storedOrder{order: numbered(1), early: true, history: test.history}
			o.Status = test.history[len(test.history)-1]
			if test.calls != nil {
				o.payment, o.payments = &payment, map[string]string{payment: "paid"}
			}
			l.storeEnded(t, o)
			v.rec.add(answered(numbered(1), accepted, 201, ""))
			v.calls[id] = test.calls
			expectFindings(t, v, test.want)
		})
	}
}

// TestCheckUnknown audits an expired order that is in none of the answers.
func TestCheckUnknown(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		answers []answer
		want    []results.Kind
	}{
		{"never answered", []answer{answered(numbered(1), failed, 0, load.NoAnswer)}, nil},
		{"unavailable", []answer{answered(numbered(1), failed, 503, client.Unavailable)}, nil},
		{"busy", []answer{answered(numbered(1), failed, 503, client.Busy)}, []results.Kind{results.Unasked}},
		{"refused", []answer{answered(numbered(1), refused, 409, client.SoldOut)}, []results.Kind{results.Unasked}},
		{"not requested", nil, []results.Kind{results.Unasked}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			v, l := newTestLoad(t)
			o := &storedOrder{order: numbered(1), history: steps{"expired"}}
			o.Status = "expired"
			l.storeEnded(t, o)
			for _, a := range test.answers {
				v.rec.add(a)
			}
			expectFindings(t, v, test.want)
		})
	}
}

// TestCheckClaims compares the coupons that a buyer holds with the claim.
func TestCheckClaims(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		paid   int // paid orders for a coupon
		claims int64
		want   []results.Kind
	}{
		{"none", 0, 0, nil},
		{"at the limit", couponLimit, couponLimit, nil},
		{"over the limit", couponLimit + 1, couponLimit + 1, []results.Kind{results.OverLimit}},
		{"too low", 2, 1, []results.Kind{results.WrongClaim}},
		{"too high", 0, 1, []results.Kind{results.WrongClaim}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			v, l := newTestLoad(t)
			l.exec(t, "INSERT INTO claims (sku, buyer_id, units) VALUES (?, ?, ?)", v.goods.coupon, v.buyers[0], test.claims)
			for n := range test.paid {
				o := &storedOrder{order: numbered(n + 1), history: steps{"paid"}, payments: make(map[string]string)}
				o.BuyerID, o.Status = v.buyers[0], "paid"
				o.Lines = append(o.Lines, line{SKU: v.goods.coupon, Quantity: 1})
				payment := paymentIDs(o.ID)[0]
				o.payment, o.payments[payment] = &payment, "paid"
				l.storeEnded(t, o)
				v.rec.add(answer{outcome: accepted, asked: o.order, order: o.order})
				v.calls[o.ID] = []call{{action: pay, payment: payment, status: 200, got: o.order}}
			}
			expectFindings(t, v, test.want)
		})
	}
}

// TestCheckLimit places three orders for a coupon with a limit of two for each buyer.
func TestCheckLimit(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		at   time.Duration // time of the 201 of the third order; the others come at 1 s
		sent time.Duration // time of the cancellation of the first order; 0: the order is not cancelled
		want int
	}{
		{"at once", 1 * time.Second, 0, 1},
		{"within the payment window", 3 * time.Second, 0, 1},
		{"after the payment window", 5 * time.Second, 0, 0},
		{"after a cancellation", 3 * time.Second, 2 * time.Second, 0},
		{"before a cancellation", 2 * time.Second, 3 * time.Second, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			v, _ := newTestLoad(t)
			v.PaymentWindow = 3 * time.Second
			for n, at := range []time.Duration{time.Second, time.Second, test.at} {
				o := numbered(n)
				o.BuyerID = v.buyers[0]
				o.Lines = append(o.Lines, line{SKU: v.goods.coupon, Quantity: 1})
				v.rec.add(answer{Answer: load.Answer{Took: 10 * time.Millisecond}, at: at, outcome: accepted, asked: o, order: o})
			}
			if test.sent > 0 {
				v.calls[numbered(0).ID] = []call{{action: cancel, sent: test.sent}}
			}
			v.checkLimit()
			if found := v.rec.found(); len(found) != test.want || test.want == 1 && found[0].Kind != results.OverLimit {
				t.Errorf("%v", found)
			}
		})
	}
}

// TestLifecycle follows orders on servers, reads the report, and checks that no rows are left. By
// default it runs on one of the pairs of stores.
func TestLifecycle(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, strategy string
		thorough       bool
		db             func(t testenv.T) string
	}{
		{"MariaDB", "segment", false, testenv.MariaDB},
		{"PostgreSQL", "conditional", true, testenv.Postgres},
	} {
		if test.thorough && !testenv.Thorough() {
			continue
		}
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			folder, redis, db := t.TempDir(), testenv.Redis(t), test.db(t)
			for try := 1; ; try++ {
				// On a busy machine, calls of the stores may time out.
				code, out, _ := runHere(t, "--lifecycle", "--strategies", test.strategy, "--stock", "100", "--clients", "4", "--payment-window", "2s",
					"--max-failures", "100%", "--faults", "--redis", redis, "--db", db, "--out", folder)
				if code != command.ExitOK || !strings.Contains(out, "refunds due") {
					t.Errorf("exit code %d", code)
				}
				r := written(t, folder).Strategies[0]
				life := r.Lifecycle
				if r.Verdict != results.AsPromised || r.Instances != 2 || life == nil || life.Paid+life.Cancelled+life.Expired+life.Refunded != life.Orders || r.Repeats == 0 {
					t.Fatalf("%s with %d instances, %d repeats: %+v", r.Verdict, r.Instances, r.Repeats, life)
				}
				if min(life.Paid, life.Cancelled, life.Expired, life.Refunded, life.Revived, life.RefundsDue) > 0 {
					break
				}
				if try == 10 {
					t.Fatalf("not every end: %+v", life)
				}
			}
			page, err := os.ReadFile(filepath.Join(folder, "report.html"))
			if err != nil || !strings.Contains(string(page), "refunds due") {
				t.Errorf("the report does not list the refunds due (%v)", err)
			}
			expectEmpty(t, redis, db)
		})
	}
}

// TestLifecycleLiars follows orders at services that answer or store false data. All liars stand in
// front of the same instance, whose payment window is that of a lifecycle load. TestCheckOrders,
// TestCheckClaims and TestRepeat have the other findings.
func TestLifecycleLiars(t *testing.T) {
	t.Parallel()
	services := startServices(t, "--lifecycle", "--strategies", "lua", "--payment-window", "1s", "--instances", "1")
	for _, test := range []struct {
		liar  string
		least int64 // number of lies until the fault shows
		says  string
	}{
		{"returns-units-twice", 1, "units left, but "},
		{"returns-units-twice-at-the-gate", 1, "units more than the ledger for a while"},
		{"answers-that-orders-expire-an-hour-later", 1, results.WrongWindow.String()},
		{"is-unavailable-after-every-fifth-call", 2, "have an unknown outcome"},
	} {
		t.Run(test.liar, func(t *testing.T) {
			t.Parallel()
			liar, urls := services.tell(t, test.liar)
			load := func() (code int, out string) {
				code, out, _ = runWith(t, func(s *settings) { s.Lifecycle, s.PaymentWindow = true, services.PaymentWindow },
					services.arguments(urls, "--stock", "60", "--clients", "2", "--max-failures", "100%")...)
				return code, out
			}
			code, out := load()
			for try := 1; try < maxTriesToLie && liar.Told() < test.least; try++ {
				code, out = load()
			}
			if code != command.ExitFailed || !strings.Contains(out, test.says) || liar.Told() < test.least {
				t.Errorf("exit code %d after %d lies, want %q", code, liar.Told(), test.says)
			}
		})
	}
}
