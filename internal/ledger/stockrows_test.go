package ledger

import (
	"errors"
	"testing"

	"github.com/holdfast-stock/holdfast/internal/ledger/cutter"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// TestSetMeetsAnotherCreation checks that Set returns stock.ErrRowChanged if another caller creates
// the stock row after Set did not find it. SQLite is left out, because it runs one transaction
// after the other.
func TestSetMeetsAnotherCreation(t *testing.T) {
	t.Parallel()
	eachDatabase(t, testenv.Chosen(servers, "MariaDB"), func(t *testing.T, d *database) {
		other := d.open(t, cutter.Merged())
		sku := fresh("created")
		inserts := 0
		l := d.openHooked(t, "INSERT INTO stock ", func() error {
			inserts++
			lay(t, other, sku, 3)
			return nil
		})
		set := stock.Setting{SKU: sku, Kind: stock.Product, Total: 5}
		if row, created, err := l.Set(t.Context(), set); !errors.Is(err, stock.ErrRowChanged) || created {
			t.Errorf("the row is %+v, created %v, %v", row, created, err)
		}
		if inserts != 1 {
			t.Errorf("%d inserts of the row", inserts)
		}
		row, created, err := l.Set(t.Context(), set)
		if err != nil || created || row.Total != 5 || row.Available != 5 || row.Changes != 1 {
			t.Errorf("the second try: %+v, created %v, %v", row, created, err)
		}
	})
}
