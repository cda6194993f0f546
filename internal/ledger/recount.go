package ledger

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// correctionTimeout bounds one transaction that recounts a SKU.
const correctionTimeout = 5 * time.Minute

// heldLines are the order lines whose units are held, see order.Holding.
var heldLines = "order_lines JOIN orders ON orders.id = order_lines.order_id AND (orders.status IN (" + literals(order.Holding()) + ")" +
	" OR orders.status = '" + string(order.Refunded) + "' AND NOT orders.restocked)"

// literals returns the statuses as a list in SQL.
func literals(statuses []order.Status) string {
	quoted := make([]string, len(statuses))
	for i, s := range statuses {
		quoted[i] = "'" + string(s) + "'"
	}
	return strings.Join(quoted, ", ")
}

// Count is a stock row with the units that belong to it elsewhere in the ledger.
type Count struct {
	StockRow
	Undelivered int64 // units in the outbox, which are those under the row's epoch
	Held        int64 // units in the orders that hold them; only from Recount
}

// Units returns the counts in the form that package stock compares.
func (c Count) Units() stock.Units {
	return stock.Units{Total: c.Total, Available: c.Available, Held: c.Held, Undelivered: c.Undelivered}
}

// Counts reads the stock rows of the SKUs and their units in the outbox, sorted by
// SKU. It leaves out unknown SKUs. One statement reads them all, as of one moment.
func (l *Ledger) Counts(ctx context.Context, skus []stock.SKU) ([]Count, error) {
	return counts(ctx, l.db, "0", "", skus)
}

// Recount is Counts with the units held by orders. All counts are as of the same moment, so total =
// available + held unless a count is wrong. It reads all orders of the SKUs, which takes seconds
// for a million of them.
func (l *Ledger) Recount(ctx context.Context, skus []stock.SKU) ([]Count, error) {
	return recount(ctx, l.db, skus)
}

func recount(ctx context.Context, db sqltx.Reader, skus []stock.SKU) ([]Count, error) {
	return counts(ctx, db, "COALESCE(held.units, 0)", `
		LEFT JOIN (SELECT order_lines.sku, SUM(order_lines.quantity) AS units FROM `+heldLines+`
			WHERE order_lines.sku IN ? GROUP BY order_lines.sku) held ON held.sku = stock.sku`, skus)
}

// counts reads the counts of the SKUs. held is the expression for the held units, and join the
// clause that adds its table.
func counts(ctx context.Context, db sqltx.Reader, held, join string, skus []stock.SKU) (counts []Count, err error) {
	args := []any{skus, skus}
	if join != "" {
		args = append(args, skus)
	}
	integer := func(expression string) string { return "CAST(" + expression + " AS " + db.Dialect().BigInt() + ")" }
	fields := func(c *Count) []any { return append(c.columns(), &c.Undelivered, &c.Held) }
	counts, err = sqltx.ReadAll(ctx, db, fields, "SELECT "+columnsWithParts(db.Dialect())+", "+
		integer("COALESCE(undelivered.units, 0)")+", "+integer(held)+` FROM stock
		LEFT JOIN (SELECT sku, SUM(delta) AS units FROM outbox WHERE sku IN ? GROUP BY sku) undelivered ON undelivered.sku = stock.sku`+join+`
		WHERE stock.sku IN ? ORDER BY stock.sku`, args...)
	if err != nil {
		return nil, fmt.Errorf("counting the units of %d SKUs: %w", len(skus), err)
	}
	return counts, nil
}

// Claim compares a buyer's claim on a SKU with the units in the buyer's orders.
type Claim struct {
	SKU     stock.SKU
	Buyer   string
	Claimed int64 // units in the table claims
	Held    int64 // units in the buyer's orders
}

// WrongClaims reads up to limit claims that differ from the buyers' orders, sorted by SKU and
// buyer. It leaves out SKUs whose buyer limit is not in effect. One statement reads them all, as of
// one moment.
func (l *Ledger) WrongClaims(ctx context.Context, skus []stock.SKU, limit int) (claims []Claim, err error) {
	if len(skus) == 0 {
		return nil, nil
	}
	fields := func(c *Claim) []any { return []any{&c.SKU, &c.Buyer, &c.Claimed, &c.Held} }
	claims, err = sqltx.ReadAll(ctx, l.db, fields, strings.ReplaceAll(`SELECT counted.sku, counted.buyer_id, CAST(SUM(counted.claimed) AS INTEGER), CAST(SUM(counted.held) AS INTEGER)
		FROM (
			SELECT sku, buyer_id, units AS claimed, 0 AS held FROM claims WHERE sku IN ?
			UNION ALL
			SELECT order_lines.sku, orders.buyer_id, 0, order_lines.quantity FROM `+heldLines+` WHERE order_lines.sku IN ?
		) counted
		JOIN stock ON stock.sku = counted.sku AND stock.limit_per_buyer > 0 AND stock.claims_counted_to IS NULL
		GROUP BY counted.sku, counted.buyer_id HAVING SUM(counted.claimed) <> SUM(counted.held)
		ORDER BY counted.sku, counted.buyer_id LIMIT ?`, "INTEGER", l.db.Dialect().BigInt()), skus, skus, limit)
	if err != nil {
		return nil, fmt.Errorf("comparing the claims of %d SKUs with their orders: %w", len(skus), err)
	}
	return claims, nil
}

// Correct recounts the SKU's available, and its claims, from its orders. It holds the lock of the
// stock row while it reads all orders of the SKU. Sales of the SKU wait meanwhile.
//
// It also moves the row to a new epoch of the generation in use, above the epoch given. No take of
// an earlier epoch can commit afterwards, so the gate may be filled with the row's available.
//
// stock.ErrLaterGeneration means that the row, or the epoch above, belongs to a later generation.
func (l *Ledger) Correct(ctx context.Context, sku stock.SKU, above int64) error {
	err := l.transact(ctx, correctionTimeout, func(ctx context.Context, tx *sqltx.Tx) error {
		row, err := lockWhole(ctx, tx, sku)
		if err != nil {
			return err
		}
		counted, err := recount(ctx, tx, []stock.SKU{sku})
		if err != nil {
			return err
		}
		row.Available = row.Total - counted[0].Held
		if row.Epoch, err = l.Generation().Renew(row.Epoch, above); err != nil {
			return err
		}
		row.Version++ // as in RaiseEpoch
		row.Changes = 0
		if err := updateRow(ctx, tx, row); err != nil {
			return err
		}
		if err := deleteChanges(ctx, tx, sku); err != nil || !row.LimitHolds() {
			return err // CountClaims deletes or counts the claims instead
		}
		if _, err := tx.Exec(ctx, "DELETE FROM claims WHERE sku = ?", string(sku)); err != nil {
			return err
		}
		return recordClaims(ctx, tx, sku, "1 = 1")
	})
	if err != nil {
		return fmt.Errorf("correcting the counts of %s: %w", sku, err)
	}
	return nil
}

// recordClaims adds the units that the SKU's orders hold to the claims of their buyers.
// which is the condition for the orders, on order_lines. tx must have locked the stock
// row.
func recordClaims(ctx context.Context, tx *sqltx.Tx, sku stock.SKU, which string, args ...any) error {
	clause, inserted := tx.Dialect().Upsert("sku", "buyer_id")
	_, err := tx.Exec(ctx, `INSERT INTO claims (sku, buyer_id, units)
		SELECT order_lines.sku, orders.buyer_id, SUM(order_lines.quantity) FROM `+heldLines+`
		WHERE order_lines.sku = ? AND `+which+` GROUP BY order_lines.sku, orders.buyer_id`+
		clause+"units = claims.units + "+inserted("units"), append([]any{string(sku)}, args...)...)
	return err
}
