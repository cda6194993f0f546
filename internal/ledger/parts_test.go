package ledger

import (
	"context"
	"testing"
	"time"

	"github.com/holdfast-stock/holdfast/internal/ledger/cutter"
	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// lent creates the stock row of a SKU with 10 units. Two parts have borrowed 3 and 4 of them.
func (d *database) lent(t *testing.T, l *Ledger, sku stock.SKU) StockRow {
	t.Helper()
	row := lay(t, l, sku, 10)
	d.lend(t, row, 3, 4)
	return row
}

// lend moves units from the stock row to parts.
func (d *database) lend(t *testing.T, row StockRow, parts ...int64) {
	t.Helper()
	for number, units := range parts {
		exec(t, d.sql.Ledger(), "INSERT INTO stock_parts (sku, part, available, epoch) VALUES (?, ?, ?, ?)", string(row.SKU), number+1, units, row.Epoch)
		exec(t, d.sql.Ledger(), "UPDATE stock SET available = available - ? WHERE sku = ?", units, string(row.SKU))
	}
}

// counted returns the units of the table stock, and the number of the SKU's parts.
func (d *database) counted(t *testing.T, sku stock.SKU) (available, parts int64) {
	t.Helper()
	err := d.sql.Ledger().QueryRow(t.Context(), []any{&available, &parts},
		"SELECT available, (SELECT COUNT(*) FROM stock_parts WHERE stock_parts.sku = stock.sku) FROM stock WHERE sku = ?", string(sku))
	if err != nil {
		t.Fatal(err)
	}
	return available, parts
}

// TestPartsAreCounted checks that every read of the stock counts the units in parts.
func TestPartsAreCounted(t *testing.T) {
	t.Parallel()
	eachDatabase(t, testenv.Chosen(databases, "SQLite", "PostgreSQL"), func(t *testing.T, d *database) {
		l := d.open(t, cutter.Merged())
		sku := fresh("a")
		want := d.lent(t, l, sku)
		if row, err := l.Row(t.Context(), sku); err != nil || row != want {
			t.Errorf("the row is %+v, %v; want %+v", row, err, want)
		}
		if rows, err := l.RowsOf(t.Context(), []stock.SKU{sku}); err != nil || len(rows) != 1 || rows[0] != want {
			t.Errorf("the rows are %+v, %v; want %+v", rows, err, want)
		}
		if rows, err := l.Rows(t.Context(), "", 10); err != nil || len(rows) != 1 || rows[0] != want {
			t.Errorf("all rows are %+v, %v; want %+v", rows, err, want)
		}
		if rows, err := l.Rows(t.Context(), sku, 10); err != nil || len(rows) > 0 {
			t.Errorf("after the last row: %+v, %v", rows, err)
		}
		if counts, err := l.Recount(t.Context(), []stock.SKU{sku}); err != nil || len(counts) != 1 || counts[0].StockRow != want {
			t.Errorf("the counts are %+v, %v; want %+v", counts, err, want)
		}
	})
}

// TestPartsAreTakenBack checks that a change takes the parts back if it needs all units of the SKU,
// or changes values on which sales from parts rely.
func TestPartsAreTakenBack(t *testing.T) {
	t.Parallel()
	eachDatabase(t, testenv.Chosen(databases, "SQLite", "MariaDB"), func(t *testing.T, d *database) {
		l := d.open(t, cutter.Merged())
		limit, opens := int64(2), time.Now().Add(time.Hour)
		set := func(change func(*stock.Setting)) func(context.Context, StockRow) (StockRow, error) {
			return func(ctx context.Context, row StockRow) (StockRow, error) {
				s := stock.Setting{SKU: row.SKU, Kind: row.Kind, Total: row.Total}
				change(&s)
				row, _, err := l.Set(ctx, s)
				return row, err
			}
		}
		for name, change := range map[string]struct {
			do   func(context.Context, StockRow) (StockRow, error)
			want int64
		}{
			"restock": {set(func(s *stock.Setting) { s.Total = 15 }), 15},
			"limit":   {set(func(s *stock.Setting) { s.BuyerLimit = &limit }), 10},
			"hours":   {set(func(s *stock.Setting) { s.OpensAt = &opens }), 10},
			"shrink": {func(ctx context.Context, row StockRow) (StockRow, error) {
				t := takeOf(row.SKU)
				t.Lines[0].Quantity = 9 // more units than the stock row has
				row, out := l.Shrink(ctx, t, stock.Setting{SKU: row.SKU, Kind: row.Kind, Total: 1})
				return row, out.Reason()
			}, 1},
			"epoch": {func(ctx context.Context, row StockRow) (StockRow, error) {
				return l.RaiseEpoch(ctx, row.SKU, row.Epoch, 0)
			}, 10},
			"epochs": {func(ctx context.Context, row StockRow) (StockRow, error) {
				rows, err := l.RaiseEpochs(ctx, []StockRow{row}, 0)
				if err != nil || len(rows) != 1 {
					return row, err
				}
				return rows[0], nil
			}, 10},
			"recount": {func(ctx context.Context, row StockRow) (StockRow, error) {
				if err := l.Correct(ctx, row.SKU, 0); err != nil {
					return row, err
				}
				return l.Row(ctx, row.SKU)
			}, 10},
		} {
			sku := fresh(name)
			row, err := change.do(t.Context(), d.lent(t, l, sku))
			if err != nil || row.Available != change.want {
				t.Errorf("%s: the row is %+v, %v; want %d available", name, row, err, change.want)
			}
			if available, parts := d.counted(t, sku); available != change.want || parts != 0 {
				t.Errorf("%s: the stock row has %d units and %d parts, want %d and none", name, available, parts, change.want)
			}
		}
	})
}

// TestReturnsLeavePartsAlone checks that units return to the stock row, and that the parts do not
// change.
func TestReturnsLeavePartsAlone(t *testing.T) {
	t.Parallel()
	eachDatabase(t, testenv.Chosen(databases, "SQLite", "PostgreSQL"), func(t *testing.T, d *database) {
		l := d.open(t, cutter.Merged())
		sku := fresh("a")
		row := lay(t, l, sku, 11)
		o := place(t, l, sku)
		d.lend(t, row, 3, 4)
		if err := cancelOrder(t.Context(), l, o.ID); err != nil {
			t.Fatal(err)
		}
		if available, parts := d.counted(t, sku); available != 4 || parts != 2 {
			t.Errorf("the stock row has %d units and %d parts, want 4 and 2", available, parts)
		}
		d.atRest(t, sku, 0)
	})
}

// TestRaiseEpochsLeavesLockedPartsOut checks that RaiseEpochs waits for no part.
func TestRaiseEpochsLeavesLockedPartsOut(t *testing.T) {
	t.Parallel()
	eachDatabase(t, servers, func(t *testing.T, d *database) {
		l := d.open(t, cutter.Merged())
		free, busy := d.lent(t, l, fresh("a")), d.lent(t, l, fresh("b"))
		err := d.sql.Ledger().Transact(t.Context(), func(tx *sqltx.Tx) error {
			if _, err := tx.Exec(t.Context(), "UPDATE stock_parts SET available = available - 1 WHERE sku = ? AND part = 2", string(busy.SKU)); err != nil {
				return err
			}
			raised, err := l.RaiseEpochs(t.Context(), []StockRow{free, busy}, 0)
			if err == nil && (len(raised) != 1 || raised[0].SKU != free.SKU || raised[0].Available != 10) {
				t.Errorf("raised %+v", raised)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		if available, parts := d.counted(t, busy.SKU); available != 3 || parts != 2 {
			t.Errorf("the stock row of the SKU that is sold has %d units and %d parts, want 3 and 2", available, parts)
		}
	})
}
