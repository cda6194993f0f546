package ledger

import (
	"slices"
	"testing"

	"github.com/holdfast-stock/holdfast/internal/ledger/cutter"
	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
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
		earlier := all[5]
		earlier.Epoch-- // it was deleted, and its number used again
		for _, applied := range [][]stock.Change{nil, all[:2], all[1:5], {earlier}} {
			if err := l.Applied(t.Context(), applied...); err != nil {
				t.Fatal(err)
			}
		}
		if left := changes(); !slices.Equal(left, all[5:]) {
			t.Errorf("left %v, want %v", left, all[5:])
		}
	})
}

// TestChanges_Pages reads more changes than one page has. A full page is not the last one, so that
// additions that stay in the outbox do not hide those of other SKUs.
func TestChanges_Pages(t *testing.T) {
	t.Parallel()
	eachDatabase(t, testenv.Chosen(databases, "SQLite"), func(t *testing.T, d *database) {
		l := d.open(t, cutter.Merged())
		var all []stock.Change
		add := func(n int) {
			t.Helper()
			err := l.db.Transact(t.Context(), func(tx *sqltx.Tx) error {
				for range n {
					c := stock.Change{SKU: "a", Epoch: 1, Number: int64(len(all)) + 1, Delta: 1}
					all = append(all, c)
					tx.AtCommit(insertChange(c))
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		read := func(after stock.Change, want []stock.Change, wantLast bool) {
			t.Helper()
			if page, last, err := l.Changes(t.Context(), "", after); err != nil || last != wantLast || !slices.Equal(page, want) {
				t.Errorf("%d changes after %+v, last %v, %v; want %d, last %v", len(page), after, last, err, len(want), wantLast)
			}
		}
		add(pageSize)
		read(stock.Change{}, all, false)
		read(all[pageSize-1], nil, true)
		add(1)
		read(stock.Change{}, all[:pageSize], false)
		read(all[pageSize-1], all[pageSize:], true)
	})
}
