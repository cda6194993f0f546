package cutter

import (
	"fmt"

	"gorm.io/gorm"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

// Optimistic reads the rows with their version before the transaction, and
// updates them only if the version has not moved. No lock is held while it
// decides; the price is a new transaction for every row that did move.
func Optimistic() stock.Cutter { return optimistic{} }

type optimistic struct{ seen rows }

var _ stock.Viewer = optimistic{}

// View reads the rows that a later Cut will compare versions with.
func (optimistic) View(db *gorm.DB, _ stock.Generation, ds []stock.Deduction) (stock.Cutter, error) {
	seen, err := read(db, ds)
	return optimistic{seen}, err
}

func (c optimistic) Cut(tx *gorm.DB, g stock.Generation, ds []stock.Deduction) ([]stock.Decision, error) {
	decisions := c.seen.takeAll(ds, g, true)
	skus, units := taken(ds, decisions)
	for _, sku := range skus {
		updated := tx.Exec("UPDATE stock SET available = available - ?, version = version + 1 WHERE sku = ? AND version = ? AND epoch = ?",
			units[sku], string(sku), c.seen[sku].version, c.seen[sku].epoch)
		if updated.Error != nil {
			return nil, fmt.Errorf("taking units of %s: %w", sku, updated.Error)
		}
		if updated.RowsAffected == 0 {
			return nil, stock.ErrConflict
		}
	}
	return decisions, nil
}
