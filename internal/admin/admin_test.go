package admin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-stock/holdfast/internal/ledger"
	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// errUnreachable is the error of a store that cannot be reached.
var errUnreachable = errors.New("the store is unreachable")

const apple stock.SKU = "apple"

// shop has an Admin over a gate, a ledger and a reconciler in memory. These implement their
// documented contracts for the SKU apple. A test sets their failures.
type shop struct {
	*Admin
	gate       *fakeGate // nil if there is no gate
	ledger     *fakeLedger
	reconciler *fakeReconciler
	calls      []string    // calls of gate, ledger and reconciler, in order
	changed    []stock.SKU // the arguments of StockChanged
}

func newShop(withGate bool) *shop {
	s := new(shop)
	s.ledger = &fakeLedger{shop: s}
	s.reconciler = &fakeReconciler{shop: s}
	var g Gate
	if withGate {
		s.gate = &fakeGate{shop: s}
		g = s.gate
	}
	s.Admin = New(g, s.ledger, s.reconciler, fakeOrders{s}, slog.New(slog.DiscardHandler))
	return s
}

// stocked returns a shop with 10 apples. Some of them are sold.
func stocked(withGate bool, sold int64) *shop {
	s := newShop(withGate)
	s.ledger.row = &ledger.StockRow{SKU: apple, Kind: stock.Product, Total: 10, Available: 10 - sold, Epoch: 1}
	if withGate {
		s.gate.filled, s.gate.available = true, 10-sold
	}
	return s
}

// logging returns what the Admin logs from now on.
func (s *shop) logging() *bytes.Buffer {
	log := new(bytes.Buffer)
	s.log = slog.New(slog.NewTextHandler(log, nil))
	return log
}

func (s *shop) call(name string) { s.calls = append(s.calls, name) }

// set sets the total of apple.
func (s *shop) set(ctx context.Context, total int64) (Stock, bool, error) {
	return s.SetStock(ctx, stock.Setting{SKU: apple, Kind: stock.Product, Total: total})
}

// want asserts the calls since the last one, and apple's counts.
func (s *shop) want(t *testing.T, total, available int64, calls ...string) {
	t.Helper()
	if !slices.Equal(s.calls, calls) {
		t.Errorf("the calls were %q, want %q", s.calls, calls)
	}
	s.calls = nil
	if row := s.ledger.row; row == nil || row.Total != total || row.Available != available {
		t.Errorf("the row is %+v, want a total of %d, %d available", row, total, available)
	}
	if g := s.gate; g != nil && (!g.filled || g.available != available || g.inFlight != 0) {
		t.Errorf("the gate has %+v, want %d available", g, available)
	}
}

type fakeGate struct {
	*shop
	filled              bool
	available, inFlight int64

	refuse func() error // called before a take, unless nil; take returns its error
	lost   error        // the answer of a take that was cut, if not nil
}

func (g *fakeGate) Take(_ context.Context, d stock.Deduction) (stock.Take, error) {
	g.call("take")
	if g.refuse != nil {
		if err := g.refuse(); err != nil {
			return stock.Take{}, err
		}
	}
	switch n := d.Lines[0].Quantity; {
	case !g.filled:
		return stock.Take{}, stock.Refuse(apple, stock.ErrNotFilled)
	case g.available < n:
		return stock.Take{}, stock.Refuse(apple, stock.ErrSoldOut)
	default:
		g.available -= n
		g.inFlight += n
	}
	if g.lost != nil {
		return stock.Take{}, g.lost
	}
	return stock.Take{Deduction: d, Receipt: stock.Receipt{{Epoch: 1}}}, nil
}

type fakeLedger struct {
	*shop
	row         *ledger.StockRow // nil: the row does not exist
	sold        int64
	undelivered int64 // units that have not reached the gate

	refuse func() error                                // called before Set, unless nil; Set returns its error
	answer func(out order.Outcome) order.Outcome       // if not nil, replaces the outcome of Shrink
	meet   func(t stock.Take) (refusal error, ok bool) // called before Shrink if not nil; if ok, refusal is the outcome
}

func (l *fakeLedger) Row(context.Context, stock.SKU) (ledger.StockRow, error) {
	if l.row == nil {
		return ledger.StockRow{}, stock.Refuse(apple, stock.ErrUnknownSKU)
	}
	return *l.row, nil
}

func (l *fakeLedger) Rows(_ context.Context, after stock.SKU, limit int) ([]ledger.StockRow, error) {
	if l.row == nil || after >= apple || limit < 1 {
		return nil, nil
	}
	return []ledger.StockRow{*l.row}, nil
}

func (l *fakeLedger) Recount(context.Context, []stock.SKU) ([]ledger.Count, error) {
	if l.row == nil {
		return nil, nil
	}
	return []ledger.Count{{StockRow: *l.row, Held: l.sold}}, nil
}

func (l *fakeLedger) Set(_ context.Context, s stock.Setting) (row ledger.StockRow, created bool, err error) {
	l.call("set")
	if l.refuse != nil {
		if err := l.refuse(); err != nil {
			return row, false, err
		}
	}
	switch {
	case l.row == nil:
		l.row = &ledger.StockRow{SKU: s.SKU, Kind: s.Kind, Total: s.Total, Available: s.Total, Epoch: 1}
		created = true
	case l.row.Kind != s.Kind:
		return row, false, stock.ErrKindFixed
	default:
		if added := s.Total - l.row.Total; added > 0 {
			l.row.Total += added
			l.row.Available += added
			l.undelivered += added
		}
	}
	return *l.row, created, nil
}

func (l *fakeLedger) CountClaims(context.Context, stock.SKU) (ledger.StockRow, error) {
	l.call("count")
	if l.refuse != nil {
		if err := l.refuse(); err != nil {
			return *l.row, err
		}
	}
	l.row.CountedTo.Valid = false
	return *l.row, nil
}

func (l *fakeLedger) Shrink(_ context.Context, t stock.Take, s stock.Setting) (row ledger.StockRow, out order.Outcome) {
	l.call("shrink")
	row = *l.row
	n := t.Lines[0].Quantity
	if l.meet != nil {
		if refusal, ok := l.meet(t); ok {
			return row, order.Refused(refusal)
		}
	}
	switch {
	case l.row.Total-n != s.Total:
		out = order.Refused(stock.ErrRowChanged)
	case l.gate != nil && t.Epoch(0) != l.row.Epoch:
		out = order.Refused(stock.Refuse(apple, stock.ErrStaleEpoch))
	case l.row.Available < n:
		out = order.Refused(stock.ErrBelowSold)
	default:
		l.row.Total -= n
		l.row.Available -= n
		out = order.Committed()
	}
	if l.answer != nil {
		return row, l.answer(out)
	}
	return *l.row, out
}

type fakeOrders struct{ *shop }

func (o fakeOrders) StockChanged(skus ...stock.SKU) { o.changed = append(o.changed, skus...) }

type fakeReconciler struct {
	*shop
	unusable, cannot error         // answers of Usable and PrepareRetry, if not nil
	levels           []stock.Level // answer of Levels, if not nil
	noLevels         error         // answer of Levels, if not nil
	noFill           error         // answer of Refill and Deliver, if not nil
	resolved         order.Outcome // resolution of an unknown outcome
}

func (r *fakeReconciler) Usable(context.Context) error { return r.unusable }

func (r *fakeReconciler) Levels(context.Context, []ledger.StockRow) ([]stock.Level, error) {
	if r.noLevels != nil {
		return nil, r.noLevels
	}
	if r.levels != nil {
		return r.levels, nil
	}
	return []stock.Level{{SKU: apple, Filled: r.gate.filled, Epoch: 1, Available: r.gate.available, InFlight: r.gate.inFlight}}, nil
}

func (r *fakeReconciler) PrepareRetry(_ context.Context, reason error, skus ...stock.SKU) error {
	r.call("retry")
	if !stock.Reconcilable(reason) || !slices.Equal(skus, []stock.SKU{apple}) {
		return fmt.Errorf("asked to prepare a retry of %v: %w", skus, reason)
	}
	if r.cannot != nil {
		return r.cannot
	}
	r.fill()
	return nil
}

// fill replaces the gate's count with the row's.
func (r *fakeReconciler) fill() {
	if r.gate != nil && r.ledger.row != nil {
		r.gate.filled, r.gate.available, r.gate.inFlight = true, r.ledger.row.Available, 0
		r.ledger.undelivered = 0
	}
}

func (r *fakeReconciler) Refill(context.Context, stock.SKU) error {
	r.call("refill")
	if r.noFill == nil {
		r.fill()
	}
	return r.noFill
}

func (r *fakeReconciler) Deliver(_ context.Context, sku stock.SKU) error {
	r.call("deliver")
	if sku != apple {
		return fmt.Errorf("asked to deliver additions to %q", sku)
	}
	if r.noFill == nil && r.gate != nil {
		r.gate.available += r.ledger.undelivered
		r.ledger.undelivered = 0
	}
	return r.noFill
}

func (r *fakeReconciler) CatchUp(_ context.Context, skus ...stock.SKU) error {
	r.call("catch up")
	if r.noFill == nil && r.gate != nil && slices.Equal(skus, []stock.SKU{apple}) {
		r.gate.available += r.ledger.undelivered
		r.ledger.undelivered = 0
	}
	return r.noFill
}

func (r *fakeReconciler) FinishTake(ctx context.Context, t stock.Take, out order.Outcome) order.Outcome {
	if r.gate != nil && t.Epoch(0) != 1 {
		r.call("without the receipt")
	}
	r.call("end")
	if out.Unknown() {
		out = r.resolved
	}
	switch {
	case out.Unknown():
	case !out.Committed():
		r.giveBack()
	case r.gate != nil:
		r.gate.inFlight = 0
	}
	return out
}

func (r *fakeReconciler) GiveBack(context.Context, stock.Take) bool {
	r.call("give back")
	r.giveBack()
	return true
}

func (r *fakeReconciler) giveBack() {
	if r.gate != nil {
		r.gate.available += r.gate.inFlight
		r.gate.inFlight = 0
	}
}

// failing returns a function that returns err the first n times, and then nil.
func failing(n int, err error) func() error {
	return func() error {
		if n == 0 {
			return nil
		}
		n--
		return err
	}
}

// TestCreate checks that a new SKU is filled at the gate, and that it is created
// even if the fill fails.
func TestCreate(t *testing.T) {
	t.Parallel()
	for _, fault := range []error{nil, errUnreachable} {
		s := newShop(true)
		s.reconciler.noFill = fault
		log := s.logging()
		st, created, err := s.set(t.Context(), 10)
		if want := (Stock{SKU: apple, Kind: stock.Product, Total: 10, Available: 10}); err != nil || !created || st != want || s.gate.filled != (fault == nil) {
			t.Errorf("answered %+v, created %v, %v; want %+v", st, created, err, want)
		}
		if strings.Contains(log.String(), "filling the gate with a new SKU failed") != (fault != nil) {
			t.Errorf("logged %q", log)
		}
	}
	s := newShop(false)
	if _, created, err := s.set(t.Context(), 10); err != nil || !created {
		t.Errorf("without a gate: created %v, %v", created, err)
	}
	s.want(t, 10, 10, "set", "refill")
}

// TestRaise checks that added units are delivered to the gate, and that they are
// added even if the delivery fails.
func TestRaise(t *testing.T) {
	t.Parallel()
	s := stocked(true, 4)
	st, created, err := s.set(t.Context(), 15)
	if want := (Stock{SKU: apple, Kind: stock.Product, Total: 15, Available: 11, Sold: 4}); err != nil || created || st != want {
		t.Errorf("answered %+v, created %v, %v; want %+v", st, created, err, want)
	}
	s.want(t, 15, 11, "set", "deliver")
	s.reconciler.noFill = errUnreachable
	log := s.logging()
	if st, _, err := s.set(t.Context(), 16); err != nil || st.Total != 16 || st.Available != 11 {
		t.Errorf("answered %+v, %v", st, err)
	}
	if !strings.Contains(log.String(), "applying added stock at the gate failed") {
		t.Errorf("logged %q", log)
	}
	// A second call with the same total delivers the rest.
	s.reconciler.noFill, s.calls = nil, nil
	if _, _, err := s.set(t.Context(), 16); err != nil {
		t.Error(err)
	}
	s.want(t, 16, 12, "set", "deliver")
}

// TestShrink checks that units are removed at the gate first, and then in the
// ledger, and are given back if the ledger refuses.
func TestShrink(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name      string
		noGate    bool
		total     int64
		prepare   func(s *shop)
		want      error // nil: the total is set
		available int64
		calls     []string
	}{
		{name: "free units", total: 7, available: 3, calls: []string{"set", "take", "shrink", "end"}},
		{name: "free units without a gate", noGate: true, total: 7, available: 3, calls: []string{"set", "shrink", "end"}},
		{name: "all free units", total: 4, available: 0, calls: []string{"set", "take", "shrink", "end"}},
		{name: "sold units", total: 3, want: stock.ErrBelowSold, calls: []string{"set", "take", "catch up", "take"}},
		{
			name: "units that have not reached the gate", total: 4, available: 0, calls: []string{"set", "take", "catch up", "take", "shrink", "end"},
			prepare: func(s *shop) { s.gate.available, s.ledger.undelivered = 4, 2 },
		},
		{
			name: "sold units at a gate that may lack others", total: 3, want: stock.ErrUnavailable, calls: []string{"set", "take", "catch up"},
			prepare: func(s *shop) { s.reconciler.noFill = errUnreachable },
		},
		{name: "sold units without a gate", noGate: true, total: 3, want: stock.ErrBelowSold, calls: []string{"set", "shrink", "end"}},
		{
			name: "units that the ledger does not have", total: 7, want: stock.ErrBelowSold, calls: []string{"set", "take", "shrink", "end"},
			prepare: func(s *shop) { s.ledger.meet = func(stock.Take) (error, bool) { return stock.ErrBelowSold, true } },
		},
		{
			name: "a busy gate", total: 7, want: stock.ErrBusy, calls: []string{"set", "take"},
			prepare: func(s *shop) { s.gate.refuse = failing(1, stock.ErrBusy) },
		},
		{
			name: "a burned take", total: 7, want: stock.ErrBusy, calls: []string{"set", "take"},
			prepare: func(s *shop) { s.gate.refuse = failing(1, stock.ErrBurned) },
		},
		{
			name: "a lost answer of the gate", total: 7, want: stock.ErrUnavailable, calls: []string{"set", "take", "give back"},
			prepare: func(s *shop) { s.gate.lost = errUnreachable },
		},
		{
			name: "an empty gate", total: 7, available: 3, calls: []string{"set", "take", "retry", "set", "take", "shrink", "end"},
			prepare: func(s *shop) { s.gate.filled = false },
		},
		{
			name: "a stale epoch", total: 7, available: 3, calls: []string{"set", "take", "shrink", "end", "retry", "set", "take", "shrink", "end"},
			prepare: func(s *shop) {
				refuse := failing(1, stock.Refuse(apple, stock.ErrStaleEpoch))
				s.ledger.meet = func(stock.Take) (error, bool) {
					err := refuse()
					return err, err != nil
				}
			},
		},
		{
			name: "a row that changes", total: 7, available: 3, calls: []string{"set", "take", "shrink", "end", "set", "take", "shrink", "end"},
			prepare: func(s *shop) {
				s.ledger.meet = func(stock.Take) (error, bool) {
					s.ledger.meet = nil
					s.ledger.row.Total++ // changed by another administrator
					s.ledger.row.Available++
					s.gate.available++
					return nil, false
				}
			},
		},
		{
			name: "a lost answer of the ledger", total: 7, available: 3, calls: []string{"set", "take", "shrink", "end"},
			prepare: func(s *shop) {
				s.ledger.answer = func(order.Outcome) order.Outcome { return order.Unknown(errUnreachable) }
				s.reconciler.resolved = order.Committed()
			},
		},
		{
			name: "a lost commit", total: 7, want: stock.ErrBusy, calls: []string{"set", "take", "shrink", "end"},
			prepare: func(s *shop) {
				s.ledger.meet = func(stock.Take) (error, bool) { return fmt.Errorf("%w: %w", stock.ErrBusy, errUnreachable), true }
			},
		},
		{
			name: "a ledger that is unreachable", total: 7, want: stock.ErrUnavailable, calls: []string{"set", "take", "shrink", "end"},
			prepare: func(s *shop) { s.ledger.meet = func(stock.Take) (error, bool) { return errUnreachable, true } },
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := stocked(!test.noGate, 4)
				if test.prepare != nil {
					test.prepare(s)
				}
				st, created, err := s.set(t.Context(), test.total)
				if created || !errors.Is(err, test.want) || errors.Is(err, stock.ErrUnavailable) != errors.Is(test.want, stock.ErrUnavailable) {
					t.Errorf("answered %+v, created %v, %v; want %v", st, created, err, test.want)
				}
				if test.want != nil {
					s.want(t, 10, 6, test.calls...)
					return
				}
				if want := (Stock{SKU: apple, Kind: stock.Product, Total: test.total, Available: test.available, Sold: 4}); st != want {
					t.Errorf("answered %+v, want %+v", st, want)
				}
				s.want(t, test.total, test.available, test.calls...)
			})
		})
	}
}

// TestTries checks that a change of stock is tried again a bounded number of times.
func TestTries(t *testing.T) {
	t.Parallel()
	for _, reason := range []error{
		stock.ErrRowChanged, stock.Refuse(apple, stock.ErrNotAdopted), stock.Refuse(apple, stock.ErrLaterGeneration),
	} {
		for _, failures := range []int{1, 9, 10} {
			t.Run(fmt.Sprint(failures, " times ", reason), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := stocked(true, 4)
					s.ledger.refuse = failing(failures, reason)
					var calls []string
					for range failures {
						calls = append(calls, "set")
						if stock.Reconcilable(reason) {
							calls = append(calls, "retry")
						}
					}
					start := time.Now()
					_, _, err := s.set(t.Context(), 15)
					if failures > 1 && time.Since(start) == 0 {
						t.Error("it did not wait between its tries")
					}
					if failures == 10 {
						if !errors.Is(err, stock.ErrBusy) || !errors.Is(err, reason) {
							t.Errorf("answered %v, want busy and %v", err, reason)
						}
						s.want(t, 10, 6, calls...)
						return
					}
					if err != nil {
						t.Error(err)
					}
					s.want(t, 15, 11, append(calls, "set", "deliver")...)
				})
			})
		}
	}
}

// TestRefusals checks the answers to changes that cannot be made.
func TestRefusals(t *testing.T) {
	t.Parallel()
	superseded := fmt.Errorf("%w: %q", stock.ErrSuperseded, "merged")
	for _, test := range []struct {
		name    string
		prepare func(s *shop)
		want    error
		calls   []string
	}{
		{"superseded", func(s *shop) { s.reconciler.unusable = superseded }, stock.ErrSuperseded, nil},
		{"unusable", func(s *shop) { s.reconciler.unusable = errUnreachable }, stock.ErrUnavailable, nil},
		{"the ledger is unreachable", func(s *shop) { s.ledger.refuse = failing(1, errUnreachable) }, stock.ErrUnavailable, []string{"set"}},
		{"another kind", func(s *shop) { s.ledger.row.Kind = stock.Coupon }, stock.ErrKindFixed, []string{"set"}},
		{"closed before it opens", func(s *shop) { s.ledger.refuse = failing(1, stock.ErrHours) }, stock.ErrHours, []string{"set"}},
		{"superseded before the retry", func(s *shop) {
			s.ledger.refuse, s.reconciler.cannot = failing(1, stock.ErrNotAdopted), superseded
		}, stock.ErrSuperseded, []string{"set", "retry"}},
		{"no retry", func(s *shop) {
			s.ledger.refuse, s.reconciler.cannot = failing(1, stock.ErrNotAdopted), errUnreachable
		}, stock.ErrUnavailable, []string{"set", "retry"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := stocked(true, 4)
			test.prepare(s)
			st, created, err := s.set(t.Context(), 15)
			if created || !errors.Is(err, test.want) || errors.Is(err, stock.ErrUnavailable) != errors.Is(test.want, stock.ErrUnavailable) {
				t.Errorf("answered %+v, created %v, %v; want %v", st, created, err, test.want)
			}
			s.want(t, 10, 6, test.calls...)
		})
	}
}

// TestRead checks the answers about a SKU, even if the gate lacks its count: reading does not fill
// the gate, and an audit does.
func TestRead(t *testing.T) {
	t.Parallel()
	s := stocked(true, 4)
	s.ledger.sold = 4
	s.gate.filled, s.gate.available = false, 0
	want := Stock{SKU: apple, Kind: stock.Product, Total: 10, Available: 6, Sold: 4}
	if st, err := s.Stock(t.Context(), apple); err != nil || st != want {
		t.Errorf("read %+v, %v; want %+v", st, err, want)
	}
	if page, next, err := s.ListStock(t.Context(), "", 1); err != nil || next != "" || !slices.Equal(page, []Stock{want}) {
		t.Errorf("listed %+v, next %q, %v", page, next, err)
	}
	if s.gate.filled {
		t.Error("reading has filled the gate")
	}
	s.reconciler.noFill = stock.ErrSuperseded
	if audit, err := s.Audit(t.Context(), apple); !errors.Is(err, stock.ErrSuperseded) || errors.Is(err, stock.ErrUnavailable) {
		t.Errorf("without a count: audited %+v, %v", audit, err)
	}
	s.reconciler.noFill = nil
	audit, err := s.Audit(t.Context(), apple)
	if err != nil || *audit.GateAvailable != 6 || audit.Drift != 0 {
		t.Errorf("audited %+v, %v", audit, err)
	}
	s.want(t, 10, 6, "refill", "refill")
	s.gate.available, s.gate.inFlight = 3, 2
	audit, err = s.Audit(t.Context(), apple)
	if err != nil || *audit.GateAvailable != 3 || *audit.GateInFlight != 2 || audit.LedgerAvailable != 6 || audit.Sold != 4 || audit.Drift != -1 {
		t.Errorf("audited %+v, %v", audit, err)
	}
	if st, err := s.Stock(t.Context(), apple); err != nil || st.Available != 3 {
		t.Errorf("read %+v, %v; want the gate's count", st, err)
	}
	s.reconciler.noLevels = errUnreachable
	for name, read := range map[string]func() error{
		"stock": func() error { _, err := s.Stock(t.Context(), apple); return err },
		"list":  func() error { _, _, err := s.ListStock(t.Context(), "", 1); return err },
		"audit": func() error { _, err := s.Audit(t.Context(), apple); return err },
	} {
		if err := read(); !errors.Is(err, stock.ErrUnavailable) || !errors.Is(err, errUnreachable) {
			t.Errorf("%s: answered %v", name, err)
		}
	}
	if page, _, err := s.ListStock(t.Context(), apple, 1); err != nil || len(page) > 0 { // listing needs no gate
		t.Errorf("listed %+v behind the last SKU, %v", page, err)
	}
	s.ledger.row = nil
	_, readErr := s.Stock(t.Context(), apple)
	_, auditErr := s.Audit(t.Context(), apple)
	for _, err := range []error{readErr, auditErr} {
		if !errors.Is(err, stock.ErrUnknownSKU) || errors.Is(err, stock.ErrUnavailable) {
			t.Errorf("answered %v", err)
		}
	}

	s = stocked(false, 4)
	s.ledger.sold = 12
	audit, err = s.Audit(t.Context(), apple)
	if err != nil || audit.GateAvailable != nil || audit.GateInFlight != nil || audit.Oversold != 2 || audit.Drift != 8 {
		t.Errorf("without a gate: audited %+v, %v", audit, err)
	}
}

// listed is a ledger with several stock rows.
type listed struct {
	*fakeLedger
	rows []ledger.StockRow
	err  error
}

func (l listed) Rows(_ context.Context, after stock.SKU, limit int) (page []ledger.StockRow, err error) {
	for _, row := range l.rows {
		if row.SKU > after && len(page) < limit {
			page = append(page, row)
		}
	}
	return page, l.err
}

// TestListStock_Pages checks that pages follow each other without a gap or an overlap, and that the last
// one is marked as the last.
func TestListStock_Pages(t *testing.T) {
	t.Parallel()
	s := newShop(false)
	l := listed{fakeLedger: s.ledger, rows: []ledger.StockRow{{SKU: "a"}, {SKU: "b"}, {SKU: "c"}, {SKU: "d"}, {SKU: "e"}}}
	s.Admin.ledger = l
	for limit := 1; limit <= len(l.rows)+1; limit++ {
		var found []stock.SKU
		for after, pages := stock.SKU(""), 0; after != "" || pages == 0; pages++ {
			page, next, err := s.ListStock(t.Context(), after, limit)
			if err != nil || len(page) > limit || len(page) == 0 {
				t.Fatalf("a page of up to %d: %+v, %v", limit, page, err)
			}
			for _, st := range page {
				found = append(found, st.SKU)
			}
			after = next
		}
		if !slices.Equal(found, []stock.SKU{"a", "b", "c", "d", "e"}) {
			t.Errorf("pages of up to %d have %v", limit, found)
		}
	}
	l.err = errUnreachable
	s.Admin.ledger = l
	if _, _, err := s.ListStock(t.Context(), "", 1); !errors.Is(err, stock.ErrUnavailable) || !errors.Is(err, errUnreachable) {
		t.Errorf("an unreachable ledger: %v", err)
	}
}

// TestListStock_Unfilled checks that a SKU of a page has the stock row's count if the gate lacks it,
// and otherwise the gate's.
func TestListStock_Unfilled(t *testing.T) {
	t.Parallel()
	s := newShop(true)
	s.Admin.ledger = listed{fakeLedger: s.ledger, rows: []ledger.StockRow{{SKU: "a", Available: 1}, {SKU: "b", Available: 2}}}
	for filled := range 2 {
		s.reconciler.levels = []stock.Level{{SKU: "a"}, {SKU: "b"}}
		s.reconciler.levels[filled].Filled, s.reconciler.levels[filled].Available = true, 9
		want := []int64{1, 2}
		want[filled] = 9
		page, _, err := s.ListStock(t.Context(), "", 2)
		if err != nil || page[0].Available != want[0] || page[1].Available != want[1] {
			t.Errorf("listed %+v, %v; want %v available", page, err, want)
		}
	}
}

// TestSetStock_CountsClaims checks that SetStock returns once a buyer limit is in effect, and shows
// no limit before.
func TestSetStock_CountsClaims(t *testing.T) {
	s := stocked(false, 4)
	s.ledger.row.BuyerLimit, s.ledger.row.CountedTo.Valid = 3, true
	if st, err := s.Stock(t.Context(), apple); err != nil || st.BuyerLimit != 0 {
		t.Errorf("while claims are counted: %+v, %v", st, err)
	}
	var failure error
	s.ledger.refuse = func() error {
		if slices.Contains(s.calls, "count") {
			return failure
		}
		return nil
	}
	// The total is raised, and then the count fails. Busy would mean that nothing was changed.
	for _, failure = range []error{errUnreachable, stock.Busy(errUnreachable)} {
		s.calls = nil
		total := s.ledger.row.Total + 1
		if _, _, err := s.set(t.Context(), total); !errors.Is(err, stock.ErrUnavailable) || !errors.Is(err, errUnreachable) || s.ledger.row.Total != total {
			t.Errorf("the count fails with %v: %v, the total is %d", failure, err, s.ledger.row.Total)
		}
	}
	s.ledger.refuse = nil
	if st, _, err := s.set(t.Context(), s.ledger.row.Total); err != nil || st.BuyerLimit != 3 {
		t.Errorf("after the count: %+v, %v", st, err)
	}
}

// TestStockChanged checks that orders are notified of every committed change of a SKU, even if its
// answer was lost.
func TestStockChanged(t *testing.T) {
	t.Parallel()
	for _, lost := range []error{nil, errUnreachable} {
		s := stocked(true, 0)
		s.ledger.refuse = func() error {
			if len(s.changed) > 0 {
				t.Errorf("the orders were told before the commit")
			}
			return lost
		}
		if _, _, err := s.set(t.Context(), 10); (err != nil) != (lost != nil) {
			t.Errorf("answered %v", err)
		}
		if !slices.Equal(s.changed, []stock.SKU{apple}) {
			t.Errorf("the orders were told of %v", s.changed)
		}
	}
}
