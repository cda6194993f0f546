package ledger

import (
	"context"
	"fmt"
	"slices"

	"github.com/holdfast-stock/holdfast/internal/ledger/cutter"
	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// RaiseEpoch moves the stock row from the epoch seen to a new epoch of the generation in use, above
// the epoch given, and returns the row. This adopts a row of an earlier generation. No take of an
// earlier epoch can commit afterwards, so the gate may be filled with the row's available. That
// count includes changes that were not applied, which are deleted.
//
// stock.ErrRowChanged means that another caller raised the epoch. stock.ErrLaterGeneration means
// that the row, or the epoch above, belongs to a later generation.
func (l *Ledger) RaiseEpoch(ctx context.Context, sku stock.SKU, seen, above int64) (row StockRow, err error) {
	err = l.changeStock(ctx, sku, func(ctx context.Context, tx *sqltx.Tx) (err error) {
		if row, err = lockWhole(ctx, tx, sku); err != nil {
			return err
		}
		if row.Epoch != seen {
			return stock.ErrRowChanged
		}
		if row.Epoch, err = l.Generation().Renew(row.Epoch, above); err != nil {
			return err
		}
		row.Version++ // a writer that read the row earlier must fail
		row.Changes = 0
		if err := updateRow(ctx, tx, row); err != nil {
			return err
		}
		return deleteChanges(ctx, tx, sku)
	})
	return row, err
}

// RaiseEpochs does for many stock rows, in one transaction, what RaiseEpoch does for one. seen are
// the rows as the caller read them. The new epoch is the same for all of them and is above the
// epoch given.
//
// RaiseEpochs returns the rows that it raised. It leaves out rows whose epoch is no longer the one
// in seen. It also leaves out rows that another transaction has locked, or whose parts are locked.
// It never waits for a row lock, so that one busy row cannot make it hold the locks of the others.
//
// stock.ErrLaterGeneration means that a row, or the epoch above, belongs to a later generation.
// Then no row was raised.
func (l *Ledger) RaiseEpochs(ctx context.Context, seen []StockRow, above int64) (raised []StockRow, err error) {
	epochs, skus := make(map[stock.SKU]int64, len(seen)), make([]stock.SKU, len(seen))
	for i, row := range seen {
		epochs[row.SKU], skus[i] = row.Epoch, row.SKU
	}
	err = l.transact(ctx, transactionTimeout, func(ctx context.Context, tx *sqltx.Tx) error {
		rows, err := readRows(ctx, tx, skus, stockColumns, tx.SkipLocked())
		if err != nil {
			return err
		}
		raised = slices.DeleteFunc(rows, func(row StockRow) bool { return row.Epoch != epochs[row.SKU] })
		collected, busy, err := cutter.CollectFree(ctx, tx, SKUsOf(raised))
		if err != nil {
			return err
		}
		raised = slices.DeleteFunc(raised, func(row StockRow) bool { return slices.Contains(busy, row.SKU) })
		epoch := above
		for _, row := range raised {
			epoch = max(epoch, row.Epoch)
		}
		if epoch, err = l.Generation().Renew(epoch); err != nil {
			return err
		}
		for i := range raised {
			row := &raised[i]
			row.Available += collected[row.SKU]
			row.Epoch, row.Changes = epoch, 0
			row.Version++
		}
		among := SKUsOf(raised)
		if _, err := tx.Exec(ctx, "UPDATE stock SET epoch = ?, version = version + 1, changes = 0 WHERE sku IN ?", epoch, among); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, "DELETE FROM outbox WHERE sku IN ?", among)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("raising the epochs of %d stock rows: %w", len(seen), err)
	}
	return raised, nil
}
