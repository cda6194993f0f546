package reconcile

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-stock/holdfast/internal/ledger"
	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/stock/gate"
	"github.com/holdfast-stock/holdfast/internal/store"
)

// stockUp adds stock rows of 10 units to the ledger, and fills the gate if it is not
// nil. It returns the epoch of all of them.
func stockUp(t *testing.T, l *fakeLedger, gate *fakeGate, skus ...stock.SKU) (epoch int64) {
	t.Helper()
	epoch, err := l.Generation().Renew()
	if err != nil {
		t.Fatal(err)
	}
	for _, sku := range skus {
		l.rows[sku] = ledger.StockRow{SKU: sku, Epoch: epoch, Available: 10}
		if gate == nil {
			continue
		}
		if err := gate.Fill(t.Context(), sku, epoch, 10); err != nil {
			t.Fatal(err)
		}
	}
	return epoch
}

// TestCompareInPages checks that the comparison cycles through the stock rows a page at a time,
// even if the last page is empty. It must fill counts that the gate lacks, and adapt its pace to
// its findings.
func TestCompareInPages(t *testing.T) {
	t.Parallel()
	for _, rows := range []int{2 * pageSize, 2*pageSize + 1} {
		t.Run(strconv.Itoa(rows), func(t *testing.T) {
			r, gate, l := started(t, &ownerRow{})
			skus := make([]stock.SKU, rows)
			for n := range skus {
				skus[n] = stock.SKU(fmt.Sprintf("sku-%06d", n))
			}
			stockUp(t, l, nil, skus...)
			gate.redis.counts[skus[0]] = stock.Level{SKU: skus[0]}
			for round, want := range [][]pace{
				{whileRefilling, whileRefilling, afterRound},
				{withinRound, withinRound, afterRound},
			} {
				for step, want := range want {
					if got, err := r.compareNext(t.Context()); err != nil || got != want {
						t.Errorf("round %d, step %d: pace %+v, %v; want %+v", round, step, got, err, want)
					}
					filled := 0
					for _, level := range gate.redis.counts {
						if level.Filled {
							filled++
						}
					}
					if want := min(pageSize*(3*round+step+1), len(skus)); filled != want {
						t.Errorf("round %d, step %d: %d counts are filled, want %d", round, step, filled, want)
					}
				}
			}
			if n := value(t, r.metrics.refills); len(l.raises) != len(skus) || int(n) != len(skus) {
				t.Errorf("%d epochs were raised, %v refills counted, want %d", len(l.raises), n, len(skus))
			}
		})
	}
}

// TestCompareMeetsALaterGeneration checks that an instance that compares a row of a later
// generation moves to that generation, and refills the row under it.
func TestCompareMeetsALaterGeneration(t *testing.T) {
	t.Parallel()
	row := &ownerRow{}
	r, gate, l := started(t, row)
	later := l.Generation() + 1 // another instance has raised the generation
	row.owner.Generation, gate.redis.loaded[later] = later, true
	first, _ := later.Epochs()
	l.rows["a"] = ledger.StockRow{SKU: "a", Epoch: first + 1, Available: 10}
	for range 2 {
		if err := r.Sweep(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if l.Generation() != later || gate.using != later {
		t.Errorf("uses generation %d, and %d at the gate, want %d", l.Generation(), gate.using, later)
	}
	if level := gate.redis.counts["a"]; level.Available != 10 || stock.GenerationOf(level.Epoch) != later {
		t.Errorf("the gate has %+v", level)
	}
}

// TestUnreadableCounts checks that an unreadable page is read again. An unreadable count must not
// keep the others from being filled, and must not be filled itself. Both must be reported.
func TestUnreadableCounts(t *testing.T) {
	t.Parallel()
	type step struct {
		pace   pace
		fails  bool
		filled int // number of filled counts so far
	}
	for name, test := range map[string]struct {
		unreadable func(stock.SKU) bool // unreadable SKUs in the first steps
		steps      []step
		then       step
	}{
		"all": {
			func(stock.SKU) bool { return true },
			[]step{{afterRound, true, 0}}, step{whileRefilling, false, pageSize},
		},
		"one": {
			func(sku stock.SKU) bool { return sku == "sku-000000" },
			[]step{{whileRefilling, true, pageSize - 1}, {afterRound, false, pageSize}, {withinRound, true, pageSize}, {afterRound, false, pageSize}},
			step{whileRefilling, false, pageSize + 1},
		},
	} {
		r, gate, l := started(t, &ownerRow{})
		for n := range pageSize + 1 {
			stockUp(t, l, nil, stock.SKU(fmt.Sprintf("sku-%06d", n)))
		}
		take := func(want step) {
			t.Helper()
			got, err := r.compareNext(t.Context())
			if got != want.pace || (err != nil) != want.fails || len(l.raises) != want.filled {
				t.Errorf("%s: pace %+v, %v, %d SKUs are filled; want %+v", name, got, err, len(l.raises), want)
			}
		}
		gate.unreadable = test.unreadable
		for _, want := range test.steps {
			take(want)
		}
		gate.unreadable = nil
		take(test.then)
	}
}

// TestSecondLook checks what is done about a SKU whose gate and ledger differ. It must be refilled
// only if nothing has changed for a pause, and only if no records account for the difference.
func TestSecondLook(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name      string
		available int64
		inFlight  int64
		recorded  int64
		changes   bool // whether the counts change between the two checks
		refilled  bool
	}{
		{name: "no difference", available: 10},
		{name: "too few", available: 8, refilled: true},
		{name: "too many", available: 12, refilled: true},
		{name: "a sale between the looks", available: 8, changes: true},
		{name: "in flight with records", available: 7, inFlight: 3, recorded: 3},
		{name: "in flight without records", available: 7, inFlight: 3, refilled: true},
		{name: "in flight with too few records", available: 7, inFlight: 3, recorded: 1, refilled: true},
		{name: "less than nothing in flight", available: 10, inFlight: -1, refilled: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, gate, l := started(t, &ownerRow{})
				epoch := stockUp(t, l, gate, "a", "other")
				set := func(available int64) {
					gate.redis.counts["a"] = stock.Level{SKU: "a", Filled: true, Epoch: epoch, Available: available, InFlight: test.inFlight}
				}
				set(test.available)
				for range test.recorded {
					gate.redis.inFlight = append(gate.redis.inFlight, takeOf("a", epoch))
				}
				step := func(want bool) {
					t.Helper()
					if _, err := r.compareNext(t.Context()); err != nil {
						t.Error(err)
					}
					if refilled := len(l.raises) > 0; refilled != want {
						t.Errorf("refilled %v, want %v", refilled, want)
					}
				}
				step(false)
				time.Sleep(sweepPause - time.Nanosecond)
				step(false) // too early for a second check
				if test.changes {
					set(test.available - 1)
				}
				time.Sleep(time.Nanosecond)
				step(test.refilled)
				if test.refilled && gate.redis.counts["a"].Available != 10 {
					t.Errorf("the gate has %+v", gate.redis.counts["a"])
				}
				if len(l.raises) > 1 || test.refilled && l.raises[0] != "a" {
					t.Errorf("refilled %v", l.raises)
				}
				if test.inFlight > 0 && test.recorded == test.inFlight { // records account for all units, so they are not read again before the pause is over
					log := r.logged()
					gate.unlisted = true
					if step(false); log.String() != "" {
						t.Errorf("logged %q", log.String())
					}
				}
			})
		})
	}
}

// TestManyInFlight checks that units in flight are compared with their records even if there are
// many takes, and that too many of them do not end the comparison.
func TestManyInFlight(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name               string
		inFlight, recorded int
		refilled           []stock.SKU
	}{
		{"all have records", 10_000, 10_000, []stock.SKU{"other"}},
		{"one has no record", 10_001, 10_000, []stock.SKU{"a", "other"}},
		{"too many to count", maxCounted + 1, maxCounted, []stock.SKU{"other"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, gate, l := started(t, &ownerRow{})
				epoch := stockUp(t, l, gate, "a", "other")
				gate.redis.counts["a"] = stock.Level{SKU: "a", Filled: true, Epoch: epoch, InFlight: int64(test.inFlight)}
				gate.redis.counts["other"] = stock.Level{SKU: "other", Filled: true, Epoch: epoch, Available: 9}
				gate.redis.inFlight = slices.Repeat([]stock.Take{takeOf("a", epoch)}, test.recorded)
				log := r.logged()
				for range 2 {
					if _, err := r.compareNext(t.Context()); err != nil {
						t.Error(err)
					}
					time.Sleep(sweepPause)
				}
				if !slices.Equal(l.raises, test.refilled) {
					t.Errorf("refilled %v, want %v", l.raises, test.refilled)
				}
				if w := log.String(); strings.Contains(w, "too many takes") != (test.recorded == maxCounted) {
					t.Errorf("logged %s", w)
				}
			})
		})
	}
}

// TestRechecksAreBounded checks that the SKUs that wait for a second check are bounded.
func TestRechecksAreBounded(t *testing.T) {
	t.Parallel()
	c := comparison{rechecks: make(map[stock.SKU]recheck)}
	for n := range maxRechecks + 1 {
		c.note(stock.SKU(strconv.Itoa(n)), difference{}, stock.Comparison{Least: 1})
	}
	if len(c.rechecks) != maxRechecks {
		t.Errorf("%d SKUs wait for a second check", len(c.rechecks))
	}
}

// pagedLedger knows the greatest number of SKUs whose rows were read at once.
type pagedLedger struct {
	*fakeLedger
	most int
}

func (l *pagedLedger) RowsOf(ctx context.Context, skus []stock.SKU) ([]ledger.StockRow, error) {
	l.most = max(l.most, len(skus))
	return l.fakeLedger.RowsOf(ctx, skus)
}

// TestSecondLook_Pages checks that a step reads at most one page of the SKUs that need a second
// check. A sweep must read all of them, page by page.
func TestSecondLook_Pages(t *testing.T) {
	t.Parallel()
	for name, do := range map[string]func(ctx context.Context, r *Reconciler) error{
		"a step": func(ctx context.Context, r *Reconciler) error {
			_, err := r.compareNext(ctx)
			return err
		},
		"a sweep": func(ctx context.Context, r *Reconciler) error { return r.Sweep(ctx) },
	} {
		l := &pagedLedger{fakeLedger: newLedger(&ownerRow{})}
		r := newReconcilerOf(newGate(newRedis()), l)
		defer r.Close()
		if err := r.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		for n := range pageSize + 1 {
			r.comparison.rechecks[stock.SKU(strconv.Itoa(n))] = recheck{}
		}
		if err := do(t.Context(), r); err != nil || l.most != pageSize {
			t.Errorf("%s read %d rows at once, %v", name, l.most, err)
		}
	}
}

// TestRefillDrifted_Changed checks that a SKU whose counts have changed since the second check is
// not refilled.
func TestRefillDrifted_Changed(t *testing.T) {
	t.Parallel()
	r, gate, l := started(t, &ownerRow{})
	epoch := stockUp(t, l, gate, "a")
	for _, seen := range []difference{{epoch: epoch, gate: 9, ledger: 10}, {epoch: epoch, gate: 10, ledger: 9}} {
		if err := r.refillDrifted(t.Context(), "a", seen); err != nil || len(l.raises) > 0 {
			t.Errorf("refilled %v, %v", l.raises, err)
		}
	}
}

// TestSecondLookFails checks that a failed second check is logged, does not end the round, and is
// repeated.
func TestSecondLookFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, gate, l := started(t, &ownerRow{})
		epoch := stockUp(t, l, gate, "a")
		gate.redis.counts["a"] = stock.Level{SKU: "a", Filled: true, Epoch: epoch, Available: 7, InFlight: 3}
		step := func(unlisted, refilled bool) {
			t.Helper()
			log := r.logged()
			gate.unlisted = unlisted
			if _, err := r.compareNext(t.Context()); err != nil || len(l.raises) > 0 != refilled {
				t.Errorf("refilled %v, %v; want refilled %v", l.raises, err, refilled)
			}
			if w := log.String(); strings.Contains(w, "looking again") != unlisted {
				t.Errorf("logged %q", w)
			}
			time.Sleep(sweepPause)
		}
		step(false, false)
		step(true, false)
		step(false, true)
	})
}

// TestSecondLook_Unreadable checks that an unreadable count does not keep a second check from
// refilling the others, and is refilled later.
func TestSecondLook_Unreadable(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, gate, l := started(t, &ownerRow{})
		epoch := stockUp(t, l, gate, "a", "b")
		for _, sku := range []stock.SKU{"a", "b"} {
			gate.redis.counts[sku] = stock.Level{SKU: sku, Filled: true, Epoch: epoch, Available: 7}
		}
		look := func(want ...stock.SKU) {
			t.Helper()
			_, _ = r.compareNext(t.Context())
			if !slices.Equal(l.raises, want) {
				t.Errorf("refilled %v, want %v", l.raises, want)
			}
			time.Sleep(sweepPause)
		}
		look()
		gate.unreadable = func(sku stock.SKU) bool { return sku == "b" }
		look("a")
		gate.unreadable = nil
		look("a")
		look("a", "b")
	})
}

// TestCompareGoesOn makes one count unreadable, so that the job is released after each read of its
// page. The SKU of the next page must still be filled, and a SKU of the same page must get its
// second check.
func TestCompareGoesOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, gate, l := started(t, &ownerRow{})
		skus := make([]stock.SKU, pageSize+1)
		for n := range skus {
			skus[n] = stock.SKU(fmt.Sprintf("sku-%06d", n))
		}
		epoch := stockUp(t, l, gate, skus...)
		unreadable, low, lacking := skus[0], skus[1], skus[pageSize]
		gate.unreadable = func(sku stock.SKU) bool { return sku == unreadable }
		gate.redis.counts[low] = stock.Level{SKU: low, Filled: true, Epoch: epoch, Available: 7}
		delete(gate.redis.counts, lacking)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		r.keepComparing(ctx)
		for _, sku := range []stock.SKU{low, lacking} {
			if level := gate.redis.counts[sku]; !level.Filled || level.Available != 10 {
				t.Errorf("the gate has %+v of SKU %s, want 10 units", level, sku)
			}
		}
	})
}

// ownedLocal is a local locker that a gate may close.
type ownedLocal struct{ lock.Local }

func (ownedLocal) Close() error { return nil }

// TestVoidRecords checks that the void record of a take does not count for its SKU, so that no SKU
// without a difference is refilled.
func TestVoidRecords(t *testing.T) {
	t.Parallel()
	server, err := store.OpenInProcessRedis(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	for name, segments := range map[string]int{"Script": 0, "Segmented": 2} {
		t.Run(name, func(t *testing.T) {
			counter, l := gate.NewCounter(server.Client(), uuid.New(), gate.Layout{Segments: segments}), newLedger(&ownerRow{})
			var g gate.Gate = gate.NewScript(counter)
			if segments > 0 {
				g = gate.NewSegmented(counter, g, ownedLocal{lock.NewLocal()})
			}
			defer g.Close()
			r := New(counter, l, Options{
				Layout: "test", TakeDeadline: time.Hour, Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
			})
			defer r.Close()
			if err := r.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			take := func(lines ...stock.Line) {
				t.Helper()
				if _, err := g.Take(t.Context(), stock.Deduction{OrderID: uuid.New(), TakeID: uuid.New(), Buyer: "buyer-1", Lines: lines}); err != nil {
					t.Fatal(err)
				}
			}
			sweep := func(wantRaised ...stock.SKU) {
				t.Helper()
				if err := r.Sweep(t.Context()); err != nil || !slices.Equal(l.raises, wantRaised) {
					t.Errorf("%v; the epochs of %v rose, want %v", err, l.raises, wantRaised)
				}
			}
			stockUp(t, l, nil, "a", "b")
			sweep("a", "b")
			take(stock.Line{SKU: "a", Quantity: 3}, stock.Line{SKU: "b", Quantity: 2})
			row, err := l.RaiseEpoch(t.Context(), "a", l.rows["a"].Epoch, 0)
			if err != nil {
				t.Fatal(err)
			}
			if err := counter.Fill(t.Context(), "a", row.Epoch, row.Available); err != nil {
				t.Fatal(err)
			}
			take(stock.Line{SKU: "a", Quantity: 1})
			sweep("a", "b", "a") // the first check
			sweep("a", "b", "a")
			for _, want := range []stock.Level{{SKU: "a", Available: 9, InFlight: 1}, {SKU: "b", Available: 8, InFlight: 2}} {
				got, err := counter.Level(t.Context(), want.SKU)
				if err != nil || got[0].Available != want.Available || got[0].InFlight != want.InFlight {
					t.Errorf("the gate has %+v, %v, want %+v", got, err, want)
				}
			}
		})
	}
}

// rowless is a ledger whose stock rows cannot be read while err is not nil.
type rowless struct {
	*fakeLedger
	err error
}

func (l *rowless) Rows(ctx context.Context, after stock.SKU, limit int) ([]ledger.StockRow, error) {
	if l.err != nil {
		return nil, l.err
	}
	return l.fakeLedger.Rows(ctx, after, limit)
}

// TestComparison_Position checks that a comparison goes on with a page that could not be read, and that a
// sweep begins with the first one, wherever the comparison is.
func TestComparison_Position(t *testing.T) {
	t.Parallel()
	r, gate, l := started(t, &ownerRow{})
	var skus []stock.SKU
	for n := range pageSize + 1 {
		skus = append(skus, stock.SKU(fmt.Sprintf("sku-%04d", n)))
	}
	stockUp(t, l, gate, skus...)
	broken := &rowless{fakeLedger: l}
	r.ledger = broken
	for _, broken.err = range []error{nil, errUnreachable} {
		if _, err := r.compareNext(t.Context()); !errors.Is(err, broken.err) || r.comparison.after != skus[pageSize-1] {
			t.Errorf("%v; the next page begins after %q", err, r.comparison.after)
		}
	}
	broken.err = nil
	delete(gate.redis.counts, skus[0])
	if err := r.Sweep(t.Context()); err != nil || !gate.redis.counts[skus[0]].Filled {
		t.Errorf("swept, %v; the first count is %+v", err, gate.redis.counts[skus[0]])
	}
}
