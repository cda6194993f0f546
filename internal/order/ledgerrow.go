package order

import (
	"context"
	"fmt"

	"gorm.io/gorm"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

// ledgerRow is the one row of the table ledger.
type ledgerRow struct {
	Generation stock.Generation
	Layout     string // that the generation is sold under
	Beat       int64  // raised by every instance about once a second
}

// LedgerRow reads the row.
func (l *ledger) LedgerRow(ctx context.Context) (ledgerRow, error) {
	return readLedgerRow(l.db.WithContext(ctx))
}

func readLedgerRow(db *gorm.DB) (row ledgerRow, err error) {
	err = db.Raw("SELECT generation, layout, beat FROM ledger").Row().Scan(&row.Generation, &row.Layout, &row.Beat)
	if err != nil {
		return row, fmt.Errorf("reading the ledger's generation: %w", err)
	}
	return row, nil
}

// Beat raises the beat and returns the row.
func (l *ledger) Beat(ctx context.Context) (row ledgerRow, err error) {
	err = l.transaction(ctx, func(tx *gorm.DB) error {
		if err := tx.Exec("UPDATE ledger SET beat = beat + 1").Error; err != nil {
			return err
		}
		row, err = readLedgerRow(tx)
		return err
	})
	if err != nil {
		return ledgerRow{}, fmt.Errorf("raising the ledger's beat: %w", err)
	}
	return row, nil
}

// RaiseGeneration raises the generation to next and puts it under the layout.
// errRowChanged: the row is not the one seen.
func (l *ledger) RaiseGeneration(ctx context.Context, seen ledgerRow, next stock.Generation, layout string) error {
	err := l.transaction(ctx, func(tx *gorm.DB) error {
		raised := tx.Exec("UPDATE ledger SET generation = ?, layout = ? WHERE generation = ? AND layout = ?",
			next, layout, seen.Generation, seen.Layout)
		if raised.Error == nil && raised.RowsAffected == 0 {
			return errRowChanged
		}
		return raised.Error
	})
	if err != nil {
		return fmt.Errorf("raising the generation to %d: %w", next, err)
	}
	return nil
}
