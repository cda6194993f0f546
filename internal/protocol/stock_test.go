package protocol

import (
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/holdfast-stock/holdfast/internal/admin"
	"github.com/holdfast-stock/holdfast/internal/faults"
	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/store/storetest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// TestStock checks that stock grows and shrinks with every strategy.
func TestStock(t *testing.T) {
	t.Parallel()
	eachStrategy(t, func(t *testing.T, s *shop, i *instance) {
		sku := newSKU("stock")
		set := func(total int64) (admin.Stock, bool, error) {
			return i.SetStock(t.Context(), stock.Setting{SKU: sku, Kind: stock.Coupon, Total: total})
		}
		expect := func(total, available int64, wantCreated bool) {
			t.Helper()
			st, created, err := set(total)
			want := admin.Stock{SKU: sku, Kind: stock.Coupon, Total: total, Available: available, Sold: total - available}
			if err != nil || created != wantCreated || st != want {
				t.Errorf("setting %d: %+v, created %v, %v; want %+v", total, st, created, err, want)
			}
			if got, err := i.Stock(t.Context(), sku); err != nil || got != want {
				t.Errorf("after setting %d: %+v, %v; want %+v", total, got, err, want)
			}
		}
		if _, err := i.Stock(t.Context(), sku); !errors.Is(err, stock.ErrUnknownSKU) {
			t.Errorf("a SKU without stock: %v", err)
		}
		expect(3, 3, true)
		mustPlace(t, i, request(stock.Line{SKU: sku, Quantity: 3}))
		mustRefuse(t, i, oneUnit(sku), stock.ErrSoldOut)
		s.waitSettled(t, i, sku)
		expect(5, 2, false)
		expect(5, 2, false)
		mustPlace(t, i, oneUnit(sku))
		s.waitSettled(t, i, sku)
		expect(4, 0, false)
		if _, _, err := set(3); !errors.Is(err, stock.ErrBelowSold) {
			t.Errorf("setting the total below the units sold: %v", err)
		}
		mustRefuse(t, i, oneUnit(sku), stock.ErrSoldOut)
		if _, _, err := i.SetStock(t.Context(), stock.Setting{SKU: sku, Kind: stock.Product, Total: 4}); !errors.Is(err, stock.ErrKindFixed) {
			t.Errorf("changing the kind: %v", err)
		}
		expect(6, 2, false)
		s.waitSettled(t, i, sku) // waits for the take of the shrink
		audit, err := i.Audit(t.Context(), sku)
		if err != nil || audit.Total != 6 || audit.Sold != 4 || audit.Oversold != 0 || audit.LedgerAvailable != 2 || audit.Drift != 0 {
			t.Errorf("audit %+v, %v", audit, err)
		}
		if (audit.GateAvailable == nil) != (i.gate == nil) || (audit.GateInFlight == nil) != (i.gate == nil) {
			t.Errorf("the audit must have gate counts exactly if there is a gate: %+v", audit)
		}
		if i.gate != nil && (*audit.GateAvailable != 2 || *audit.GateInFlight != 0) {
			t.Errorf("the gate has %d, and %d in flight", *audit.GateAvailable, *audit.GateInFlight)
		}
		s.checkBalance(t, i.counter, sku, 4)
	})
}

// TestListStock checks that the pages list every SKU once, in byte order.
func TestListStock(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases, func(t *testing.T, s *shop) {
		i := s.open(t, settings{strategy: "lua"})
		// In byte order: digits, capitals, small letters.
		names := []stock.SKU{"0-9", "A.b", "B", "a", "a-b", "a.b", "a:b", "b_1"}
		for n, name := range names {
			addStock(t, i, name, int64(n))
		}
		var all []stock.SKU
		var after stock.SKU
		for range 10 {
			page, next, err := i.ListStock(t.Context(), after, 3)
			if err != nil || len(page) > 3 {
				t.Fatalf("%d SKUs, %v", len(page), err)
			}
			for _, st := range page {
				if want := int64(slices.Index(names, st.SKU)); st.Available != want || st.Total != want {
					t.Errorf("%+v, want %d", st, want)
				}
				all = append(all, st.SKU)
			}
			if after = next; after == "" {
				break
			}
		}
		if !slices.Equal(all, names) {
			t.Errorf("listed %v, want %v", all, names)
		}
	})
}

// TestAdditionOnce checks that an addition changes the gate's count once, even if it is delivered
// several times or an instance is killed in between.
func TestAdditionOnce(t *testing.T) {
	t.Parallel()
	eachDatabase(t, outside, func(t *testing.T, s *shop) {
		t.Run("not applied", func(t *testing.T) {
			i := s.openHooked(t, settings{strategy: "lua"})
			sku := newSKU("addition")
			addStock(t, i.instance, sku, 1)
			i.gate.noAdjust.Store(true)
			addStock(t, i.instance, sku, 4) // committed, but not delivered to the gate
			mustPlace(t, i.instance, oneUnit(sku))
			mustRefuse(t, i.instance, oneUnit(sku), stock.ErrSoldOut)
			i.gate.noAdjust.Store(false)
			sweep(t, i.instance)
			mustPlace(t, i.instance, request(stock.Line{SKU: sku, Quantity: 3}))
			mustRefuse(t, i.instance, oneUnit(sku), stock.ErrSoldOut)
			s.checkSettled(t, i.instance, sku, 4)
		})
		// undelivered returns an addition of 3 units to a new SKU with one. The ledger has committed it,
		// but the gate has not got it.
		undelivered := func(t *testing.T) (i hooked, sku stock.SKU, c stock.Change) {
			t.Helper()
			i, sku = s.openHooked(t, settings{strategy: "lua", noGuard: true}), newSKU("addition")
			addStock(t, i.instance, sku, 1)
			i.gate.noAdjust.Store(true)
			addStock(t, i.instance, sku, 4)
			i.gate.noAdjust.Store(false)
			changes, _, err := i.ledger.Changes(t.Context(), sku, stock.Change{})
			if err != nil || len(changes) != 1 {
				t.Fatal(changes, err)
			}
			return i, sku, changes[0]
		}
		t.Run("applied but still in the outbox", func(t *testing.T) {
			i, sku, change := undelivered(t)
			for range 2 {
				if err := i.counter.Adjust(t.Context(), change); err != nil {
					t.Fatal(err)
				}
			}
			sweep(t, i.instance)
			sweep(t, i.instance)
			s.checkBalance(t, i.counter, sku, 0)
			if changes, _, err := i.ledger.Changes(t.Context(), sku, stock.Change{}); err != nil || len(changes) != 0 {
				t.Errorf("the outbox has %v, %v; want it empty", changes, err)
			}
		})
		t.Run("overtaken by a refill", func(t *testing.T) {
			i, sku, change := undelivered(t)
			s.emptyGate(t)
			mustPlace(t, i.instance, oneUnit(sku))
			if err := i.counter.Adjust(t.Context(), change); err != nil { // delivered late
				t.Fatal(err)
			}
			s.checkSettled(t, i.instance, sku, 1)
		})
		t.Run("lost by the gate", func(t *testing.T) {
			i, sku, change := undelivered(t)
			// The addition is removed from the outbox, but a failover of Redis has lost it. The
			// next addition reveals the gap in the numbers.
			if err := i.ledger.Applied(t.Context(), change); err != nil {
				t.Fatal(err)
			}
			addStock(t, i.instance, sku, 5)
			s.checkBalance(t, i.counter, sku, 0)
		})
	})
}

// TestAfterOverselling checks that units that make up for oversold ones are not sold again without
// guard, whether orders are cancelled or the total is raised.
func TestAfterOverselling(t *testing.T) {
	t.Parallel()
	eachDatabase(t, outside, func(t *testing.T, s *shop) {
		i := s.open(t, settings{strategy: "lua", noGuard: true})
		sku := newSKU("oversold")
		addStock(t, i, sku, 5)
		var orders []order.Order
		for range 5 {
			orders = append(orders, mustPlace(t, i, oneUnit(sku)))
		}
		s.waitSettled(t, i, sku)
		// An unsound strategy leaves a row like this.
		s.exec(t, "UPDATE stock SET total = 2, available = -3 WHERE sku = ?", string(sku))
		if _, err := i.Cancel(t.Context(), orders[0].ID, ""); err != nil {
			t.Fatal(err)
		}
		mustRefuse(t, i, oneUnit(sku), stock.ErrSoldOut)
		addStock(t, i, sku, 3)
		mustRefuse(t, i, oneUnit(sku), stock.ErrSoldOut)
		addStock(t, i, sku, 6) // two more than are sold
		mustPlace(t, i, request(stock.Line{SKU: sku, Quantity: 2}))
		mustRefuse(t, i, oneUnit(sku), stock.ErrSoldOut)
		s.waitSettled(t, i, sku)
		s.checkBalance(t, i.counter, sku, 6)
	})
}

// TestSweepsAtOnce checks that two instances may deliver the same additions and refill the same
// count at the same moment.
func TestSweepsAtOnce(t *testing.T) {
	t.Parallel()
	eachDatabase(t, outside, func(t *testing.T, s *shop) {
		both := []hooked{s.openHooked(t, settings{strategy: "lua"}), s.openHooked(t, settings{strategy: "lua"})}
		first := both[0]
		added, drifted := newSKU("added"), newSKU("drifted")
		addStock(t, first.instance, added, 1)
		addStock(t, first.instance, drifted, 10)
		for range 3 {
			mustPlace(t, first.instance, oneUnit(drifted))
		}
		s.waitSettled(t, first.instance, drifted)
		addAtGate(5)(t, s, first.instance, drifted)
		for _, i := range both {
			sweep(t, i.instance) // this sweep sees the difference for the first time
		}
		first.gate.noAdjust.Store(true)
		for total := int64(2); total <= 5; total++ {
			addStock(t, first.instance, added, total)
		}
		first.gate.noAdjust.Store(false)
		var sweeping sync.WaitGroup
		var deliver []func()
		for _, i := range both {
			reached, proceed := i.gate.adjusting.arm()
			defer proceed()
			sweeping.Go(func() {
				if err := i.Sweep(t.Context()); err != nil {
					t.Error(err)
				}
			})
			testenv.Receive(t, "an instance that delivers", reached)
			deliver = append(deliver, proceed)
		}
		for _, proceed := range deliver { // both instances have read the outbox
			proceed()
		}
		sweeping.Wait()
		s.checkBalance(t, first.counter, added, 0)
		s.checkBalance(t, first.counter, drifted, 3)
		if changes, _, err := first.ledger.Changes(t.Context(), added, stock.Change{}); err != nil || len(changes) != 0 {
			t.Errorf("the outbox has %v, %v; want it empty", changes, err)
		}
	})
}

// settingTotal sets the total of a product meanwhile. The channel receives the answer.
func settingTotal(t *testing.T, i *instance, sku stock.SKU, total int64) <-chan error {
	set := make(chan error, 1)
	go func() {
		_, _, err := i.SetStock(t.Context(), stock.Setting{SKU: sku, Kind: stock.Product, Total: total})
		set <- err
	}()
	return set
}

// TestShrinkAndTake checks that units cannot be sold while a shrink removes them, and that units in
// flight cannot be removed.
func TestShrinkAndTake(t *testing.T) {
	t.Parallel()
	eachDatabase(t, withServer(0), func(t *testing.T, s *shop) {
		i := s.openHooked(t, settings{strategy: "lua", noGuard: true})
		sku := newSKU("shrink")
		addStock(t, i.instance, sku, 3)
		answer, proceed := haltPlace(t, &i.gate.taken, i.instance, request(stock.Line{SKU: sku, Quantity: 2}))
		if _, _, err := i.SetStock(t.Context(), stock.Setting{SKU: sku, Kind: stock.Product, Total: 1}); !errors.Is(err, stock.ErrBelowSold) {
			t.Errorf("shrinking below the units in flight: %v, want %v", err, stock.ErrBelowSold)
		}
		proceed()
		if r := testenv.Receive(t, "the answer", answer); r.err != nil {
			t.Error(r.err)
		}
		set, proceed := halt(t, &i.gate.taken, func() <-chan error { return settingTotal(t, i.instance, sku, 2) })
		mustRefuse(t, i.instance, oneUnit(sku), stock.ErrSoldOut)
		proceed()
		if err := testenv.Receive(t, "the administrator's answer", set); err != nil {
			t.Error(err)
		}
		s.checkSettled(t, i.instance, sku, 2)
	})
}

// TestShrink_Undelivered checks that units that were added, but have not reached the gate, do not
// count as sold when the total is lowered. Another instance may have been killed during a refill.
func TestShrink_Undelivered(t *testing.T) {
	t.Parallel()
	eachDatabase(t, outside, func(t *testing.T, s *shop) {
		i := s.openHooked(t, settings{strategy: "lua"})
		for _, refilling := range []bool{false, true} {
			sku := newSKU("shrink")
			addStock(t, i.instance, sku, 1)
			i.gate.noAdjust.Store(true)
			addStock(t, i.instance, sku, 4)
			i.gate.noAdjust.Store(false)
			if refilling {
				s.beginRefill(t, i.instance, sku)
			}
			addStock(t, i.instance, sku, 2)
			s.checkSettled(t, i.instance, sku, 0)
		}
	})
}

// beginRefill raises the row's epoch, like an instance that is killed during a refill.
func (s *shop) beginRefill(t *testing.T, i *instance, sku stock.SKU) {
	t.Helper()
	row, err := i.ledger.Row(t.Context(), sku)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := i.ledger.RaiseEpoch(t.Context(), sku, row.Epoch, 0); err != nil {
		t.Fatal(err)
	}
}

// TestShrink_AnswerLost checks that a shrink with a lost COMMIT answer is resolved at once.
func TestShrink_AnswerLost(t *testing.T) {
	t.Parallel()
	for _, d := range oneOf(servers, 1) {
		t.Run(d.Name, func(t *testing.T) {
			t.Parallel()
			dbURL := testenv.Patient(t, d.URL(t))
			s := newShop(t, dbURL)
			w, wireURL := faults.NewWire(t, dbURL)
			i := s.openHooked(t, settings{strategy: "lua", db: storetest.SQL(t, wireURL).Ledger})
			defer i.Close()
			sku := newSKU("shrink")
			addStock(t, i.instance, sku, 5)
			set, proceed := halt(t, &i.gate.taken, func() <-chan error { return settingTotal(t, i.instance, sku, 2) })
			w.Arm(faults.Fault{Kind: faults.Lost, Nth: 1, Only: "COMMIT"})
			proceed()
			if err := testenv.Receive(t, "the administrator's answer", set); err != nil {
				t.Error(err)
			}
			if _, injected := w.Disarm(); len(injected) != 1 {
				t.Errorf("injected %q", injected)
			}
			s.checkSettled(t, i.instance, sku, 0)
			if b := s.ledgerCounts(t, sku); b.total != 2 {
				t.Errorf("%+v", b)
			}
		})
	}
}

// TestShrinkIsSeen checks that an optimistic cutter that has read the stock row before a shrink
// does not cut it afterwards.
func TestShrinkIsSeen(t *testing.T) {
	t.Parallel()
	eachDatabase(t, withServer(1), func(t *testing.T, s *shop) {
		paused, planned := s.openOptimistic(t)
		sku := newSKU("shrunk")
		addStock(t, paused, sku, 1)
		answer, proceed := haltPlace(t, planned, paused, oneUnit(sku))
		addStock(t, paused, sku, 0)
		proceed()
		if r := testenv.Receive(t, "the answer", answer); !errors.Is(r.err, stock.ErrSoldOut) {
			t.Errorf("answered %+v", r)
		}
		s.checkBalance(t, nil, sku, 0)
	})
}

// TestShrinkOutlivesRefill checks that a shrink that was taken at the gate before a refill cannot
// commit after it, because the refill has put the shrink's units for sale again. The shrink must
// take again.
func TestShrinkOutlivesRefill(t *testing.T) {
	t.Parallel()
	eachDatabase(t, withServer(0), func(t *testing.T, s *shop) {
		i := s.openHooked(t, settings{strategy: "lua", noGuard: true})
		sku := newSKU("shrink")
		addStock(t, i.instance, sku, 3)
		set, proceed := halt(t, &i.gate.taken, func() <-chan error { return settingTotal(t, i.instance, sku, 1) })
		s.emptyGate(t)
		mustPlace(t, i.instance, oneUnit(sku)) // refills
		proceed()
		if err := testenv.Receive(t, "the administrator's answer", set); err != nil {
			t.Error(err)
		}
		mustRefuse(t, i.instance, oneUnit(sku), stock.ErrSoldOut)
		s.checkSettled(t, i.instance, sku, 1)
	})
}
