package order

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

// answeringQueue answers as ask does.
type answeringQueue struct {
	Queue
	ask func() (*Order, error)
}

func (q answeringQueue) Order(context.Context, uuid.UUID) (*Order, error) { return q.ask() }

// TestOrderLeavesTheQueue: an order moves from the queue to the ledger while it is looked
// for. It is found at every moment.
func TestOrderLeavesTheQueue(t *testing.T) {
	queued := Order{ID: uuid.New(), TakeID: uuid.New(), Status: Queued}
	down := errors.New("the queue is away")
	for _, test := range []struct {
		name    string
		commits bool // before the queue answers
		answer  error
		want    Status
		err     error
	}{
		{"it is queued", false, nil, Queued, nil},
		{"it has left", true, ErrUnknownOrder, Pending, nil},
		{"it is in both", true, nil, Pending, nil},
		{"it is in neither", false, ErrUnknownOrder, "", ErrUnknownOrder},
		{"the queue does not answer", false, down, "", stock.ErrUnavailable},
		{"the queue does not answer, and the ledger has it", true, down, Pending, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newShop(true)
			s.queue = answeringQueue{ask: func() (*Order, error) {
				if test.commits {
					s.ledger.orders[queued.ID] = Order{ID: queued.ID, TakeID: queued.TakeID, Status: Pending, QueuedUntil: time.Now()}
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
