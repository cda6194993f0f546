package ledger

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/ledger/cutter"
	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// startCount makes the row count claims from now on if it gets a buyer limit and had none.
// The units that buyers hold already must be added up before the limit holds, which
// CountClaims does. tx must have locked the row.
func startCount(ctx context.Context, tx *sqltx.Tx, before StockRow, now *StockRow) error {
	if before.BuyerLimit > 0 || now.BuyerLimit <= 0 {
		return nil
	}
	now.BuyerLimit = -now.BuyerLimit
	if before.BuyerLimit < 0 {
		return nil // the count goes on
	}
	// An earlier limit may have been removed while its count was under way.
	counted, err := cutter.ReadCounted(ctx, tx, now.SKU)
	for _, c := range counted {
		_, err = tx.Exec(ctx, "DELETE FROM claims WHERE sku = ? AND buyer_id = ?", string(now.SKU), c.Buyer())
	}
	if err != nil {
		return fmt.Errorf("beginning to count the claims on %s: %w", now.SKU, err)
	}
	return nil
}

// maxClaimStep bounds the orders, or the claims, that one transaction of CountClaims reads
// or deletes.
const maxClaimStep = 2000

// CountClaims puts a buyer limit into effect that was set on a SKU with orders, and returns
// the stock row as it is then. If the SKU has no limit, CountClaims deletes the claims of an
// earlier one. It does nothing if the limit is in effect already.
//
// CountClaims works in short transactions, between which the SKU is sold: it goes through
// the SKU's orders by ID, and adds their units to the claims of their buyers. It stores how
// far it has come. When ctx ends, it goes on in the background until Close. If it fails, or
// the process dies, the next call goes on from there. Several calls may run at once.
//
// A transaction that takes or returns units of the SKU changes the buyer's claim if the
// count has passed the order's ID, and leaves it to the count otherwise. All of them hold
// the lock of the stock row, so each order is counted once.
func (l *Ledger) CountClaims(ctx context.Context, sku stock.SKU) (StockRow, error) {
	var (
		row     StockRow
		err     error
		counted = make(chan struct{})
	)
	l.counting.Go(func() {
		defer close(counted)
		row, err = l.countClaims(l.open, sku)
	})
	select {
	case <-counted:
		return row, err
	case <-ctx.Done():
		return StockRow{}, fmt.Errorf("counting the claims on %s goes on: %w", sku, ctx.Err())
	}
}

// countClaims takes all steps of CountClaims.
func (l *Ledger) countClaims(ctx context.Context, sku stock.SKU) (StockRow, error) {
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

// stepClaims takes one step of CountClaims. It reports whether none is left, and returns the
// row as it was before the step.
func (l *Ledger) stepClaims(ctx context.Context, sku stock.SKU) (row StockRow, done bool, err error) {
	if row, err = l.Row(ctx, sku); err != nil || row.BuyerLimit > 0 {
		return row, true, err
	}
	counted, err := cutter.ReadCounted(ctx, l.db, sku)
	if err != nil {
		return row, false, err
	}
	step := claimStep{Ledger: l, row: row, counted: counted}
	if after, begun := counted[sku]; begun && row.BuyerLimit < 0 {
		return row, false, step.countOrders(ctx, after)
	}
	done, err = step.deleteClaims(ctx)
	return row, done, err
}

// claimStep is one step of CountClaims.
type claimStep struct {
	*Ledger
	row     StockRow // before the step
	counted map[stock.SKU]cutter.Counted
}

// change changes claims in a transaction that has locked the row. It does nothing if another
// call was faster, or if the limit has changed.
func (s claimStep) change(ctx context.Context, do func(ctx context.Context, tx *sqltx.Tx, row *StockRow) error) error {
	return s.changeStock(ctx, s.row.SKU, func(ctx context.Context, tx *sqltx.Tx) error {
		row, err := lockRow(ctx, tx, s.row.SKU)
		if err != nil {
			return err
		}
		counted, err := cutter.ReadCounted(ctx, tx, row.SKU)
		if err != nil || row.BuyerLimit != s.row.BuyerLimit || !maps.Equal(counted, s.counted) {
			return err
		}
		if err := do(ctx, tx, &row); err != nil {
			return err
		}
		row.Version++ // the nodes of a cluster agree only about rows that change
		return updateRow(ctx, tx, row)
	})
}

// countOrders counts the orders that follow after. With the last of them, the limit holds.
func (s claimStep) countOrders(ctx context.Context, after cutter.Counted) error {
	d, sku := s.db.Dialect(), s.row.SKU
	position, err := uuid.Parse(string(after))
	if err != nil {
		return fmt.Errorf("reading how far claims are counted: %w", err)
	}
	which, args := "order_lines.order_id > ?", []any{d.UUID(position)}
	var end uuid.UUID // found before the row is locked
	err = s.db.QueryRow(ctx, []any{&end}, "SELECT order_id FROM order_lines WHERE sku = ? AND order_id > ? ORDER BY order_id LIMIT 1 OFFSET ?",
		string(sku), d.UUID(position), s.claimsAtOnce-1)
	last := errors.Is(err, sql.ErrNoRows)
	switch {
	case last:
	case err != nil:
		return err
	default:
		which, args = which+" AND order_lines.order_id <= ?", append(args, d.UUID(end))
	}
	return s.change(ctx, func(ctx context.Context, tx *sqltx.Tx, row *StockRow) error {
		if err := recordClaims(ctx, tx, sku, which, args...); err != nil {
			return err
		}
		if last {
			row.BuyerLimit = -row.BuyerLimit
			_, err := tx.Exec(ctx, "DELETE FROM claims WHERE sku = ? AND buyer_id = ?", string(sku), after.Buyer())
			return err
		}
		_, err := tx.Exec(ctx, "UPDATE claims SET buyer_id = ? WHERE sku = ? AND buyer_id = ?",
			cutter.Counted(end.String()).Buyer(), string(sku), after.Buyer())
		return err
	})
}

// deleteClaims deletes claims of an earlier limit. When there are none, the count may begin.
// It reports whether the SKU has no limit and no claims.
func (s claimStep) deleteClaims(ctx context.Context) (none bool, err error) {
	var end string
	sku := string(s.row.SKU)
	const find = "SELECT buyer_id FROM claims WHERE sku = ? ORDER BY buyer_id LIMIT 1 OFFSET ?"
	err = s.db.QueryRow(ctx, []any{&end}, find, sku, 0)
	none = errors.Is(err, sql.ErrNoRows)
	switch {
	case none && s.row.BuyerLimit == 0:
		return true, nil
	case none:
		return false, s.change(ctx, func(ctx context.Context, tx *sqltx.Tx, _ *StockRow) error {
			// Other calls may have counted claims meanwhile, for a limit that was removed and
			// set again.
			if err := tx.QueryRow(ctx, []any{&end}, find, sku, 0); !errors.Is(err, sql.ErrNoRows) {
				return err
			}
			_, err := tx.Exec(ctx, "INSERT INTO claims (sku, buyer_id, units) VALUES (?, ?, 0)", sku, cutter.Counted(uuid.Nil.String()).Buyer())
			return err
		})
	case err != nil:
		return false, err
	}
	which, args := "sku = ?", []any{sku}
	err = s.db.QueryRow(ctx, []any{&end}, find, sku, s.claimsAtOnce-1)
	switch {
	case err == nil:
		which, args = which+" AND buyer_id <= ?", append(args, end)
	case !errors.Is(err, sql.ErrNoRows):
		return false, err
	}
	return false, s.change(ctx, func(ctx context.Context, tx *sqltx.Tx, _ *StockRow) error {
		_, err := tx.Exec(ctx, "DELETE FROM claims WHERE "+which, args...)
		return err
	})
}
