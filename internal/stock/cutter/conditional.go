package cutter

import (
	"fmt"

	"gorm.io/gorm"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

// Conditional takes each line by UPDATE … WHERE available >= n: the check and
// the cut are one statement, and nothing is read first.
func Conditional() stock.Cutter { return conditional{} }

type conditional struct{}

func (c conditional) Cut(tx *gorm.DB, g stock.Generation, ds []stock.Deduction) ([]stock.Decision, error) {
	decisions := make([]stock.Decision, len(ds))
	for i, d := range ds {
		decisions[i] = stock.Taken()
		for n, line := range d.Lines {
			fits, err := conditionally(tx, g, line, true)
			if err != nil {
				return nil, err
			}
			if fits {
				continue
			}
			if err := giveBack(tx, d.Lines[:n]); err != nil {
				return nil, err
			}
			if decisions[i], err = whyNot(tx, g, d, line); err != nil {
				return nil, err
			}
			break
		}
	}
	return decisions, nil
}

// giveBack undoes lines of a deduction that another line of it refused. Their
// rows are still locked by this transaction, so nobody saw them missing.
func giveBack(tx *gorm.DB, lines []stock.Line) error {
	for _, line := range lines {
		err := tx.Exec("UPDATE stock SET available = available + ? WHERE sku = ?", line.Quantity, string(line.SKU)).Error
		if err != nil {
			return fmt.Errorf("giving units of %s back: %w", line.SKU, err)
		}
	}
	return nil
}

// whyNot says why no row met the conditions for the line.
func whyNot(tx *gorm.DB, g stock.Generation, d stock.Deduction, line stock.Line) (stock.Decision, error) {
	rs, err := read(tx, []stock.Deduction{d})
	if err != nil {
		return stock.Decision{}, err
	}
	if refusal := rs.check(line, g); refusal != nil {
		return stock.Refused(refusal), nil
	}
	return stock.Refused(stock.Refuse(line.SKU, stock.ErrSoldOut)), nil
}
