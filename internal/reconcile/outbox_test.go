package reconcile

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-stock/holdfast/internal/faults"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// TestBringToGate brings two additions to the gate, in the order of their commits or not, while
// calls to the stores break or the gate lacks the count. The requests have ended. Without a fault,
// the outbox must be read only if an addition arrives before an earlier one. No addition may be
// applied twice, and the next delivery must apply the rest.
func TestBringToGate(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		order  []int             // order in which the two are brought
		breaks string            // name whose first call breaks; empty: no call breaks
		before func(*shop) error // called before, if not nil
		calls  []string          // calls without those of a later delivery; the gate adjusts two segments, up to the first that refuses
		log    string            // logged text; empty: nothing is logged
	}{
		"in order":                {order: []int{0, 1}, calls: []string{"adjust", "adjust", "Applied", "adjust", "adjust", "Applied"}},
		"overtaken":               {order: []int{1, 0}, calls: []string{"adjust", "Changes", "adjust", "adjust", "adjust", "adjust", "Applied", "adjust", "adjust", "Applied"}},
		"the gate is unreachable": {order: []int{0}, breaks: "adjust", calls: []string{"adjust"}, log: "returning units to the gate failed"},
		"the ledger is":           {order: []int{0}, breaks: "Applied", calls: []string{"adjust", "adjust", "Applied"}, log: "clearing the outbox failed"},
		"no outbox":               {order: []int{1}, breaks: "Changes", calls: []string{"adjust", "Changes"}, log: "returning units to the gate failed"},
		"the gate is empty":       {order: []int{0, 1}, before: emptyGate, calls: []string{"adjust", "adjust"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inShop(t, func(t *testing.T, s *shop) {
				for _, units := range []int64{20, 1, 2} {
					s.add(t, "a", units)
				}
				committed, _, err := s.ledger.Changes(t.Context(), "a", stock.Change{})
				if err != nil || len(committed) != 2 {
					t.Fatalf("the outbox has %+v, %v", committed, err)
				}
				if test.before != nil {
					err = test.before(s)
				}
				var (
					log  testenv.Buffer
					mu   sync.Mutex
					made []string
				)
				s.logTo(&log)
				s.calls.before = func(name string) {
					mu.Lock()
					defer mu.Unlock()
					if made = append(made, name); name == test.breaks && len(made) == slices.Index(test.calls, name)+1 {
						s.calls.start(1, faults.Refused)
					}
				}
				ended, end := context.WithCancel(t.Context())
				end()
				for _, n := range test.order {
					s.BringToGate(ended, committed[n])
					time.Sleep(time.Second) // until the outbox is cleared
				}
				synctest.Wait()
				s.calls.before = nil
				if err != nil || !slices.Equal(made, test.calls) {
					t.Errorf("the calls %q, want %q; %v", made, test.calls, err)
				}
				if logged := log.String(); (logged == "") != (test.log == "") || !strings.Contains(logged, test.log) {
					t.Errorf("logged %q, want %q", logged, test.log)
				}
				if err := errors.Join(s.Deliver(t.Context(), ""), s.PrepareRetry(t.Context(), stock.ErrNotFilled, "a"), s.Deliver(t.Context(), "")); err != nil {
					t.Error(err)
				}
				s.check(t, "a")
			})
		})
	}
}

// emptyGate deletes the gate's count.
func emptyGate(s *shop) error {
	return s.redis.Del(context.Background(), "holdfast:{"+s.id.String()+"}:count").Err()
}

// TestBringToGate_TwoSKUs brings additions to two SKUs. If the gate lacks the count of the first,
// it must still get the second. If it does not answer, it must not be called again.
func TestBringToGate_TwoSKUs(t *testing.T) {
	t.Parallel()
	inShop(t, func(t *testing.T, s *shop) {
		for _, sku := range []stock.SKU{"a", "b"} {
			s.add(t, sku, 20)
			s.add(t, sku, 1)
		}
		committed, _, err := s.ledger.Changes(t.Context(), "", stock.Change{})
		if err != nil || len(committed) != 2 {
			t.Fatalf("the outbox has %+v, %v", committed, err)
		}
		want := func(when string, units int64) {
			t.Helper()
			if levels, err := s.counter.Level(t.Context(), "b"); err != nil || levels[0].Available != units {
				t.Errorf("%s: the gate has %+v of b, %v; want %d", when, levels, err, units)
			}
		}
		s.calls.start(1, faults.Refused)
		s.BringToGate(t.Context(), committed...)
		s.calls.stop()
		want("the gate did not answer", 20)
		if err := s.redis.HDel(t.Context(), "holdfast:{"+s.id.String()+"}:count", "a/0", "a/1").Err(); err != nil {
			t.Fatal(err)
		}
		s.BringToGate(t.Context(), committed...)
		want("the gate lacked a", 21)
	})
}

// stockTwo adds units to two SKUs. The gate lacks the last two additions to each.
func (s *shop) stockTwo(t *testing.T) {
	t.Helper()
	for _, sku := range []stock.SKU{"a", "b"} {
		for _, units := range []int64{20, 1, 2} {
			s.add(t, sku, units)
		}
	}
}

// wantTwo checks how many units the gate has of the two SKUs.
func (s *shop) wantTwo(t *testing.T, when string, a, b int64) {
	t.Helper()
	levels, err := s.counter.Level(t.Context(), "a", "b")
	if err != nil || levels[0].Available != a || levels[1].Available != b {
		t.Errorf("%s: the gate has %+v, %v; want %d and %d", when, levels, err, a, b)
	}
}

// TestDeliver_GoesOn lets the gate refuse the first addition. Later additions to its SKU must wait
// for a later delivery: each of them would wait for a frozen server, and the gap would cost a
// refill. Other SKUs must not wait.
func TestDeliver_GoesOn(t *testing.T) {
	t.Parallel()
	inShop(t, func(t *testing.T, s *shop) {
		s.stockTwo(t)
		before := s.row(t, "a").Epoch
		s.calls.start(2, faults.Refused) // the first adjustment
		err := s.Deliver(t.Context(), "")
		s.calls.stop()
		if err == nil {
			t.Error("a refused addition is no error")
		}
		s.wantTwo(t, "after a refused addition", 20, 23)
		if err := s.Deliver(t.Context(), ""); err != nil {
			t.Error(err)
		}
		s.wantTwo(t, "after the next delivery", 23, 23)
		if row := s.row(t, "a"); row.Epoch != before {
			t.Errorf("refilled to %+v; the epoch was %d", row, before)
		}
	})
}

// TestDeliver_OutOfTime lets the gate not answer the first addition until the time of the delivery
// has ended. A dead master of a cluster could take the time of each delivery in this way. So the
// comparison must refill the SKUs that no delivery reaches.
func TestDeliver_OutOfTime(t *testing.T) {
	t.Parallel()
	inShop(t, func(t *testing.T, s *shop) {
		s.stockTwo(t)
		s.calls.start(2, faults.Hung) // the first adjustment
		ctx, cancel := context.WithTimeout(t.Context(), sweepTimeout)
		_, err := s.deliverAll(ctx)
		cancel()
		s.calls.stop()
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the delivery ended with %v", err)
		}
		s.wantTwo(t, "after a delivery without an answer", 20, 20)
		for range 2 {
			if err := s.compareAll(t.Context()); err != nil {
				t.Error(err)
			}
		}
		s.wantTwo(t, "after the comparison", 23, 23)
	})
}

// pagedOutbox is a ledger that reads its outbox in pages of two changes.
type pagedOutbox struct{ *fakeLedger }

func (l pagedOutbox) Changes(_ context.Context, _ stock.SKU, after stock.Change) ([]stock.Change, bool, error) {
	rest := l.outbox[slices.Index(l.outbox, after)+1:]
	return rest[:min(2, len(rest))], len(rest) < 2, nil
}

// TestDelivery_Pages checks that a delivery counts the additions of all pages that are left.
func TestDelivery_Pages(t *testing.T) {
	t.Parallel()
	r, gate, l := started(t, &ownerRow{})
	for _, sku := range []stock.SKU{"a", "b", "c", "d", "e"} {
		l.outbox = append(l.outbox, stock.Change{SKU: sku, Number: 1})
	}
	gate.adjusts = func(c stock.Change) error {
		if c.SKU == "d" {
			return nil
		}
		return stock.ErrNotFilled
	}
	r.ledger = pagedOutbox{l}
	if applied, left, err := r.deliverChanges(t.Context(), ""); err != nil || left != 4 || applied != 1 || len(l.applied) != 1 {
		t.Errorf("applied %d, left %d, %v; removed from the outbox: %v", applied, left, err, l.applied)
	}
}
