package cutter

import (
	"context"
	"database/sql"
	"fmt"
	"slices"

	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// line is one line of a take, or of several takes added up.
type line struct {
	sku   stock.SKU
	units int64
	epoch int64 // 0 if no gate cut it
}

func linesOf(t stock.Take) []line {
	lines := make([]line, len(t.Lines))
	for i, l := range t.Lines {
		lines[i] = line{l.SKU, l.Quantity, t.Epoch(i)}
	}
	return lines
}

// row is the part of a stock row that cutters use.
type row struct {
	sku       stock.SKU
	available int64
	epoch     int64
	version   int64
}

type rows map[stock.SKU]*row

// querier is a database or a transaction.
type querier interface {
	QueryEach(ctx context.Context, scan func(*sql.Rows) error, sql string, args ...any) error
}

// read reads the stock rows of the takes without locking them.
func read(ctx context.Context, db querier, takes []stock.Take) (rows, error) {
	return readSKUs(ctx, db, stock.SKUsOf(takes...), "")
}

// lock reads the stock rows of the takes and locks them in SKU order, as every
// transaction of the ledger does.
func lock(ctx context.Context, tx *sqltx.Tx, takes []stock.Take) (rows, error) {
	return readSKUs(ctx, tx, stock.SKUsOf(takes...), tx.Dialect().RowLock())
}

func readSKUs(ctx context.Context, db querier, skus []stock.SKU, rowLock string) (rows, error) {
	rs := make(rows, len(skus))
	err := db.QueryEach(ctx, func(found *sql.Rows) error {
		var r row
		err := found.Scan(&r.sku, &r.available, &r.epoch, &r.version)
		rs[r.sku] = &r
		return err
	}, "SELECT sku, available, epoch, version FROM stock WHERE sku IN ? ORDER BY sku"+rowLock, skus)
	if err != nil {
		return nil, fmt.Errorf("reading stock rows: %w", err)
	}
	return rs, nil
}

// check returns why units of the line may not be taken from its row, however many
// the row has. nil: they may.
func (rs rows) check(l line, g stock.Generation) error {
	r, ok := rs[l.sku]
	switch {
	case !ok:
		return stock.Refuse(l.sku, stock.ErrUnknownSKU)
	case stock.GenerationOf(r.epoch) > g:
		return stock.Refuse(l.sku, stock.ErrLaterGeneration)
	case stock.GenerationOf(r.epoch) < g:
		return stock.Refuse(l.sku, stock.ErrNotAdopted)
	case l.epoch != 0 && r.epoch != l.epoch:
		return stock.Refuse(l.sku, stock.ErrStaleEpoch)
	}
	return nil
}

// take subtracts the take's units from the rows in memory: all lines or none. If
// refuse is true, it answers ErrSoldOut if they do not fit.
func (rs rows) take(t stock.Take, g stock.Generation, refuse bool) Decision {
	lines := linesOf(t)
	for _, l := range lines {
		if err := rs.check(l, g); err != nil {
			return Refused(err)
		}
		if refuse && rs[l.sku].available < l.units {
			return Refused(stock.Refuse(l.sku, stock.ErrSoldOut))
		}
	}
	for _, l := range lines {
		rs[l.sku].available -= l.units
	}
	return Taken()
}

// takeAll decides the takes one after the other.
func (rs rows) takeAll(takes []stock.Take, g stock.Generation, refuse bool) []Decision {
	decisions := make([]Decision, len(takes))
	for i, t := range takes {
		decisions[i] = rs.take(t, g, refuse)
	}
	return decisions
}

// taken adds up the units of each SKU in the takes that were accepted.
func taken(takes []stock.Take, decisions []Decision) (skus []stock.SKU, units map[stock.SKU]int64) {
	units = make(map[stock.SKU]int64)
	for i, t := range takes {
		if !decisions[i].Taken() {
			continue
		}
		for _, line := range t.Lines {
			if units[line.SKU] == 0 {
				skus = append(skus, line.SKU)
			}
			units[line.SKU] += line.Quantity
		}
	}
	slices.Sort(skus)
	return skus, units
}
