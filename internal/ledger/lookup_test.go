package ledger

import (
	"errors"
	"testing"

	"github.com/holdfast-stock/holdfast/internal/ledger/cutter"
	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// TestShrinkIsNoOrder checks that Order hides the row that records a removal of
// stock.
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
	})
}
