package ledger

import (
	"errors"
	"testing"

	"github.com/holdfast-stock/holdfast/internal/ledger/cutter"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/store/storetest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// TestChangesWhileTheFileIsLocked checks that changes of a stock row are retried,
// and then answered ErrBusy, while another process writes to the SQLite file.
func TestChangesWhileTheFileIsLocked(t *testing.T) {
	t.Parallel()
	sql := storetest.Migrated(t, testenv.SQLite(t)+"?_pragma=busy_timeout(1)")
	l := openOn(t, sql.Ledger(), cutter.Merged())
	sku := fresh("locked")
	lay(t, l, sku, 3)
	row, err := l.Row(t.Context(), sku)
	if err != nil {
		t.Fatal(err)
	}
	writer, err := sql.Ledger().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Rollback()
	if _, err := writer.Exec(t.Context(), "UPDATE ledger SET beat = beat + 1"); err != nil {
		t.Fatal(err)
	}

	set := stock.Setting{SKU: sku, Kind: stock.Product, Total: 5}
	if _, _, err := l.Set(t.Context(), set); !errors.Is(err, stock.ErrBusy) {
		t.Errorf("Set answers %v", err)
	}
	if _, err := l.RaiseEpoch(t.Context(), sku, row.Epoch, 0); !errors.Is(err, stock.ErrBusy) {
		t.Errorf("RaiseEpoch answers %v", err)
	}
}
