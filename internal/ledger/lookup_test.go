package ledger

import (
	"errors"
	"testing"

	"github.com/holdfast-stock/holdfast/internal/ledger/cutter"
	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// TestShrinkIsNoOrder checks that the row that records a removal of stock cannot be read, listed or
// changed as an order.
func TestShrinkIsNoOrder(t *testing.T) {
	t.Parallel()
	eachDatabase(t, testenv.Chosen(databases, "SQLite", "MariaDB"), func(t *testing.T, d *database) {
		l := d.open(t, cutter.Merged())
		sku := fresh("shrunk")
		lay(t, l, sku, 10)
		take := takeOf(sku)
		row, out := l.Shrink(t.Context(), take, stock.Setting{SKU: sku, Kind: stock.Product, Total: 9})
		if !out.Committed() || row.Total != 9 || row.Available != 9 {
			t.Fatalf("the row is %+v, the outcome %+v", row, out)
		}
		if o := l.Resolve(t.Context(), take.Deduction); !o.Committed() {
			t.Errorf("the removal was resolved as %+v", o)
		}
		if o, err := l.Order(t.Context(), take.OrderID); !errors.Is(err, order.ErrUnknownOrder) {
			t.Errorf("found %+v, %v", o, err)
		}
		if orders, err := l.Orders(t.Context(), order.Filter{Limit: 10}); err != nil || len(orders) > 0 {
			t.Errorf("listed %+v, %v", orders, err)
		}
		if o, _, err := l.Change(t.Context(), take.OrderID, order.ChangeOptions{Returns: true}, become(shrink, order.Cancelled, true)); !errors.Is(err, order.ErrUnknownOrder) {
			t.Errorf("changed to %+v, %v", o, err)
		}
	})
}

// TestOrder_Apart checks that two callers who read one order in the same group get separate orders.
// A caller adds the history to its order, and a failure of that read must not change the other
// order.
func TestOrder_Apart(t *testing.T) {
	t.Parallel()
	eachDatabase(t, testenv.Chosen(databases, "SQLite"), func(t *testing.T, d *database) {
		l := d.open(t, cutter.Merged())
		sku := fresh("apart")
		lay(t, l, sku, 1)
		placed := place(t, l, sku)
		one, other := &lookup{id: placed.ID}, &lookup{id: placed.ID}
		l.lookUp([]*lookup{one, other})
		if one.err != nil || other.err != nil || one.found == nil || other.found == nil {
			t.Fatalf("found %+v, %v and %+v, %v", one.found, one.err, other.found, other.err)
		}
		one.found.History = []order.Step{{Status: order.Pending, At: placed.CreatedAt}}
		if other.found.History != nil {
			t.Errorf("the history of one caller's order is %+v after the other has added it", other.found.History)
		}
	})
}
