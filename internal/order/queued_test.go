package order

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

// answeringQueue answers Order by calling ask.
type answeringQueue struct {
	Queue
	ask func() (*Order, error)
}

func (q answeringQueue) Order(context.Context, uuid.UUID) (*Order, error) { return q.ask() }

// TestOrderLeavesTheQueue checks that an order that moves from the queue to the ledger during a
// lookup is found at every moment.
func TestOrderLeavesTheQueue(t *testing.T) {
	queued := Order{ID: uuid.New(), TakeID: uuid.New(), Status: Queued}
	down := errors.New("the queue is unreachable")
	for _, test := range []struct {
		name   string
		row    Status // of the row that the ledger gets before the queue answers; empty: none
		answer error
		want   Status
		err    error
	}{
		{"it is queued", "", nil, Queued, nil},
		{"it has left", Pending, ErrUnknownOrder, Pending, nil},
		{"it has left, and is void", Void, ErrUnknownOrder, Void, nil},
		{"it is in both", Pending, nil, Pending, nil},
		{"it is in neither", "", ErrUnknownOrder, "", ErrUnknownOrder},
		{"the queue does not answer", "", down, "", stock.ErrUnavailable},
		{"the queue does not answer, and the ledger has it", Pending, down, Pending, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newShop(true)
			s.queue = answeringQueue{ask: func() (*Order, error) {
				if test.row != "" {
					s.ledger.orders[queued.ID] = Order{ID: queued.ID, TakeID: queued.TakeID, Status: test.row, QueuedUntil: time.Now()}
				}
				return &queued, test.answer
			}}
			o, err := s.Order(t.Context(), queued.ID)
			if o.Status != test.want || !errors.Is(err, test.err) {
				t.Errorf("%+v, %v", o, err)
			}
		})
	}
}

// TestFindKeyed_QueuedUnderAVoidOrder checks a key whose first ID has a void order in the ledger
// and an order in the queue. The queued order is the key's order only if the ledger has no later
// live one.
func TestFindKeyed_QueuedUnderAVoidOrder(t *testing.T) {
	live, down := &Order{Status: Pending}, errors.New("the ledger is unreachable")
	for _, test := range []struct {
		name string
		next *Order // the order under the key's second ID
		err  error
		want Status
	}{
		{"nothing follows", nil, ErrUnknownOrder, Queued},
		{"a live order follows", live, nil, Pending},
		{"the ledger does not answer then", nil, down, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newShop(true)
			first := orderID(s.ledgerID, keyed(), 0)
			queued, answers := &Order{ID: first, Status: Queued}, 0
			s.queue = answeringQueue{ask: func() (*Order, error) {
				if answers++; answers == 1 { // the first answer is for the first ID
					return queued, nil
				}
				return nil, ErrUnknownOrder
			}}
			s.ledger.read = func(id uuid.UUID) (*Order, error) {
				switch id {
				case first:
					return &Order{ID: id, Status: Void}, nil
				case orderID(s.ledgerID, keyed(), 1):
					return test.next, test.err
				}
				return nil, ErrUnknownOrder
			}
			found, _, err := s.findKeyed(t.Context(), keyed(), 0)
			switch {
			case errors.Is(test.err, down):
				if !errors.Is(err, down) {
					t.Errorf("found %+v, %v, want %v", found, err, down)
				}
			case err != nil || found.Status != test.want:
				t.Errorf("found %+v, %v, want a %s order", found, err, test.want)
			}
		})
	}
}
