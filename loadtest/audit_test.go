package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/client"
	"github.com/holdfast-stock/holdfast/internal/lab/load"
	"github.com/holdfast-stock/holdfast/internal/lab/measure"
	"github.com/holdfast-stock/holdfast/internal/lab/table"
	"github.com/holdfast-stock/holdfast/internal/store"
	"github.com/holdfast-stock/holdfast/internal/store/storetest"
	"github.com/holdfast-stock/holdfast/loadtest/results"
)

// ledger is a load with a SQLite ledger that the test fills. Its service answers GET with the orders
// that the record's answers contain.
type ledger struct {
	*loading
}

func newLedger(t *testing.T, rec *record) *ledger {
	t.Helper()
	empty, err := emptyLedger()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "ledger.db")
	if err := os.WriteFile(file, empty, 0o600); err != nil {
		t.Fatal(err)
	}
	sql := storetest.SQL(t, "sqlite://"+file)
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, a := range rec.answers {
			if a.order.ID == strings.TrimPrefix(r.URL.Path, "/orders/") {
				_ = json.NewEncoder(w).Encode(a.order)
				return
			}
		}
		http.NotFound(w, r)
	}))
	t.Cleanup(service.Close)
	l := &lab{sql: sql, client: load.NewClient(http.DefaultTransport), samples: make(chan struct{}, maxSamples), stderr: t.Output()}
	return &ledger{&loading{lab: l, fleet: &fleet{urls: []string{service.URL}}, rec: rec, sku: "lt-sku"}}
}

// emptyLedger returns the file of a ledger without orders. Migrating one takes longer than
// most of these tests.
var emptyLedger = sync.OnceValues(func() (text []byte, err error) {
	folder, err := os.MkdirTemp("", "ledger-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(folder)
	file := filepath.Join(folder, "ledger.db")
	sql, err := store.OpenSQL(context.Background(), "sqlite://"+file)
	if err != nil {
		return nil, err
	}
	// Closing the database writes its log into the file.
	if err := errors.Join(sql.MigrateUp(context.Background()), sql.Close()); err != nil {
		return nil, err
	}
	return os.ReadFile(file)
})

// expectKinds fails the test unless these are the kinds of the findings.
func expectKinds(t *testing.T, rec *record, want []results.Kind) {
	t.Helper()
	var got []results.Kind
	for _, finding := range rec.found() {
		got = append(got, finding.Kind)
	}
	if !slices.Equal(got, want) {
		t.Errorf("%v, want %v", rec.found(), want)
	}
}

// store inserts the order.
func (l *ledger) store(t *testing.T, o order) {
	t.Helper()
	l.exec(t, "INSERT INTO orders (id, take_id, buyer_id, status, strategy, created_at) VALUES (?, ?, ?, ?, 'lua', '2026-01-01')",
		l.id(t, o), l.id(t, o), o.BuyerID, o.Status)
	for _, line := range o.Lines {
		l.exec(t, "INSERT INTO order_lines (order_id, sku, quantity) VALUES (?, ?, ?)", l.id(t, o), line.SKU, line.Quantity)
	}
}

func (l *ledger) id(t *testing.T, o order) any {
	t.Helper()
	id, err := uuid.Parse(o.ID)
	if err != nil {
		t.Fatal(err)
	}
	return l.column(id)
}

func (l *ledger) exec(t *testing.T, statement string, args ...any) {
	t.Helper()
	pool, err := l.sql.DB().DB() // gorm would expand an ID into a list of bytes
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pool.ExecContext(t.Context(), statement, args...); err != nil {
		t.Fatal(err)
	}
}

// numbered returns the n-th order.
func numbered(n int) order {
	o := oneUnit(fmt.Sprintf("lt-buyer-%d", n), "lt-sku")
	o.ID, o.Status = uuid.NewSHA1(uuid.Nil, fmt.Append(nil, n)).String(), "pending"
	return o
}

// answered returns a correct answer to the request for the order.
func answered(o order, outcome string, status int, problem client.ProblemType) answer {
	a := answer{Answer: load.Answer{Status: status, Problem: problem}, outcome: outcome, asked: oneUnit(o.BuyerID, "lt-sku")}
	if outcome == accepted {
		a.order = o
	}
	return a
}

// TestCheckAnswers has one row for each contradiction between the answers and the ledger.
func TestCheckAnswers(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		answer func(a *answer) // changes the answer to the third order
		store  func(o *order)  // changes the third order in the ledger; an order without an ID is not stored
		more   []order         // further orders in the ledger
		want   []results.Kind
	}{
		{"as answered", nil, nil, nil, nil},
		{"not stored", nil, func(o *order) { o.ID = "" }, nil, []results.Kind{results.Missing}},
		{"void", nil, func(o *order) { o.Status, o.Lines = "void", nil }, nil, []results.Kind{results.Missing}},
		{"stored under another ID", nil, func(o *order) { o.ID = numbered(9).ID }, nil, []results.Kind{results.Missing, results.Unasked}},
		{"stored under another buyer", nil, func(o *order) { o.BuyerID = "another" }, nil, []results.Kind{results.OtherBuyer}},
		{"stored with more units", nil, func(o *order) { o.Lines[0].Quantity = 2 }, nil, []results.Kind{results.OtherLines}},
		{"stored with another SKU", nil, func(o *order) { o.Lines[0].SKU = "another" }, nil, []results.Kind{results.OtherLines}},
		{"stored with another line", nil, func(o *order) { o.Lines = append(o.Lines, line{SKU: "z", Quantity: 1}) }, nil, []results.Kind{results.OtherLines}},
		{"stored without lines", nil, func(o *order) { o.Lines = nil }, nil, []results.Kind{results.OtherLines}},
		{"cancelled", nil, func(o *order) { o.Status = "cancelled" }, nil, []results.Kind{results.OtherStatus}},
		{"answered without an order", func(a *answer) { a.order = order{} }, nil, nil, []results.Kind{results.WrongAnswer, results.Unasked}},
		{"answered with another buyer", func(a *answer) { a.order.BuyerID = "another" }, nil, nil, []results.Kind{results.WrongAnswer, results.Unread}},
		{"answered with more units", func(a *answer) { a.order.Lines = []line{{SKU: "lt-sku", Quantity: 2}} }, nil, nil, []results.Kind{results.WrongAnswer, results.Unread}},
		{"answered with an order of another buyer", func(a *answer) { a.order = numbered(1) }, func(o *order) { o.ID = "" }, nil, []results.Kind{results.WrongAnswer, results.Repeated}},
		{"answered with the ID of another order", func(a *answer) { a.order.ID = numbered(1).ID }, func(o *order) { o.ID = "" }, nil, []results.Kind{results.Repeated}},
		{"committed and busy", func(a *answer) { *a = answered(numbered(3), failed, 503, client.Busy) }, nil, nil, []results.Kind{results.Denied}},
		{"committed and sold out", func(a *answer) { *a = answered(numbered(3), refused, 409, client.SoldOut) }, nil, nil, []results.Kind{results.Denied}},
		{"committed and unavailable", func(a *answer) { *a = answered(numbered(3), failed, 503, client.Unavailable) }, nil, nil, nil},
		{"committed and never answered", func(a *answer) { *a = answered(numbered(3), failed, 0, load.NoAnswer) }, nil, nil, nil},
		{"void and unavailable", func(a *answer) { *a = answered(numbered(3), failed, 503, client.Unavailable) }, func(o *order) { o.Status = "void" }, nil, nil},
		{"committed twice and never answered", func(a *answer) { *a = answered(numbered(3), failed, 0, load.NoAnswer) }, nil,
			[]order{{ID: numbered(9).ID, BuyerID: numbered(3).BuyerID, Status: "pending", Lines: numbered(3).Lines}}, []results.Kind{results.Doubled}},
		{"committed twice", nil, nil, []order{{ID: numbered(9).ID, BuyerID: numbered(3).BuyerID, Status: "paid", Lines: numbered(3).Lines}}, []results.Kind{results.Doubled}},
		{"stored without a request", nil, nil, []order{numbered(9)}, []results.Kind{results.Unasked}},
	} {
		t.Run(test.name, func(t *testing.T) {
			rec := newRecord()
			l := newLedger(t, rec)
			for n := 1; n <= 3; n++ {
				o, a := numbered(n), answered(numbered(n), accepted, 201, "")
				if n == 3 && test.store != nil {
					test.store(&o)
				}
				if n == 3 && test.answer != nil {
					test.answer(&a)
				}
				if o.ID != "" {
					l.store(t, o)
				}
				rec.add(a)
			}
			for _, o := range test.more {
				l.store(t, o)
			}
			if err := l.checkAnswers(t.Context()); err != nil {
				t.Fatal(err)
			}
			expectKinds(t, rec, test.want)
		})
	}
}

// TestSample looks up an order before it is committed and afterwards.
func TestSample(t *testing.T) {
	t.Parallel()
	rec := newRecord()
	l := newLedger(t, rec)
	a := answered(numbered(1), accepted, 201, "")
	l.sample(t.Context(), a)
	if found := rec.found(); len(found) != 1 || found[0].Kind != results.Early || rec.sampled != 1 {
		t.Errorf("before the commit: %v, %d sampled", found, rec.sampled)
	}
	l.store(t, a.order)
	l.sample(t.Context(), a)
	if found := rec.found(); len(found) != 1 || found[0].Count != 1 || rec.sampled != 2 {
		t.Errorf("after the commit: %v, %d sampled", found, rec.sampled)
	}
	interrupted, cancel := context.WithCancel(t.Context())
	cancel()
	if l.sample(interrupted, a); rec.sampled != 2 || rec.sampleErr != nil {
		t.Errorf("after an interrupt: %d sampled, %v", rec.sampled, rec.sampleErr)
	}
	l.exec(t, "DROP TABLE order_lines")
	l.sample(t.Context(), a)
	if found := rec.found(); len(found) != 1 || found[0].Count != 1 || rec.sampleErr == nil {
		t.Errorf("when orders cannot be read: %v, %v", found, rec.sampleErr)
	}
}

// tooManyUnits inserts two orders whose units are too many for a sum.
const tooManyUnits = `INSERT INTO orders (id, take_id, buyer_id, status, strategy, created_at)
		VALUES (randomblob(16), randomblob(16), 'a', 'paid', 'lua', '2026-01-01'), (randomblob(16), randomblob(16), 'b', 'paid', 'lua', '2026-01-01');
	INSERT INTO order_lines (order_id, sku, quantity) SELECT id, 'lt-sku', 9223372036854775807 FROM orders`

// TestAudit_Unreadable checks that an audit fails if one of its statements or samples does.
func TestAudit_Unreadable(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, change string
		answers      []answer
		sample       error
	}{
		{"stock", "DROP TABLE stock_parts", nil, nil},
		{"units sold", tooManyUnits, nil, nil},
		{"answered order", "ALTER TABLE orders RENAME COLUMN buyer_id TO gone", []answer{answered(numbered(1), accepted, 201, "")}, nil},
		{"other orders", "ALTER TABLE orders RENAME COLUMN buyer_id TO gone", nil, nil},
		{"sample", "SELECT 1", nil, io.ErrUnexpectedEOF},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			rec := newRecord()
			rec.answers, rec.sampleErr = test.answers, test.sample
			l := newLedger(t, rec)
			l.exec(t, "INSERT INTO stock (sku, kind, total, available) VALUES ('lt-sku', 'product', 1, 0)")
			l.exec(t, test.change)
			if l.audit(t.Context(), &results.Result{Stock: 1}, settled{0, counts.agree}) == nil {
				t.Error("no error")
			}
		})
	}
}

// TestGuardRefusals adds up the metrics of two instances. If one is missing or cannot
// be read, the sum is unknown.
func TestGuardRefusals(t *testing.T) {
	t.Parallel()
	var urls []string
	for _, answer := range []reply{{200, "holdfast_guard_refusals_total 2\n", false}, {200, "up 1\n", false}, {500, "holdfast_guard_refusals_total 2\n", false}} {
		instance := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(answer.status)
			_, _ = io.WriteString(w, answer.text)
		}))
		defer instance.Close()
		urls = append(urls, instance.URL)
	}
	l := &loading{lab: &lab{settings: settings{Guard: true}}, spec: mustFind(t, "lua")}
	for n, want := range []string{"4", table.Unknown, table.Unknown} {
		l.fleet = &fleet{urls: []string{urls[0], urls[n]}}
		if got := table.Optional("%d", l.guardRefusals(t.Context())); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// TestClean checks that clean deletes the rows of a run, and nothing else.
func TestClean(t *testing.T) {
	t.Parallel()
	l := newLedger(t, newRecord())
	created := []string{"lt-0123456789-lua-crash", "lt-0123456789-segment-lock-1", "lt-0123456789-merged-r50-3", "lt-0123456789-lua-life-coupon", "lt-0123456789-lua-keys"}
	others := []string{"lt-sku", "lt-0123456789-nonesuch-1", "shoes", "lt-0123456789-lua-1-red"}
	for i, sku := range append(created, others...) {
		l.exec(t, "INSERT INTO stock (sku, kind, total, available) VALUES (?, 'product', 1, 0)", sku)
		l.exec(t, "INSERT INTO outbox (sku, epoch, number, delta, created_at) VALUES (?, 1, 1, 1, '2026-01-01')", sku)
		l.exec(t, "INSERT INTO claims (sku, buyer_id, units) VALUES (?, 'lt-buyer', 1)", sku)
		o := &storedOrder{order: numbered(i), history: steps{"paid"}, payments: map[string]string{paymentIDs(numbered(i).ID)[1]: "refund-due"}}
		o.Lines[0].SKU = sku
		l.storeEnded(t, o)
	}
	void := numbered(20)
	void.Status, void.Lines, void.BuyerID = "void", nil, buyers(1, 1)()
	theirs := numbered(21)
	theirs.Status, theirs.Lines, theirs.BuyerID = "void", nil, "lt-somebody"
	l.store(t, void)
	l.store(t, theirs)
	if err := l.cleanAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	for query, want := range map[string]int{
		"SELECT COUNT(*) FROM stock": len(others), "SELECT COUNT(*) FROM outbox": len(others),
		"SELECT COUNT(*) FROM order_lines": len(others), "SELECT COUNT(*) FROM orders": len(others) + 1,
		"SELECT COUNT(*) FROM claims": len(others), "SELECT COUNT(*) FROM order_history": len(others), "SELECT COUNT(*) FROM payments": len(others),
	} {
		var n int
		if err := l.sql.DB().Raw(query).Row().Scan(&n); err != nil || n != want {
			t.Errorf("%s: %d, want %d (%v)", query, n, want, err)
		}
	}
}

// newSearch returns a search for the highest rate with a p99 of 50 ms.
func newSearch() *search {
	return &search{lab: &lab{settings: settings{Probes: 3, P99: 50 * time.Millisecond}, stderr: io.Discard}}
}

// TestProbes checks that the majority of the probes of a rate decide.
func TestProbes(t *testing.T) {
	t.Parallel()
	loads := map[int][]float64{ // p99s of the loads of each rate, in order
		50: {10, 90, 20}, 100: {90, 30, 20}, 200: {10, 80, 70}, 150: {60, 61}, 125: {40, 45}, 137: {99, 98}, 131: {10, 11},
	}
	s := newSearch()
	s.load = func(rate int) (*results.Result, error) {
		if len(loads[rate]) == 0 {
			t.Fatalf("the rate %d is loaded too often", rate)
		}
		p99 := loads[rate][0]
		loads[rate] = loads[rate][1:]
		return &results.Result{Rate: rate, P99: new(p99), Verdict: results.AsPromised}, nil
	}
	held, missed, ended, err := s.bisect()
	if err != nil || ended != nil || held == nil || missed == nil || held.Rate != 131 || missed.Rate != 137 {
		t.Fatalf("held %v, missed %v, ended %v: %v", held, missed, ended, err)
	}
	if *held.P99 != 10 || *missed.P99 != 98 {
		t.Errorf("p99s %v and %v are not the medians", *held.P99, *missed.P99)
	}
	var rates []string
	for _, p := range s.all {
		rates = append(rates, fmt.Sprint(p.Rate, " ", p.Held))
	}
	want := "50 true, 50 false, 50 true, 100 false, 100 true, 100 true, 200 true, 200 false, 200 false, " +
		"150 false, 150 false, 125 true, 125 true, 137 false, 137 false, 131 true, 131 true"
	if got := strings.Join(rates, ", "); got != want {
		t.Errorf("probes %s, want %s", got, want)
	}
}

// TestProbes_Broken checks that a load that breaks a promise ends the search, even if the other
// loads of the same rate break none.
func TestProbes_Broken(t *testing.T) {
	t.Parallel()
	loads := []string{results.AsPromised, results.AsPromised, results.AsPromised, results.Broken}
	s := newSearch()
	s.load = func(rate int) (*results.Result, error) {
		return &results.Result{Rate: rate, P99: new(0.0), Verdict: loads[len(s.all)]}, nil
	}
	if _, _, ended, err := s.bisect(); err != nil || ended == nil || ended.Verdict != results.Broken {
		t.Errorf("ended %v: %v", ended, err)
	}
}

// TestHolds checks which open loads keep a limit of 50 ms.
func TestHolds(t *testing.T) {
	t.Parallel()
	for want, loads := range map[bool][]results.Result{
		true:  {{Accepted: 10, P99: new(50.0)}, {Accepted: 500, Refused: 490, TurnedDown: 9, Failed: 1, P99: new(1.0)}},
		false: {{Accepted: 10, P99: new(50.1)}, {Accepted: 10}, {Accepted: 998, Failed: 1, P99: new(1.0)}, {Accepted: 999, Dropped: 1, P99: new(1.0)}},
	} {
		for _, r := range loads {
			if got := holds(&r, 50*time.Millisecond); got != want {
				t.Errorf("%s: %v", arrivalsText(&r), got)
			}
		}
	}
}

// TestP99 checks that a load without answers counts as the slowest.
func TestP99(t *testing.T) {
	t.Parallel()
	fast, slow := 1.0, 2.0
	loads := []*results.Result{{Rate: 1}, {Rate: 2, P99: &slow}, {Rate: 3, P99: &fast}}
	if got := measure.MedianItem(loads, p99); got.Rate != 2 {
		t.Errorf("the median is the load at %d a second", got.Rate)
	}
}
