package cutter

import (
	"fmt"

	"gorm.io/gorm"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

// Merged takes the units of a whole group at once: where the group concerns
// one SKU, by a single conditional UPDATE of their sum, so that the hot row is
// locked for one statement a group. A group that does not fit whole, or that
// concerns several SKUs, is decided under row locks, order by order.
func Merged(layout string) stock.Cutter {
	return merged{forUpdate{layout: layout, refuse: true}}
}

// Count counts down as Merged does and refuses nothing for lack of stock: the
// count may fall below zero. What it is given, a gate has admitted.
func Count(layout string) stock.Cutter {
	return merged{forUpdate{layout: layout, refuse: false}}
}

type merged struct{ decide forUpdate }

var _ stock.Planner = merged{}

// Plan sums a group of one SKU up.
func (c merged) Plan(ds []stock.Deduction) (sql string, args []any, ok bool) {
	line, ok := sum(ds)
	if !ok {
		return "", nil, false
	}
	sql, args = condition(line, c.decide.layout, c.decide.refuse)
	return sql, args, true
}

func (c merged) Cut(tx *gorm.DB, ds []stock.Deduction) ([]error, error) {
	if line, ok := sum(ds); ok {
		fits, err := conditionally(tx, line, c.decide.layout, c.decide.refuse)
		if err != nil {
			return nil, err
		}
		if fits {
			return make([]error, len(ds)), nil
		}
	}
	return c.decide.Cut(tx, ds)
}

// sum adds the deductions up to one line, if they all ask for one SKU under
// one epoch.
func sum(ds []stock.Deduction) (stock.Line, bool) {
	total := ds[0].Lines[0]
	total.Quantity = 0
	for _, d := range ds {
		if len(d.Lines) != 1 || d.Lines[0].SKU != total.SKU || d.Lines[0].Epoch != total.Epoch {
			return stock.Line{}, false
		}
		total.Quantity += d.Lines[0].Quantity
	}
	return total, true
}

// condition is an UPDATE that takes the line's units, and whose conditions say
// everything that must be true of the row.
func condition(line stock.Line, layout string, refuse bool) (sql string, args []any) {
	sql = "UPDATE stock SET available = available - ? WHERE sku = ? AND layout = ?"
	args = []any{line.Quantity, string(line.SKU), layout}
	if line.Epoch != 0 {
		sql += " AND epoch = ?"
		args = append(args, line.Epoch)
	}
	if refuse {
		sql += " AND available >= ?"
		args = append(args, line.Quantity)
	}
	return sql, args
}

// conditionally takes the line's units by one UPDATE, and reports whether its
// conditions were met.
func conditionally(tx *gorm.DB, line stock.Line, layout string, refuse bool) (bool, error) {
	sql, args := condition(line, layout, refuse)
	updated := tx.Exec(sql, args...)
	if updated.Error != nil {
		return false, fmt.Errorf("taking units of %s: %w", line.SKU, updated.Error)
	}
	return updated.RowsAffected == 1, nil
}
