package order

import (
	"errors"
	"fmt"
	"testing"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

// TestEmptiedGate: a Redis that forgets is refilled from the ledger by the next
// buyer.
func TestEmptiedGate(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases, func(t *testing.T, s *shop) {
		for _, name := range []string{"lua", "none", "mutex"} {
			t.Run(name, func(t *testing.T) {
				i := s.open(t, settings{strategy: name})
				sku := fresh("emptied")
				lay(t, i, sku, 3)
				first := mustPlace(t, i, ask(sku).keyed(string(sku)))
				s.settled(t, i.gate, sku)
				s.forget(t)
				if o, replayed, err := i.Place(t.Context(), ask(sku).keyed(string(sku))); err != nil || !replayed || o.ID != first.ID {
					t.Errorf("a replay after the loss: %v, %v, %v", o.ID, replayed, err)
				}
				s.settled(t, i.gate, sku)
				s.forget(t)
				mustPlace(t, i, asking(stock.Line{SKU: sku, Quantity: 2}))
				mustRefuse(t, i, ask(sku), stock.ErrSoldOut)
				s.settled(t, i.gate, sku)
				s.atRest(t, i.gate, sku, 3)
				i.Close()
			})
		}
	})
}

// TestTakeOutlivesRefill: a take of before the loss cannot commit after the
// refill, which did not count it. Its buyer takes again.
func TestTakeOutlivesRefill(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases, func(t *testing.T, s *shop) {
		for _, left := range []int64{1, 2} { // after the loss, for two buyers
			slow := s.openHooked(t, settings{strategy: "lua", noGuard: true})
			quick := s.open(t, settings{strategy: "lua", noGuard: true})
			sku := fresh("outlives")
			lay(t, quick, sku, left)
			reached, proceed := slow.gate.taken.arm()
			defer proceed()
			heard := place(t.Context(), slow.instance, ask(sku))
			wait(t, "the take", reached)
			s.forget(t)
			mustPlace(t, quick, ask(sku)) // refills
			proceed()
			r := wait(t, "the answer", heard)
			switch {
			case left == 1 && !errors.Is(r.err, stock.ErrSoldOut):
				t.Errorf("heard %+v though the only unit is sold", r)
			case left == 2 && r.err != nil:
				t.Errorf("heard %v though a unit was left", r.err)
			}
			s.settled(t, quick.gate, sku)
			s.atRest(t, quick.gate, sku, left)
		}
	})
}

// TestTakeOutlivesRefillOfAll: the same where nobody noticed an empty count: a
// Redis whose run ID changed is refilled whatever it says.
func TestTakeOutlivesRefillOfAll(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases, func(t *testing.T, s *shop) {
		slow := s.openHooked(t, settings{strategy: "lua", noGuard: true})
		quick := s.open(t, settings{strategy: "lua", noGuard: true})
		sku := fresh("all")
		lay(t, quick, sku, 1)
		reached, proceed := slow.gate.taken.arm()
		defer proceed()
		heard := place(t.Context(), slow.instance, ask(sku))
		wait(t, "the take", reached)
		quick.StoreChanged()
		mustPlace(t, quick, ask(sku))
		proceed()
		if r := wait(t, "the answer", heard); !errors.Is(r.err, stock.ErrSoldOut) {
			t.Errorf("heard %+v", r)
		}
		s.settled(t, quick.gate, sku)
		s.atRest(t, quick.gate, sku, 1)
	})
}

// TestCommitBeforeRefill: the refill waits for a transaction that holds the
// stock row, and counts what it cut.
func TestCommitBeforeRefill(t *testing.T) {
	t.Parallel()
	eachDatabase(t, servers, func(t *testing.T, s *shop) {
		slow := s.openHooked(t, settings{strategy: "lua", noGuard: true})
		quick := s.open(t, settings{strategy: "lua", noGuard: true})
		sku := fresh("before")
		lay(t, quick, sku, 2)
		reached, proceed := slow.cutter.after.arm()
		defer proceed()
		first := place(t.Context(), slow.instance, ask(sku))
		wait(t, "the open transaction", reached)
		s.forget(t)
		second := place(t.Context(), quick, ask(sku))
		eventually(t, "the refill waits for the row", func() bool { return s.waiting(t) > 0 })
		proceed()
		for _, heard := range []<-chan reply{first, second} {
			if r := wait(t, "an answer", heard); r.err != nil {
				t.Error(r.err)
			}
		}
		mustRefuse(t, quick, ask(sku), stock.ErrSoldOut)
		s.settled(t, quick.gate, sku)
		s.atRest(t, quick.gate, sku, 2)
	})
}

// TestGuardRefusal: a gate that admits what the ledger has not is refilled, and
// nobody hears "accepted" for it.
func TestGuardRefusal(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases, func(t *testing.T, s *shop) {
		i := s.open(t, settings{strategy: "lua"})
		sku := fresh("lies")
		lay(t, i, sku, 1)
		row, err := i.ledger.Row(t.Context(), sku)
		if err != nil {
			t.Fatal(err)
		}
		// An addition that no ledger has committed: the gate lies.
		if err := i.gate.Adjust(t.Context(), stock.Change{SKU: sku, Epoch: row.Epoch, Number: 1, Delta: 5}); err != nil {
			t.Fatal(err)
		}
		mustPlace(t, i, ask(sku))
		mustRefuse(t, i, ask(sku), stock.ErrSoldOut)
		s.settled(t, i.gate, sku)
		s.atRest(t, i.gate, sku, 1) // refilled
	})
}

// TestDrift: a count that differs from the ledger's at rest is mended by the
// second sweep that sees it.
func TestDrift(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases, func(t *testing.T, s *shop) {
		for _, delta := range []int64{5, -2} {
			i := s.open(t, settings{strategy: "lua", noGuard: true})
			sku := fresh("drift")
			lay(t, i, sku, 3)
			row, err := i.ledger.Row(t.Context(), sku)
			if err != nil {
				t.Fatal(err)
			}
			if err := i.gate.Adjust(t.Context(), stock.Change{SKU: sku, Epoch: row.Epoch, Number: 1, Delta: delta}); err != nil {
				t.Fatal(err)
			}
			sweep(t, i)
			sweep(t, i)
			s.atRest(t, i.gate, sku, 0)
		}
	})
}

// TestAdditionOnce: an addition reaches the gate once, however often it is
// handed over and whoever dies in between.
func TestAdditionOnce(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases, func(t *testing.T, s *shop) {
		t.Run("not applied", func(t *testing.T) {
			i := s.openHooked(t, settings{strategy: "lua"})
			sku := fresh("addition")
			lay(t, i.instance, sku, 1)
			i.gate.set(&i.gate.noAdjust, true)
			lay(t, i.instance, sku, 4) // committed; the gate does not hear of it
			mustPlace(t, i.instance, ask(sku))
			mustRefuse(t, i.instance, ask(sku), stock.ErrSoldOut)
			i.gate.set(&i.gate.noAdjust, false)
			sweep(t, i.instance)
			mustPlace(t, i.instance, asking(stock.Line{SKU: sku, Quantity: 3}))
			mustRefuse(t, i.instance, ask(sku), stock.ErrSoldOut)
			s.settled(t, i.gate, sku)
			s.atRest(t, i.gate, sku, 4)
		})
		t.Run("applied and not noted", func(t *testing.T) {
			i := s.openHooked(t, settings{strategy: "lua", noGuard: true})
			sku := fresh("addition")
			lay(t, i.instance, sku, 1)
			i.gate.set(&i.gate.noAdjust, true)
			lay(t, i.instance, sku, 4)
			i.gate.set(&i.gate.noAdjust, false)
			changes, err := i.ledger.Changes(t.Context(), sku, stock.Change{})
			if err != nil || len(changes) != 1 {
				t.Fatal(changes, err)
			}
			for range 2 {
				if err := i.gate.Adjust(t.Context(), changes[0]); err != nil {
					t.Fatal(err)
				}
			}
			sweep(t, i.instance)
			sweep(t, i.instance)
			s.atRest(t, i.gate, sku, 0)
			if changes, err := i.ledger.Changes(t.Context(), sku, stock.Change{}); err != nil || len(changes) != 0 {
				t.Errorf("still in the outbox: %v, %v", changes, err)
			}
		})
		t.Run("overtaken by a refill", func(t *testing.T) {
			i := s.openHooked(t, settings{strategy: "lua", noGuard: true})
			sku := fresh("addition")
			lay(t, i.instance, sku, 1)
			i.gate.set(&i.gate.noAdjust, true)
			lay(t, i.instance, sku, 4)
			i.gate.set(&i.gate.noAdjust, false)
			changes, err := i.ledger.Changes(t.Context(), sku, stock.Change{})
			if err != nil || len(changes) != 1 {
				t.Fatal(changes, err)
			}
			s.forget(t)
			mustPlace(t, i.instance, ask(sku))
			if err := i.gate.Adjust(t.Context(), changes[0]); err != nil { // handed over late
				t.Fatal(err)
			}
			s.settled(t, i.gate, sku)
			s.atRest(t, i.gate, sku, 1)
		})
		t.Run("lost by the gate", func(t *testing.T) {
			i := s.openHooked(t, settings{strategy: "lua", noGuard: true})
			sku := fresh("addition")
			lay(t, i.instance, sku, 1)
			i.gate.set(&i.gate.noAdjust, true)
			lay(t, i.instance, sku, 2)
			changes, err := i.ledger.Changes(t.Context(), sku, stock.Change{})
			if err != nil || len(changes) != 1 {
				t.Fatal(changes, err)
			}
			// Noted as applied, and lost with a failover: the next finds the gap.
			if err := i.ledger.Applied(t.Context(), changes[0]); err != nil {
				t.Fatal(err)
			}
			i.gate.set(&i.gate.noAdjust, false)
			lay(t, i.instance, sku, 5)
			s.atRest(t, i.gate, sku, 0)
		})
	})
}

// TestRestoredLedger: a database restored from a backup, with the epochs that the
// gate has or with earlier ones, is noticed, and what the gate believes of it is
// dropped.
func TestRestoredLedger(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases, func(t *testing.T, s *shop) {
		for _, sooner := range []bool{false, true} { // than the sale
			t.Run(fmt.Sprint("backup before a refill ", sooner), func(t *testing.T) {
				i := s.open(t, settings{strategy: "lua", noGuard: true})
				sku := fresh("restored")
				lay(t, i, sku, 5)
				backup := s.backUp(t, sku)
				if sooner {
					i.StoreChanged()
				}
				mustPlace(t, i, asking(stock.Line{SKU: sku, Quantity: 3}))
				s.settled(t, i.gate, sku)
				lay(t, i, sku, 7)
				lay(t, i, sku, 8)
				if err := i.Ready(t.Context()); err != nil {
					t.Fatal(err)
				}

				s.restore(t, sku, backup)
				if err := i.Ready(t.Context()); err != nil {
					t.Fatal(err)
				}
				lay(t, i, sku, 6) // an addition with a number that the gate has seen
				mustPlace(t, i, asking(stock.Line{SKU: sku, Quantity: 6}))
				mustRefuse(t, i, ask(sku), stock.ErrSoldOut)
				s.settled(t, i.gate, sku)
				s.atRest(t, i.gate, sku, 6)
				i.Close()
			})
		}
	})
}

// TestRestoredLedgerAtStart: the same with a restart in between.
func TestRestoredLedgerAtStart(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases, func(t *testing.T, s *shop) {
		i := s.open(t, settings{strategy: "lua", noGuard: true})
		sku := fresh("restored")
		lay(t, i, sku, 5)
		backup := s.backUp(t, sku)
		mustPlace(t, i, ask(sku))
		if err := i.Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
		i.Close()
		s.restore(t, sku, backup)
		next := s.open(t, settings{strategy: "lua", noGuard: true})
		mustPlace(t, next, asking(stock.Line{SKU: sku, Quantity: 5}))
		mustRefuse(t, next, ask(sku), stock.ErrSoldOut)
		s.settled(t, next.gate, sku)
		s.atRest(t, next.gate, sku, 5)
	})
}

// backup is what a ledger of one SKU had once.
type backup struct {
	row    stockRow
	ledger ledgerRow
}

func (s *shop) backUp(t *testing.T, sku stock.SKU) (b backup) {
	t.Helper()
	var err error
	if b.row, err = readRow(s.sql.DB(), sku); err != nil {
		t.Fatal(err)
	}
	if b.ledger, err = readLedgerRow(s.sql.DB()); err != nil {
		t.Fatal(err)
	}
	return b
}

// restore takes the ledger back to the backup, with no orders of the SKU.
func (s *shop) restore(t *testing.T, sku stock.SKU, b backup) {
	t.Helper()
	db := s.sql.DB()
	if err := db.Save(&b.row).Error; err != nil {
		t.Fatal(err)
	}
	for _, statement := range []string{"DELETE FROM order_lines WHERE sku = ?", "DELETE FROM outbox WHERE sku = ?"} {
		if err := db.Exec(statement, string(sku)).Error; err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Exec("UPDATE ledger SET generation = ?, layout = ?, beat = ?", b.ledger.Generation, b.ledger.Layout, b.ledger.Beat).Error; err != nil {
		t.Fatal(err)
	}
}

// TestShrinkAndTake: units that an administrator takes away cannot be sold
// meanwhile, and units in flight cannot be taken away.
func TestShrinkAndTake(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases, func(t *testing.T, s *shop) {
		i := s.openHooked(t, settings{strategy: "lua", noGuard: true})
		sku := fresh("shrink")
		lay(t, i.instance, sku, 3)
		reached, proceed := i.gate.taken.arm()
		defer proceed()
		heard := place(t.Context(), i.instance, asking(stock.Line{SKU: sku, Quantity: 2}))
		wait(t, "the take", reached)
		if _, _, err := i.SetStock(t.Context(), Setting{SKU: sku, Kind: stock.Product, Total: 1}); !errors.Is(err, ErrBelowSold) {
			t.Errorf("taking away what is in flight: %v", err)
		}
		proceed()
		if r := wait(t, "the answer", heard); r.err != nil {
			t.Error(r.err)
		}
		reached, proceed = i.gate.taken.arm()
		defer proceed()
		set := make(chan error, 1)
		go func() {
			_, _, err := i.SetStock(t.Context(), Setting{SKU: sku, Kind: stock.Product, Total: 2})
			set <- err
		}()
		wait(t, "the administrator's take", reached)
		mustRefuse(t, i.instance, ask(sku), stock.ErrSoldOut)
		proceed()
		if err := wait(t, "the administrator's answer", set); err != nil {
			t.Error(err)
		}
		s.settled(t, i.Service.gate, sku)
		s.atRest(t, i.Service.gate, sku, 2)
	})
}
