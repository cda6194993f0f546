package ledger

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/holdfast-stock/holdfast/internal/ledger/cutter"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// slotted returns a ledger that sells from n slots, as an instance does.
func (d *database) slotted(t *testing.T, n int) *Ledger {
	return d.open(t, cutter.Slots(n))
}

// sell lets the ledgers record orders of one unit each, and returns how many are committed.
// Refused orders must be sold out.
func sell(t *testing.T, sku stock.SKU, orders int, ledgers ...*Ledger) int64 {
	t.Helper()
	var (
		buyers    sync.WaitGroup
		committed atomic.Int64
	)
	for i := range orders {
		buyers.Go(func() {
			_, out := ledgers[i%len(ledgers)].Record(t.Context(), takeOf(sku))
			switch {
			case out.Committed():
				committed.Add(1)
			case !errors.Is(out.Reason(), stock.ErrSoldOut):
				t.Errorf("refused: %v", out.Reason())
			}
		})
	}
	buyers.Wait()
	return committed.Load()
}

// TestSlotsOfOne checks that two units in two slots are sold to a buyer who asks for two.
func TestSlotsOfOne(t *testing.T) {
	t.Parallel()
	eachDatabase(t, testenv.Chosen(databases, "SQLite", "PostgreSQL"), func(t *testing.T, d *database) {
		l := d.slotted(t, 2)
		sku := fresh("one")
		row := lay(t, l, sku, 2)
		d.lend(t, row, 1, 1)
		take := takeOf(sku)
		take.Lines[0].Quantity = 2
		if _, out := l.Record(t.Context(), take); !out.Committed() {
			t.Errorf("refused: %v", out.Reason())
		}
		d.atRest(t, sku, 2)
		if _, out := l.Record(t.Context(), takeOf(sku)); !errors.Is(out.Reason(), stock.ErrSoldOut) {
			t.Errorf("outcome %+v, want sold out", out)
		}
	})
}

// TestSlotsInMidSale lets two instances sell while the stock is raised and lowered and units
// return. Then an instance with more slots takes the stock over.
func TestSlotsInMidSale(t *testing.T) {
	t.Parallel()
	eachDatabase(t, testenv.Chosen(databases, "SQLite", "MariaDB"), func(t *testing.T, d *database) {
		a, b, next := d.slotted(t, 4), d.slotted(t, 4), d.slotted(t, 6)
		next.Use(generation + 1)
		sku := fresh("sale")
		lay(t, a, sku, 300)
		cancelled := place(t, a, sku)
		var sale sync.WaitGroup
		var sold int64
		sale.Go(func() { sold = sell(t, sku, 200, a, b) })
		set := stock.Setting{SKU: sku, Kind: stock.Product, Total: 320}
		if _, _, err := a.Set(t.Context(), set); err != nil {
			t.Error(err)
		}
		if err := cancelOrder(t.Context(), b, cancelled.ID); err != nil {
			t.Error(err)
		}
		smaller := takeOf(sku)
		smaller.Lines[0].Quantity = 40
		set.Total = 280
		if _, out := b.Shrink(t.Context(), smaller, set); !out.Committed() {
			t.Errorf("shrinking: %v", out.Reason())
		}
		sale.Wait()
		d.total(t, sku, 280)
		d.atRest(t, sku, sold)

		var took sync.WaitGroup
		took.Go(func() {
			row, err := next.Row(t.Context(), sku)
			if err == nil {
				_, err = next.RaiseEpoch(t.Context(), sku, row.Epoch, 0)
			}
			if err != nil {
				t.Error(err)
			}
		})
		var before atomic.Int64
		for range 20 {
			took.Go(func() {
				_, out := a.Record(t.Context(), takeOf(sku))
				switch {
				case out.Committed():
					before.Add(1)
				case !errors.Is(out.Reason(), stock.ErrLaterGeneration):
					t.Errorf("refused: %v", out.Reason())
				}
			})
		}
		took.Wait()
		sold += before.Load()
		if _, out := a.Record(t.Context(), takeOf(sku)); !errors.Is(out.Reason(), stock.ErrLaterGeneration) {
			t.Errorf("an instance of the old layout: %+v", out)
		}
		n := sell(t, sku, 10, next)
		// After that, an instance of the old layout also finds slots of the new layout.
		if _, out := d.slotted(t, 4).Record(t.Context(), takeOf(sku)); !errors.Is(out.Reason(), stock.ErrLaterGeneration) {
			t.Errorf("an instance of the old layout: %+v", out)
		}
		if n != 10 {
			t.Errorf("the new instance sold %d of 10", n)
		}
		d.atRest(t, sku, sold+n)
	})
}

// total fails the test unless the SKU has this total.
func (d *database) total(t *testing.T, sku stock.SKU, want int64) {
	t.Helper()
	var total int64
	if err := d.sql.Ledger().QueryRow(t.Context(), []any{&total}, "SELECT total FROM stock WHERE sku = ?", string(sku)); err != nil || total != want {
		t.Errorf("the total is %d, %v; want %d", total, err, want)
	}
}
