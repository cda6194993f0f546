package order

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/store"
)

// pageSize bounds the stock rows, or changes, that are read at once.
const pageSize = 500

// stockRow is one row of the table stock.
type stockRow struct {
	SKU        stock.SKU `gorm:"primaryKey"`
	Kind       stock.Kind
	Total      int64
	Available  int64
	BuyerLimit int64
	Epoch      int64 // raised whenever what a gate may believe changes
	Version    int64 // raised by the optimistic cutter and by administrators
	Changes    int64 // additions committed under the epoch
}

func (stockRow) TableName() string { return "stock" }

// change is one row of the table outbox: an addition that the gate has yet to
// apply.
type change struct {
	SKU       stock.SKU
	Epoch     int64
	Number    int64
	Delta     int64
	CreatedAt time.Time
}

func (change) TableName() string { return "outbox" }

// errRowChanged: the row is not what the caller saw; look again.
var errRowChanged = errors.New("the row changed since it was read")

// Row reads one stock row. stock.ErrUnknownSKU (as *stock.Refusal): there is
// none.
func (l *ledger) Row(ctx context.Context, sku stock.SKU) (stockRow, error) {
	return readRow(l.db.WithContext(ctx), sku)
}

func readRow(db *gorm.DB, sku stock.SKU) (stockRow, error) {
	var row stockRow
	err := db.Take(&row, "sku = ?", string(sku)).Error
	if errors.Is(err, gorm.ErrRecordNotFound) {
		return row, stock.Refuse(sku, stock.ErrUnknownSKU)
	}
	if err != nil {
		return row, fmt.Errorf("reading the stock row of %s: %w", sku, err)
	}
	return row, nil
}

// lockRow reads a stock row under its row lock. SQLite, which has none, drops
// the clause: its transaction is the only writer.
func lockRow(tx *gorm.DB, sku stock.SKU) (stockRow, error) {
	return readRow(tx.Clauses(clause.Locking{Strength: "UPDATE"}), sku)
}

// Rows reads up to limit stock rows that follow after, by SKU.
func (l *ledger) Rows(ctx context.Context, after stock.SKU, limit int) ([]stockRow, error) {
	var rows []stockRow
	err := l.db.WithContext(ctx).Where("sku > ?", string(after)).Order("sku").Limit(limit).Find(&rows).Error
	if err != nil {
		return nil, fmt.Errorf("reading stock rows: %w", err)
	}
	return rows, nil
}

// EachPage calls do with every stock row, a page at a time.
func (l *ledger) EachPage(ctx context.Context, do func([]stockRow) error) error {
	var after stock.SKU
	for {
		rows, err := l.Rows(ctx, after, pageSize)
		if err != nil {
			return err
		}
		if len(rows) > 0 {
			if err := do(rows); err != nil {
				return err
			}
			after = rows[len(rows)-1].SKU
		}
		if len(rows) < pageSize {
			return nil
		}
	}
}

// Sold recounts the units of the SKU in pending and paid orders.
func (l *ledger) Sold(ctx context.Context, sku stock.SKU) (int64, error) {
	var sold int64
	err := l.db.WithContext(ctx).Raw(`SELECT COALESCE(SUM(order_lines.quantity), 0) FROM order_lines
		JOIN orders ON orders.id = order_lines.order_id
		WHERE order_lines.sku = ? AND orders.status IN ?`, string(sku), []string{string(Pending), string(Paid)}).
		Row().Scan(&sold)
	if err != nil {
		return 0, fmt.Errorf("counting what is sold of %s: %w", sku, err)
	}
	return sold, nil
}

// transaction runs do in a transaction of its own, again while the database
// reports deadlocks and the like, a bounded number of times.
func (l *ledger) transaction(ctx context.Context, do func(tx *gorm.DB) error) error {
	for try := 1; ; try++ {
		err := l.tryTransaction(ctx, do)
		if err == nil || !store.IsRetryable(err) || errors.Is(err, store.ErrUnknownOutcome) || ctx.Err() != nil {
			return err
		}
		l.metrics.retries.Inc()
		if try == transactionTries {
			return fmt.Errorf("%w: %w", stock.ErrBusy, err)
		}
		pause(try)
	}
}

func (l *ledger) tryTransaction(ctx context.Context, do func(tx *gorm.DB) error) error {
	ctx, cancel := context.WithTimeout(ctx, transactionTimeout)
	defer cancel()
	tx := l.db.WithContext(ctx).Begin()
	if tx.Error != nil {
		return tx.Error
	}
	if err := do(tx); err != nil {
		tx.Rollback()
		return err
	}
	return store.Commit(tx)
}

// Set creates the stock row, or moves its total up and its available with it.
// It returns the row as it is afterwards and whether it was created. A total
// below the row's is left alone: the caller shrinks by what the row says.
func (l *ledger) Set(ctx context.Context, s Setting) (row stockRow, created bool, err error) {
	err = l.transaction(ctx, func(tx *gorm.DB) (err error) {
		created = false
		row, err = lockRow(tx, s.SKU)
		if errors.Is(err, stock.ErrUnknownSKU) {
			created = true
			row = stockRow{
				SKU: s.SKU, Kind: s.Kind, Total: s.Total, Available: s.Total,
			}
			if row.Epoch, err = l.Generation().Renew(); err != nil {
				return err
			}
			return tx.Create(&row).Error
		}
		if err != nil {
			return err
		}
		if err := l.mayChange(row, s); err != nil {
			return err
		}
		delta := s.Total - row.Total
		if delta <= 0 {
			return nil
		}
		row.Total += delta
		row.Available += delta
		row.Version++
		if l.strategy.Gate != nil {
			row.Changes++
			c := change{SKU: row.SKU, Epoch: row.Epoch, Number: row.Changes, Delta: delta, CreatedAt: now()}
			if err := tx.Create(&c).Error; err != nil {
				return err
			}
		}
		return updateRow(tx, row)
	})
	if err != nil {
		return stockRow{}, false, fmt.Errorf("setting the stock of %s: %w", s.SKU, err)
	}
	return row, created, nil
}

func (l *ledger) mayChange(row stockRow, s Setting) error {
	switch owner, g := stock.GenerationOf(row.Epoch), l.Generation(); {
	case owner > g:
		return stock.Refuse(row.SKU, stock.ErrSuperseded)
	case owner < g:
		return stock.Refuse(row.SKU, stock.ErrNotAdopted)
	case row.Kind != s.Kind:
		return ErrKindFixed
	}
	return nil
}

// Shrink takes d's units, an administrator's, off total and available, and
// records its take. Reasons to refuse: errRowChanged (the total is not what d was
// worked out from), ErrBelowSold, stock.ErrStaleEpoch, stock.ErrNotAdopted and
// stock.ErrSuperseded (as *stock.Refusal), or an error of the database.
func (l *ledger) Shrink(ctx context.Context, d stock.Deduction, s Setting) (row stockRow, o outcome) {
	line := d.Lines[0]
	err := l.transaction(ctx, func(tx *gorm.DB) (err error) {
		if row, err = lockRow(tx, line.SKU); err != nil {
			return err
		}
		if err := l.mayChange(row, s); err != nil {
			return err
		}
		switch {
		case row.Total-line.Quantity != s.Total:
			return errRowChanged
		case line.Epoch != 0 && line.Epoch != row.Epoch:
			return stock.Refuse(line.SKU, stock.ErrStaleEpoch)
		case row.Available < line.Quantity:
			return ErrBelowSold
		}
		row.Total -= line.Quantity
		row.Available -= line.Quantity
		row.Version++
		if err := updateRow(tx, row); err != nil {
			return err
		}
		return insert(ctx, tx, []entry{{
			Order:  Order{ID: d.OrderID, Status: shrink, Strategy: l.strategy.Name, CreatedAt: now()},
			takeID: d.TakeID,
		}})
	})
	switch {
	case err == nil:
		return row, outcome{kind: committed}
	case errors.Is(err, store.ErrUnknownOutcome):
		return row, unknownFor(err)
	}
	return row, refusedFor(err)
}

func updateRow(tx *gorm.DB, row stockRow) error {
	return tx.Model(&row).Select("total", "available", "version", "changes", "epoch").Updates(&row).Error
}

// RaiseEpoch puts the stock row under a new epoch of the instance's generation,
// higher than above too, if it is still under the epoch seen, and returns the
// row. No take of an earlier epoch can commit any more, so the row's available
// is what the gate may be filled with; changes not yet applied are in it and are
// dropped. A row of an earlier generation is adopted by that.
//
// errRowChanged: another raised it. stock.ErrSuperseded (as *stock.Refusal): the
// row belongs to a later generation, or above does.
func (l *ledger) RaiseEpoch(ctx context.Context, sku stock.SKU, seen, above int64) (row stockRow, err error) {
	err = l.transaction(ctx, func(tx *gorm.DB) (err error) {
		if row, err = lockRow(tx, sku); err != nil {
			return err
		}
		if row.Epoch != seen {
			return errRowChanged
		}
		if row.Epoch, err = l.Generation().Renew(row.Epoch, above); err != nil {
			return stock.Refuse(sku, err)
		}
		row.Version++ // a writer that saw the row before must fail
		row.Changes = 0
		if err := updateRow(tx, row); err != nil {
			return err
		}
		return tx.Where("sku = ?", string(row.SKU)).Delete(&change{}).Error
	})
	return row, err
}

// Changes reads changes that no gate is known to have applied, a page that
// follows after, by SKU, epoch and number. With a SKU, only that SKU's. A page
// shorter than pageSize is the last.
func (l *ledger) Changes(ctx context.Context, sku stock.SKU, after stock.Change) ([]stock.Change, error) {
	q := l.db.WithContext(ctx).Order("sku").Order("epoch").Order("number").Limit(pageSize).
		Where("sku > ? OR sku = ? AND (epoch > ? OR epoch = ? AND number > ?)",
			string(after.SKU), string(after.SKU), after.Epoch, after.Epoch, after.Number)
	if sku != "" {
		q = q.Where("sku = ?", string(sku))
	}
	var rows []change
	if err := q.Find(&rows).Error; err != nil {
		return nil, fmt.Errorf("reading the outbox: %w", err)
	}
	changes := make([]stock.Change, len(rows))
	for i, row := range rows {
		changes[i] = stock.Change{SKU: row.SKU, Epoch: row.Epoch, Number: row.Number, Delta: row.Delta}
	}
	return changes, nil
}

// Applied forgets a change that the gate has applied, or dropped for good.
func (l *ledger) Applied(ctx context.Context, c stock.Change) error {
	err := l.db.WithContext(ctx).
		Where("sku = ? AND epoch = ? AND number = ?", string(c.SKU), c.Epoch, c.Number).
		Delete(&change{}).Error
	if err != nil {
		return fmt.Errorf("clearing the outbox: %w", err)
	}
	return nil
}

// shrinking is the deduction of an administrator who takes n units away.
func shrinking(sku stock.SKU, n int64) stock.Deduction {
	return stock.Deduction{
		OrderID: uuid.New(), TakeID: uuid.New(),
		Lines: []stock.Line{{SKU: sku, Quantity: n}},
	}
}
