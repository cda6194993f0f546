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

// TestDeliver_GoesOn lets the gate not answer the first addition. Later additions to its SKU must
// wait for a later delivery: each of them would wait for a frozen server, and the gap would cost a
// refill. Other SKUs must not wait. If the time of a delivery has ended, the next one must begin with
// the following SKU, because a SKU on a dead master of a cluster could keep all later SKUs from
// delivery. It must not begin between two additions to one SKU. The third begins with the first SKU
// again.
func TestDeliver_GoesOn(t *testing.T) {
	t.Parallel()
	type step struct {
		fails bool
		a, b  int64 // units at the gate afterwards
	}
	for name, test := range map[string]struct {
		kind    faults.Kind
		deliver func(ctx context.Context, s *shop) error
		steps   []step
	}{
		"Deliver": {faults.Refused, func(ctx context.Context, s *shop) error { return s.Deliver(ctx, "") }, []step{{true, 20, 23}, {false, 23, 23}}},
		"deliverAll": {faults.Hung, func(ctx context.Context, s *shop) error {
			_, err := s.deliverAll(ctx)
			return err
		}, []step{{true, 20, 20}, {false, 20, 23}, {false, 23, 23}}},
	} {
		t.Run(name, func(t *testing.T) {
			inShop(t, func(t *testing.T, s *shop) {
				for _, sku := range []stock.SKU{"a", "b"} {
					for _, units := range []int64{20, 1, 2} {
						s.add(t, sku, units)
					}
				}
				before := s.row(t, "a").Epoch
				s.calls.start(2, test.kind) // the first adjustment
				for n, want := range test.steps {
					ctx, cancel := context.WithTimeout(t.Context(), sweepTimeout)
					err := test.deliver(ctx, s)
					cancel()
					s.calls.stop()
					levels, readErr := s.counter.Level(t.Context(), "a", "b")
					if readErr != nil || (err != nil) != want.fails || levels[0].Available != want.a || levels[1].Available != want.b {
						t.Errorf("delivery %d: %v; the gate has %+v, %v; want %+v", n+1, err, levels, readErr, want)
					}
				}
				if row := s.row(t, "a"); row.Epoch != before {
					t.Errorf("refilled to %+v; the epoch was %d", row, before)
				}
			})
		})
	}
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
	if done, err := r.deliverChanges(t.Context(), "", stock.Change{}); err != nil || done.left != 4 || done.applied != 1 || len(l.applied) != 1 {
		t.Errorf("%+v, %v; applied %v", done, err, l.applied)
	}
}
