package ledger

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"gorm.io/gorm"

	"github.com/holdfast-stock/holdfast/internal/ledger/cutter"
	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// place records an order of one unit of each SKU.
func place(t *testing.T, l *Ledger, skus ...stock.SKU) order.Order {
	t.Helper()
	o, out := l.Record(t.Context(), takeOf(skus...))
	if !out.Committed() {
		t.Fatal(out.Reason())
	}
	return o
}

// makeDue lets the order's time pass now.
func (d *database) makeDue(t *testing.T, orders ...order.Order) {
	t.Helper()
	db := d.sql.Ledger()
	now, err := db.Now(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for n, o := range orders {
		_, err := db.Exec(t.Context(), "UPDATE orders SET expires_at = ? WHERE id = ?", now.Add(time.Duration(n)*time.Millisecond-time.Minute), db.Dialect().UUID(o.ID))
		if err != nil {
			t.Fatal(err)
		}
	}
}

// setStatus gives the order the status, without any other change.
func (d *database) setStatus(t *testing.T, o order.Order, status order.Status) {
	t.Helper()
	db := d.sql.Ledger()
	if _, err := db.Exec(t.Context(), "UPDATE orders SET status = ? WHERE id = ?", string(status), db.Dialect().UUID(o.ID)); err != nil {
		t.Fatal(err)
	}
}

// mustExpire expires a batch, and asserts how many orders it expired.
func mustExpire(t *testing.T, l *Ledger, j Job, limit, want int) Expiry {
	t.Helper()
	e, err := l.Expire(t.Context(), j, new(ExpiryRound), limit)
	if err != nil || e.Expired != want {
		t.Errorf("expired %d orders, %v, want %d", e.Expired, err, want)
	}
	return e
}

// TestExpire checks which orders a batch expires, the oldest first, and what it
// writes.
func TestExpire(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases, func(t *testing.T, d *database) {
		var (
			l    = d.open(t, cutter.Merged())
			db   = d.sql.Ledger()
			ctx  = t.Context()
			a, b = fresh("a"), fresh("b")
			j    = claim(t, l, "expiry", "holder")
		)
		lay(t, l, a, 10)
		row := lay(t, l, b, 10)
		first, second, paid, young, forever := place(t, l, a, b), place(t, l, b), place(t, l, b), place(t, l, a), place(t, l, a)
		d.makeDue(t, first, second, paid)
		d.setStatus(t, paid, order.Paid)
		if _, err := db.Exec(ctx, "UPDATE orders SET expires_at = "+db.Dialect().After(time.Minute)+" WHERE id = ?", db.Dialect().UUID(young.ID)); err != nil {
			t.Fatal(err)
		}
		if _, err := db.Exec(ctx, "UPDATE stock SET buyer_limit = 5 WHERE sku = ?", string(b)); err != nil {
			t.Fatal(err)
		}
		if _, err := db.Exec(ctx, "INSERT INTO claims (sku, buyer_id, units) VALUES (?, ?, 3)", string(b), first.Buyer); err != nil {
			t.Fatal(err)
		}

		if n, err := l.Due(ctx, 10); err != nil || n != 2 {
			t.Errorf("%d orders are due, %v, want 2", n, err)
		}
		if n, err := l.Due(ctx, 1); err != nil || n != 1 {
			t.Errorf("%d orders are due, counted up to 1, %v", n, err)
		}
		e := mustExpire(t, l, j, 1, 1)
		if e.Found != 1 || !slices.Equal(e.SKUs, []stock.SKU{a, b}) || e.Locked <= 0 || e.Oldest != 0 { // the clock is not known
			t.Errorf("the first batch: %+v", e)
		}
		if e := mustExpire(t, l, j, 10, 1); e.Found != 1 || !slices.Equal(e.SKUs, []stock.SKU{b}) {
			t.Errorf("the second batch: %+v", e)
		}
		measureClock(t, l)
		if e := mustExpire(t, l, j, 10, 0); e.Found != 0 || len(e.SKUs) != 0 || e.Oldest != 0 {
			t.Errorf("the third batch: %+v", e)
		}

		for what, o := range map[order.Status][]order.Order{order.Expired: {first, second}, order.Paid: {paid}, order.Pending: {young, forever}} {
			for _, o := range o {
				if got, err := l.Order(ctx, o.ID); err != nil || got.Status != what {
					t.Errorf("an order is %+v, %v, want %s", got, err, what)
				}
			}
		}
		d.atRest(t, a, 2)
		d.atRest(t, b, 1)
		now, err := db.Now(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range []order.Order{first, second} {
			steps, err := l.History(ctx, o.ID, 1)
			if err != nil || len(steps) != 1 || steps[0].Status != order.Expired || now.Sub(steps[0].At).Abs() > time.Minute {
				t.Errorf("history %+v, %v", steps, err)
			}
		}
		var claimed int64
		if err := db.QueryRow(ctx, []any{&claimed}, "SELECT units FROM claims WHERE sku = ?", string(b)); err != nil || claimed != 1 {
			t.Errorf("the buyer claims %d units, %v, want 1", claimed, err)
		}
		changes, _, err := l.Changes(ctx, b, stock.Change{})
		want := []stock.Change{{SKU: b, Epoch: row.Epoch, Number: 1, Delta: 1}, {SKU: b, Epoch: row.Epoch, Number: 2, Delta: 1}}
		if err != nil || !slices.Equal(changes, want) {
			t.Errorf("the outbox has %+v, %v, want %+v", changes, err, want)
		}
	})
}

// TestExpire_OneChange checks that the units of all orders of a batch return in one
// change of a SKU.
func TestExpire_OneChange(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases, func(t *testing.T, d *database) {
		l, sku := d.open(t, cutter.Merged()), fresh("sku")
		lay(t, l, sku, 10)
		d.makeDue(t, place(t, l, sku), place(t, l, sku), place(t, l, sku))
		mustExpire(t, l, claim(t, l, "expiry", "holder"), 10, 3)
		changes, _, err := l.Changes(t.Context(), sku, stock.Change{})
		if err != nil || len(changes) != 1 || changes[0].Delta != 3 {
			t.Errorf("the outbox has %+v, %v", changes, err)
		}
		d.atRest(t, sku, 0)
	})
}

// TestExpire_JobLost checks that a batch changes nothing once another instance has
// claimed the job.
func TestExpire_JobLost(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases, func(t *testing.T, d *database) {
		l, sku := d.open(t, cutter.Merged()), fresh("sku")
		lay(t, l, sku, 10)
		d.makeDue(t, place(t, l, sku))
		lost := claim(t, l, "expiry", "a")
		outlive(t, d, "expiry")
		held := claim(t, l, "expiry", "b")
		if _, err := l.Expire(t.Context(), lost, new(ExpiryRound), 10); !errors.Is(err, ErrJobLost) {
			t.Errorf("expiring without the job: %v", err)
		}
		d.atRest(t, sku, 1)
		mustExpire(t, l, held, 10, 1)
		d.atRest(t, sku, 0)
	})
}

// TestExpire_OthersWin checks that only the units of those orders return that the
// batch itself expired. The others are paid or cancelled after the batch was read.
func TestExpire_OthersWin(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases, func(t *testing.T, d *database) {
		l, sku := d.open(t, cutter.Merged()), fresh("sku")
		lay(t, l, sku, 10)
		paid, cancelled, left := place(t, l, sku), place(t, l, sku), place(t, l, sku)
		d.makeDue(t, paid, cancelled, left)
		slow := openSQL(t, d.url)
		reads := 0
		err := slow.DB().Callback().Row().Before("gorm:row").Register("change first", func(db *gorm.DB) {
			if strings.HasPrefix(db.Statement.SQL.String(), "SELECT id, take_id") {
				reads++
				d.setStatus(t, paid, order.Paid)
				cancel := func(order.Locked) (order.Change, error) { return order.Change{To: order.Cancelled, Returns: true}, nil }
				if _, err := l.Change(t.Context(), cancelled.ID, order.ChangeOptions{Returns: true}, cancel); err != nil {
					t.Error(err)
				}
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		other := openOn(t, slow.Ledger(), cutter.Merged())
		if e := mustExpire(t, other, claim(t, l, "expiry", "holder"), 10, 1); e.Found != 3 || reads != 1 {
			t.Errorf("%+v, after %d reads", e, reads)
		}
		d.atRest(t, sku, 1)
	})
}

// TestExpire_AtOnce checks that orders expire once if two instances expire them at
// the same time, although both believe that they hold the job.
func TestExpire_AtOnce(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases, func(t *testing.T, d *database) {
		const orders = 60
		l, a, b := d.open(t, cutter.Merged()), fresh("a"), fresh("b")
		lay(t, l, a, orders)
		lay(t, l, b, orders)
		var due []order.Order
		for n := range orders {
			switch n % 3 {
			case 0:
				due = append(due, place(t, l, a))
			case 1:
				due = append(due, place(t, l, b))
			case 2:
				due = append(due, place(t, l, a, b))
			}
		}
		d.makeDue(t, due...)
		var (
			mu      sync.Mutex
			expired int
			all     sync.WaitGroup
		)
		for n := range 4 {
			j := claim(t, l, "expiry "+string(rune('a'+n)), "holder")
			all.Go(func() {
				for {
					e, err := l.Expire(t.Context(), j, new(ExpiryRound), 7)
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					expired += e.Expired
					mu.Unlock()
					if e.Found == 0 {
						return
					}
				}
			})
		}
		all.Wait()
		if expired != orders {
			t.Errorf("%d orders expired, want %d", expired, orders)
		}
		d.atRest(t, a, 0)
		d.atRest(t, b, 0)
	})
}

// isLocked reports whether another transaction has locked the row that the query finds.
func (d *database) isLocked(t *testing.T, query string, args ...any) bool {
	t.Helper()
	probe, err := d.sql.Ledger().Begin(t.Context())
	if err != nil {
		t.Error(err)
		return false
	}
	defer probe.Rollback()
	var key any
	err = probe.QueryRow(t.Context(), []any{&key}, query+probe.Dialect().SkipLocked(), args...)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		t.Error(err)
	}
	return err != nil
}

// theJob finds the job's row.
const theJob = "SELECT name FROM jobs WHERE name = 'expiry'"

// waitingBatch begins a batch that expires the orders, and returns when the batch waits
// for a stock row. It checks that the batch holds its job when it locks orders.
func (d *database) waitingBatch(t *testing.T, job Job) <-chan error {
	t.Helper()
	slow, waits := openSQL(t, d.url), make(chan struct{}, 1)
	err := slow.DB().Callback().Row().Before("gorm:row").Register("watch", func(db *gorm.DB) {
		switch query := db.Statement.SQL.String(); {
		case strings.Contains(query, "FROM stock") && strings.HasSuffix(query, "FOR UPDATE"):
			waits <- struct{}{}
		case strings.HasPrefix(query, "SELECT id, status") && !d.isLocked(t, theJob):
			t.Error("the batch locks orders without its job")
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	l, done := openOn(t, slow.Ledger(), cutter.Merged()), make(chan error, 1)
	go func() {
		_, err := l.Expire(t.Context(), job, new(ExpiryRound), 10)
		done <- err
	}()
	wait(t, "the batch waits for the stock row", waits)
	return done
}

// TestExpire_LocksStockFirst checks that a batch locks no order while it waits for a
// stock row: a transaction that holds the stock row may wait for the order. It does not
// lock the job either, which must be renewed meanwhile.
func TestExpire_LocksStockFirst(t *testing.T) {
	t.Parallel()
	eachDatabase(t, servers, func(t *testing.T, d *database) {
		l, locked, free := d.open(t, cutter.Merged()), fresh("locked"), fresh("free")
		lay(t, l, locked, 10)
		lay(t, l, free, 10)
		o := place(t, l, locked)
		d.makeDue(t, o, place(t, l, free))
		j := claim(t, l, "expiry", "holder")
		unlock := d.lockRowOf(t, locked)
		defer unlock()
		done := d.waitingBatch(t, j)
		d.atRest(t, free, 0)
		time.Sleep(50 * time.Millisecond) // the next lock, which must be the stock row's, cannot be seen
		if d.isLocked(t, "SELECT id FROM orders WHERE id = ?", d.sql.Ledger().Dialect().UUID(o.ID)) {
			t.Error("the batch has locked the order before the stock row")
		}
		if d.isLocked(t, theJob) {
			t.Error("the job cannot be renewed while the batch waits for the stock row")
		}
		unlock()
		if err := wait(t, "the batch", done); err != nil {
			t.Error(err)
		}
		d.atRest(t, locked, 0)
	})
}

// TestExpire_LostWhileWaiting checks that a batch changes nothing if another instance
// claims the job while the batch waits for a stock row.
func TestExpire_LostWhileWaiting(t *testing.T) {
	t.Parallel()
	eachDatabase(t, servers, func(t *testing.T, d *database) {
		l, sku := d.open(t, cutter.Merged()), fresh("sku")
		lay(t, l, sku, 10)
		d.makeDue(t, place(t, l, sku))
		lost := claim(t, l, "expiry", "a")
		unlock := d.lockRowOf(t, sku)
		defer unlock()
		done := d.waitingBatch(t, lost)
		outlive(t, d, "expiry")
		held := claim(t, l, "expiry", "b")
		unlock()
		if err := wait(t, "the batch", done); !errors.Is(err, ErrJobLost) {
			t.Errorf("expiring without the job: %v", err)
		}
		d.atRest(t, sku, 1)
		mustExpire(t, l, held, 10, 1)
		d.atRest(t, sku, 0)
	})
}

// TestExpire_LockedOrder checks that a batch does not wait for an order that another
// transaction has locked, because it has locked stock rows.
func TestExpire_LockedOrder(t *testing.T) {
	t.Parallel()
	eachDatabase(t, servers, func(t *testing.T, d *database) {
		l, sku := d.open(t, cutter.Merged()), fresh("sku")
		lay(t, l, sku, 10)
		o := place(t, l, sku)
		d.makeDue(t, o, place(t, l, sku))
		j := claim(t, l, "expiry", "holder")
		holder, err := d.sql.Ledger().Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer holder.Rollback()
		if _, err := lockOrder(t.Context(), holder, o, ""); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		mustExpire(t, l, j, 10, 1)
		if took := time.Since(begin); took >= lockWaitOfTests {
			t.Errorf("the batch took %v", took)
		}
		holder.Rollback()
		mustExpire(t, l, j, 10, 1)
		d.atRest(t, sku, 0)
	})
}

// TestExpire_Round checks that a round comes to the youngest order that is due, although
// the orders before it cannot expire: the stock row of some is locked, and some make
// their transactions fail.
func TestExpire_Round(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases, func(t *testing.T, d *database) {
		var (
			l        = d.open(t, cutter.Merged())
			db       = d.sql.Ledger()
			isSQLite = db.Dialect() == sqltx.SQLite // it has no row locks, and any type in any column
			round    = &ExpiryRound{waited: true}   // no wait, which would take seconds
			j        = claim(t, l, "expiry", "holder")
		)
		measureClock(t, l)
		for _, sku := range []stock.SKU{"locked", "deleted", "free"} {
			lay(t, l, sku, 100)
		}
		exec := func(query string, args ...any) {
			t.Helper()
			if _, err := db.Exec(t.Context(), query, args...); err != nil {
				t.Fatal(err)
			}
		}
		poison := func(o order.Order) { // its history has the expiry already
			exec("INSERT INTO order_history (order_id, version, status, at) SELECT id, 1, 'expired', "+db.Dialect().Now()+" FROM orders WHERE id = ?", db.Dialect().UUID(o.ID))
		}
		first, second := place(t, l, "free"), place(t, l, "free")
		locked := []order.Order{place(t, l, "locked"), place(t, l, "locked"), place(t, l, "locked")}
		deleted, youngest := place(t, l, "deleted"), place(t, l, "free")
		d.makeDue(t, append(append([]order.Order{first, second}, locked...), deleted, youngest)...)
		poison(first)
		if isSQLite {
			exec("UPDATE orders SET expires_at = '2001' WHERE id = ?", db.Dialect().UUID(first.ID))
			exec("UPDATE order_lines SET quantity = 'two' WHERE order_id = ?", db.Dialect().UUID(second.ID))
			for _, o := range locked {
				d.setStatus(t, o, order.Paid)
			}
		} else {
			poison(second)
			defer d.lockRowOf(t, "locked")()
		}
		exec("DELETE FROM stock WHERE sku = 'deleted'")

		expired, left := 0, 0
		for n := 1; ; n++ {
			e, err := l.Expire(t.Context(), j, round, 2)
			if err != nil {
				t.Fatal(err)
			}
			expired, left = expired+e.Expired, e.Left
			if e.Failed != 2 || n > 1 && !isSQLite && e.Oldest < time.Minute-10*time.Millisecond {
				t.Errorf("batch %d: %+v", n, e)
			}
			if e.Found < 2 {
				break
			}
			if n == 10 {
				t.Fatal("the round of 7 orders does not end")
			}
		}
		if o, err := l.Order(t.Context(), youngest.ID); err != nil || o.Status != order.Expired {
			t.Errorf("the youngest order is %+v, %v", o, err)
		}
		if wantLeft := map[bool]int{true: 1, false: 4}[isSQLite]; expired != 1 || left != wantLeft {
			t.Errorf("the round expired %d orders and left %d, want 1 and %d", expired, left, wantLeft)
		}
		if isSQLite {
			mustExpire(t, l, j, 10, 1) // the order without a stock row
			return
		}
		round.timedOut([]stock.SKU{"locked"})
		round.waited = false
		if e, err := l.Expire(t.Context(), j, round, 10); err != nil || e.Found != 6 || e.Expired != 1 || e.Failed != 2 || e.Left != 3 {
			t.Errorf("the next round: %+v, %v", e, err)
		}
	})
}

// TestExpiryRound checks for which stock rows a round waits: for those of the oldest
// order, but not for rows that stayed locked in the last 30 s, and not twice for as long as
// the database lets it.
func TestExpiryRound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testExpiryRound)
}

func testExpiryRound(t *testing.T) {
	var (
		ids  []uuid.UUID
		left = make(map[uuid.UUID]*order.Order)
		r    ExpiryRound
	)
	for _, skus := range [][]stock.SKU{nil, {"a"}, {"a", "b"}, {"b"}, {"a"}, {"c"}} { // nil: it has expired
		o := &order.Order{ID: uuid.New()}
		for _, sku := range skus {
			o.Lines = append(o.Lines, stock.Line{SKU: sku, Quantity: 1})
		}
		if ids = append(ids, o.ID); skus != nil {
			left[o.ID] = o
		}
	}
	check := func(when string, want ...int) {
		t.Helper()
		var which []int
		for _, id := range r.worthWaiting(ids, left) {
			which = append(which, slices.Index(ids, id))
		}
		if !slices.Equal(which, want) {
			t.Errorf("%s, the round waits for the orders %v, want %v", when, which, want)
		}
	}
	check("at first", 1, 4)
	r.timedOut([]stock.SKU{"a"})
	check("after a timeout")
	r.end()
	check("in the next round", 3)
	time.Sleep(slowRowPause / 2)
	r.timedOut([]stock.SKU{"b"})
	r.end()
	check("after a second timeout", 5)
	r.timedOut([]stock.SKU{"c"})
	r.end()
	check("when all rows are slow")
	time.Sleep(slowRowPause/2 - time.Nanosecond)
	r.forget()
	check("shortly before the first row has its turn again")
	time.Sleep(time.Nanosecond)
	r.forget()
	check("when the first row has its turn again", 1, 4)
	time.Sleep(slowRowPause / 2)
	r.forget()
	if len(r.slow) > 0 {
		t.Errorf("the round remembers %v", r.slow)
	}
	for range 2 * maxFailedOrders {
		r.setAside(uuid.New())
	}
	if len(r.failed) != maxFailedOrders {
		t.Errorf("%d orders are set aside", len(r.failed))
	}
}

// TestExpiryRound_End checks when a round ends: with a batch that is not full, or after
// some time if it has left orders, but no more than it has expired.
func TestExpiryRound_End(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, test := range []struct {
			name          string
			age           time.Duration
			expired, left int
			full, over    bool
		}{
			{name: "a batch is not full", over: true},
			{name: "the round is young", age: fullRound - time.Nanosecond, expired: 2, left: 1, full: true},
			{name: "the round is old", age: fullRound, expired: 1, left: 1, full: true, over: true},
			{name: "no order is left", age: fullRound, expired: 1, full: true},
			{name: "more orders are left than expired", age: fullRound, expired: 1, left: 2, full: true},
		} {
			r := ExpiryRound{began: time.Now(), expired: test.expired, left: test.left}
			time.Sleep(test.age)
			if over := r.isOver(test.full); over != test.over {
				t.Errorf("%s: the round ends: %v, want %v", test.name, over, test.over)
			}
		}
	})
}

// TestExpire_OldRound checks that an old round ends with a full batch, and that the next
// batch finds the orders that the round has left.
func TestExpire_OldRound(t *testing.T) {
	t.Parallel()
	eachDatabase(t, servers, func(t *testing.T, d *database) {
		l := d.open(t, cutter.Merged())
		lay(t, l, "locked", 10)
		lay(t, l, "free", 10)
		d.makeDue(t, place(t, l, "locked"), place(t, l, "free"), place(t, l, "free"))
		j := claim(t, l, "expiry", "holder")
		unlock := d.lockRowOf(t, "locked")
		defer unlock()
		round := &ExpiryRound{waited: true, began: time.Now().Add(-fullRound)} // no wait, which would take seconds
		if e, err := l.Expire(t.Context(), j, round, 2); err != nil || e.Found != 2 || e.Expired != 1 || e.Left != 1 {
			t.Errorf("the first round: %+v, %v", e, err)
		}
		unlock()
		if e, err := l.Expire(t.Context(), j, round, 2); err != nil || e.Found != 2 || e.Expired != 2 || e.Left != 0 {
			t.Errorf("the second round: %+v, %v", e, err)
		}
		d.atRest(t, "locked", 0)
	})
}

// TestExpire_LockedRow checks that a stock row that another transaction holds locked
// delays only the orders of its SKU: the batch expires the others, and does not keep
// their stock rows locked while it waits.
func TestExpire_LockedRow(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases, func(t *testing.T, d *database) {
		if d.sql.Ledger().Dialect() == sqltx.SQLite { // it has no row locks
			return
		}
		l := d.open(t, cutter.Merged())
		j := claim(t, l, "expiry", "holder")
		lay(t, l, "a", 100)
		lay(t, l, "b", 10)
		both, second, free := place(t, l, "a", "b"), place(t, l, "b"), place(t, l, "a")
		d.makeDue(t, both, second, free)
		unlock := d.lockRowOf(t, "b")
		defer unlock()
		// The batch waits for the row until the database gives up. That may be too soon for
		// this machine to look at the other row meanwhile, so it has several chances.
		seen := false
		for due, expired, try := 3, 1, 0; !seen && try < 10; try++ {
			var (
				round ExpiryRound
				batch = make(chan struct{})
			)
			go func() {
				defer close(batch)
				e, err := l.Expire(context.WithoutCancel(t.Context()), j, &round, due)
				if err != nil || e.Found != due || e.Expired != expired || e.Left != 2 {
					t.Errorf("with a locked row: %+v, %v", e, err)
				}
			}()
			for waiting := true; waiting; {
				if d.lockWaits(t) > 0 {
					locked, err := l.lockedRows(t.Context(), []stock.SKU{"a"})
					if err != nil || len(locked) > 0 {
						t.Errorf("while the batch waits for a row, others are locked: %q, %v", locked, err)
					}
					seen = seen || d.lockWaits(t) > 0
				}
				select {
				case <-batch:
					waiting = false
				case <-time.After(10 * time.Millisecond):
				}
			}
			if _, slow := round.slow["b"]; !round.waited || !slow {
				t.Errorf("the round does not note the locked row: %+v", round)
			}
			due, expired = 2, 0
		}
		if !seen {
			t.Error("the batch never waited for the locked row")
		}
		place(t, l, "a")
		unlock()
		mustExpire(t, l, j, 10, 2)
		d.atRest(t, "a", 1)
		d.atRest(t, "b", 0)
	})
}
