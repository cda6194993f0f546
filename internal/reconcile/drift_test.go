package reconcile

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-stock/holdfast/internal/ledger"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// stockUp adds stock rows of 10 units to the ledger, and fills the gate if it is not
// nil. It returns the epoch of all of them.
func stockUp(t *testing.T, l *twinLedger, gate *twinGate, skus ...stock.SKU) (epoch int64) {
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

// TestCompareInPages checks that the comparison goes round the stock rows a page at a
// time, fills what the gate lacks, and paces itself by what it finds.
func TestCompareInPages(t *testing.T) {
	t.Parallel()
	gate, l := newGate(newRedis()), newLedger(&ownerRow{})
	r := newReconciler(gate, l)
	defer r.Close()
	if err := r.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	skus := make([]stock.SKU, 2*pageSize+1)
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
	if len(l.raises) != len(skus) {
		t.Errorf("%d epochs were raised, want %d", len(l.raises), len(skus))
	}
}

// TestCompareMeetsALaterGeneration checks that an instance that compares a row of a
// later generation moves to that generation, and refills the row under it.
func TestCompareMeetsALaterGeneration(t *testing.T) {
	t.Parallel()
	row := &ownerRow{}
	gate, l := newGate(newRedis()), newLedger(row)
	r := newReconciler(gate, l)
	defer r.Close()
	if err := r.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	later := l.Generation() + 1 // another instance has raised it
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
	if level := gate.redis.counts["a"]; level.Available != 10 || !later.Holds(level.Epoch) {
		t.Errorf("the gate has %+v", level)
	}
}

// TestUnreadablePage checks that a page that cannot be read is read again, and is not
// passed over.
func TestUnreadablePage(t *testing.T) {
	t.Parallel()
	gate, l := newGate(newRedis()), newLedger(&ownerRow{})
	r := newReconciler(gate, l)
	defer r.Close()
	if err := r.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	for n := range pageSize + 1 {
		stockUp(t, l, nil, stock.SKU(fmt.Sprintf("sku-%06d", n)))
	}
	gate.unreadable = true
	if got, err := r.compareNext(t.Context()); err == nil || got != afterRound {
		t.Errorf("pace %+v, %v", got, err)
	}
	gate.unreadable = false
	if _, err := r.compareNext(t.Context()); err != nil || len(l.raises) != pageSize {
		t.Errorf("refilled %d SKUs, %v; want %d", len(l.raises), err, pageSize)
	}
}

// TestSecondLook checks what becomes of a SKU whose gate and ledger differ: it is
// refilled only if nothing has changed for a pause, and only if no records account for
// the difference.
func TestSecondLook(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name      string
		available int64
		inFlight  int64
		recorded  int64
		changes   bool // between the two looks
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
				gate, l := newGate(newRedis()), newLedger(&ownerRow{})
				r := newReconciler(gate, l)
				defer r.Close()
				if err := r.Start(t.Context()); err != nil {
					t.Fatal(err)
				}
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
				step(false) // too early for a second look
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
			})
		})
	}
}
