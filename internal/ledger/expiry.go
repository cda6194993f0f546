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
	units, _ := unitsOf(slices.Collect(maps.Values(due)))
	skus := slices.Sorted(maps.Keys(units))
	var locked time.Time
	err = l.transact(ctx, func(tx *sqltx.Tx) error {
		if err := holdJob(ctx, tx, held); err != nil {
			return err
		}
		rows, err := lockRows(ctx, tx, skus)
		if err != nil {
			return err
		}
		locked = time.Now()
		expired, err := expireOrders(ctx, tx, due)
		if err != nil {
			return err
		}
		e.Expired = len(expired)
		return l.returnUnits(ctx, tx, rows, expired...)
	})
	if err != nil {
		return e, fmt.Errorf("expiring orders: %w", err)
	}
	e.Locked, e.SKUs = time.Since(locked), skus
	return e, nil
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
