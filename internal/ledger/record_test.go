package ledger

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-stock/holdfast/internal/ledger/cutter"
	"github.com/holdfast-stock/holdfast/internal/ledger/cutter/cuttertest"
	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/store/storetest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// recordingOf returns a recording of an order for one unit of each SKU.
func recordingOf(skus ...stock.SKU) *recording {
	take := takeOf(skus...)
	return &recording{take: take, done: make(chan struct{}), order: order.Order{
		ID: take.OrderID, TakeID: take.TakeID, Buyer: take.Buyer, Status: order.Pending, Lines: take.Lines,
		Strategy: "merged", CreatedAt: Now(),
	}}
}

// repeatOf returns the recording of another take of r's order.
func repeatOf(r *recording) *recording {
	repeat := recordingOf(r.take.SKUs()...)
	repeat.order.ID, repeat.take.OrderID = r.order.ID, r.order.ID
	return repeat
}

// TestDistinct checks that distinct loses no recording of the group and does not
// change it.
func TestDistinct(t *testing.T) {
	a, b := recordingOf("a"), recordingOf("b")
	repeat := repeatOf(a)
	all := []*recording{a, repeat, b}
	first, repeats := distinct(all)
	if !slices.Equal(first, []*recording{a, b}) || !slices.Equal(repeats, []*recording{repeat}) {
		t.Errorf("%v and %v", first, repeats)
	}
	if !slices.Equal(all, []*recording{a, repeat, b}) {
		t.Error("the group was overwritten")
	}
}

// TestAcceptedOrders checks that a transaction inserts its orders by ID, so that no two
// transactions wait for each other.
func TestAcceptedOrders(t *testing.T) {
	rs := []*recording{recordingOf("a"), recordingOf("a"), recordingOf("a")}
	for n, id := range []byte{2, 3, 1} {
		rs[n].order.ID = uuid.UUID{0: id}
	}
	sorted := []*order.Order{&rs[2].order, &rs[0].order, &rs[1].order}
	if accepted := acceptedOrders(rs, slices.Repeat([]cutter.Decision{{Taken: true}}, 3)); !slices.Equal(accepted, sorted) {
		t.Errorf("%v", accepted)
	}
}

// TestFailedGroup checks that every order of a failed group gets an outcome, and that none is
// committed, even if several have the same ID. After a failure that is not a conflict, the group
// must not be tried in parts.
func TestFailedGroup(t *testing.T) {
	t.Parallel()
	eachDatabase(t, testenv.Chosen(databases, "SQLite", "PostgreSQL"), func(t *testing.T, d *database) {
		for _, cause := range []error{cutter.ErrConflict, errors.New("the database is unreachable")} {
			t.Run(cause.Error(), func(t *testing.T) {
				failed := false
				l := d.open(t, cuttertest.WithCut(cutter.Merged(), func(ctx context.Context, tx *sqltx.Tx, _ []stock.Take, cut cuttertest.Cut) ([]cutter.Decision, error) {
					if failed && !errors.Is(cause, cutter.ErrConflict) {
						return cut(ctx, tx)
					}
					failed = true
					return nil, cause
				}))
				sku := fresh("failed")
				lay(t, l, sku, 10)
				first := recordingOf(sku)
				rs := []*recording{first, recordingOf(sku)}
				for range 3 {
					rs = append(rs, repeatOf(first))
				}
				l.recordGroup(rs, new(slowGroup))
				for n, r := range rs {
					if !r.outcome.Refused() || !errors.Is(r.outcome.Reason(), stock.ErrBusy) {
						t.Errorf("order %d: %+v", n+1, r.outcome)
					}
				}
				d.atRest(t, sku, 0)
			})
		}
	})
}

// fragile returns a cutter that fails for groups, and for the SKU bad.
func fragile(c cutter.Cutter, bad stock.SKU) cutter.Cutter {
	return cuttertest.WithCut(c, func(ctx context.Context, tx *sqltx.Tx, takes []stock.Take, cut cuttertest.Cut) ([]cutter.Decision, error) {
		switch {
		case len(takes) > 1:
			return nil, &pgconn.PgError{Code: "42703"} // a fault of one order
		case takes[0].Lines[0].SKU == bad:
			return nil, errors.New("the database is unreachable") // an error not caused by an order
		}
		return cut(ctx, tx)
	})
}

// TestDividedGroup checks that the second half of a divided group is tried even if the database
// could not be reached for the first.
func TestDividedGroup(t *testing.T) {
	t.Parallel()
	eachDatabase(t, testenv.Chosen(databases, "SQLite", "MariaDB"), func(t *testing.T, d *database) {
		bad, good := fresh("bad"), fresh("good")
		l := d.open(t, fragile(cutter.ForUpdate(), bad))
		lay(t, l, bad, 5)
		lay(t, l, good, 5)
		rs := []*recording{recordingOf(bad), recordingOf(good), recordingOf(bad), recordingOf(good)}
		l.recordGroup(slices.Clone(rs), new(slowGroup))
		for n, r := range rs {
			want := []string{"refused", "committed"}[n%2]
			if r.outcome.Kind() != want {
				t.Errorf("order %d: %+v", n+1, r.outcome)
			}
		}
		d.atRest(t, bad, 0)
		d.atRest(t, good, 2)
	})
}

// TestPlannedGroup checks that the single statement of a group commits nothing if the group does
// not fit whole. Its orders must then be decided one by one.
func TestPlannedGroup(t *testing.T) {
	t.Parallel()
	eachDatabase(t, testenv.Chosen(databases, "SQLite", "PostgreSQL"), func(t *testing.T, d *database) {
		l := d.open(t, cutter.Merged())
		scarce, plenty := fresh("scarce"), fresh("plenty")
		lay(t, l, scarce, 1)
		lay(t, l, plenty, 5)
		var rs []*recording
		for _, sku := range []stock.SKU{scarce, scarce, plenty} {
			rs = append(rs, recordingOf(sku))
		}
		l.recordGroup(slices.Clone(rs), new(slowGroup))
		for n, want := range []error{nil, stock.ErrSoldOut, nil} {
			if o := rs[n].outcome; !errors.Is(o.Reason(), want) || (o.Committed()) != (want == nil) {
				t.Errorf("order %d: outcome %+v, want %v", n+1, o, want)
			}
		}
		d.atRest(t, scarce, 1)
		d.atRest(t, plenty, 1)
	})
}

// TestCutFirst checks that after a group that did not fit, the next group is decided before its
// orders are sent. Otherwise all groups with a buyer above the limit would be sent twice. After a
// group that fits, the next one is sent at once again.
func TestCutFirst(t *testing.T) {
	t.Parallel()
	eachDatabase(t, testenv.Chosen(databases, "SQLite", "MariaDB"), func(t *testing.T, d *database) {
		l := d.open(t, cutter.Merged())
		sku := fresh("few")
		lay(t, l, sku, 5)
		for n, step := range []struct {
			units int64
			want  uint64 // transactions
		}{{1, 1}, {9, 2}, {9, 1}, {1, 1}, {1, 1}, {9, 2}} {
			r := recordingOf(sku)
			r.take = of(r.take, step.units)
			before, _ := transactions(t, l.metrics.transaction)
			l.recordGroup([]*recording{r}, new(slowGroup))
			after, _ := transactions(t, l.metrics.transaction)
			if got := after - before; got != step.want || r.outcome.Committed() != (step.units == 1) {
				t.Errorf("order %d of %d units: %d transactions, want %d, %+v", n+1, step.units, got, step.want, r.outcome)
			}
		}
	})
}

// TestLockedRowInAGroup checks an order that shares a group with an order of a locked row. It must
// be recorded once the wait has shown which row is locked.
func TestLockedRowInAGroup(t *testing.T) {
	t.Parallel()
	eachDatabase(t, servers, func(t *testing.T, d *database) {
		l := d.open(t, cutter.Merged())
		var log testenv.Buffer
		l.log = slog.New(slog.NewTextHandler(&log, nil))
		locked, other, first := fresh("locked"), fresh("other"), fresh("first")
		lay(t, l, locked, 10)
		lay(t, l, other, 10)
		lay(t, l, first, 10)
		rs := []*recording{recordingOf(locked), recordingOf(other), recordingOf(first, locked)} // by SKU: the locked row is the second
		unlock := storetest.LockRow(t, d.url, locked)
		defer unlock()
		var group sync.WaitGroup
		defer group.Wait()
		group.Go(func() { l.runGroup(rs) })
		testenv.Await(t, "the group is slow", func() bool {
			l.slow.mu.Lock()
			defer l.slow.mu.Unlock()
			return l.slow.groups == 1
		})
		behind := recordingOf(other) // waits until only the locked row is left in the group
		l.runGroup([]*recording{behind})
		testenv.Receive(t, "the other SKU's order ends while the row is locked", rs[1].done)
		if o := rs[1].outcome; !o.Committed() {
			t.Errorf("the other SKU's order: %+v", o)
		}
		if !strings.Contains(log.String(), "stock rows are locked by another transaction") { // the runbook looks for it
			t.Errorf("logged %q", &log)
		}
		testenv.Receive(t, "the other SKU's order that waited for the group", behind.done)
		if o := behind.outcome; !o.Committed() {
			t.Errorf("the other SKU's order that waited for the group: %+v", o)
		}
		// Orders of the other SKU no longer wait, but orders of the locked SKU do.
		if _, o := l.Record(t.Context(), takeOf(other)); !o.Committed() {
			t.Fatalf("a later order of the other SKU: %+v", o)
		}
		select {
		case <-rs[0].done:
			t.Error("the other SKU was held back as long as the locked one")
		default:
		}
		waiting := make(chan order.Outcome, 1)
		go func() {
			_, o := l.Record(t.Context(), takeOf(locked))
			waiting <- o
		}()
		for _, r := range []*recording{rs[0], rs[2]} {
			testenv.Receive(t, "an order of the locked row", r.done)
			if o := r.outcome; !o.Refused() || !errors.Is(o.Reason(), stock.ErrBusy) {
				t.Errorf("an order of the locked row: %+v", o)
			}
		}
		unlock()
		if o := testenv.Receive(t, "the order that came later", waiting); !o.Committed() {
			t.Errorf("the order that came later: %+v", o)
		}
		d.atRest(t, locked, 1)
		d.atRest(t, other, 3)
	})
}
