package cutter

import (
	"fmt"

	"gorm.io/gorm"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

// ReadWrite reads the rows on a connection of its own, checks, and writes the
// absolute count it worked out. It oversells: two that read the same count
// both write count - 1, and one of the updates is lost.
func ReadWrite(layout string) stock.Cutter { return readWrite{layout: layout} }

type readWrite struct {
	layout string
	seen   rows
}

var _ stock.Viewer = readWrite{}

// View reads the counts that a later Cut trusts.
func (c readWrite) View(db *gorm.DB, ds []stock.Deduction) (stock.Cutter, error) {
	seen, err := read(db, ds)
	return readWrite{c.layout, seen}, err
}

func (c readWrite) Cut(tx *gorm.DB, ds []stock.Deduction) ([]error, error) {
	answers := make([]error, len(ds))
	for i, d := range ds {
		answers[i] = c.seen.take(d, c.layout, true)
	}
	skus, _ := taken(ds, answers)
	for _, sku := range skus {
		err := tx.Exec("UPDATE stock SET available = ? WHERE sku = ?", c.seen[sku].available, string(sku)).Error
		if err != nil {
			return nil, fmt.Errorf("writing the count of %s: %w", sku, err)
		}
	}
	return answers, nil
}
