package cutter

import (
	"context"
	"fmt"

	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// Optimistic returns the cutter that reads the rows with their versions before the transaction, and
// updates a row only if its version is the same. It holds no lock while it decides, but needs a new
// transaction for every changed row. Rows with a buyer limit are locked, because their claims
// change only under the lock.
func Optimistic() Cutter { return optimistic{} }

type optimistic struct{}

func (optimistic) Plan(ctx context.Context, db *sqltx.DB, g stock.Generation, takes []stock.Take) (Plan, error) {
	seen, err := read(ctx, db, takes)
	return Plan{Cut: func(ctx context.Context, tx *sqltx.Tx) ([]Decision, error) {
		if seen.claimed() {
			return underLock(ctx, tx, g, takes)
		}
		decisions := seen.takeAll(takes, g, true)
		skus, units := unitsOf(acceptedTakes(takes, decisions))
		for _, sku := range skus {
			updated, err := tx.Exec(ctx, "UPDATE stock SET available = available - ?, version = version + 1 WHERE sku = ? AND version = ? AND epoch = ?",
				units[sku], string(sku), seen[sku].version, seen[sku].epoch)
			if err != nil {
				return nil, fmt.Errorf("taking units of %s: %w", sku, err)
			}
			if updated == 0 {
				return nil, ErrConflict
			}
		}
		return decisions, nil
	}}, err
}
