package ledger

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// Expiry is what one batch of Expire did.
type Expiry struct {
	Found   int           // orders that were due when the batch was read; fewer than the limit if there were no more
	Oldest  time.Duration // how long ago the oldest was due of the orders that the round has left or the batch found; 0 if the database's clock is not known
	Expired int           // orders that the batch expired; others were paid or cancelled meanwhile
	Left    int           // orders that the round has left so far, because their stock rows were locked
	Failed  int           // orders that are set aside, because they cannot expire
	SKUs    []stock.SKU   // whose units the batch returned
	Locked  time.Duration // how long it held the stock rows locked
}

const (
	// failedOrderPause is how long an order that cannot expire is set aside before it
	// is tried again. maxFailedOrders bounds the orders that are set aside: more than
	// that are tried in every round.
	failedOrderPause, maxFailedOrders = time.Minute, 1000
	// slowRowPause is how long expiry does not wait again for a stock row that stayed
	// locked. maxSlowSKUs bounds the SKUs of such rows that are remembered.
	slowRowPause, maxSlowSKUs = 30 * time.Second, 1000
	// fullRound is how long a round lasts before it may end with a full batch.
	fullRound = 10 * time.Second
)

// ExpiryRound goes round the orders that are due, the oldest first, a batch at a time.
// So orders that cannot expire now do not keep younger ones from their turn. The zero
// value begins a round. It is for one goroutine.
type ExpiryRound struct {
	after   duePosition
	began   time.Time // when its first batch began
	expired int       // orders that the round has expired
	left    int       // orders that the round has left, because their stock rows were locked
	oldest  time.Time // when the first of them was due
	// waited says that a wait for locked stock rows has timed out in this round. A
	// round waits that long only once.
	waited bool
	// slow has the SKUs whose stock rows stayed locked during such waits, and when they
	// are waited for again.
	slow   map[stock.SKU]time.Time
	failed map[uuid.UUID]time.Time // orders that cannot expire, and when they are tried again
}

// duePosition is the place of an order among the orders that are due.
type duePosition struct {
	at any // expires_at as the database gave it: in SQLite it may be no time; nil: before all orders
	id uuid.UUID
}

// time returns when the order was due. It returns the zero time if the database has none.
func (p duePosition) time() time.Time {
	at, _ := p.at.(time.Time)
	return at.UTC()
}

// end ends the round, and begins the next one.
func (r *ExpiryRound) end() {
	*r = ExpiryRound{slow: r.slow, failed: r.failed}
}

// isOver reports whether the round ends with a batch. A batch that is not full had the
// youngest order that is due. If there always are more, the round ends after some time,
// so that the orders that it has left have their turn again. But a round that has left
// more orders than it has expired goes on: otherwise the next one might come no further
// than it did, and younger orders would never expire.
func (r *ExpiryRound) isOver(full bool) bool {
	return !full || 0 < r.left && r.left <= r.expired && time.Since(r.began) >= fullRound
}

// pass moves the round behind the orders of a batch, which has left some of them. It
// returns when the oldest order that the round has left, or that the batch found, was due.
func (r *ExpiryRound) pass(due []duePosition, left map[uuid.UUID]*order.Order) (oldest time.Time) {
	for _, at := range due {
		if r.after = at; left[at.id] == nil {
			continue
		}
		if r.left++; r.left == 1 {
			r.oldest = at.time()
		}
	}
	if r.left == 0 && len(due) > 0 {
		return due[0].time()
	}
	return r.oldest
}

// timedOut notes that a wait for stock rows timed out, and which of them are locked.
func (r *ExpiryRound) timedOut(locked []stock.SKU) {
	r.waited = true
	if r.slow == nil || len(r.slow) >= maxSlowSKUs {
		r.slow = make(map[stock.SKU]time.Time)
	}
	for _, sku := range locked {
		r.slow[sku] = time.Now().Add(slowRowPause)
	}
}

// forget forgets the slow SKUs and the failed orders that have their turn again.
func (r *ExpiryRound) forget() {
	now := time.Now()
	maps.DeleteFunc(r.slow, func(_ stock.SKU, until time.Time) bool { return !now.Before(until) })
	maps.DeleteFunc(r.failed, func(_ uuid.UUID, until time.Time) bool { return !now.Before(until) })
}

// setAside sets an order aside that cannot expire.
func (r *ExpiryRound) setAside(id uuid.UUID) {
	if r.failed == nil {
		r.failed = make(map[uuid.UUID]time.Time)
	}
	if len(r.failed) < maxFailedOrders {
		r.failed[id] = time.Now().Add(failedOrderPause)
	}
}

// worthWaiting returns those of the orders left, in the order of ids, for whose stock
// rows the round waits: the oldest that needs no slow row, and those that need no other
// rows than it does. A transaction that waits for these rows keeps no order for another
// SKU waiting.
func (r *ExpiryRound) worthWaiting(ids []uuid.UUID, left map[uuid.UUID]*order.Order) []uuid.UUID {
	if r.waited {
		return nil
	}
	oldest := slices.IndexFunc(ids, func(id uuid.UUID) bool {
		o := left[id]
		return o != nil && !slices.ContainsFunc(o.SKUs(), func(sku stock.SKU) bool { return !r.slow[sku].IsZero() })
	})
	if oldest < 0 {
		return nil
	}
	skus := left[ids[oldest]].SKUs()
	return slices.DeleteFunc(slices.Clone(ids), func(id uuid.UUID) bool {
		o := left[id]
		return o == nil || slices.ContainsFunc(o.SKUs(), func(sku stock.SKU) bool { return !slices.Contains(skus, sku) })
	})
}

// Expire expires up to limit pending orders whose time has passed by the database's
// clock, and returns their units. It takes the orders that come next in the round. It is
// the work of the job held.
//
// A stock row that another transaction holds locked must not delay the orders of other
// SKUs, or their sales. So the first transaction leaves out the orders of such rows. A
// second one waits for the rows of one of them. The next round does the rest.
//
// An order that makes its transaction fail is set aside, and the others expire.
//
// ErrJobLost: another instance has claimed the job. What was done before stays.
func (l *Ledger) Expire(ctx context.Context, held Job, round *ExpiryRound, limit int) (e Expiry, err error) {
	due, err := l.due(ctx, round.after, limit)
	if err != nil {
		return e, fmt.Errorf("reading which orders are due: %w", err)
	}
	round.forget()
	if round.began.IsZero() {
		round.began = time.Now()
	}
	var ids []uuid.UUID
	for _, at := range due {
		if _, failed := round.failed[at.id]; !failed {
			ids = append(ids, at.id)
		}
	}
	b := expiryBatch{Ledger: l, held: held, round: round, left: make(map[uuid.UUID]*order.Order)}
	if err := b.each(ctx, ids, b.expireFree); err != nil {
		return e, fmt.Errorf("expiring orders: %w", err)
	}
	if err := b.each(ctx, round.worthWaiting(ids, b.left), b.expireWaiting); err != nil {
		return e, fmt.Errorf("expiring orders whose stock rows were locked: %w", err)
	}
	oldest := round.pass(due, b.left)
	if now, err := l.clock.now(); err == nil && !oldest.IsZero() {
		e.Oldest = now.Sub(oldest)
	}
	units, _ := unitsOf(b.expired)
	e.Found, e.Expired, e.Left, e.Failed = len(due), len(b.expired), round.left, len(round.failed)
	e.SKUs, e.Locked = slices.Sorted(maps.Keys(units)), b.locked
	if round.expired += len(b.expired); round.isOver(len(due) == limit) {
		round.end()
	}
	return e, nil
}

// expiryBatch is the work of one call of Expire.
type expiryBatch struct {
	*Ledger
	held    Job
	round   *ExpiryRound
	expired []*order.Order
	left    map[uuid.UUID]*order.Order // their stock rows were not locked
	locked  time.Duration              // the longest time for which a transaction held stock rows
}

// each calls do with the orders. If one of them makes do fail, each halves the orders
// until that one is alone, and sets it aside.
func (b *expiryBatch) each(ctx context.Context, ids []uuid.UUID, do func(context.Context, []uuid.UUID) error) error {
	if len(ids) == 0 {
		return nil
	}
	err := do(ctx, ids)
	if !isFault(err) {
		return err
	}
	if len(ids) == 1 {
		b.round.setAside(ids[0])
		b.log.Warn("an order cannot expire and is set aside", "order", ids[0], "error", err)
		return nil
	}
	for _, half := range [][]uuid.UUID{ids[:len(ids)/2], ids[len(ids)/2:]} {
		if err := b.each(ctx, half, do); err != nil {
			return err
		}
	}
	return nil
}

// isFault reports whether a transaction failed with err because of what the database has
// of one of its orders.
func isFault(err error) bool {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return false
	}
	return sqltx.IsStatementError(err) || errors.Is(err, sqltx.ErrScan)
}

// expireFree expires those of the orders whose stock rows are not locked.
func (b *expiryBatch) expireFree(ctx context.Context, ids []uuid.UUID) error {
	orders, err := readOrders(ctx, b.db, ids) // lines never change
	if err != nil {
		return err
	}
	var (
		expired []*order.Order
		left    map[uuid.UUID]*order.Order
		locked  time.Time
	)
	err = b.transact(ctx, func(ctx context.Context, tx *sqltx.Tx) error {
		if err := holdJob(ctx, tx, b.held); err != nil {
			return err
		}
		rows, err := lockRows(ctx, tx, skusOfOrders(orders), tx.Dialect().SkipLocked())
		if err != nil {
			return err
		}
		locked = time.Now()
		has := make(map[stock.SKU]bool, len(rows))
		for _, row := range rows {
			has[row.SKU] = true
		}
		free := make(map[uuid.UUID]*order.Order, len(orders))
		left = make(map[uuid.UUID]*order.Order)
		for id, o := range orders {
			if slices.ContainsFunc(o.Lines, func(line stock.Line) bool { return !has[line.SKU] }) {
				left[id] = o
			} else {
				free[id] = o
			}
		}
		expired, err = b.expire(ctx, tx, rows, free)
		return err
	})
	if err == nil {
		b.add(expired, locked)
		maps.Copy(b.left, left)
	}
	return err
}

// expireWaiting expires orders that expireFree has left. It waits for their stock rows.
// If the rows stay locked, it leaves the orders to the next round.
func (b *expiryBatch) expireWaiting(ctx context.Context, ids []uuid.UUID) error {
	orders := make(map[uuid.UUID]*order.Order, len(ids))
	for _, id := range ids {
		orders[id] = b.left[id]
	}
	var (
		skus    = skusOfOrders(orders)
		gone    []stock.SKU // they have no stock row
		expired []*order.Order
		locked  time.Time
	)
	if len(skus) > 1 {
		for _, sku := range skus {
			if err := b.waitFor(ctx, sku); err != nil {
				return b.leave(err, sku)
			}
		}
	}
	err := b.tryTransact(ctx, transactionTimeout, func(ctx context.Context, tx *sqltx.Tx) error {
		rows, err := lockRows(ctx, tx, skus, tx.Dialect().RowLock())
		if err != nil {
			return err
		}
		locked, gone = time.Now(), without(skus, rows)
		// The job is locked after the wait. Otherwise it could not be renewed meanwhile.
		if err := holdJob(ctx, tx, b.held); err != nil {
			return err
		}
		expired, err = b.expire(ctx, tx, rows, orders)
		return err
	})
	switch {
	case sqltx.IsLockTimeout(err):
		rows, _ := b.lockedRows(ctx, skus) // if it fails, the next round waits for the same rows
		return b.leave(err, rows...)
	case err != nil:
		return b.leave(err)
	case len(gone) > 0:
		b.log.Warn("orders have expired, and their units are lost: their SKUs have no stock rows", "skus", gone)
	}
	b.add(expired, locked)
	for _, id := range ids {
		delete(b.left, id)
	}
	return nil
}

// waitFor waits until the stock row of the SKU is not locked. It waits in a transaction
// that locks nothing else. A transaction that locks several rows, and waits for one of
// them, delays the sales of the others.
func (b *expiryBatch) waitFor(ctx context.Context, sku stock.SKU) error {
	return b.tryTransact(ctx, transactionTimeout, func(ctx context.Context, tx *sqltx.Tx) error {
		_, err := lockRows(ctx, tx, []stock.SKU{sku}, tx.Dialect().RowLock())
		return err
	})
}

// leave leaves orders to the next round if err says that their stock rows could not be
// locked. It returns any other error. After a timeout, locked has the rows that stayed
// locked.
func (b *expiryBatch) leave(err error, locked ...stock.SKU) error {
	switch {
	case sqltx.IsLockTimeout(err):
		b.log.Warn("orders cannot expire because another transaction has locked their stock rows", "skus", locked, "error", err)
		b.round.timedOut(locked)
		return nil
	case sqltx.IsRetryable(err):
		return nil
	}
	return err
}

// expire expires those of the orders that are due, and returns their units to the rows,
// which tx must have locked.
func (b *expiryBatch) expire(ctx context.Context, tx *sqltx.Tx, rows []StockRow, orders map[uuid.UUID]*order.Order) ([]*order.Order, error) {
	if len(orders) == 0 {
		return nil, nil
	}
	expired, err := expireOrders(ctx, tx, orders)
	if err != nil {
		return nil, err
	}
	return expired, b.returnUnits(ctx, tx, rows, expired...)
}

// add adds what a transaction has expired. locked is when it had locked the stock rows.
func (b *expiryBatch) add(expired []*order.Order, locked time.Time) {
	b.expired = append(b.expired, expired...)
	b.locked = max(b.locked, time.Since(locked))
}

// skusOfOrders returns the SKUs of the orders, sorted.
func skusOfOrders(orders map[uuid.UUID]*order.Order) []stock.SKU {
	units, _ := unitsOf(slices.Collect(maps.Values(orders)))
	return slices.Sorted(maps.Keys(units))
}

// without returns the SKUs that have none of the rows.
func without(skus []stock.SKU, rows []StockRow) []stock.SKU {
	return slices.DeleteFunc(slices.Clone(skus), func(sku stock.SKU) bool {
		return slices.ContainsFunc(rows, func(row StockRow) bool { return row.SKU == sku })
	})
}

// isDue is the condition of a pending order whose time has passed by the database's
// clock. The clock is read in a subquery, so that PostgreSQL reads it once a
// statement and can use the index.
func isDue(d sqltx.Dialect) string {
	return "status = 'pending' AND expires_at <= (SELECT " + d.Now() + ")"
}

// timeHasPassed is an expression: the order's time to be paid has passed, by the
// database's clock.
func timeHasPassed(d sqltx.Dialect) string { return "COALESCE(expires_at <= " + d.Now() + ", FALSE)" }

// due reads which orders are due and follow the position, the oldest first.
func (l *Ledger) due(ctx context.Context, after duePosition, limit int) (due []duePosition, err error) {
	query, args := "SELECT id, expires_at FROM orders WHERE "+isDue(l.db.Dialect()), []any(nil)
	if after.at != nil {
		query += " AND expires_at >= ? AND (expires_at > ? OR id > ?)"
		args = append(args, after.at, after.at, l.db.Dialect().UUID(after.id))
	}
	err = l.db.QueryEach(ctx, func(row *sql.Rows) error {
		var p duePosition
		err := row.Scan(&p.id, &p.at)
		due = append(due, p)
		return err
	}, query+" ORDER BY expires_at, id LIMIT ?", append(args, limit)...)
	return due, err
}

// expireOrders expires those of the orders that are due, writes their history, and
// returns them. Only their units may be returned: an order that was paid or
// cancelled meanwhile is left alone, and so is one that another transaction has locked.
// tx must have locked the stock rows.
func expireOrders(ctx context.Context, tx *sqltx.Tx, orders map[uuid.UUID]*order.Order) (expired []*order.Order, err error) {
	d := tx.Dialect()
	keys := make([]any, 0, len(orders))
	for id := range orders {
		keys = append(keys, d.UUID(id))
	}
	var (
		due []any
		to  order.Status
	)
	err = tx.QueryEach(ctx, func(row *sql.Rows) error {
		var found order.Locked
		if err := row.Scan(&found.Order.ID, &found.Order.Status, &found.Due); err != nil {
			return err
		}
		if c := order.Expiry(found); c.To != "" {
			to, expired, due = c.To, append(expired, orders[found.Order.ID]), append(due, d.UUID(found.Order.ID))
		}
		return nil
	}, "SELECT id, status, "+timeHasPassed(d)+" FROM orders WHERE id IN ? ORDER BY id"+d.SkipLocked(), keys)
	if err != nil {
		return nil, err
	}
	if len(due) == 0 {
		return nil, nil
	}
	// The rows are locked, so they are still due. Without a condition on that, the
	// database finds them by their IDs, and never by the index of all due orders.
	_, err = tx.Exec(ctx, "UPDATE orders SET status = ?, version = version + 1 WHERE id IN ?", string(to), due)
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
