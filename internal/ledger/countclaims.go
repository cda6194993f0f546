package ledger

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/ledger/cutter"
	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// maxClaimStep bounds the orders, or the claims, that one transaction of CountClaims reads
// or deletes.
const maxClaimStep = 2000

// CountClaims puts into effect a buyer limit that was set on a SKU with orders, and returns the
// changed stock row. If the SKU has no limit, CountClaims deletes the claims of an earlier one. It
// does nothing if the limit is in effect already.
//
// CountClaims works in short transactions, and sales go on between them. It goes through the SKU's
// orders by ID, and adds their units to the claims of their buyers. It stores its progress, so the
// next call continues a count that has failed or whose ctx has ended. Several calls may run at once.
//
// A transaction that takes or returns units of the SKU changes the buyer's claim if the count has
// passed the order's ID, and otherwise leaves the order to the count. All these transactions lock
// the stock row, so each order is counted once.
func (l *Ledger) CountClaims(ctx context.Context, sku stock.SKU) (StockRow, error) {
	for {
		row, done, err := l.stepClaims(ctx, sku)
		if err != nil {
			l.log.WarnContext(ctx, "counting claims failed; it goes on when the SKU's stock is set again", "sku", sku, "error", err)
			return row, fmt.Errorf("counting the claims on %s: %w", sku, err)
		}
		if done {
			return row, nil
		}
	}
}

// stepClaims takes one step of CountClaims. It reports whether no step is left, and returns the row
// as it was before the step.
func (l *Ledger) stepClaims(ctx context.Context, sku stock.SKU) (row StockRow, done bool, err error) {
	if row, err = l.Row(ctx, sku); err != nil || row.LimitHolds() {
		return row, true, err
	}
	step := claimStep{Ledger: l, row: row}
	if !step.begun() {
		if deleted, err := step.deleteClaims(ctx); err != nil || deleted {
			return row, false, err
		}
	}
	if !row.CountedTo.Valid {
		return row, true, nil
	}
	return row, false, step.countOrders(ctx)
}

// claimStep is one step of CountClaims.
type claimStep struct {
	*Ledger
	row StockRow // row before the step
}

// begun reports whether the count of orders has begun. Before that, all claims are those of an
// earlier limit.
func (s claimStep) begun() bool { return s.row.CountedTo.UUID != uuid.Nil }

// change changes claims in a transaction that has locked the row. It does nothing if another call
// has made the step, or if the limit has changed.
func (s claimStep) change(ctx context.Context, do func(ctx context.Context, tx *sqltx.Tx, row *StockRow) error) error {
	return s.changeStock(ctx, s.row.SKU, func(ctx context.Context, tx *sqltx.Tx) error {
		row, err := lockRow(ctx, tx, s.row.SKU)
		if err != nil || row.BuyerLimit != s.row.BuyerLimit || row.CountedTo != s.row.CountedTo {
			return err
		}
		if err := do(ctx, tx, &row); err != nil {
			return err
		}
		row.Version++ // raised so that the row changes: the nodes of a cluster detect only conflicts on changed rows
		return updateRow(ctx, tx, row)
	})
}

// countOrders counts the next orders. After the last of them, the limit is in effect.
func (s claimStep) countOrders(ctx context.Context) error {
	d, sku := s.db.Dialect(), s.row.SKU
	after := d.UUID(s.row.CountedTo.UUID)
	which, args := "order_lines.order_id > ?", []any{after}
	to := cutter.Counted{NullUUID: uuid.NullUUID{Valid: true}}
	// Find the last order before locking the row.
	err := s.db.QueryRow(ctx, []any{&to.UUID}, "SELECT order_id FROM order_lines WHERE sku = ? AND order_id > ? ORDER BY order_id LIMIT 1 OFFSET ?",
		string(sku), after, s.claimsAtOnce-1)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		to = cutter.Counted{}
	case err != nil:
		return err
	default:
		which, args = which+" AND order_lines.order_id <= ?", append(args, to.Arg(d))
	}
	return s.change(ctx, func(ctx context.Context, tx *sqltx.Tx, row *StockRow) error {
		if !s.begun() {
			// Other calls may have counted claims meanwhile, for a limit that was removed and
			// set again.
			err := tx.QueryRow(ctx, []any{new(string)}, "SELECT buyer_id FROM claims WHERE sku = ? LIMIT 1", string(sku))
			if !errors.Is(err, sql.ErrNoRows) {
				return err
			}
		}
		row.CountedTo = to
		return recordClaims(ctx, tx, sku, which, args...)
	})
}

// deleteClaims deletes claims of an earlier limit, and reports whether there were any.
func (s claimStep) deleteClaims(ctx context.Context) (deleted bool, err error) {
	sku := string(s.row.SKU)
	buyers, err := sqltx.ReadAll(ctx, s.db, func(buyer *string) []any { return []any{buyer} },
		"SELECT buyer_id FROM claims WHERE sku = ? ORDER BY buyer_id LIMIT ?", sku, s.claimsAtOnce)
	if err != nil || len(buyers) == 0 {
		return false, err
	}
	return true, s.change(ctx, func(ctx context.Context, tx *sqltx.Tx, _ *StockRow) error {
		_, err := tx.Exec(ctx, "DELETE FROM claims WHERE sku = ? AND buyer_id <= ?", sku, buyers[len(buyers)-1])
		return err
	})
}
