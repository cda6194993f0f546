package protocol

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/ledger"
	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// event is one event in the life of an order.
type event struct {
	name string
	do   func(t *testing.T, e *eventShop, id uuid.UUID) error
}

// eventShop is a shop with one instance, which expires orders when the test calls it.
type eventShop struct {
	*shop
	*instance
	job ledger.Job
}

// events are all that can happen to an order.
var events = []event{
	{"pay-1", func(t *testing.T, e *eventShop, id uuid.UUID) error {
		_, err := e.Pay(t.Context(), id, "1-"+id.String())
		return err
	}},
	{"pay-2", func(t *testing.T, e *eventShop, id uuid.UUID) error {
		_, err := e.Pay(t.Context(), id, "2-"+id.String())
		return err
	}},
	{"cancel", func(t *testing.T, e *eventShop, id uuid.UUID) error {
		_, err := e.Cancel(t.Context(), id, "")
		return err
	}},
	{"due", func(t *testing.T, e *eventShop, id uuid.UUID) error { e.expiresIn(t, id, -time.Second); return nil }},
	{"expire", func(t *testing.T, e *eventShop, id uuid.UUID) error {
		e.expiresIn(t, id, -time.Second)
		done, err := e.instance.ledger.Expire(t.Context(), e.job, new(ledger.ExpiryRound), 100)
		e.BringToGate(t.Context(), done.Returned...)
		return err
	}},
	{"refund", func(t *testing.T, e *eventShop, id uuid.UUID) error {
		_, err := e.Refund(t.Context(), id, true)
		return err
	}},
	{"refund-kept", func(t *testing.T, e *eventShop, id uuid.UUID) error {
		_, err := e.Refund(t.Context(), id, false)
		return err
	}},
}

// TestAllOrdersOfEvents runs every sequence of two events on SQLite, each event twice in a row,
// with each policy for late payments. A thorough run has three events, with and without a gate.
// After each event the units must add up, and every payment must have been recorded once. The
// repeat must get the same answer and change nothing. TestAllOrdersOfEvents of package order uses
// four events and stores in memory.
func TestAllOrdersOfEvents(t *testing.T) {
	t.Parallel()
	length := 2
	if testenv.Thorough() {
		length = 3
	}
	for _, strategy := range []string{"lua", "optimistic"} {
		if strategy != "lua" && !testenv.Thorough() {
			continue
		}
		for _, late := range []order.Late{order.Revive, order.Refuse} {
			t.Run(fmt.Sprintf("%s/%s", strategy, late), func(t *testing.T) {
				t.Parallel()
				s := newShop(t, sqliteURL(t))
				e := &eventShop{shop: s, instance: s.open(t, settings{strategy: strategy, late: late})}
				var err error
				if e.job, err = e.instance.ledger.ClaimJob(t.Context(), "expiry", "events"); err != nil {
					t.Fatal(err)
				}
				eachSequence(length, func(sequence []event) {
					if err := e.instance.ledger.RenewJob(t.Context(), e.job); err != nil {
						t.Fatal(err)
					}
					e.run(t, sequence)
				})
			})
		}
	}
}

// eachSequence calls do with every sequence of n events.
func eachSequence(n int, do func(sequence []event), prefix ...event) {
	if len(prefix) == n {
		do(prefix)
		return
	}
	for _, next := range events {
		eachSequence(n, do, append(slices.Clone(prefix), next)...)
	}
}

// run lets the events happen to a new order.
func (e *eventShop) run(t *testing.T, sequence []event) {
	t.Helper()
	sku := newSKU("events")
	addStock(t, e.instance, sku, 3)
	id := mustPlace(t, e.instance, oneUnit(sku)).ID
	e.waitSettled(t, e.instance, sku)
	var names []string
	for _, now := range sequence {
		names = append(names, now.name)
		first := now.do(t, e, id)
		e.checkLifecycle(t, e.instance, sku, id)
		before := e.read(t, id)
		if again := now.do(t, e, id); now.name != "due" && fmt.Sprint(again) != fmt.Sprint(first) {
			t.Errorf("answered %v, then %v", first, again)
		}
		e.checkLifecycle(t, e.instance, sku, id)
		if after := e.read(t, id); after.Status != before.Status || len(after.History) != len(before.History) {
			t.Errorf("repeated, the order was %s and is %s: %+v", before.Status, after.Status, after.History)
		}
		if t.Failed() {
			t.Fatalf("after %s", strings.Join(names, ", "))
		}
	}
}

// read returns the order.
func (e *eventShop) read(t *testing.T, id uuid.UUID) order.Order {
	t.Helper()
	o, err := e.Order(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return o
}
