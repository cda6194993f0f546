package order

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/ledger"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// twinJournal is a journal of one order.
type twinJournal struct {
	ask func() (stock.Take, error) // the answer of Queued
}

func (j twinJournal) Queued(context.Context, uuid.UUID) (stock.Take, error) { return j.ask() }

// TestOrderLeavesTheJournal: an order moves from the journal to the ledger while it is
// looked for. It is found at every moment.
func TestOrderLeavesTheJournal(t *testing.T) {
	queued := stock.Take{
		Deduction: stock.Deduction{OrderID: uuid.New(), TakeID: uuid.New(), Buyer: "b", Lines: ask().Lines},
		QueuedAt:  time.Now(),
	}
	down := errors.New("the journal is away")
	for _, test := range []struct {
		name    string
		commits bool // before the journal answers
		answer  error
		want    ledger.Status
		err     error
	}{
		{"it is queued", false, nil, ledger.Queued, nil},
		{"it has left since the ledger was asked", true, stock.ErrNotQueued, ledger.Pending, nil},
		{"it is in both", true, nil, ledger.Pending, nil},
		{"it is in neither", false, stock.ErrNotQueued, "", ErrUnknownOrder},
		{"the journal does not answer", false, down, "", stock.ErrUnavailable},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newShop(true)
			s.queued = twinJournal{ask: func() (stock.Take, error) {
				if test.commits {
					s.ledger.orders[queued.OrderID] = Order{ID: queued.OrderID, TakeID: queued.TakeID, Status: ledger.Pending, QueuedUntil: time.Now()}
				}
				return queued, test.answer
			}}
			o, err := s.Order(t.Context(), queued.OrderID)
			if o.Status != test.want || !errors.Is(err, test.err) {
				t.Errorf("%+v, %v", o, err)
			}
		})
	}
}

// TestRefusedAfterUnknown: the first try to record another strategy's queued order
// commits it, and its answer is lost. The refusal of the next try does not return its
// units.
func TestRefusedAfterUnknown(t *testing.T) {
	s := newShop(true)
	s.ledger.answer = func(ledger.Outcome) ledger.Outcome {
		if s.ledger.records == 1 {
			return ledger.Unknown(errors.New("the answer is lost"))
		}
		return ledger.Refused(stock.ErrBusy)
	}
	out := s.PlaceQueued(t.Context(), stock.Take{
		Deduction: stock.Deduction{OrderID: uuid.New(), TakeID: uuid.New(), Buyer: "b", Lines: ask().Lines},
		QueuedAt:  time.Now(),
	})
	if !out.Committed() {
		t.Errorf("%+v", out)
	}
	s.atRest(t, 1)
}
