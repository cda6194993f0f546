package cutter

import (
	"fmt"

	"gorm.io/gorm"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

// ReadWrite reads the rows on a connection of its own, checks, and writes the
// absolute count it worked out. It oversells: two that read the same count
// both write count - 1, and one of the updates is lost.
func ReadWrite() stock.Cutter { return readWrite{} }

type readWrite struct{ seen rows }

var _ stock.Viewer = readWrite{}

// View reads the counts that a later Cut trusts.
func (readWrite) View(db *gorm.DB, _ stock.Generation, ds []stock.Deduction) (stock.Cutter, error) {
	seen, err := read(db, ds)
	return readWrite{seen}, err
}

func (c readWrite) Cut(tx *gorm.DB, g stock.Generation, ds []stock.Deduction) ([]stock.Decision, error) {
	decisions := c.seen.takeAll(ds, g, true)
	skus, _ := taken(ds, decisions)
	for _, sku := range skus {
		written := tx.Exec("UPDATE stock SET available = ? WHERE sku = ? AND epoch = ?",
			c.seen[sku].available, string(sku), c.seen[sku].epoch)
		if written.Error != nil {
			return nil, fmt.Errorf("writing the count of %s: %w", sku, written.Error)
		}
		if written.RowsAffected == 0 {
			return nil, stock.ErrConflict // another generation owns the row
		}
	}
	return decisions, nil
}
