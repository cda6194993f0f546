package ledger

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/holdfast-stock/holdfast/internal/ledger/cutter"
	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/store/storetest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// waiting returns how many changes have turns or wait for them. A change counts once for each of
// its rows.
func (ts *turns) waiting() int {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	return ts.changes
}

// TestLockedRowHoldsOneConnection makes many changes of one locked stock row. Meanwhile another SKU
// is sold and changed, and the ledger is read, and none of this may wait for a connection.
func TestLockedRowHoldsOneConnection(t *testing.T) {
	t.Parallel()
	eachDatabase(t, testenv.Chosen(servers, "MariaDB"), func(t *testing.T, d *database) {
		l := d.open(t, cutter.Merged())
		lay(t, l, "locked", 100)
		lay(t, l, "free", 100)
		sold := place(t, l, "free")
		job := claim(t, l, "expiry", "holder")
		var orders []order.Order
		for range 2 * d.sql.Pool().Stats().MaxOpenConnections {
			orders = append(orders, place(t, l, "locked"))
		}
		unlock := storetest.LockRow(t, d.url, "locked")
		defer unlock()

		var (
			cancels            sync.WaitGroup
			answered, returned atomic.Int64
		)
		defer cancels.Wait()
		for _, o := range orders {
			cancels.Go(func() {
				defer answered.Add(1)
				switch err := cancelOrder(context.WithoutCancel(t.Context()), l, o.ID); {
				case err == nil:
					returned.Add(1)
				case !errors.Is(err, stock.ErrBusy):
					t.Errorf("a cancellation: %v", err)
				}
			})
		}
		testenv.Await(t, "the cancellations wait", func() bool {
			return d.lockWaits(t) > 0 && l.turns.waiting()+int(answered.Load()) >= len(orders)
		})
		before := d.sql.Pool().Stats()
		// Three are the session that waits for the row, and the two that have just checked. The
		// holder has its own pool.
		if before.InUse > 3 {
			t.Errorf("%d connections are in use for one locked row", before.InUse)
		}
		if _, out := l.Record(t.Context(), takeOf("free")); !out.Committed() {
			t.Errorf("an order of another SKU: %v", out.Reason())
		}
		if err := cancelOrder(t.Context(), l, sold.ID); err != nil {
			t.Errorf("a cancellation of another SKU: %v", err)
		}
		if _, _, err := l.Set(t.Context(), stock.Setting{SKU: "free", Kind: stock.Product, Total: 101}); err != nil {
			t.Errorf("a change of another SKU: %v", err)
		}
		if err := l.RenewJob(t.Context(), job); err != nil {
			t.Errorf("renewing a job: %v", err)
		}
		if _, err := l.Beat(t.Context()); err != nil {
			t.Errorf("raising the beat: %v", err)
		}
		if after := d.sql.Pool().Stats(); after.WaitCount != before.WaitCount {
			t.Errorf("%d calls waited for a connection", after.WaitCount-before.WaitCount)
		}
		unlock()
		cancels.Wait()
		d.atRest(t, "locked", int64(len(orders))-returned.Load())
		d.atRest(t, "free", 1)
	})
}

// TestChangesTakeTurns checks that each way to change a stock row outside of a group waits for its
// turn, and is answered stock.ErrBusy if the turn does not come.
func TestChangesTakeTurns(t *testing.T) {
	t.Parallel()
	eachDatabase(t, testenv.Chosen(databases, "SQLite", "PostgreSQL"), func(t *testing.T, d *database) {
		l := d.open(t, cutter.Merged())
		row := lay(t, l, "a", 100)
		pending, expired := place(t, l, "a"), place(t, l, "a")
		expired = expire(t, l, expired.ID)
		removed := takeOf("a")
		set := stock.Setting{SKU: "a", Kind: stock.Product, Total: 99}
		for name, change := range map[string]func(context.Context) error{
			"Change": func(ctx context.Context) error { return cancelOrder(ctx, l, pending.ID) },
			"Revive": func(ctx context.Context) error {
				again := takeOf("a")
				again.OrderID = expired.ID
				_, out := l.Revive(ctx, expired, again, "p-1")
				if !out.Refused() {
					t.Errorf("Revive: %s", out.Kind())
				}
				return out.Reason()
			},
			"Set": func(ctx context.Context) error {
				_, _, err := l.Set(ctx, set)
				return err
			},
			"Shrink": func(ctx context.Context) error {
				_, out := l.Shrink(ctx, removed, set)
				return out.Reason()
			},
			"RaiseEpoch": func(ctx context.Context) error {
				_, err := l.RaiseEpoch(ctx, "a", row.Epoch, 0)
				return err
			},
		} {
			end, err := l.turns.take(t.Context(), "a")
			if err != nil {
				t.Fatal(err)
			}
			ctx, giveUp := context.WithCancel(t.Context())
			answer := make(chan error, 1)
			go func() { answer <- change(ctx) }()
			testenv.Await(t, name+" waits", func() bool { return l.turns.waiting() == 2 })
			giveUp()
			if err := testenv.Receive(t, name, answer); !errors.Is(err, stock.ErrBusy) || !errors.Is(err, context.Canceled) {
				t.Errorf("%s without a turn: %v", name, err)
			}
			end()
		}
		end, err := l.turns.take(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := l.Change(t.Context(), pending.ID, order.ChangeOptions{Payment: "p-2"}, pay("p-2")); err != nil {
			t.Errorf("a payment waits for the stock row: %v", err)
		}
		end()
		d.atRest(t, "a", 1)
	})
}

// TestPaymentPassesAWaitingCancellation checks that a payment does not wait for a locked
// stock row, although a cancellation of its order does.
func TestPaymentPassesAWaitingCancellation(t *testing.T) {
	t.Parallel()
	eachDatabase(t, testenv.Chosen(servers, "PostgreSQL"), func(t *testing.T, d *database) {
		l := d.open(t, cutter.Merged())
		lay(t, l, "a", 10)
		o := place(t, l, "a")
		unlock := storetest.LockRow(t, d.url, "a")
		defer unlock()
		ctx, giveUp := context.WithCancel(t.Context())
		cancelled := make(chan error, 1)
		go func() { cancelled <- cancelOrder(ctx, l, o.ID) }()
		testenv.Await(t, "the cancellation waits for the row", func() bool { return d.lockWaits(t) > 0 })
		paid := make(chan error, 1)
		go func() {
			_, _, err := l.Change(t.Context(), o.ID, order.ChangeOptions{Payment: "p-1"}, pay("p-1"))
			paid <- err
		}()
		if err := testenv.Receive(t, "the payment", paid); err != nil {
			t.Errorf("a payment while a cancellation waits: %v", err)
		}
		giveUp()
		unlock()
		<-cancelled
	})
}

// TestTurns checks the order and duration of waits, and that no entry is left behind.
func TestTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ts := newTurns()
		take := func(skus ...stock.SKU) func() {
			t.Helper()
			end, err := ts.take(t.Context(), skus...)
			if err != nil {
				t.Fatal(err)
			}
			return end
		}
		busy := func(what string, skus ...stock.SKU) {
			t.Helper()
			if _, err := ts.take(t.Context(), skus...); !errors.Is(err, stock.ErrBusy) {
				t.Errorf("%s: %v", what, err)
			}
		}
		// Two changes that name the same rows in another order do not deadlock.
		var changes sync.WaitGroup
		end := take("b")
		for _, skus := range [][]stock.SKU{{"a", "b", "c"}, {"c", "b", "a"}} {
			changes.Go(func() { take(skus...)() })
			synctest.Wait()
		}
		end()
		changes.Wait()

		end = take("a", "b")
		busy("the same SKU", "b")
		busy("one of two SKUs", "0", "b")
		take("0", "c")()
		end()
		take("a", "b")()

		// More changes than may run at once.
		var ends []func()
		for n := range maxStockChanges {
			ends = append(ends, take(stock.SKU(fmt.Sprint("sku-", n))))
		}
		busy("one change too many at once", "d")
		ends[0]()
		take("d")()
		for _, end := range ends[1:] {
			end()
		}

		// The number of waiting changes is bounded.
		end = take("a")
		ctx, giveUp := context.WithCancel(t.Context())
		for range maxQueue - 1 {
			changes.Go(func() { _, _ = ts.take(ctx, "a") })
		}
		synctest.Wait()
		busy("one change too many", "e")
		giveUp()
		changes.Wait()
		end()
		if ts.changes != 0 || len(ts.of) != 0 || len(ts.atOnce) != 0 {
			t.Errorf("left behind: %d changes, %d turns, %d changes at once", ts.changes, len(ts.of), len(ts.atOnce))
		}
	})
}
