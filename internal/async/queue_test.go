package async

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// TestAccept checks how Accept treats a queued order after every possible answer of the ledger. It
// must withdraw the order only if the order's ID already has a row.
func TestAccept(t *testing.T) {
	t.Parallel()
	take := stock.Take{Deduction: oneUnit(), QueuedAt: time.Now()}
	found := func(status order.Status) *order.Order {
		return &order.Order{ID: take.OrderID, TakeID: uuid.New(), Status: status}
	}
	own, lost := found(order.TurnedDown), found(order.Void) // own: a fast consumer has refused the order; lost: the journal was lost
	own.TakeID, lost.TakeID = take.TakeID, take.TakeID
	revived := found(order.Paid)
	revived.TakeID = (&order.Order{TakeID: take.TakeID}).NextTake()
	blocked := order.Refused(errFault)
	for _, test := range []struct {
		name    string
		unkeyed bool
		answers
		want string // the calls, and the outcome
	}{
		{name: "without a key", unkeyed: true, want: ": committed"},
		{name: "a new key", want: "Order: committed"},
		{name: "a fast consumer", answers: answers{found: own}, want: "Order: committed"},
		{name: "a fast consumer, and a revival", answers: answers{found: revived}, want: "Order: committed"},
		{name: "its own void order", answers: answers{found: lost, down: blocked}, want: "Order Refusal GiveBack Finish: duplicate"},
		{name: "the ledger is unreachable", answers: answers{errs: map[string]error{"Order": errFault}}, want: "Order: unknown"},
		{name: "a live order", answers: answers{found: found(order.Pending)}, want: "Order GiveBack Finish: duplicate"},
		{name: "a refused order", answers: answers{found: found(order.TurnedDown)}, want: "Order GiveBack Finish: duplicate"},
		{name: "not given back", answers: answers{found: found(order.Paid), errs: map[string]error{"GiveBack": errFault}}, want: "Order GiveBack: duplicate"},
		{name: "not finished", answers: answers{found: found(order.Paid), errs: map[string]error{"Finish": errFault}}, want: "Order GiveBack Finish: duplicate"},
		{name: "a void order", answers: answers{found: found(order.Void), down: blocked}, want: "Order Refusal GiveBack Finish: duplicate"},
		{name: "a void order, and a fast consumer", answers: answers{found: found(order.Void), down: order.Committed()}, want: "Order Refusal: duplicate"},
		{name: "a void order, and the ledger becomes unreachable", answers: answers{found: found(order.Void), down: order.Unknown(errFault)}, want: "Order Refusal: duplicate"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			a := &test.answers
			o, out := NewQueue(a, a, a, "async", nil).Accept(t.Context(), take, !test.unkeyed)
			if got := strings.Join(a.calls, " ") + ": " + out.Kind(); got != test.want {
				t.Errorf("%s, want %s", got, test.want)
			}
			if out.Committed() && (o.ID != take.OrderID || o.Status != order.Queued || o.Strategy != "async" || !o.CreatedAt.Equal(take.QueuedAt)) {
				t.Errorf("answered %+v", o)
			}
			if duplicate, exists := out.Duplicate(); exists && duplicate != test.found {
				t.Errorf("a duplicate of %+v", duplicate)
			}
		})
	}
}

// TestOrder checks how a queued order is found.
func TestOrder(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, r *rig) {
		q := NewQueue(r.journal, r.ledger, &reconciler{r}, "async", nil)
		take, err := q.Take(t.Context(), oneUnit())
		if err != nil {
			t.Fatal(err)
		}
		if o, err := q.Order(t.Context(), take.OrderID); err != nil || o.ID != take.OrderID || o.TakeID != take.TakeID || o.Status != order.Queued {
			t.Errorf("found %+v, %v", o, err)
		}
		if o, err := q.Order(t.Context(), uuid.New()); !errors.Is(err, order.ErrUnknownOrder) {
			t.Errorf("found %+v, %v", o, err)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if o, err := q.Order(ended, take.OrderID); !errors.Is(err, context.Canceled) {
			t.Errorf("without an answer: found %+v, %v", o, err)
		}
		r.gate.Close()
		if _, err := q.Take(t.Context(), oneUnit()); !errors.Is(err, stock.ErrBusy) {
			t.Errorf("taken at a closed gate: %v", err)
		}
	})
}
