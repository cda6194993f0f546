package order

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"gorm.io/gorm"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

// lockRowOf locks the SKU's stock row until unlock is called.
func (s *shop) lockRowOf(t *testing.T, sku stock.SKU) (unlock func()) {
	t.Helper()
	tx := s.sql.DB().WithContext(context.WithoutCancel(t.Context())).Begin()
	if _, err := lockRow(tx, sku); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var holding sync.WaitGroup
	holding.Go(func() { // the server ends a transaction that is idle
		for {
			select {
			case <-stop:
				tx.Rollback()
				return
			case <-time.After(300 * time.Millisecond):
				if _, err := readRow(tx, sku); err != nil {
					t.Errorf("the lock was lost: %v", err)
				}
			}
		}
	})
	return sync.OnceFunc(func() {
		close(stop)
		holding.Wait()
	})
}

// TestLockedRow: while one stock row is locked, orders of all others go on; the
// orders of the locked one wait and are placed when it is free.
func TestLockedRow(t *testing.T) {
	t.Parallel()
	eachDatabase(t, servers, func(t *testing.T, s *shop) {
		for _, name := range []string{"merged", "lua", "conditional"} {
			i := s.open(t, settings{strategy: name})
			locked, other := fresh("locked"), fresh("other")
			lay(t, i, locked, 100)
			lay(t, i, other, 100)
			unlock := s.lockRowOf(t, locked)
			defer unlock()
			var waiters []<-chan reply
			for range 40 { // more than there are workers
				waiters = append(waiters, place(t.Context(), i, ask(locked)))
			}
			eventually(t, "an order waits for the row", func() bool { return s.waiting(t) > 0 })
			// The first may still wait for the group of the locked row.
			mustPlace(t, i, ask(other))
			start := time.Now()
			for range 20 {
				mustPlace(t, i, ask(other))
				if took := time.Since(start); took > lockWaitOfTests {
					t.Fatalf("%s: up to 20 orders of another SKU took %v", name, took)
				}
				waiters = append(waiters, place(t.Context(), i, ask(locked)))
			}
			unlock()
			for _, w := range waiters {
				if r := wait(t, "an order of the locked row", w); r.err != nil {
					t.Errorf("%s: %v", name, r.err)
				}
			}
			s.settled(t, i.gate, locked)
			s.atRest(t, i.gate, locked, int64(len(waiters)))
			s.settled(t, i.gate, other)
			s.atRest(t, i.gate, other, 21)
			i.Close()
		}
	})
}

// lockWaitOfTests is how long a session waits for a row lock.
const lockWaitOfTests = 3 * time.Second

// TestLockedRowInAGroup: an order that shares a group with one of a locked row is
// recorded when the wait has shown which row is locked.
func TestLockedRowInAGroup(t *testing.T) {
	t.Parallel()
	eachDatabase(t, servers, func(t *testing.T, s *shop) {
		i := s.open(t, settings{strategy: "merged"})
		locked, other := fresh("locked"), fresh("other")
		lay(t, i, locked, 10)
		lay(t, i, other, 10)
		rs := []*recording{recordingOf(locked), recordingOf(other), recordingOf(locked, other)}
		unlock := s.lockRowOf(t, locked)
		defer unlock()
		var group sync.WaitGroup
		defer group.Wait()
		group.Go(func() { i.ledger.admit(rs) })
		select {
		case <-rs[1].done:
		case <-time.After(2 * lockWaitOfTests):
			t.Fatal("the other SKU's order waits as long as the row is locked")
		}
		if o := rs[1].outcome; o.kind != committed {
			t.Errorf("the other SKU's order: %+v", o)
		}
		// The other SKU is not held back any more, the locked one is.
		mustPlace(t, i, ask(other))
		select {
		case <-rs[0].done:
			t.Error("the other SKU was held back as long as the locked one")
		default:
		}
		waiting := place(t.Context(), i, ask(locked))
		for _, r := range []*recording{rs[0], rs[2]} {
			wait(t, "an order of the locked row", r.done)
			if o := r.outcome; o.kind != refused || !errors.Is(o.err, stock.ErrBusy) {
				t.Errorf("an order of the locked row: %+v", o)
			}
		}
		unlock()
		if r := wait(t, "the order that came later", waiting); r.err != nil {
			t.Errorf("the order that came later: %v", r.err)
		}
		s.atRest(t, nil, locked, 1)
		s.atRest(t, nil, other, 2)
	})
}

// recordingOf is an order of one unit of each SKU, ready for the ledger.
func recordingOf(skus ...stock.SKU) *recording {
	d := stock.Deduction{OrderID: uuid.New(), TakeID: uuid.New(), Buyer: "buyer-1"}
	for _, sku := range skus {
		d.Lines = append(d.Lines, stock.Line{SKU: sku, Quantity: 1})
	}
	stock.SortLines(d.Lines)
	return newRecording(entry{takeID: d.TakeID, Order: Order{
		ID: d.OrderID, Buyer: d.Buyer, Status: Pending, Lines: d.Lines, Strategy: "merged", CreatedAt: now(),
	}}, d)
}

// TestFailedGroup: whatever ends a group, every order in it gets an outcome, and
// none hears "accepted": neither the first of its ID nor a twin.
func TestFailedGroup(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases, func(t *testing.T, s *shop) {
		for _, cause := range []error{stock.ErrConflict, errors.New("the database is away")} {
			t.Run(cause.Error(), func(t *testing.T) {
				i := s.open(t, settings{strategy: "merged", change: func(built *stock.Strategy) {
					built.Cutter = failing{built.Cutter, cause}
				}})
				sku := fresh("failed")
				lay(t, i, sku, 10)
				first := recordingOf(sku)
				rs := []*recording{first, recordingOf(sku)}
				for range 3 {
					twin := recordingOf(sku)
					twin.entry.ID, twin.deduction.OrderID = first.entry.ID, first.entry.ID
					rs = append(rs, twin)
				}
				i.ledger.record(rs, new(lane))
				for n, r := range rs {
					if !r.answered || r.outcome.kind != refused || !errors.Is(r.outcome.err, stock.ErrBusy) {
						t.Errorf("order %d: %+v", n+1, r.outcome)
					}
				}
				s.atRest(t, nil, sku, 0)
			})
		}
	})
}

// TestUnansweredIsUnknown: an order that nobody answered is not committed.
func TestUnansweredIsUnknown(t *testing.T) {
	var o outcome
	if o.kind != unknown || o.reason() == nil {
		t.Errorf("%+v", o)
	}
	if d := (stock.Decision{}); d.Taken() || d.Reason() == nil {
		t.Errorf("%+v", d)
	}
}

// TestOpenOutcomeGivesNothingBack: while the ledger does not say what became of a
// take, its units stay in flight, for requests and for recovery.
func TestOpenOutcomeGivesNothingBack(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases, func(t *testing.T, s *shop) {
		i := s.open(t, settings{strategy: "lua", takeDeadline: deadline})
		sku := fresh("unknown")
		lay(t, i, sku, 5)
		d := taken(t, i, sku)
		for name, end := range map[string]func() error{
			"a request": func() error {
				if o := i.resolveTake(t.Context(), d, unknownFor(errors.New("lost"))); o.kind != unknown {
					return fmt.Errorf("resolved as %+v", o)
				}
				return nil
			},
			"recovery": func() error {
				if err := i.recoverTake(t.Context(), d); err == nil {
					return errors.New("resolved")
				}
				return nil
			},
		} {
			sound := i.ledger.db
			i.ledger.db = s.closedDB(t)
			err := end()
			i.ledger.db = sound
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			levels, err := i.gate.Level(t.Context(), sku)
			if err != nil || levels[0].InFlight != 1 || levels[0].Available != 4 {
				t.Errorf("%s: %+v, %v", name, levels, err)
			}
		}
		sweep(t, i)
		s.atRest(t, i.gate, sku, 0)
	})
}

// closedDB is a database that does not answer.
func (s *shop) closedDB(t *testing.T) *gorm.DB {
	t.Helper()
	sql := openSQL(t, s.url)
	db := sql.DB()
	if err := sql.Close(); err != nil {
		t.Fatal(err)
	}
	return db
}
