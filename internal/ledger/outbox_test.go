package ledger

import (
	"slices"
	"testing"

	"github.com/holdfast-stock/holdfast/internal/ledger/cutter"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// TestApplied checks that only the changes named leave the outbox, and that removing
// a change twice does no harm.
func TestApplied(t *testing.T) {
	t.Parallel()
	eachDatabase(t, testenv.Chosen(databases, "SQLite", "MariaDB"), func(t *testing.T, d *database) {
		l := d.open(t, cutter.Merged())
		for _, name := range []string{"a", "b"} {
			row := lay(t, l, fresh(name), 1)
			for total := int64(2); total <= 4; total++ {
				if _, _, err := l.Set(t.Context(), stock.Setting{SKU: row.SKU, Kind: stock.Product, Total: total}); err != nil {
					t.Fatal(err)
				}
			}
		}
		changes := func() []stock.Change {
			t.Helper()
			changes, last, err := l.Changes(t.Context(), "", stock.Change{})
			if err != nil || !last {
				t.Fatalf("last %v, %v", last, err)
			}
			return changes
		}
		all := changes()
		if len(all) != 6 {
			t.Fatalf("%d changes, want 6", len(all))
		}
		for _, applied := range [][]stock.Change{nil, all[:2], all[1:5]} {
			if err := l.Applied(t.Context(), applied...); err != nil {
				t.Fatal(err)
			}
		}
		if left := changes(); !slices.Equal(left, all[5:]) {
			t.Errorf("left %v, want %v", left, all[5:])
		}
	})
}
