package ledger

import (
	"errors"
	"strings"
	"testing"

	"gorm.io/gorm"

	"github.com/holdfast-stock/holdfast/internal/ledger/cutter"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/store/storetest"
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
		slow := storetest.SQL(t, d.url)
		inserts := 0
		err := slow.DB().Callback().Raw().Before("gorm:raw").Register("create first", func(db *gorm.DB) {
			if strings.HasPrefix(db.Statement.SQL.String(), "INSERT INTO stock ") {
				inserts++
				lay(t, other, sku, 3)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		l := openOn(t, slow.Ledger(), cutter.Merged())
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
