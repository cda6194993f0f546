package cutter

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// maxPool bounds the unit rows of one SKU.
const maxPool = 1000

// UnitRows returns the cutter that keeps a pool of rows, one for each unit that can be sold now. It
// takes n units by SELECT … FOR UPDATE SKIP LOCKED LIMIT n. No sale waits for the row of another.
// The rows are parts of the stock row with one unit each: parts.go has their rules. It needs a
// database on which sqltx.DB.CheckSkipLocked succeeds.
//
// If too few rows are free, it returns ErrConflict, and the next plan for the SKU locks the stock
// row and refills the pool. The refill must be another transaction, to avoid a deadlock: a sale
// that holds units would wait for the stock row, whose holder may wait for those units.
func UnitRows() Cutter { return unitRows{newMemory[bool]()} }

type unitRows struct {
	// short has the SKUs that had too few free units, and that no transaction has refilled since. A
	// refill may be impossible (sold out, or a buyer limit) or may have failed.
	short *lru.Cache[stock.SKU, bool]
}

func (c unitRows) Plan(_ context.Context, _ *sqltx.DB, g stock.Generation, takes []stock.Take) (Plan, error) {
	lines, ok := sum(takes)
	if !ok || slices.ContainsFunc(lines, func(l line) bool { return c.short.Contains(l.sku) }) {
		return Plan{Cut: func(ctx context.Context, tx *sqltx.Tx) ([]Decision, error) { return c.refilling(ctx, tx, g, takes) }}, nil
	}
	return Plan{Cut: func(ctx context.Context, tx *sqltx.Tx) ([]Decision, error) {
		for _, line := range lines {
			free, err := freeUnits(ctx, tx, line.sku, line.units, unitsUnder(tx.Dialect(), g, line))
			if err != nil {
				return nil, err
			}
			if int64(len(free)) < line.units {
				c.short.Add(line.sku, true)
				return nil, ErrConflict
			}
			tx.AtCommit(deleteUnits(tx.Dialect(), line.sku, free)...)
		}
		return slices.Repeat([]Decision{{Taken: true}}, len(takes)), nil
	}}, nil
}

// refilling decides the takes under the locks of their stock rows, and refills the pools of SKUs
// with too few free units. It takes the free units that it needs back into the stock row first. It
// waits for units that other transactions hold only if all other units are too few. So a unit that
// is returned is sold, and "sold out" is final.
func (c unitRows) refilling(ctx context.Context, tx *sqltx.Tx, g stock.Generation, takes []stock.Take) ([]Decision, error) {
	rs, err := lock(ctx, tx, takes)
	if err != nil {
		return nil, err
	}
	skus, wanted := unitsOf(takes)
	pools := make(map[stock.SKU]pool)
	for _, sku := range skus {
		r := rs[sku]
		if rs.check(line{sku: sku}, g) != nil || r.limit != 0 { // the parts of another generation may not be unit rows
			continue
		}
		p, err := lockPool(ctx, tx, sku, r.available, wanted[sku])
		if err != nil {
			return nil, err
		}
		if len(p.locked) > 0 {
			back := stockRows.countDown(tx.Dialect(), []stock.SKU{sku}, map[stock.SKU]int64{sku: -int64(len(p.locked))})
			if _, err := tx.ExecAll(ctx, append(deleteUnits(tx.Dialect(), sku, p.locked), back)...); err != nil {
				return nil, fmt.Errorf("taking units of %s back: %w", sku, err)
			}
			r.available += int64(len(p.locked))
		}
		pools[sku] = p
	}
	decisions, err := rs.cut(ctx, tx, g, takes, true)
	if err != nil {
		return nil, err
	}
	sold, _ := unitsOf(acceptedTakes(takes, decisions))
	for _, sku := range sold {
		p, ok := pools[sku]
		switch n := min(rs[sku].available, maxPool-p.held); {
		case !ok:
		case p.enough:
			c.short.Remove(sku) // another transaction has refilled the pool
		case n == 0: // sold out
		default:
			units := make([]int64, n)
			for i := range units {
				units[i] = 1
			}
			tx.AtCommit(lend(tx.Dialect(), rs[sku], p.next, units)...)
			c.short.Remove(sku) // too early if the COMMIT fails, but the next sale then sets it again
		}
	}
	return decisions, nil
}

// pool describes a SKU's unit rows, as read by a transaction that has locked the stock row.
type pool struct {
	locked []any // numbers of the locked rows
	enough bool  // as many rows are locked as are wanted; then held and next are not set
	held   int64 // number of rows that other transactions hold
	next   int64 // the lowest number above all existing ones
}

// lockPool locks as many free unit rows of the SKU as are wanted. If these and the available units
// of the stock row are fewer, it waits for the other rows, until the session's lock timeout.
func lockPool(ctx context.Context, tx *sqltx.Tx, sku stock.SKU, available, wanted int64) (p pool, err error) {
	if p.locked, err = freeUnits(ctx, tx, sku, wanted, unitCondition{sql: "sku = ?", args: []any{string(sku)}}); err != nil {
		return p, err
	}
	if p.enough = int64(len(p.locked)) == wanted; p.enough {
		return p, nil
	}
	var rows int64
	err = tx.QueryRow(ctx, []any{&rows, &p.next}, "SELECT COUNT(*), COALESCE(MAX(part) + 1, 0) FROM stock_parts WHERE sku = ?", string(sku))
	if err != nil {
		return p, fmt.Errorf("counting the units of %s: %w", sku, err)
	}
	p.held = rows - int64(len(p.locked))
	if available+int64(len(p.locked)) >= wanted {
		return p, nil
	}
	p.locked, p.held = nil, 0
	err = tx.QueryEach(ctx, func(found *sql.Rows) error {
		var number int64
		err := found.Scan(&number)
		p.locked = append(p.locked, number)
		return err
	}, "SELECT part FROM stock_parts WHERE sku = ? ORDER BY part"+tx.Dialect().RowLock(), string(sku))
	if err != nil {
		return p, fmt.Errorf("waiting for units of %s: %w", sku, err)
	}
	return p, nil
}

// unitCondition is a condition of unit rows.
type unitCondition struct {
	sql  string
	args []any
}

// unitsUnder is the condition of unit rows that may serve the line.
func unitsUnder(d sqltx.Dialect, g stock.Generation, l line) unitCondition {
	first, last := g.Epochs()
	c := unitCondition{"sku = ? AND " + open(d) + " AND epoch BETWEEN ? AND ?", []any{string(l.sku), first, last}}
	if l.epoch != 0 {
		c.sql, c.args = c.sql+" AND epoch = ?", append(c.args, l.epoch)
	}
	return c
}

// freeUnits locks up to limit unit rows that no other transaction has locked, and returns
// their numbers.
func freeUnits(ctx context.Context, tx *sqltx.Tx, sku stock.SKU, limit int64, c unitCondition) (numbers []any, err error) {
	err = tx.QueryEach(ctx, func(found *sql.Rows) error {
		var number int64
		err := found.Scan(&number)
		numbers = append(numbers, number)
		return err
	}, "SELECT part FROM stock_parts WHERE "+c.sql+" ORDER BY part LIMIT ?"+tx.SkipLocked(), append(c.args, limit)...)
	if err != nil {
		return nil, fmt.Errorf("locking units of %s: %w", sku, err)
	}
	return numbers, nil
}

// deleteUnits returns the statements that delete unit rows, which must be locked.
func deleteUnits(d sqltx.Dialect, sku stock.SKU, numbers []any) (statements []sqltx.Statement) {
	for some := range slices.Chunk(numbers, d.KeysOfDelete()) {
		statements = append(statements, sqltx.Statement{
			SQL:  "DELETE FROM stock_parts WHERE sku = ? AND part IN (?" + strings.Repeat(",?", len(some)-1) + ")",
			Args: append([]any{string(sku)}, some...),
		})
	}
	return statements
}
