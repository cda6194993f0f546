package cutter

import (
	"fmt"

	"gorm.io/gorm"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

// Conditional takes each line by UPDATE … WHERE available >= n: the check and
// the cut are one statement, and nothing is read first.
func Conditional(layout string) stock.Cutter { return conditional{layout} }

type conditional struct{ layout string }

func (c conditional) Cut(tx *gorm.DB, ds []stock.Deduction) ([]error, error) {
	answers := make([]error, len(ds))
	for i, d := range ds {
		for n, line := range d.Lines {
			fits, err := conditionally(tx, line, c.layout, true)
			if err != nil {
				return nil, err
			}
			if fits {
				continue
			}
			if err := giveBack(tx, d.Lines[:n]); err != nil {
				return nil, err
			}
			if answers[i], err = c.whyNot(tx, d, line); err != nil {
				return nil, err
			}
			break
		}
	}
	return answers, nil
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
func (c conditional) whyNot(tx *gorm.DB, d stock.Deduction, line stock.Line) (refusal, err error) {
	rs, err := read(tx, []stock.Deduction{d})
	if err != nil {
		return nil, err
	}
	if refusal := rs.check(line, c.layout); refusal != nil {
		return refusal, nil
	}
	return stock.Refuse(line.SKU, stock.ErrSoldOut), nil
}
