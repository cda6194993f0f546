// Package cutter holds the ways in which a ledger transaction takes units from
// stock rows. Cutters differ in how they lock and what they trust; which rows
// exist, whom they belong to and under which epoch they are sold is checked
// the same way by all.
package cutter

import (
	"fmt"
	"slices"

	"gorm.io/gorm"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

// row is what a cutter needs to know of a stock row.
type row struct {
	sku       stock.SKU
	available int64
	epoch     int64
	version   int64
}

type rows map[stock.SKU]*row

// read reads the stock rows of ds as they stand.
func read(db *gorm.DB, ds []stock.Deduction) (rows, error) { return query(db, ds, "") }

// lock reads the stock rows of ds under their row locks, taken in SKU order as
// every transaction of the ledger takes them. SQLite has no row locks: there
// the transaction holds the only write lock from its beginning.
func lock(tx *gorm.DB, ds []stock.Deduction) (rows, error) {
	if tx.Name() == "sqlite" {
		return query(tx, ds, "")
	}
	return query(tx, ds, " FOR UPDATE")
}

func query(db *gorm.DB, ds []stock.Deduction, suffix string) (rows, error) {
	skus := stock.SKUsOf(ds...)
	found, err := db.Raw("SELECT sku, available, epoch, version FROM stock WHERE sku IN ? ORDER BY sku"+suffix, skus).Rows()
	if err != nil {
		return nil, fmt.Errorf("reading stock rows: %w", err)
	}
	defer found.Close()
	rs := make(rows, len(skus))
	for found.Next() {
		var r row
		if err := found.Scan(&r.sku, &r.available, &r.epoch, &r.version); err != nil {
			return nil, fmt.Errorf("reading stock rows: %w", err)
		}
		rs[r.sku] = &r
	}
	if err := found.Err(); err != nil {
		return nil, fmt.Errorf("reading stock rows: %w", err)
	}
	return rs, nil
}

// check says whether units of the line may be taken from its row at all,
// however many there are.
func (rs rows) check(line stock.Line, g stock.Generation) error {
	r, ok := rs[line.SKU]
	switch {
	case !ok:
		return stock.Refuse(line.SKU, stock.ErrUnknownSKU)
	case stock.GenerationOf(r.epoch) > g:
		return stock.Refuse(line.SKU, stock.ErrSuperseded)
	case stock.GenerationOf(r.epoch) < g:
		return stock.Refuse(line.SKU, stock.ErrNotAdopted)
	case line.Epoch != 0 && r.epoch != line.Epoch:
		return stock.Refuse(line.SKU, stock.ErrStaleEpoch)
	}
	return nil
}

// take counts the deduction's units off the rows in memory, all lines or none.
// With refuse set it answers ErrSoldOut where they do not fit.
func (rs rows) take(d stock.Deduction, g stock.Generation, refuse bool) stock.Decision {
	for _, line := range d.Lines {
		if err := rs.check(line, g); err != nil {
			return stock.Refused(err)
		}
		if refuse && rs[line.SKU].available < line.Quantity {
			return stock.Refused(stock.Refuse(line.SKU, stock.ErrSoldOut))
		}
	}
	for _, line := range d.Lines {
		rs[line.SKU].available -= line.Quantity
	}
	return stock.Taken()
}

// takeAll decides the deductions one after the other.
func (rs rows) takeAll(ds []stock.Deduction, g stock.Generation, refuse bool) []stock.Decision {
	decisions := make([]stock.Decision, len(ds))
	for i, d := range ds {
		decisions[i] = rs.take(d, g, refuse)
	}
	return decisions
}

// taken sums up the units of each SKU in the deductions that were taken.
func taken(ds []stock.Deduction, decisions []stock.Decision) (skus []stock.SKU, units map[stock.SKU]int64) {
	units = make(map[stock.SKU]int64)
	for i, d := range ds {
		if !decisions[i].Taken() {
			continue
		}
		for _, line := range d.Lines {
			if units[line.SKU] == 0 {
				skus = append(skus, line.SKU)
			}
			units[line.SKU] += line.Quantity
		}
	}
	slices.Sort(skus)
	return skus, units
}
