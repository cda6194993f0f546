package ledger

import (
	"errors"
	"slices"
	"testing"

	"github.com/holdfast-stock/holdfast/internal/ledger/cutter"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// TestRaiseEpochs checks that the epochs of many rows rise together above every epoch that was
// seen, and that the rows' changes leave the outbox. Rows that have changed since, or that are
// locked, must stay as they are.
func TestRaiseEpochs(t *testing.T) {
	t.Parallel()
	eachDatabase(t, testenv.Chosen(databases, "SQLite", "PostgreSQL"), func(t *testing.T, d *database) {
		l := d.open(t, cutter.Merged())
		var seen []StockRow
		for _, name := range []string{"a", "b", "changed", "locked"} {
			row := lay(t, l, fresh(name), 10)
			row, _, err := l.Set(t.Context(), stock.Setting{SKU: row.SKU, Kind: stock.Product, Total: 15})
			if err != nil {
				t.Fatal(err)
			}
			seen = append(seen, row)
		}
		changed, err := l.RaiseEpoch(t.Context(), seen[2].SKU, seen[2].Epoch, seen[2].Epoch+7)
		if err != nil || changed.Changes != 0 {
			t.Fatalf("raised one epoch: %+v, %v", changed, err)
		}
		want := []stock.SKU{seen[0].SKU, seen[1].SKU}
		if !d.sql.Ledger().SkipsLocked() {
			want = append(want, seen[3].SKU)
		} else {
			holder := begin(t, d.sql.Ledger())
			if _, err := lockRow(t.Context(), holder, seen[3].SKU); err != nil {
				t.Fatal(err)
			}
		}
		above := seen[0].Epoch + 3
		raised, err := l.RaiseEpochs(t.Context(), seen, above)
		if err != nil {
			t.Fatal(err)
		}
		var got []stock.SKU
		for _, row := range raised {
			got = append(got, row.SKU)
			if row.Epoch <= above || row.Epoch != raised[0].Epoch || stock.GenerationOf(row.Epoch) != generation {
				t.Errorf("%s has epoch %d, want one epoch for all, above %d", row.SKU, row.Epoch, above)
			}
			if row.Available != 15 || row.Changes != 0 || row.Version != 2 {
				t.Errorf("raised %+v", row)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("raised %v, want %v", got, want)
		}
		skus := []stock.SKU{seen[0].SKU, seen[1].SKU, seen[2].SKU, seen[3].SKU}
		rows, err := l.RowsOf(t.Context(), append(skus, "nowhere"))
		if err != nil || len(rows) != 4 {
			t.Fatalf("%d rows, %v", len(rows), err)
		}
		for i, row := range rows {
			before := append(slices.Clone(raised[:2]), changed, seen[3])[i]
			if i == 3 && len(raised) == 3 {
				before = raised[2]
			}
			if row != before {
				t.Errorf("the row is %+v, want %+v", row, before)
			}
		}
		changes, _, err := l.Changes(t.Context(), "", stock.Change{})
		if err != nil || len(changes) != 4-len(raised)-1 {
			t.Errorf("%d changes are in the outbox, %v; want those of rows that kept their epoch", len(changes), err)
		}
	})
}

// TestRaiseEpochsOfALaterGeneration checks that no row is raised if a row, or the gate's epoch,
// belongs to a later generation.
func TestRaiseEpochsOfALaterGeneration(t *testing.T) {
	t.Parallel()
	eachDatabase(t, testenv.Chosen(databases, "SQLite", "MariaDB"), func(t *testing.T, d *database) {
		l, later := d.open(t, cutter.Merged()), d.open(t, cutter.Merged())
		later.Use(generation + 1)
		mine, theirs := lay(t, l, fresh("a"), 10), lay(t, later, fresh("b"), 10)
		if raised, err := l.RaiseEpochs(t.Context(), []StockRow{mine, theirs}, 0); !errors.Is(err, stock.ErrLaterGeneration) || raised != nil {
			t.Errorf("raised %v, %v", raised, err)
		}
		if raised, err := l.RaiseEpochs(t.Context(), []StockRow{mine}, theirs.Epoch); !errors.Is(err, stock.ErrLaterGeneration) || raised != nil {
			t.Errorf("raised %v, %v", raised, err)
		}
		if row, err := l.Row(t.Context(), mine.SKU); err != nil || row != mine {
			t.Errorf("the row is %+v, %v; want %+v", row, err, mine)
		}
	})
}
