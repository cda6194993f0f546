package ledger

import (
	"errors"
	"testing"

	"github.com/holdfast-stock/holdfast/internal/ledger/cutter"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// TestRecord_BuyerLimit checks that claims are kept whichever way a group is cut: the
// first order under the row's lock, the others in one statement. A limit that changes
// meanwhile holds.
func TestRecord_BuyerLimit(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases, func(t *testing.T, d *database) {
		l := d.open(t, cutter.Merged())
		sku, other := fresh("limited"), fresh("other")
		lay(t, l, sku, 10)
		lay(t, l, other, 10)
		limit := func(units int64) {
			t.Helper()
			if _, _, err := l.Set(t.Context(), stock.Setting{SKU: sku, Kind: stock.Product, Total: 10, BuyerLimit: &units}); err != nil {
				t.Fatal(err)
			}
			if row, err := l.CountClaims(t.Context(), sku); err != nil || row.BuyerLimit != units {
				t.Fatalf("the limit is %d, %v; want %d", row.BuyerLimit, err, units)
			}
		}
		for n, step := range []struct {
			limit int64 // set before the order, if not 0
			want  error
		}{{3, nil}, {0, nil}, {0, nil}, {0, stock.ErrBuyerLimit}, {4, nil}, {3, stock.ErrBuyerLimit}, {5, nil}, {0, stock.ErrBuyerLimit}} {
			if step.limit > 0 {
				limit(step.limit)
			}
			if _, out := l.Record(t.Context(), takeOf(sku, other)); !errors.Is(out.Reason(), step.want) || out.Committed() != (step.want == nil) {
				t.Errorf("order %d: %+v, want %v", n+1, out, step.want)
			}
		}
		d.atRest(t, sku, 5)
		d.atRest(t, other, 5)
	})
}
