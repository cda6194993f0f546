package ledger

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/faults"
	"github.com/holdfast-stock/holdfast/internal/ledger/cutter"
	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/store/storetest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// makeDue ends the order's payment window now.
func (d *database) makeDue(t *testing.T, orders ...order.Order) {
	t.Helper()
	db := d.sql.Ledger()
	now, err := db.Now(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for n, o := range orders {
		exec(t, db, "UPDATE orders SET expires_at = ? WHERE id = ?", now.Add(time.Duration(n)*time.Millisecond-time.Minute), db.Dialect().UUID(o.ID))
	}
}

// setStatus gives the order the status, without any other change.
func (d *database) setStatus(t *testing.T, o order.Order, status order.Status) {
	t.Helper()
	db := d.sql.Ledger()
	exec(t, db, "UPDATE orders SET status = ? WHERE id = ?", string(status), db.Dialect().UUID(o.ID))
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

// TestExpire checks which orders a batch expires, in order of age, and what it writes. The units of
// all orders of a batch must return in one change of a SKU.
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
		first, second, third, paid, young, forever := place(t, l, a, b), place(t, l, b), place(t, l, b), place(t, l, b), place(t, l, a), place(t, l, a)
		d.makeDue(t, first, second, third, paid)
		d.setStatus(t, paid, order.Paid)
		exec(t, db, "UPDATE orders SET expires_at = "+db.Dialect().After(time.Minute)+" WHERE id = ?", db.Dialect().UUID(young.ID))
		exec(t, db, "UPDATE stock SET limit_per_buyer = 5 WHERE sku = ?", string(b))
		exec(t, db, "INSERT INTO claims (sku, buyer_id, units) VALUES (?, ?, 4)", string(b), first.Buyer)

		if n, oldest, err := l.Due(ctx, 10); err != nil || n != 3 || oldest < time.Minute {
			t.Errorf("%d orders are due, the oldest for %v, %v, want 3 for a minute", n, oldest, err)
		}
		if n, _, err := l.Due(ctx, 1); err != nil || n != 1 {
			t.Errorf("%d orders are due, counted up to 1, %v", n, err)
		}
		e := mustExpire(t, l, j, 1, 1)
		if !e.More || !slices.Equal(e.Returned, []stock.Change{{SKU: a, Epoch: row.Epoch, Number: 1, Delta: 1}, {SKU: b, Epoch: row.Epoch, Number: 1, Delta: 1}}) || !slices.Equal(e.SKUs, []stock.SKU{a, b}) || e.Locked <= 0 {
			t.Errorf("the first batch: %+v", e)
		}
		if e := mustExpire(t, l, j, 10, 2); e.More || !slices.Equal(e.Returned, []stock.Change{{SKU: b, Epoch: row.Epoch, Number: 2, Delta: 2}}) || !slices.Equal(e.SKUs, []stock.SKU{b}) {
			t.Errorf("the second batch: %+v", e)
		}
		if e := mustExpire(t, l, j, 10, 0); e.More || len(e.Returned)+len(e.SKUs) != 0 {
			t.Errorf("the third batch: %+v", e)
		}
		if n, oldest, err := l.Due(ctx, 10); err != nil || n != 0 || oldest != 0 {
			t.Errorf("%d orders are due, the oldest for %v, %v, want none", n, oldest, err)
		}

		for what, o := range map[order.Status][]order.Order{order.Expired: {first, second, third}, order.Paid: {paid}, order.Pending: {young, forever}} {
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
		for _, o := range []order.Order{first, second, third} {
			steps, err := l.History(ctx, o.ID, 1)
			if err != nil || len(steps) != 1 || steps[0].Status != order.Expired || now.Sub(steps[0].At).Abs() > time.Minute {
				t.Errorf("history %+v, %v", steps, err)
			}
			if steps, err := l.History(ctx, o.ID, 0); err != nil || len(steps) > 0 {
				t.Errorf("history before it expired %+v, %v", steps, err)
			}
		}
		var claimed int64
		if err := db.QueryRow(ctx, []any{&claimed}, "SELECT units FROM claims WHERE sku = ?", string(b)); err != nil || claimed != 1 {
			t.Errorf("the buyer claims %d units, %v, want 1", claimed, err)
		}
		changes, _, err := l.Changes(ctx, b, stock.Change{})
		want := []stock.Change{{SKU: b, Epoch: row.Epoch, Number: 1, Delta: 1}, {SKU: b, Epoch: row.Epoch, Number: 2, Delta: 2}}
		if err != nil || !slices.Equal(changes, want) {
			t.Errorf("the outbox has %+v, %v, want %+v", changes, err, want)
		}
	})
}

// TestExpire_SameTime checks that one round finds all orders of a time, whatever the order in which
// they were inserted.
func TestExpire_SameTime(t *testing.T) {
	t.Parallel()
	eachDatabase(t, testenv.Chosen(databases, "SQLite", "PostgreSQL"), func(t *testing.T, d *database) {
		l, sku := d.open(t, cutter.Merged()), fresh("sku")
		lay(t, l, sku, 10)
		j, due := claim(t, l, "expiry", "holder"), Now().Add(-time.Minute)
		for n := range 3 {
			take := takeOf(sku)
			take.OrderID = uuid.UUID{0: byte(9 - n)}
			mustRecord(t, l, take)
		}
		exec(t, d.sql.Ledger(), "UPDATE orders SET expires_at = ?", due)
		var round ExpiryRound
		for n := range 3 {
			if e, err := l.Expire(t.Context(), j, &round, 1); err != nil || e.Expired != 1 {
				t.Errorf("batch %d: %+v, %v", n+1, e, err)
			}
		}
		d.atRest(t, sku, 0)
	})
}

// TestExpire_JobLost checks that a batch changes nothing once another instance has
// claimed the job.
func TestExpire_JobLost(t *testing.T) {
	t.Parallel()
	eachDatabase(t, testenv.Chosen(databases, "SQLite", "PostgreSQL"), func(t *testing.T, d *database) {
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

// TestExpire_OthersWin checks that a batch returns the units only of orders that it has expired
// itself. The others are paid or cancelled after the batch was read.
func TestExpire_OthersWin(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases, func(t *testing.T, d *database) {
		l, sku := d.open(t, cutter.Merged()), fresh("sku")
		lay(t, l, sku, 10)
		other := fresh("other") // SKU of the paid order alone
		lay(t, l, other, 10)
		paid, cancelled, left := place(t, l, other), place(t, l, sku), place(t, l, sku)
		d.makeDue(t, paid, cancelled, left)
		unchanged, err := l.Row(t.Context(), other)
		if err != nil {
			t.Fatal(err)
		}
		reads := 0
		late := d.openHooked(t, "SELECT id, take_id", func() error {
			reads++
			d.setStatus(t, paid, order.Paid)
			if err := cancelOrder(t.Context(), l, cancelled.ID); err != nil {
				t.Error(err)
			}
			return nil
		})
		if e := mustExpire(t, late, claim(t, l, "expiry", "holder"), 10, 1); e.More || reads != 1 {
			t.Errorf("%+v, after %d reads", e, reads)
		}
		if changes, _, err := l.Changes(t.Context(), other, stock.Change{}); err != nil || len(changes) > 0 {
			t.Errorf("the outbox has %+v, %v, and no units of the SKU have returned", changes, err)
		}
		if row, err := l.Row(t.Context(), other); err != nil || row.Version != unchanged.Version {
			t.Errorf("the row is %+v, %v, and was %+v", row, err, unchanged)
		}
		d.atRest(t, sku, 0)
		d.atRest(t, other, 1)
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
	err = probe.QueryRow(t.Context(), []any{&key}, query+probe.SkipLocked(), args...)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		t.Error(err)
	}
	return err != nil
}

// theJob is the query for the job's row.
const theJob = "SELECT name FROM jobs WHERE name = 'expiry'"

// waitingBatch begins a batch that expires the orders, and returns when the batch waits for a stock
// row. It checks that the batch holds its job when it locks orders.
func (d *database) waitingBatch(t *testing.T, job Job) <-chan error {
	t.Helper()
	l := d.openHooked(t, "SELECT id, status", func() error {
		if !d.isLocked(t, theJob) {
			t.Error("the batch locks orders without its job")
		}
		return nil
	})
	done := make(chan error, 1)
	go func() {
		_, err := l.Expire(t.Context(), job, new(ExpiryRound), 10)
		done <- err
	}()
	testenv.Await(t, "the batch waits for the stock row", func() bool { return d.lockWaits(t) > 0 })
	return done
}

// TestExpire_WaitsForOneRow checks that a batch waits for the stock row of its oldest order while
// it holds no other lock. The holder of the stock row may wait for an order, other stock rows are
// sold meanwhile, and the job must be renewed.
func TestExpire_WaitsForOneRow(t *testing.T) {
	t.Parallel()
	eachDatabase(t, servers, func(t *testing.T, d *database) {
		l, locked, free := d.open(t, cutter.Merged()), fresh("locked"), fresh("free")
		lay(t, l, locked, 10)
		lay(t, l, free, 10)
		o := place(t, l, locked)
		d.makeDue(t, o, place(t, l, free))
		j := claim(t, l, "expiry", "holder")
		unlock := storetest.LockRow(t, d.url, locked)
		defer unlock()
		done := d.waitingBatch(t, j)
		for what, held := range map[string]bool{
			"the order":         d.isLocked(t, "SELECT id FROM orders WHERE id = ?", d.sql.Ledger().Dialect().UUID(o.ID)),
			"another stock row": d.isLocked(t, "SELECT sku FROM stock WHERE sku = ?", string(free)),
			"the job":           d.isLocked(t, theJob),
		} {
			if held {
				t.Errorf("while the batch waits for a stock row, it has locked %s", what)
			}
		}
		unlock()
		if err := testenv.Receive(t, "the batch", done); err != nil {
			t.Error(err)
		}
		d.atRest(t, locked, 0)
		d.atRest(t, free, 0)
	})
}

// TestExpire_LockedOrder checks that a batch skips an order that another transaction has locked,
// and expires the others.
func TestExpire_LockedOrder(t *testing.T) {
	t.Parallel()
	eachDatabase(t, testenv.Chosen(servers, "MariaDB"), func(t *testing.T, d *database) {
		l, sku := d.open(t, cutter.Merged()), fresh("sku")
		lay(t, l, sku, 10)
		o := place(t, l, sku)
		d.makeDue(t, o, place(t, l, sku))
		j := claim(t, l, "expiry", "holder")
		holder := begin(t, d.sql.Ledger())
		if _, err := lockOrder(t.Context(), holder, o, ""); err != nil {
			t.Fatal(err)
		}
		mustExpire(t, l, j, 10, 1)
		if err := holder.Commit(); err != nil { // the server did not end the transaction meanwhile
			t.Fatal(err)
		}
		mustExpire(t, l, j, 10, 1)
		d.atRest(t, sku, 0)
	})
}

// TestExpire_LockedRow checks that a locked stock row delays only the orders that need it, whatever
// the session's bound for lock waits, and that the log names it.
func TestExpire_LockedRow(t *testing.T) {
	t.Parallel()
	eachDatabase(t, servers, func(t *testing.T, d *database) {
		for name, bound := range map[string][2]string{ // bounds of MySQL and PostgreSQL
			"a short wait":             {"1", "20"},
			"no wait":                  {"0", "1"},
			"longer than transactions": {"60", "60000"},
		} {
			t.Run(name, func(t *testing.T) {
				l, _ := d.throughWire(t, map[sqltx.Dialect][2]string{
					sqltx.MySQL:    {"innodb_lock_wait_timeout", bound[0]},
					sqltx.Postgres: {"lock_timeout", bound[1]},
				})
				var log testenv.Buffer
				l.log = slog.New(slog.NewTextHandler(&log, nil))
				locked, free := fresh("locked"), fresh("free")
				lay(t, l, locked, 10)
				lay(t, l, free, 10)
				d.makeDue(t, place(t, l, locked), place(t, l, locked), place(t, l, locked, free), place(t, l, free))
				j := claim(t, l, string("expiry-"+free), "holder")
				unlock := storetest.LockRow(t, d.url, locked)
				defer unlock()
				var round ExpiryRound
				batch := func(want ...int) {
					t.Helper()
					for n, want := range want {
						if e, err := l.Expire(context.WithoutCancel(t.Context()), j, &round, 2); err != nil || e.Expired != want || e.Failed != 0 {
							t.Fatalf("batch %d: %+v, %v, want %d orders", n+1, e, err, want)
						}
					}
				}
				// The first batch waits without success, the second leaves two orders, the third
				// leaves one, and the fourth finds none.
				batch(0, 0, 1, 0)
				if wait := time.Until(round.waitAfter); wait <= 0 || wait > expiryRetry {
					t.Errorf("the round waits again in %v", wait)
				}
				batch(0, 0) // the next batches do not wait again
				if wait := time.Until(round.waitAfter); wait <= 0 {
					t.Errorf("the round waits again in %v", wait)
				}
				if says := "has locked their stock row\" sku=" + string(locked) + " error="; strings.Count(log.String(), says) != 1 {
					t.Errorf("the log does not name the locked row once: %q", log.String())
				}
				d.atRest(t, free, 1)
				unlock()
				round = ExpiryRound{waitAfter: time.Now().Add(-time.Nanosecond)}
				batch(2, 1)
				d.atRest(t, locked, 0)
				d.atRest(t, free, 0)
			})
		}
	})
}

// TestExpire_WaitBroken checks that a batch fails if the database cannot be reached while the batch
// waits for a stock row. The round must keep its position.
func TestExpire_WaitBroken(t *testing.T) {
	t.Parallel()
	eachDatabase(t, testenv.Chosen(servers, "PostgreSQL"), func(t *testing.T, d *database) {
		l, wire, placed := d.lockedRow(t)
		d.makeDue(t, placed[1])
		j := claim(t, l, "expiry", "holder")
		var round ExpiryRound
		wire.Arm(faults.Fault{Kind: faults.Refused, Nth: 1, Only: "ORDER BY sku FOR UPDATE"})
		if e, err := l.Expire(t.Context(), j, &round, 10); err == nil {
			t.Errorf("without a database: %+v", e)
		}
		wire.Disarm()
		if e, err := l.Expire(t.Context(), j, &round, 10); err != nil || e.Expired != 1 {
			t.Errorf("with a database again: %+v, %v", e, err)
		}
	})
}

// TestExpire_BrokenOrders checks that orders that make their transactions fail do not delay younger
// ones. Each must be found, logged, and skipped until expiryRetry has passed. An order whose stock
// row was deleted must expire.
func TestExpire_BrokenOrders(t *testing.T) {
	t.Parallel()
	eachDatabase(t, testenv.Chosen(databases, "SQLite", "MariaDB"), func(t *testing.T, d *database) {
		var (
			l     = d.open(t, cutter.Merged())
			db    = d.sql.Ledger()
			j     = claim(t, l, "expiry", "holder")
			round ExpiryRound
			log   testenv.Buffer
		)
		l.log = slog.New(slog.NewTextHandler(&log, nil))
		lay(t, l, "a", 100)
		lay(t, l, "deleted", 10)
		var orders []order.Order
		for n := range 10 {
			sku := stock.SKU("a")
			if n == 5 {
				sku = "deleted"
			}
			orders = append(orders, place(t, l, sku))
		}
		d.makeDue(t, orders...)
		broken := []order.Order{orders[0], orders[1], orders[7]}
		for _, o := range broken { // the history already contains the expiry
			exec(t, db, "INSERT INTO order_history (order_id, version, status, at) SELECT id, 1, 'expired', "+db.Dialect().Now()+" FROM orders WHERE id = ?", db.Dialect().UUID(o.ID))
		}
		if db.Dialect() == sqltx.SQLite { // SQLite stores any type in any column
			exec(t, db, "UPDATE orders SET expires_at = '2001' WHERE id = ?", db.Dialect().UUID(broken[0].ID))
			exec(t, db, "UPDATE order_lines SET quantity = 'two' WHERE order_id = ?", db.Dialect().UUID(broken[1].ID))
			if _, oldest, err := l.Due(t.Context(), 1); err != nil || oldest != 0 {
				t.Errorf("the oldest order is due since an unknown time: %v, %v", oldest, err)
			}
		}
		exec(t, db, "DELETE FROM stock WHERE sku = 'deleted'")
		goRound := func(limit int) (batches, expired, failed int) {
			t.Helper()
			for {
				e, err := l.Expire(t.Context(), j, &round, limit)
				if batches++; err != nil || batches > 100 {
					t.Fatalf("batch %d: %+v, %v", batches, e, err)
				}
				if e.More && e.Failed != round.failed {
					t.Errorf("batch %d: %d orders have failed, %d in the round", batches, e.Failed, round.failed)
				}
				if round.size > limit {
					t.Errorf("the next batch has up to %d orders, want at most %d", round.size, limit)
				}
				expired += e.Expired
				if !e.More {
					return batches, expired, e.Failed
				}
			}
		}
		if _, expired, failed := goRound(4); expired != 7 || failed != 3 {
			t.Errorf("the round expired %d orders, %d failed, want 7 and 3", expired, failed)
		}
		for _, o := range broken {
			if says := "is passed over\" order=" + o.ID.String() + " error="; strings.Count(log.String(), says) != 1 {
				t.Errorf("the log does not name order %s once: %s", o.ID, log.String())
			}
		}
		if lost := "their SKUs have no stock rows\" skus=[deleted]"; !strings.Contains(log.String(), lost) {
			t.Errorf("the log does not say what was lost: %s", log.String())
		}
		younger := place(t, l, "a")
		exec(t, db, "UPDATE orders SET expires_at = "+db.Dialect().After(-time.Millisecond)+" WHERE id = ?", db.Dialect().UUID(younger.ID))
		if batches, expired, failed := goRound(4); batches != 1 || expired != 1 || failed != 3 {
			t.Errorf("soon after: %d orders in %d batches, %d failed, want 1 in 1, and 3", expired, batches, failed)
		}
		exec(t, db, "DELETE FROM order_history WHERE order_id = ?", db.Dialect().UUID(broken[2].ID))
		round.began = round.began.Add(-expiryRetry)
		if batches, expired, _ := goRound(4); batches != 1 || expired != 0 { // the end of the round
			t.Errorf("the round ends with %d batches, %d orders", batches, expired)
		}
		if _, expired, failed := goRound(4); expired != 1 || failed != 2 {
			t.Errorf("the next round expired %d orders, %d failed, want 1 and 2", expired, failed)
		}
		if row, err := l.Row(t.Context(), "a"); err != nil || row.Available != row.Total-2 {
			t.Errorf("the stock row is %+v, %v", row, err)
		}
	})
}

// TestExpire_HotRow checks that a batch may wait for each stock row of its oldest order. Otherwise
// sales that always keep one of them locked could prevent its expiry.
func TestExpire_HotRow(t *testing.T) {
	t.Parallel()
	eachDatabase(t, testenv.Chosen(servers, "MariaDB"), func(t *testing.T, d *database) {
		l, cold, hot := d.open(t, cutter.Merged()), fresh("a"), fresh("z")
		lay(t, l, cold, 10)
		lay(t, l, hot, 10)
		d.makeDue(t, place(t, l, cold, hot), place(t, l, hot))
		j := claim(t, l, string("expiry-"+hot), "holder")
		var e Expiry
		for range 64 { // the row is drawn at random, and on a slow machine the wait ends early
			unlock := storetest.LockRow(t, d.url, hot)
			defer unlock()
			ended := make(chan error, 1)
			go func() {
				var err error
				e, err = l.Expire(t.Context(), j, new(ExpiryRound), 100)
				ended <- err
			}()
			testenv.Await(t, "the batch waits for the row, or leaves its orders out", func() bool { return d.lockWaits(t) > 0 || len(ended) > 0 })
			unlock()
			if err := testenv.Receive(t, "the batch", ended); err != nil {
				t.Fatal(err)
			}
			if e.Expired > 0 {
				break
			}
		}
		if e.Expired != 2 {
			t.Errorf("%+v", e)
		}
	})
}
