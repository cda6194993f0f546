package reconcile

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/holdfast-stock/holdfast/internal/faults"
	"github.com/holdfast-stock/holdfast/internal/ledger"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// wrongLedger has wrong claims, sorted by SKU.
type wrongLedger struct {
	*fakeLedger
	wrong []ledger.Claim
}

func (l wrongLedger) WrongClaims(_ context.Context, skus []stock.SKU, limit int) (page []ledger.Claim, err error) {
	for _, c := range l.wrong {
		if slices.Contains(skus, c.SKU) && len(page) < limit {
			page = append(page, c)
		}
	}
	return page, nil
}

// TestWrongClaims_Pages checks that wrong claims are read in pages. Each is listed once, and those of
// every SKU are found.
func TestWrongClaims_Pages(t *testing.T) {
	t.Parallel()
	var l wrongLedger
	var counts []ledger.Count
	for _, of := range []struct {
		sku    stock.SKU
		claims int
	}{{"a", maxWrongClaims - 1}, {"b", 2}, {"c", 1}} { // the first page ends within b
		counts = append(counts, ledger.Count{StockRow: ledger.StockRow{SKU: of.sku, BuyerLimit: 1}})
		for n := range of.claims {
			l.wrong = append(l.wrong, ledger.Claim{SKU: of.sku, Buyer: fmt.Sprint("buyer-", n), Claimed: 1})
		}
	}
	l.fakeLedger = newLedger(&ownerRow{})
	r := newReconciler(nil, l)
	found, err := r.wrongClaims(t.Context(), counts)
	if a, b, c := len(found["a"]), len(found["b"]), len(found["c"]); err != nil || a != maxWrongClaims-1 || b != 1 || c != 1 {
		t.Errorf("found %d claims on a, %d on b, %d on c, %v", a, b, c, err)
	}
}

// TestCompareGate_Changed checks that a gate's count proves nothing if units were added to the stock row
// while it was read, although a refill has numbered the additions anew since.
func TestCompareGate_Changed(t *testing.T) {
	t.Parallel()
	row := ledger.Count{StockRow: ledger.StockRow{SKU: "a", Total: 10, Available: 10, Epoch: 1, Changes: 1}}
	added := row
	added.Total, added.Available, added.Changes = 15, 15, 2
	refilled := added
	refilled.Epoch, refilled.Changes = 2, row.Changes
	for _, after := range []ledger.Count{added, refilled} {
		f := Finding{Count: after, Level: stock.Level{SKU: "a", Filled: true, Epoch: after.Epoch, Available: 15}}
		if f.compareGate(row, nil); len(f.Differences) != 1 || f.Differences[0].Kind != Unsteady {
			t.Errorf("found %+v", f.Differences)
		}
	}
}

// countedLedger has stock rows, of which no order holds units. change changes the rows in the n-th
// Recount.
type countedLedger struct {
	*fakeLedger
	recounts int
	change   func(n int64, row *ledger.StockRow)
}

func (l *countedLedger) Counts(ctx context.Context, skus []stock.SKU) (counts []ledger.Count, err error) {
	rows, err := l.RowsOf(ctx, skus)
	for _, row := range rows {
		counts = append(counts, ledger.Count{StockRow: row})
	}
	return counts, err
}

func (l *countedLedger) Recount(ctx context.Context, skus []stock.SKU) ([]ledger.Count, error) {
	counts, err := l.Counts(ctx, skus)
	l.recounts++
	for i := range counts {
		l.change(int64(l.recounts), &counts[i].StockRow)
	}
	return counts, err
}

func (l *countedLedger) WrongClaims(context.Context, []stock.SKU, int) ([]ledger.Claim, error) {
	return nil, nil
}

// TestAuditAll checks that each SKU that differs is reported once and in SKU order, however many there
// are, and whenever two readings agree. A SKU of which no two readings agree is unsteady.
func TestAuditAll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := &countedLedger{fakeLedger: newLedger(&ownerRow{owner: ledger.Owner{Generation: 1, Layout: "fake"}})}
		l.change = func(n int64, row *ledger.StockRow) {
			switch row.SKU {
			case "late": // steady from the second reading on
				row.Available = min(n, 2)
			case "unsteady":
				row.Available = n
			default:
				row.Available = 1
			}
		}
		want := []string{"late ledger"}
		for n := range auditPage {
			sku := fmt.Sprintf("sku-%04d", n)
			l.rows[stock.SKU(sku)] = ledger.StockRow{SKU: stock.SKU(sku)}
			want = append(want, sku+" ledger")
		}
		l.rows["late"], l.rows["unsteady"] = ledger.StockRow{SKU: "late"}, ledger.StockRow{SKU: "unsteady"}
		want = append(want, "unsteady unsteady")

		var got []string
		summary, err := newReconciler(nil, l).AuditAll(t.Context(), AuditOptions{Progress: func(int) {}, Report: func(f Finding) error {
			for _, d := range f.Differences {
				got = append(got, fmt.Sprint(f.Count.SKU, " ", d.Kind))
			}
			return nil
		}})
		if !slices.Equal(got, want) || summary.Different != len(want) || err != nil {
			t.Errorf("%+v, %v; found %v", summary, err, got)
		}
	})
}

// TestRead_Generations checks that a row of an earlier generation counts as not adopted. A row of a
// later generation, which an instance has just raised, says nothing about the gate.
func TestRead_Generations(t *testing.T) {
	t.Parallel()
	l := &countedLedger{fakeLedger: newLedger(&ownerRow{owner: ledger.Owner{Generation: 2, Layout: "fake"}})}
	l.change = func(int64, *ledger.StockRow) {}
	redis := newRedis()
	redis.loaded[2] = true
	r := newReconciler(newGate(redis), l)
	defer r.Close()
	for generation, want := range map[stock.Generation]Kind{1: "", 2: NotFilled, 3: Unsteady} {
		epoch, _ := generation.Epochs()
		l.rows["a"] = ledger.StockRow{SKU: "a", Epoch: epoch + 1}
		readings, err := r.read(t.Context(), []stock.SKU{"a"})
		if err != nil {
			t.Fatal(err)
		}
		if got := readings[0]; got.notAdopted != (generation == 1) || got.has(want) != (want != "") {
			t.Errorf("generation %d: not adopted %v, %+v", generation, got.notAdopted, got.Differences)
		}
	}
}

// TestRepair_GateAhead checks that a repair of the ledger also replaces a count of the gate whose epoch
// is above the stock row's.
func TestRepair_GateAhead(t *testing.T) {
	t.Parallel()
	inShop(t, func(t *testing.T, s *shop) {
		s.add(t, "a", 20)
		if err := s.counter.Fill(t.Context(), "a", s.row(t, "a").Epoch+1, 50); err != nil {
			t.Fatal(err)
		}
		damages["wrong"](t, s, "a")
		summary, err := s.AuditAll(t.Context(), AuditOptions{Repair: true, Progress: func(int) {}, Report: func(Finding) error { return nil }})
		if err != nil || summary.Repaired != 1 {
			t.Errorf("%+v, %v", summary, err)
		}
		s.check(t, "a")
	})
}

// TestRepair_LostAnswer checks that a repair whose last answer was lost counts as one without an error if
// the counts agree afterwards.
func TestRepair_LostAnswer(t *testing.T) {
	t.Parallel()
	inShop(t, func(t *testing.T, s *shop) {
		s.add(t, "a", 20)
		damages["high"](t, s, "a")
		s.calls.before = func(call string) {
			if call == "fill" {
				s.calls.start(1, faults.Lost)
			}
		}
		_, err := s.AuditAll(t.Context(), AuditOptions{Repair: true, Progress: func(int) {}, Report: func(f Finding) error {
			if s.calls.stop() != "fill" || !f.Repaired || f.Err != nil {
				t.Errorf("found %+v", f)
			}
			return nil
		}})
		if err != nil {
			t.Error(err)
		}
		s.check(t, "a")
	})
}
