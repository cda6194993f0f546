package order

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"

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
		want    Status
		err     error
	}{
		{"it is queued", false, nil, Queued, nil},
		{"it has left since the ledger was asked", true, stock.ErrNotQueued, Pending, nil},
		{"it is in both", true, nil, Pending, nil},
		{"it is in neither", false, stock.ErrNotQueued, "", ErrUnknownOrder},
		{"the journal does not answer", false, down, "", stock.ErrUnavailable},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newShop(true)
			s.queued = twinJournal{ask: func() (stock.Take, error) {
				if test.commits {
					s.ledger.orders[queued.OrderID] = Order{ID: queued.OrderID, TakeID: queued.TakeID, Status: Pending, QueuedUntil: time.Now()}
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

// TestKeyElsewhere: a request at a strategy that does not queue is refused. Its key is
// looked up in the journal before the ledger, once, so that an order that moves from one
// to the other meanwhile is found. The ledger's order is found without the journal.
func TestKeyElsewhere(t *testing.T) {
	r := ask()
	r.Key = "k"
	down := errors.New("the journal is away")
	for _, test := range []struct {
		name     string
		moves    bool  // from the journal to the ledger while the key is looked up
		answer   error // of the journal, then
		replayed bool
		err      error
	}{
		{"there is none", false, stock.ErrNotQueued, false, stock.ErrSoldOut},
		{"it moves", true, stock.ErrNotQueued, true, nil},
		{"the journal goes away", false, down, false, stock.ErrUnavailable},
		{"the journal goes away, and the ledger has it", true, down, true, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newShop(false)
			s.ledger.available[apple] = 0
			asked, reads := 0, 0
			s.queued = twinJournal{ask: func() (stock.Take, error) {
				if asked++; asked == 1 { // before the units are taken
					return stock.Take{}, stock.ErrNotQueued
				}
				if id := orderID(s.ledgerID, r, 0); test.moves {
					s.ledger.orders[id] = Order{ID: id, Buyer: r.Buyer, Lines: r.Lines, Status: Pending, QueuedUntil: time.Now()}
				}
				return stock.Take{}, test.answer
			}}
			s.ledger.read = func(id uuid.UUID) (*Order, error) {
				reads++
				if o, ok := s.ledger.orders[id]; ok {
					return &o, nil
				}
				return nil, ErrUnknownOrder
			}
			if o, replayed, err := s.Place(t.Context(), r); replayed != test.replayed || !errors.Is(err, test.err) {
				t.Errorf("%+v, %v, %v", o, replayed, err)
			}
			if asked != 2 || reads != 1 {
				t.Errorf("the journal was asked %d times and the ledger %d times, want 2 and 1", asked, reads)
			}
		})
	}
}

// TestJournalAway: the journal does not answer. A key of another strategy does without it
// only if it had no orders when it last answered, under the same generation.
func TestJournalAway(t *testing.T) {
	down := errors.New("the journal is away")
	for _, test := range []struct {
		name string
		saw  func(s *Service, now stock.Generation)
		want error
	}{
		{"it has never answered", func(s *Service, now stock.Generation) { s.SawJournal(now, 0, down) }, stock.ErrUnavailable},
		{"it had none", func(s *Service, now stock.Generation) { s.SawJournal(now, 0, nil); s.SawJournal(now, 0, down) }, nil},
		{"it had some", func(s *Service, now stock.Generation) {
			s.SawJournal(now, 0, nil)
			s.SawJournal(now, 1, nil)
			s.SawJournal(now, 0, down)
		}, stock.ErrUnavailable},
		{"it had none before the stock changed hands", func(s *Service, now stock.Generation) { s.SawJournal(now-1, 0, nil); s.SawJournal(now, 0, down) }, stock.ErrUnavailable},
		{"it answers again", func(s *Service, now stock.Generation) {
			s.SawJournal(now, 0, nil)
			s.SawJournal(now, 0, down)
			s.SawJournal(now, 0, nil)
		}, stock.ErrUnavailable},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newShop(false)
			s.queued = twinJournal{ask: func() (stock.Take, error) { return stock.Take{}, down }}
			test.saw(s.Service, s.ledger.Generation())
			r := ask()
			r.Key = "k"
			if _, _, err := s.Place(t.Context(), r); !errors.Is(err, test.want) {
				t.Errorf("%v, want %v", err, test.want)
			}
			if o, err := s.Order(t.Context(), uuid.New()); !errors.Is(err, stock.ErrUnavailable) {
				t.Errorf("an order that may be queued: %+v, %v", o, err)
			}
		})
	}
}

// TestRefusedAfterUnknown: the first try to record another strategy's queued order
// commits it, and its answer is lost. The refusal of the next try does not return its
// units.
func TestRefusedAfterUnknown(t *testing.T) {
	s := newShop(true)
	s.ledger.answer = func(Outcome) Outcome {
		if s.ledger.records == 1 {
			return Unknown(errors.New("the answer is lost"))
		}
		return Refused(stock.ErrBusy)
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

// TestKeyMovesOn: a key moves on past a void order, whose queued order must not take its
// place then. If it has taken it before, the key stays.
func TestKeyMovesOn(t *testing.T) {
	for _, replaced := range []bool{false, true} {
		s := newShop(false)
		r := ask()
		r.Key = "k"
		queued := stock.Take{
			Deduction: stock.Deduction{OrderID: orderID(s.ledgerID, r, 0), TakeID: uuid.New(), Buyer: r.Buyer, Lines: r.Lines},
			QueuedAt:  time.Now(),
		}
		s.ledger.void(queued.OrderID)
		s.ledger.read = func(id uuid.UUID) (*Order, error) { // the key's next ID, before it moves on
			s.ledger.read = nil
			if replaced {
				s.PlaceQueued(t.Context(), queued)
			}
			return s.ledger.Order(t.Context(), id)
		}
		o, replayed, err := s.Place(t.Context(), r)
		if err != nil || replayed != replaced || (o.ID == queued.OrderID) != replaced {
			t.Errorf("replaced %v: %+v, %v, %v", replaced, o, replayed, err)
		}
		out := s.PlaceQueued(t.Context(), queued)
		if found, exists := out.Duplicate(); !exists || (found.Status == Void) == replaced {
			t.Errorf("replaced %v: then %+v", replaced, out)
		}
		s.atRest(t, 1)
	}
}

// TestSilentLedger: the ledger does not answer in time for another strategy's queued
// order. That does not refuse the order: it is placed by the next try.
func TestSilentLedger(t *testing.T) {
	for _, withGate := range []bool{false, true} {
		s := newShop(withGate)
		queued := stock.Take{
			Deduction: stock.Deduction{OrderID: uuid.New(), TakeID: uuid.New(), Buyer: "b", Lines: ask().Lines},
			QueuedAt:  time.Now(),
		}
		ctx, giveUp := context.WithCancel(t.Context())
		s.ledger.before = func(stock.Take) { giveUp() }
		out := s.PlaceQueued(ctx, queued)
		if out.Committed() || stock.Final(out.Reason()) || s.ledger.records != 1 {
			t.Errorf("gate %v: %+v after %d records", withGate, out, s.ledger.records)
		}
		if o, ok := s.ledger.orders[queued.OrderID]; ok && !withGate {
			t.Errorf("the ledger has %+v", o)
		}
		if out := s.PlaceQueued(t.Context(), queued); !out.Committed() {
			t.Errorf("gate %v: then %+v", withGate, out)
		}
		s.atRest(t, 1)
	}
}
