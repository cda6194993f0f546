package cutter

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"

	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// A stock row may lend units to parts, which are rows of the table stock_parts. Then a sale locks a
// part instead of the stock row. The rules:
//
//   - The available units of a SKU are those of its stock row and of its parts together (InParts).
//   - Parts are added only under the lock of the stock row (lend), with the epoch and the
//     hours of the stock row, and only for a SKU without buyer limit.
//   - A sale that locks no stock row may take units from a part that has its epoch and is
//     open. It may delete an empty part.
//   - A transaction that only adds units adds them to the stock row.
//   - A transaction that needs all units of a SKU, or changes its epoch, hours or limit,
//     locks the stock row and takes the parts back first (Collect). A sale that waits for
//     such a part finds it deleted, uses the stock row, and sees the change there.
//   - Every transaction locks stock rows before parts, and parts by SKU and number.

// InParts is the expression for the units that the parts of a stock row have, for a
// statement that reads the table stock.
func InParts(d sqltx.Dialect) string {
	return "CAST((SELECT COALESCE(SUM(stock_parts.available), 0) FROM stock_parts WHERE stock_parts.sku = stock.sku) AS " + d.BigInt() + ")"
}

// Collect takes the parts of the SKUs back: it locks them, adds their units to the stock rows, and
// deletes them. tx must have locked the stock rows. It returns the units that each stock row got.
// SKUs without parts are left out.
func Collect(ctx context.Context, tx *sqltx.Tx, skus ...stock.SKU) (map[stock.SKU]int64, error) {
	units, err := lockParts(ctx, tx, skus)
	if err != nil {
		return nil, err
	}
	return units, collect(ctx, tx, units)
}

// CollectFree is Collect for those of the SKUs whose parts no other transaction has locked. It
// never waits. busy has the other SKUs.
func CollectFree(ctx context.Context, tx *sqltx.Tx, skus []stock.SKU) (units map[stock.SKU]int64, busy []stock.SKU, err error) {
	type part struct {
		sku    stock.SKU
		number int
	}
	units = make(map[stock.SKU]int64)
	locked := make(map[part]bool)
	err = eachPart(ctx, tx, skus, tx.SkipLocked(), func(sku stock.SKU, number int, available int64) {
		units[sku] += available
		locked[part{sku, number}] = true
	})
	if err == nil { // another transaction has locked the existing parts that tx could not lock
		err = eachPart(ctx, tx, skus, "", func(sku stock.SKU, number int, _ int64) {
			if !locked[part{sku, number}] && !slices.Contains(busy, sku) {
				busy = append(busy, sku)
			}
		})
	}
	if err != nil {
		return nil, nil, fmt.Errorf("locking parts: %w", err)
	}
	for _, sku := range busy {
		delete(units, sku)
	}
	return units, busy, collect(ctx, tx, units)
}

// lockParts locks the parts of the SKUs, and adds their units to those of the stock rows,
// which must be locked.
func (rs rows) lockParts(ctx context.Context, tx *sqltx.Tx, skus []stock.SKU) error {
	parts, err := lockParts(ctx, tx, skus)
	for sku, r := range rs {
		r.available += parts[sku]
	}
	return err
}

// lockParts locks the parts of the SKUs and returns the units in them, by SKU. SKUs without parts
// are left out. tx must have locked the stock rows, so no part is added or taken back until it
// ends.
func lockParts(ctx context.Context, tx *sqltx.Tx, skus []stock.SKU) (map[stock.SKU]int64, error) {
	units := make(map[stock.SKU]int64)
	err := eachPart(ctx, tx, skus, tx.Dialect().RowLock(), func(sku stock.SKU, _ int, available int64) { units[sku] += available })
	if err != nil {
		return nil, fmt.Errorf("locking parts: %w", err)
	}
	return units, nil
}

// eachPart calls do for each part of the SKUs, by SKU and number. rowLock is the clause that
// locks them, or empty.
func eachPart(ctx context.Context, tx *sqltx.Tx, skus []stock.SKU, rowLock string, do func(sku stock.SKU, number int, available int64)) error {
	return tx.QueryEach(ctx, func(found *sql.Rows) error {
		var (
			sku       stock.SKU
			number    int
			available int64
		)
		err := found.Scan(&sku, &number, &available)
		do(sku, number, available)
		return err
	}, "SELECT sku, part, available FROM stock_parts WHERE sku IN ? ORDER BY sku, part"+rowLock, skus)
}

// collect moves the units of locked parts to their stock rows, and deletes the parts.
func collect(ctx context.Context, tx *sqltx.Tx, units map[stock.SKU]int64) error {
	if len(units) == 0 {
		return nil
	}
	var (
		d       = tx.Dialect()
		skus    []stock.SKU
		args    []any
		negated = make(map[stock.SKU]int64, len(units))
	)
	for sku, n := range units {
		skus = append(skus, sku)
		args = append(args, string(sku))
		negated[sku] = -n
	}
	_, err := tx.ExecAll(ctx, stockRows.countDown(d, skus, negated), sqltx.Statement{
		SQL: "DELETE FROM stock_parts WHERE sku IN (?" + strings.Repeat(",?", len(args)-1) + ")", Args: args,
	})
	if err != nil {
		return fmt.Errorf("taking parts back: %w", err)
	}
	return nil
}

// lend returns the statements that move units from the locked stock row r to its parts, which are
// numbered from first. r must have no buyer limit, and keeps the units that are in no part.
// Existing parts are updated and not replaced: in PostgreSQL a sale that waits for a part then
// finds it again.
func lend(d sqltx.Dialect, r *row, first int64, parts []int64) []sqltx.Statement {
	left := r.available
	args := make([]any, 0, 6*len(parts))
	for i, units := range parts {
		left -= units
		args = append(args, string(r.sku), first+int64(i), units, r.epoch, sqltx.Nullable(r.opensAt), sqltx.Nullable(r.closesAt))
	}
	clause, inserted := d.Upsert("sku", "part")
	return []sqltx.Statement{
		{SQL: "UPDATE stock SET available = ? WHERE sku = ?", Args: []any{left, string(r.sku)}},
		{
			SQL: "INSERT INTO stock_parts (sku, part, available, epoch, opens_at, closes_at) VALUES (?,?,?,?,?,?)" +
				strings.Repeat(",(?,?,?,?,?,?)", len(parts)-1) + clause + "available = " + inserted("available"),
			Args: args,
		},
	}
}
