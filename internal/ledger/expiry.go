package ledger

import (
	"context"
	"database/sql"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// Expiry is what one batch of Expire did.
type Expiry struct {
	Found   int           // orders that were due when the batch was read
	Oldest  time.Duration // how long ago the first of them was due; 0 if the database's clock is not known
	Expired int           // orders that the batch expired; others were paid or cancelled meanwhile
	SKUs    []stock.SKU   // whose units the batch returned
	Locked  time.Duration // how long it held the stock rows locked
}

// Expire expires up to limit pending orders whose time has passed by the database's
// clock, the oldest first, and returns their units. It is the work of the job held.
//
// A stock row that another transaction holds locked must not delay the orders of other
// SKUs, or their sales. So the first transaction leaves out the orders of such rows. A
// second one waits for the rows of the oldest of them. The next batch does the rest.
//
// ErrJobLost: another instance has claimed the job, and nothing was changed.
func (l *Ledger) Expire(ctx context.Context, held Job, limit int) (e Expiry, err error) {
	ids, oldest, err := l.due(ctx, limit)
	if err != nil {
		return e, fmt.Errorf("reading which orders are due: %w", err)
	}
	if len(ids) == 0 {
		return e, nil
	}
	e.Found = len(ids)
	if now, err := l.clock.now(); err == nil {
		e.Oldest = now.Sub(oldest)
	}
	due, err := readOrders(ctx, l.db, ids) // lines never change
	if err != nil {
		return e, err
	}
	var free, waited expiring
	err = l.transact(ctx, func(tx *sqltx.Tx) error {
		free, err = l.expire(ctx, tx, held, due, tx.Dialect().SkipLocked())
		return err
	})
	if err != nil {
		return e, fmt.Errorf("expiring orders: %w", err)
	}
	e.Locked = free.lockedFor()
	if rest := besideOldest(ids, free.left); len(rest) > 0 {
		err = l.tryTransact(ctx, transactionTimeout, func(tx *sqltx.Tx) error {
			waited, err = l.expire(ctx, tx, held, rest, tx.Dialect().RowLock())
			return err
		})
		switch {
		case sqltx.IsRetryable(err): // the next batch tries again
			waited = expiring{}
		case err != nil:
			return e, fmt.Errorf("expiring orders whose stock rows were locked: %w", err)
		}
		e.Locked = max(e.Locked, waited.lockedFor())
	}
	expired := slices.Concat(free.expired, waited.expired)
	units, _ := unitsOf(expired)
	e.Expired, e.SKUs = len(expired), slices.Sorted(maps.Keys(units))
	return e, nil
}

// expiring is what one transaction of a batch did.
type expiring struct {
	expired []*Order
	left    map[uuid.UUID]*Order // their stock rows were not locked
	locked  time.Time            // when it had locked the stock rows
}

// lockedFor returns for how long the transaction held the stock rows. Call it when the
// transaction has ended.
func (e expiring) lockedFor() time.Duration {
	if e.locked.IsZero() {
		return 0
	}
	return time.Since(e.locked)
}

// expire expires those of the orders that are due and whose stock rows it can lock
// with the clause rowLock, and returns their units.
func (l *Ledger) expire(ctx context.Context, tx *sqltx.Tx, held Job, due map[uuid.UUID]*Order, rowLock string) (e expiring, err error) {
	if err := holdJob(ctx, tx, held); err != nil {
		return e, err
	}
	units, _ := unitsOf(slices.Collect(maps.Values(due)))
	rows, err := lockRows(ctx, tx, slices.Sorted(maps.Keys(units)), rowLock)
	if err != nil {
		return e, err
	}
	e.locked = time.Now()
	for _, row := range rows {
		delete(units, row.SKU)
	}
	free := make(map[uuid.UUID]*Order, len(due))
	e.left = make(map[uuid.UUID]*Order)
	for id, o := range due {
		if slices.ContainsFunc(o.Lines, func(line stock.Line) bool { return units[line.SKU] > 0 }) {
			e.left[id] = o
		} else {
			free[id] = o
		}
	}
	if len(free) == 0 {
		return e, nil
	}
	if e.expired, err = expireOrders(ctx, tx, free); err != nil {
		return e, err
	}
	return e, l.returnUnits(ctx, tx, rows, e.expired...)
}

// besideOldest returns the first of the orders left, in the order of ids, and those
// that need no other stock rows than it does. A transaction that waits for these rows
// keeps no order for another SKU waiting.
func besideOldest(ids []uuid.UUID, left map[uuid.UUID]*Order) map[uuid.UUID]*Order {
	oldest := slices.IndexFunc(ids, func(id uuid.UUID) bool { return left[id] != nil })
	if oldest < 0 {
		return nil
	}
	skus, rest := left[ids[oldest]].SKUs(), make(map[uuid.UUID]*Order)
	for id, o := range left {
		if !slices.ContainsFunc(o.Lines, func(line stock.Line) bool { return !slices.Contains(skus, line.SKU) }) {
			rest[id] = o
		}
	}
	return rest
}

// isDue is the condition of a pending order whose time has passed by the database's
// clock. The clock is read in a subquery, so that PostgreSQL reads it once a
// statement and can use the index.
func isDue(d sqltx.Dialect) string {
	return "status = 'pending' AND expires_at <= (SELECT " + d.Now() + ")"
}

// due reads the IDs of orders that are due, the oldest first, and when the first was
// due.
func (l *Ledger) due(ctx context.Context, limit int) (ids []uuid.UUID, oldest time.Time, err error) {
	err = l.db.QueryEach(ctx, func(row *sql.Rows) error {
		var (
			id uuid.UUID
			at time.Time
		)
		err := row.Scan(&id, &at)
		if len(ids) == 0 {
			oldest = at.UTC()
		}
		ids = append(ids, id)
		return err
	}, "SELECT id, expires_at FROM orders WHERE "+isDue(l.db.Dialect())+" ORDER BY expires_at LIMIT ?", limit)
	return ids, oldest, err
}

// expireOrders expires those of the orders that are due, writes their history, and
// returns them. Only their units may be returned: an order that was paid or
// cancelled meanwhile is left alone. tx must have locked the stock rows.
func expireOrders(ctx context.Context, tx *sqltx.Tx, orders map[uuid.UUID]*Order) (expired []*Order, err error) {
	d := tx.Dialect()
	keys := make([]any, 0, len(orders))
	for id := range orders {
		keys = append(keys, d.UUID(id))
	}
	var due []any
	err = tx.QueryEach(ctx, func(row *sql.Rows) error {
		var (
			id    uuid.UUID
			isDue bool
		)
		if err := row.Scan(&id, &isDue); err != nil || !isDue {
			return err
		}
		expired, due = append(expired, orders[id]), append(due, d.UUID(id))
		return nil
	}, "SELECT id, "+isDue(d)+" FROM orders WHERE id IN ? ORDER BY id"+d.RowLock(), keys)
	if err != nil || len(due) == 0 {
		return nil, err
	}
	// The rows are locked, so they are still due. Without a condition on that, the
	// database finds them by their IDs, and never by the index of all due orders.
	_, err = tx.Exec(ctx, "UPDATE orders SET status = 'expired', version = version + 1 WHERE id IN ?", due)
	if err != nil {
		return nil, err
	}
	_, err = tx.Exec(ctx, "INSERT INTO order_history (order_id, version, status, at) SELECT id, version, status, "+d.Now()+" FROM orders WHERE id IN ?", due)
	return expired, err
}

// Due counts the pending orders whose time has passed, up to limit.
func (l *Ledger) Due(ctx context.Context, limit int) (n int, err error) {
	err = l.db.QueryRow(ctx, []any{&n}, "SELECT COUNT(*) FROM (SELECT id FROM orders WHERE "+isDue(l.db.Dialect())+" ORDER BY expires_at LIMIT ?) AS due", limit)
	if err != nil {
		return 0, fmt.Errorf("counting orders that are due: %w", err)
	}
	return n, nil
}
