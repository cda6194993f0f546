package ledger

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// expiryRetry is the pause before an order whose transaction failed is tried again. After a stock
// row stayed locked, it is the pause before a batch waits for a stock row again.
const expiryRetry = 30 * time.Second

// Expiry is the result of one batch of Expire.
type Expiry struct {
	More    bool        // another batch may find orders at once
	Expired int         // orders that the batch expired
	Failed  int         // orders that the round has skipped, because they cannot expire
	SKUs    []stock.SKU // SKUs whose units returned
	// Returned are the additions in the outbox for the units of these orders.
	Returned []stock.Change
	Locked   time.Duration // how long the batch held stock rows locked
}

// ExpiryRound goes through the orders that are due, the oldest first, a batch at a time. It tries
// each order once, so an order that cannot expire now does not delay younger ones. The zero value
// begins a round. It is not safe for concurrent use.
type ExpiryRound struct {
	after  duePosition // position of the last order of the round so far
	began  time.Time   // time at which the first batch began
	failed int         // orders that cannot expire
	// size is the number of orders of the next batch. It is halved until an order that makes its
	// batch fail is alone, and then doubled up to the limit. 0 means the limit.
	size int
	// waitAfter is when a batch may wait again for a stock row.
	waitAfter time.Time
}

// duePosition is the place of an order among the orders that are due.
type duePosition struct {
	at any // expires_at as the database gave it, which in SQLite may not be a time; nil: before all orders
	id uuid.UUID
}

// Expire expires up to limit pending orders whose payment window has ended by the database's clock,
// and returns their units. It takes the orders that come next in the round. The caller must hold
// the job.
//
// A batch is one transaction. It leaves out orders whose rows or stock rows another transaction
// holds locked, until the next round. An order that makes its transaction fail is logged and
// skipped.
//
// ErrJobLost means that another instance has claimed the job. Earlier batches stay committed.
func (l *Ledger) Expire(ctx context.Context, held Job, round *ExpiryRound, limit int) (Expiry, error) {
	if round.began.IsZero() {
		round.began = time.Now()
	}
	size := cmp.Or(round.size, limit)
	due, err := l.due(ctx, round.after, size)
	if err != nil {
		return Expiry{}, fmt.Errorf("reading which orders are due: %w", err)
	}
	var e Expiry
	if len(due) > 0 {
		e, err = l.expireBatch(ctx, held, due, round)
	}
	var row *lockedRowError
	again := Expiry{More: true, Failed: round.failed} // try the same orders again
	switch {
	case err == nil:
		round.size = min(2*size, limit)
	case errors.As(err, &row):
		l.log.Warn("orders cannot expire because another transaction has locked their stock row", "sku", row.sku, "error", err)
		round.waitAfter = time.Now().Add(expiryRetry)
		return again, nil
	case isFault(err) && len(due) > 1:
		round.size = len(due) / 2
		return again, nil
	case isFault(err):
		round.failed++
		l.log.Warn("an order cannot expire and is passed over", "order", due[0].id, "error", err)
	default:
		return Expiry{}, fmt.Errorf("expiring orders: %w", err)
	}
	e.More, e.Failed = len(due) == size, round.failed
	if len(due) > 0 {
		round.after = due[len(due)-1]
	}
	// The round ends with the youngest due order. If orders have failed, it continues with orders that
	// become due, for up to expiryRetry, so that failed orders are not tried all the time.
	if !e.More && (round.failed == 0 || time.Since(round.began) >= expiryRetry) {
		*round = ExpiryRound{waitAfter: round.waitAfter}
	}
	return e, nil
}

// isFault reports whether a transaction failed with err because of the stored data of one
// of its orders.
func isFault(err error) bool {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return false
	}
	return sqltx.IsStatementError(err) || errors.Is(err, sqltx.ErrScan)
}

// lockedRowError says that the stock row of the SKU stayed locked.
type lockedRowError struct {
	sku   stock.SKU
	cause string // text of an error that must not be wrapped, because the transaction must not be retried
}

func (e *lockedRowError) Error() string {
	return fmt.Sprintf("locking the stock row of %s: %s", e.sku, e.cause)
}

// expireBatch expires those of the orders that are due, and whose rows and stock rows no other
// transaction holds locked.
//
// It waits for one lock only: that of a stock row of the oldest order. It holds no other lock
// during that wait. Afterwards it waits for no transaction that waits for stock rows or orders. So
// it cannot deadlock, and delays a sale only for the duration of the batch.
//
// Errors: *lockedRowError: the stock row stayed locked; ErrJobLost; errors of the database.
func (l *Ledger) expireBatch(ctx context.Context, held Job, due []duePosition, round *ExpiryRound) (e Expiry, err error) {
	ids := make([]uuid.UUID, len(due))
	for i, at := range due {
		ids[i] = at.id
	}
	orders, err := readOrders(ctx, l.db, ids) // the lines of an order never change
	if err != nil {
		return e, err
	}
	units, _ := unitsOf(slices.Collect(maps.Values(orders)))
	skus := slices.Sorted(maps.Keys(units))
	var (
		rows     []StockRow  // stock rows of the orders
		others   []stock.SKU // SKUs whose stock rows are locked
		locked   time.Time
		expired  []*order.Order
		returned []stock.Change
	)
	err = l.transact(ctx, transactionTimeout, func(ctx context.Context, tx *sqltx.Tx) error {
		returned = nil // additions of an earlier try were rolled back
		if err := round.waitForRow(ctx, tx, orders[ids[0]]); err != nil {
			return err
		}
		locked = time.Now()
		// The job is locked after the wait. Otherwise it could not be renewed meanwhile.
		if err := setLease(ctx, tx, held, JobLease); err != nil {
			return err
		}
		if rows, others, err = lockFree(ctx, tx, skus); err != nil {
			return err
		}
		free := maps.Clone(orders)
		maps.DeleteFunc(free, func(_ uuid.UUID, o *order.Order) bool {
			return slices.ContainsFunc(o.Lines, func(line stock.Line) bool { return slices.Contains(others, line.SKU) })
		})
		var change order.Transition
		if expired, change, err = expireOrders(ctx, tx, free); err != nil || !change.Returns {
			return err
		}
		returned = l.returnUnits(tx, rows, expired...)
		return nil
	})
	if err != nil {
		return e, err
	}
	units, _ = unitsOf(expired)
	e = Expiry{Expired: len(expired), SKUs: slices.Sorted(maps.Keys(units)), Returned: returned, Locked: time.Since(locked)}
	gone := slices.DeleteFunc(slices.Clone(e.SKUs), func(sku stock.SKU) bool {
		return slices.ContainsFunc(rows, func(row StockRow) bool { return row.SKU == sku })
	})
	if len(gone) > 0 {
		l.log.Warn("orders have expired, and their units are lost: their SKUs have no stock rows", "skus", gone)
	}
	return e, nil
}

// waitForRow locks a stock row of the oldest order of a batch, if the row exists and the batch may
// wait for a row. Without it, a row that sales always hold locked could keep the order from
// expiring. *lockedRowError means that the row stayed locked until the timeout of the session or of
// the transaction.
func (r *ExpiryRound) waitForRow(ctx context.Context, tx *sqltx.Tx, oldest *order.Order) error {
	if oldest == nil || len(oldest.Lines) == 0 || time.Now().Before(r.waitAfter) {
		return nil
	}
	sku := oldest.Lines[rand.IntN(len(oldest.Lines))].SKU
	_, err := readRows(ctx, tx, []stock.SKU{sku}, stockColumns, tx.Dialect().RowLock())
	// The session may wait longer than the transaction.
	if err != nil && (sqltx.IsLockTimeout(err) || errors.Is(err, context.DeadlineExceeded)) {
		return &lockedRowError{sku, err.Error()}
	}
	return err
}

// isDue is the condition of a pending order whose payment window has ended by the database's clock.
// The clock is read in a subquery, so that PostgreSQL reads it once a statement and can use the
// index.
func isDue(d sqltx.Dialect) string {
	return "status = 'pending' AND expires_at <= (SELECT " + d.Now() + ")"
}

// timeHasPassed is an SQL expression: the order's payment window has ended, by the database's
// clock.
func timeHasPassed(d sqltx.Dialect) string { return "COALESCE(expires_at <= " + d.Now() + ", FALSE)" }

// due reads the orders that are due and follow the position, the oldest first.
func (l *Ledger) due(ctx context.Context, after duePosition, limit int) (due []duePosition, err error) {
	query, args := "SELECT id, expires_at FROM orders WHERE "+isDue(l.db.Dialect()), []any(nil)
	if after.at != nil {
		query += " AND expires_at >= ? AND (expires_at > ? OR id > ?)"
		args = append(args, after.at, after.at, l.db.Dialect().UUID(after.id))
	}
	return sqltx.ReadAll(ctx, l.db, func(p *duePosition) []any { return []any{&p.id, &p.at} },
		query+" ORDER BY expires_at, id LIMIT ?", append(args, limit)...)
}

// expireOrders applies order.Expiry to those orders that are due, writes their history when tx
// commits, and returns them with the change. It skips orders that were paid or cancelled meanwhile,
// and those that another transaction has locked. tx must have locked the stock rows.
func expireOrders(ctx context.Context, tx *sqltx.Tx, orders map[uuid.UUID]*order.Order) (expired []*order.Order, change order.Transition, err error) {
	d := tx.Dialect()
	keys := make([]any, 0, len(orders))
	for id := range orders {
		keys = append(keys, d.UUID(id))
	}
	var due []any
	err = tx.QueryEach(ctx, func(row *sql.Rows) error {
		var found order.Locked
		if err := row.Scan(&found.Order.ID, &found.Order.Status, &found.Due); err != nil {
			return err
		}
		if c := order.Expiry(found); c.To != "" {
			change, expired, due = c, append(expired, orders[found.Order.ID]), append(due, d.UUID(found.Order.ID))
		}
		return nil
	}, "SELECT id, status, "+timeHasPassed(d)+" FROM orders WHERE id IN ? ORDER BY id"+tx.SkipLocked(), keys)
	if err != nil || len(due) == 0 {
		return nil, change, err
	}
	// The rows are locked, so they are still due. Without a condition on the time, the database
	// finds them by their IDs, and never by the index of all due orders.
	in := " WHERE id IN (?" + strings.Repeat(", ?", len(due)-1) + ")"
	tx.AtCommit(sqltx.Statement{
		SQL: "UPDATE orders SET status = ?, version = version + 1" + in, Args: append([]any{string(change.To)}, due...),
	}, sqltx.Statement{
		SQL: "INSERT INTO order_history (order_id, version, status, at) SELECT id, version, status, " + d.Now() + " FROM orders" + in, Args: due,
	})
	return expired, change, nil
}

// Due counts the pending orders whose payment window has ended, up to limit. It returns how long
// the oldest has been due by the database's clock, or 0 if there are none.
func (l *Ledger) Due(ctx context.Context, limit int) (n int, oldest time.Duration, err error) {
	oldestDue, err := l.due(ctx, duePosition{}, 1)
	if err != nil {
		return 0, 0, fmt.Errorf("reading which order is due: %w", err)
	}
	if len(oldestDue) == 0 {
		return 0, 0, nil
	}
	err = l.db.QueryRow(ctx, []any{&n}, "SELECT COUNT(*) FROM (SELECT id FROM orders WHERE "+isDue(l.db.Dialect())+" ORDER BY expires_at LIMIT ?) AS due", limit)
	if err != nil {
		return 0, 0, fmt.Errorf("counting orders that are due: %w", err)
	}
	now, err := l.db.Now(ctx)
	if err != nil {
		return 0, 0, fmt.Errorf("reading the database's clock: %w", err)
	}
	if at, ok := oldestDue[0].at.(time.Time); ok { // SQLite may have any type in any column
		oldest = max(now.Sub(at), 0)
	}
	return n, oldest, nil
}
