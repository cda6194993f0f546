package cutter

import (
	"context"
	"fmt"

	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// ReadWrite returns the cutter that reads the rows before the transaction, checks
// them, and writes back the new counts as absolute values. It oversells: two
// transactions that read the same count both write count - 1, and one of the two
// updates is lost. Rows with a buyer limit are locked, and do not oversell.
func ReadWrite() Cutter { return readWrite{} }

type readWrite struct{}

func (readWrite) Plan(ctx context.Context, db *sqltx.DB, g stock.Generation, takes []stock.Take) (Plan, error) {
	seen, err := read(ctx, db, takes)
	return Plan{Cut: func(ctx context.Context, tx *sqltx.Tx) ([]Decision, error) {
		if seen.claimed() {
			return underLock(ctx, tx, g, takes)
		}
		decisions := seen.takeAll(takes, g, true)
		skus, _ := unitsOf(acceptedTakes(takes, decisions))
		for _, sku := range skus {
			written, err := tx.Exec(ctx, "UPDATE stock SET available = ? WHERE sku = ? AND epoch = ? AND limit_per_buyer = 0",
				seen[sku].available, string(sku), seen[sku].epoch)
			if err != nil {
				return nil, fmt.Errorf("writing the count of %s: %w", sku, err)
			}
			if written == 0 {
				return nil, ErrConflict // another generation owns the row, or the row has a limit now
			}
		}
		return decisions, nil
	}}, err
}
