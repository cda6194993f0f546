package cutter

import (
	"fmt"

	"gorm.io/gorm"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

// Optimistic reads the rows with their version before the transaction, and
// updates them only if the version has not moved. No lock is held while it
// decides; the price is a new transaction for every row that did move.
func Optimistic(layout string) stock.Cutter { return optimistic{layout: layout} }

type optimistic struct {
	layout string
	seen   rows
}

var _ stock.Viewer = optimistic{}

// View reads the rows that a later Cut will compare versions with.
func (c optimistic) View(db *gorm.DB, ds []stock.Deduction) (stock.Cutter, error) {
	seen, err := read(db, ds)
	return optimistic{c.layout, seen}, err
}

func (c optimistic) Cut(tx *gorm.DB, ds []stock.Deduction) ([]error, error) {
	answers := make([]error, len(ds))
	for i, d := range ds {
		answers[i] = c.seen.take(d, c.layout, true)
	}
	skus, units := taken(ds, answers)
	for _, sku := range skus {
		updated := tx.Exec("UPDATE stock SET available = available - ?, version = version + 1 WHERE sku = ? AND version = ?",
			units[sku], string(sku), c.seen[sku].version)
		if updated.Error != nil {
			return nil, fmt.Errorf("taking units of %s: %w", sku, updated.Error)
		}
		if updated.RowsAffected == 0 {
			return nil, stock.ErrConflict
		}
	}
	return answers, nil
}
