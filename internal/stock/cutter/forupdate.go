package cutter

import (
	"fmt"
	"strings"

	"gorm.io/gorm"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

// ForUpdate locks the stock rows with SELECT … FOR UPDATE, decides, and then
// updates them: the row is locked for two statements and the commit.
func ForUpdate() stock.Cutter { return forUpdate{refuse: true} }

type forUpdate struct {
	refuse bool // refuse what does not fit, rather than count below zero
}

func (c forUpdate) Cut(tx *gorm.DB, g stock.Generation, ds []stock.Deduction) ([]stock.Decision, error) {
	rs, err := lock(tx, ds)
	if err != nil {
		return nil, err
	}
	decisions := rs.takeAll(ds, g, c.refuse)
	return decisions, countDown(tx, ds, decisions)
}

// countDown takes the units of all accepted deductions in one statement. The
// caller holds the row locks.
func countDown(tx *gorm.DB, ds []stock.Deduction, decisions []stock.Decision) error {
	skus, units := taken(ds, decisions)
	if len(skus) == 0 {
		return nil
	}
	var (
		sql  strings.Builder
		args []any
	)
	sql.WriteString("UPDATE stock SET available = available - ")
	if len(skus) == 1 {
		sql.WriteString("?")
		args = append(args, units[skus[0]])
	} else {
		sql.WriteString("CASE sku")
		for _, sku := range skus {
			sql.WriteString(" WHEN ? THEN CAST(? AS " + bigint(tx) + ")")
			args = append(args, string(sku), units[sku])
		}
		sql.WriteString(" END")
	}
	sql.WriteString(" WHERE sku IN ?")
	updated := tx.Exec(sql.String(), append(args, skus)...)
	if updated.Error != nil {
		return fmt.Errorf("counting down: %w", updated.Error)
	}
	if updated.RowsAffected != int64(len(skus)) {
		return fmt.Errorf("counting down: %d of %d stock rows updated", updated.RowsAffected, len(skus))
	}
	return nil
}

// bigint is the name under which the dialect casts to a 64-bit integer.
// PostgreSQL would otherwise take a parameter inside CASE for text.
func bigint(db *gorm.DB) string {
	if db.Name() == "mysql" {
		return "SIGNED"
	}
	return "BIGINT"
}
