package ledger

import (
	"database/sql"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/holdfast-stock/holdfast/internal/ledger/cutter"
	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// place records an order of one unit of each SKU.
func place(t *testing.T, l *Ledger, skus ...stock.SKU) Order {
	t.Helper()
	o, out := l.Record(t.Context(), takeOf(skus...))
	if !out.Committed() {
		t.Fatal(out.Reason())
	}
	return o
}

// makeDue lets the order's time pass now.
func (d *database) makeDue(t *testing.T, orders ...Order) {
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
func (d *database) setStatus(t *testing.T, o Order, status Status) {
	t.Helper()
	db := d.sql.Ledger()
	if _, err := db.Exec(t.Context(), "UPDATE orders SET status = ? WHERE id = ?", string(status), db.Dialect().UUID(o.ID)); err != nil {
		t.Fatal(err)
	}
}

// mustExpire expires a batch, and asserts how many orders it expired.
func mustExpire(t *testing.T, l *Ledger, j Job, limit, want int) Expiry {
	t.Helper()
	e, err := l.Expire(t.Context(), j, limit)
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
		d.setStatus(t, paid, Paid)
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
		if e.Found != 1 || !slices.Equal(e.SKUs, []stock.SKU{a, b}) || e.Locked <= 0 {
			t.Errorf("the first batch: %+v", e)
		}
		if e := mustExpire(t, l, j, 10, 1); e.Found != 1 || !slices.Equal(e.SKUs, []stock.SKU{b}) {
			t.Errorf("the second batch: %+v", e)
		}
		if e := mustExpire(t, l, j, 10, 0); e.Found != 0 || len(e.SKUs) != 0 {
			t.Errorf("the third batch: %+v", e)
		}

		for what, o := range map[Status][]Order{Expired: {first, second}, Paid: {paid}, Pending: {young, forever}} {
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
		for _, o := range []Order{first, second} {
			steps, err := l.History(ctx, o.ID, 1)
			if err != nil || len(steps) != 1 || steps[0].Status != Expired || now.Sub(steps[0].At).Abs() > time.Minute {
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
		if _, err := l.Expire(t.Context(), lost, 10); !errors.Is(err, ErrJobLost) {
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
				d.setStatus(t, paid, Paid)
				cancel := func(State) (Change, error) { return Change{To: Cancelled, Returns: true}, nil }
				if _, err := l.Change(t.Context(), cancelled.ID, Ask{Returns: true}, cancel); err != nil {
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
		var due []Order
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
					e, err := l.Expire(t.Context(), j, 7)
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

// TestExpire_LocksStockFirst checks that a batch locks no order while it waits for a
// stock row. A transaction that holds the stock row may wait for the order.
func TestExpire_LocksStockFirst(t *testing.T) {
	t.Parallel()
	eachDatabase(t, servers, func(t *testing.T, d *database) {
		l, sku := d.open(t, cutter.Merged()), fresh("sku")
		db := d.sql.Ledger()
		lay(t, l, sku, 10)
		o := place(t, l, sku)
		d.makeDue(t, o)
		j := claim(t, l, "expiry", "holder")
		tx, err := db.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback()
		if _, err := lockRows(t.Context(), tx, []stock.SKU{sku}, tx.Dialect().RowLock()); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() {
			_, err := l.Expire(t.Context(), j, 10)
			done <- err
		}()
		locked := func(what, query string, args ...any) bool { // by another transaction
			t.Helper()
			probe, err := db.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer probe.Rollback()
			var key any
			err = probe.QueryRow(t.Context(), []any{&key}, query+db.Dialect().SkipLocked(), args...)
			if err != nil && !errors.Is(err, sql.ErrNoRows) {
				t.Fatalf("%s: %v", what, err)
			}
			return err != nil
		}
		for start := time.Now(); !locked("the job", "SELECT name FROM jobs WHERE name = 'expiry'"); time.Sleep(time.Millisecond) {
			if time.Since(start) > time.Second {
				t.Fatal("the batch does not lock its job first")
			}
		}
		time.Sleep(50 * time.Millisecond) // the next lock, which must be the stock row's, cannot be seen
		if locked("the order", "SELECT id FROM orders WHERE id = ?", db.Dialect().UUID(o.ID)) {
			t.Error("the batch has locked the order before the stock row")
		}
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		if err := wait(t, "the batch", done); err != nil {
			t.Error(err)
		}
		d.atRest(t, sku, 0)
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
		first, both, free := place(t, l, "b"), place(t, l, "a", "b"), place(t, l, "a")
		d.makeDue(t, first, both, free)
		holder, err := d.sql.Ledger().Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer holder.Rollback()
		if _, err := lockRows(t.Context(), holder, []stock.SKU{"b"}, holder.Dialect().RowLock()); err != nil {
			t.Fatal(err)
		}

		var batch sync.WaitGroup
		defer batch.Wait()
		done := make(chan struct{})
		batch.Go(func() {
			defer close(done)
			if e := mustExpire(t, l, j, 10, 1); e.Found != 3 || !slices.Equal(e.SKUs, []stock.SKU{"a"}) {
				t.Errorf("with a locked row: %+v", e)
			}
		})
		sold, slowest := 0, time.Duration(0)
		for expiring := true; expiring; sold++ {
			begin := time.Now()
			place(t, l, "a")
			slowest = max(slowest, time.Since(begin))
			select {
			case <-done:
				expiring = false
			case <-time.After(200 * time.Millisecond): // the pace of the sale
				if _, err := holder.Now(t.Context()); err != nil { // the server ends an idle transaction
					t.Error(err)
				}
			}
		}
		if slowest > time.Second {
			t.Errorf("a sale of another SKU waited %v for the batch", slowest)
		}
		holder.Rollback()
		mustExpire(t, l, j, 10, 2)
		d.atRest(t, "a", int64(sold))
		d.atRest(t, "b", 0)
	})
}
