package ledger

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/holdfast-stock/holdfast/internal/ledger/cutter"
	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/store/storetest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// waitingInSlowGroups returns how many orders wait for slow groups.
func (l *Ledger) waitingInSlowGroups() int {
	l.slow.mu.Lock()
	defer l.slow.mu.Unlock()
	return l.slow.waiting
}

// slowPlan is a cutter whose first plan waits until proceed is closed.
type slowPlan struct {
	cutter.Cutter
	planning chan<- struct{} // receives a value when a plan begins
	proceed  <-chan struct{}
}

func (c slowPlan) Plan(ctx context.Context, db *sqltx.DB, g stock.Generation, takes []stock.Take) (cutter.Plan, error) {
	select {
	case c.planning <- struct{}{}:
		<-c.proceed
	default:
	}
	return c.Cutter.Plan(ctx, db, g, takes)
}

// recorded is an answer of Record.
type recorded struct {
	order order.Order
	out   order.Outcome
}

func (l *Ledger) recordLater(ctx context.Context, t stock.Take) <-chan recorded {
	answer := make(chan recorded, 1)
	go func() {
		o, out := l.Record(ctx, t)
		answer <- recorded{o, out}
	}()
	return answer
}

// mustHave checks that the ledger has the order with the times of the answer.
func (l *Ledger) mustHave(t *testing.T, r recorded) {
	t.Helper()
	o, err := l.Order(t.Context(), r.order.ID)
	if err != nil || !o.CreatedAt.Equal(r.order.CreatedAt) || !o.ExpiresAt.Equal(r.order.ExpiresAt) || !o.QueuedUntil.Equal(r.order.QueuedUntil) {
		t.Errorf("answered %+v, and the ledger has %+v, %v", r.order, o, err)
	}
}

// TestRecord_TimesAfterTheWait checks that the payment window of an order begins with the order's
// transaction, and not while the order waits for its turn. An order whose caller has given up
// meanwhile must not be committed.
func TestRecord_TimesAfterTheWait(t *testing.T) {
	t.Parallel()
	eachDatabase(t, testenv.Chosen(databases, "SQLite", "MariaDB"), func(t *testing.T, d *database) {
		planning, proceed := make(chan struct{}, 1), make(chan struct{})
		l := openWith(t, d.sql.Ledger(), Options{Cutter: slowPlan{cutter.Merged(), planning, proceed}, PaymentWindow: time.Hour})
		measureClock(t, l)
		lay(t, l, "a", 10)
		first := l.recordLater(t.Context(), takeOf("a"))
		testenv.Await(t, "the first group counts as slow", func() bool {
			l.slow.mu.Lock()
			defer l.slow.mu.Unlock()
			return l.slow.groups == 1
		})
		second := l.recordLater(t.Context(), takeOf("a"))
		queuedTake := takeOf("a")
		queuedTake.QueuedAt = Now().Add(-time.Minute)
		queued := l.recordLater(t.Context(), queuedTake)
		impatient, giveUp := context.WithCancel(t.Context())
		abandoned := takeOf("a")
		third := l.recordLater(impatient, abandoned)
		testenv.Await(t, "three orders wait", func() bool { return l.waitingInSlowGroups() == 3 })
		giveUp()
		if r := testenv.Receive(t, "the order that is given up", third); !r.out.Refused() || !errors.Is(r.out.Reason(), stock.ErrBusy) || !errors.Is(r.out.Reason(), context.Canceled) {
			t.Errorf("an order that is given up before its transaction begins: %+v", r.out)
		}
		waited := l.Now()
		close(proceed)
		<-first
		for name, answer := range map[string]<-chan recorded{"second": second, "queued": queued} {
			r := testenv.Receive(t, name, answer)
			if !r.out.Committed() {
				t.Fatalf("%s: %v", name, r.out.Reason())
			}
			begun := r.order.CreatedAt
			if name == "queued" {
				begun = r.order.QueuedUntil
				if !r.order.CreatedAt.Equal(queuedTake.QueuedAt) {
					t.Errorf("the queued order was created at %v, want %v", r.order.CreatedAt, queuedTake.QueuedAt)
				}
			}
			if begun.Before(waited) || !r.order.ExpiresAt.Equal(begun.Add(time.Hour)) {
				t.Errorf("%s: begun at %v, expires at %v; it waited until %v", name, begun, r.order.ExpiresAt, waited)
			}
			l.mustHave(t, r)
		}
		if o, err := l.Order(t.Context(), abandoned.OrderID); !errors.Is(err, order.ErrUnknownOrder) {
			t.Errorf("the order that was given up: %+v, %v", o, err)
		}
		alone := recordingOf("a")
		alone.leave(context.Canceled)
		l.recordGroup([]*recording{alone}, new(slowGroup)) // a group whose only caller has given up
		d.atRest(t, "a", 3)
	})
}

// TestRecord_GivenUp checks that the outcome of an order is unknown if its caller gives up after
// its transaction has begun. The order must have the committed times.
func TestRecord_GivenUp(t *testing.T) {
	t.Parallel()
	eachDatabase(t, testenv.Chosen(databases, "SQLite", "PostgreSQL"), func(t *testing.T, d *database) {
		planning, proceed := make(chan struct{}, 1), make(chan struct{})
		l := openWith(t, d.sql.Ledger(), Options{Cutter: slowPlan{cutter.Merged(), planning, proceed}, PaymentWindow: time.Hour})
		measureClock(t, l)
		lay(t, l, "a", 10)
		impatient, giveUp := context.WithCancel(t.Context())
		take := takeOf("a")
		answer := l.recordLater(impatient, take)
		testenv.Await(t, "the transaction has begun", func() bool { return len(planning) == 1 })
		giveUp()
		r := testenv.Receive(t, "the order that is given up", answer)
		if !r.out.Unknown() || !errors.Is(r.out.Reason(), context.Canceled) {
			t.Errorf("an order that is given up after its transaction has begun: %+v", r.out)
		}
		close(proceed)
		place(t, l, "a") // in a later group
		l.mustHave(t, r)
	})
}

// TestRecord_TimesAfterALockWait checks that the times of an order with a short payment window are
// later than its wait for the stock row. The time until which an order counts as queued must also
// be later.
func TestRecord_TimesAfterALockWait(t *testing.T) {
	t.Parallel()
	eachDatabase(t, servers, func(t *testing.T, d *database) {
		l := openWith(t, d.sql.Ledger(), Options{Cutter: cutter.Merged(), PaymentWindow: time.Second})
		measureClock(t, l)
		lay(t, l, "a", 100)
		for name, take := range map[string]func() stock.Take{
			"an order":       func() stock.Take { return takeOf("a") },
			"a queued order": func() stock.Take { return queued(takeOf("a")) },
		} {
			var (
				r      recorded
				waited time.Time
			)
			testenv.Await(t, name+" is committed after a wait", func() bool { // on a slow machine, the order may be refused as busy
				unlock := storetest.LockRow(t, d.url, "a")
				defer unlock()
				answer := l.recordLater(t.Context(), take())
				testenv.Await(t, name+" waits for the row", func() bool { return d.lockWaits(t) > 0 })
				waited = l.Now()
				unlock()
				r = testenv.Receive(t, name, answer)
				return r.out.Committed()
			})
			begun := r.order.CreatedAt
			if !r.order.QueuedUntil.IsZero() {
				begun = r.order.QueuedUntil
			}
			if begun.Before(waited) || !r.order.ExpiresAt.Equal(begun.Add(time.Second)) {
				t.Errorf("%s: begun at %v, expires at %v; it waited until %v", name, begun, r.order.ExpiresAt, waited)
			}
			l.mustHave(t, r)
		}
	})
}

// lockWaits returns how many transactions on this test's database wait for the lock of a row.
// MariaDB shows waits only if they are read rarely. There, lockWaits counts the statements for
// locking stock rows and jobs, and for deleting orders, that have taken long.
func (d *database) lockWaits(t *testing.T) (n int) {
	t.Helper()
	query := "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
	if d.sql.Dialect() == sqltx.MySQL {
		query = `SELECT count(*) FROM information_schema.processlist WHERE db = DATABASE() AND time_ms > 200
			AND command <> 'Sleep' AND (info LIKE '%FROM stock%FOR UPDATE' OR info LIKE '%UPDATE stock SET available%'
			OR info LIKE 'UPDATE jobs SET%' OR info LIKE 'DELETE FROM orders%')`
	}
	if err := d.sql.Ledger().QueryRow(t.Context(), []any{&n}, query); err != nil {
		t.Fatal(err)
	}
	return n
}
