package order

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/retry"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// Journal is what placing needs of a gate's journal. See stock.Journal.
type Journal interface {
	Queue(ctx context.Context, d stock.Deduction, at time.Time) (stock.Take, error)
	Finish(ctx context.Context, takes ...stock.Take) error
}

// QueuedOrders finds queued orders, also those that another strategy has queued. See
// stock.QueuedOrders.
type QueuedOrders interface {
	Queued(ctx context.Context, order uuid.UUID) (stock.Take, error)
}

// enqueue takes the units at the gate and queues the order, once. The outcome is
// Committed if the order is queued: its consumer brings it to an end.
//
// The gate knows only the orders that are queued or in flight. So a keyed order is
// looked up in the ledger before it counts as queued, and after it was taken: an
// earlier order of the key had left the gate before the take, so the ledger had it.
// A void order is no reason to withdraw the order: another request of the key may have
// been answered with it, because it is in the journal. If the key has passed the void
// order, the order ends as refused, at once: its key needs the units for its next ID.
func (s *Service) enqueue(ctx context.Context, d stock.Deduction, keyed bool) (Order, Outcome) {
	now, err := s.ledger.Now()
	if err != nil {
		return Order{}, Refused(fmt.Errorf("%w: %w", stock.ErrBusy, err))
	}
	d.Trace = s.tracer.Parent(ctx)
	take, err := s.take(ctx, func(ctx context.Context) (stock.Take, error) { return s.journal.Queue(ctx, d, now) })
	switch {
	case stock.NothingTaken(err):
		return Order{}, Refused(err)
	case err != nil: // it may be queued, and then a consumer may commit it: nothing is given back
		return Order{}, Unknown(fmt.Errorf("queueing the order: %w", err))
	case !keyed:
		return s.ledger.Queued(take), Committed()
	}
	switch found, err := s.ledger.Order(ctx, d.OrderID); {
	case err == nil && found.TakeID == take.TakeID: // a consumer was fast
	case err == nil && found.Replaceable(): // a consumer puts the order in its place
	case err == nil && found.Status == Void: // its key has passed it
		if s.ledger.TurnDown(ctx, take).Refused() { // else a consumer does it
			s.withdraw(ctx, take)
		}
		return Order{}, Duplicate(found)
	case err == nil:
		s.withdraw(ctx, take)
		return Order{}, Duplicate(found)
	case !errors.Is(err, ErrUnknownOrder):
		return Order{}, Unknown(err)
	}
	return s.ledger.Queued(take), Committed()
}

// withdraw removes a queued order whose ID the ledger has already, for another take: no
// consumer can commit this one. If withdraw fails, a consumer does the rest.
func (s *Service) withdraw(ctx context.Context, t stock.Take) {
	if s.reconciler.GiveBack(ctx, t) {
		_ = s.journal.Finish(ctx, t)
	}
}

// find reads an order from the ledger, or from the journal if it is still queued. It asks
// the journal only if the ledger does not know the order, or has a void one.
// ErrUnknownOrder: there is none.
func (s *Service) find(ctx context.Context, id uuid.UUID) (*Order, error) {
	found, err := s.ledger.Order(ctx, id)
	if s.queued == nil || !mayBeQueued(found, err) {
		return found, err
	}
	return s.findQueued(ctx, id)
}

// findQueued is find for orders that the ledger probably does not have. It asks the
// journal first: an order leaves the journal when the ledger has it, so the ledger's
// answer must be the later one.
func (s *Service) findQueued(ctx context.Context, id uuid.UUID) (*Order, error) {
	t, queuedErr := s.queued.Queued(ctx, id)
	found, err := s.ledger.Order(ctx, id)
	switch {
	case !mayBeQueued(found, err), errors.Is(queuedErr, stock.ErrNotQueued):
		return found, err
	case queuedErr != nil:
		return nil, queuedErr
	}
	o := s.ledger.Queued(t)
	if err == nil && found.Passed() {
		o.Version = found.Version // it will be refused, and its key has moved on
	}
	return &o, nil
}

// asksJournal reports whether the journal must be asked for a key before its units are
// taken. At a gate with a journal, the queued orders are in flight. Another strategy's
// journal need not be asked if it does not answer and had no orders when it last did,
// under the same generation: the strategy that queues has not had the stock since.
func (s *Service) asksJournal() bool {
	under := s.emptyUnder.Load()
	gone := s.journalAway.Load() && under != 0 && under == int64(s.ledger.Generation())
	return s.queued != nil && s.journal == nil && !gone
}

// SawJournal remembers what its consumer has seen of another strategy's journal: the
// number of its orders, or why it did not answer. under is the generation in use before
// the journal was asked. Calls must not overlap.
func (s *Service) SawJournal(under stock.Generation, orders int64, err error) {
	s.journalAway.Store(err != nil)
	switch {
	case err != nil:
	case orders == 0:
		s.emptyUnder.Store(int64(under))
	default:
		s.emptyUnder.Store(0) // no generation
	}
}

// mayBeQueued reports whether the order for which the ledger has this answer may be
// queued. It may if it is void: its consumer then replaces the void order.
func mayBeQueued(found *Order, err error) bool {
	return errors.Is(err, ErrUnknownOrder) || err == nil && found.Status == Void
}

// inProgress returns ErrInProgress if the order is queued. Otherwise it returns why
// the order cannot be changed: ErrUnknownOrder if there is none.
func (s *Service) inProgress(ctx context.Context, id uuid.UUID) error {
	switch found, err := s.find(ctx, id); {
	case err != nil:
		return err
	case found.Status == Void:
		return ErrUnknownOrder
	}
	return ErrInProgress // queued, or recorded just now
}

// PlaceQueued places the order of a queued take that can no longer be committed, because
// the stock now belongs to another strategy, or because a void order has the order's ID.
// PlaceQueued takes the units again, like those of a new order, under the queued order's
// ID. Several instances may place the same order: the ledger records it once.
//
// Refused: the order is not placed, and this instance holds no units of it. Duplicate:
// another order has its ID. Unknown: the ledger did not answer. The order may be placed,
// and placing it again is safe.
func (s *Service) PlaceQueued(ctx context.Context, t stock.Take) Outcome {
	record := s.ledger.Record
	switch found, err := s.ledger.Order(ctx, t.OrderID); {
	case err == nil && found.Replaceable(): // of a take whose outcome was unknown; the order is still queued
		record = func(ctx context.Context, again stock.Take) (Order, Outcome) {
			return s.ledger.Replace(ctx, *found, again)
		}
	case err == nil:
		return placedBefore(t, found)
	case !errors.Is(err, ErrUnknownOrder):
		return Unknown(err)
	}
	for try := 1; ; try++ {
		out := s.placeAgain(ctx, t, record)
		if found, exists := out.Duplicate(); exists {
			return placedBefore(t, found)
		}
		if !out.Refused() || !stock.Reconcilable(out.Reason()) || try == maxTries {
			return out
		}
		if err := s.reconciler.Mend(ctx, out.Reason(), t.SKUs()...); err != nil {
			return Refused(err)
		}
		retry.Wait(ctx, try)
	}
}

// recordFunc records the order of a take.
type recordFunc = func(ctx context.Context, t stock.Take) (Order, Outcome)

// placeAgain takes the units of a queued order again, and records them.
func (s *Service) placeAgain(ctx context.Context, queued stock.Take, record recordFunc) Outcome {
	d := queued.Deduction
	d.TakeID, d.Queued = uuid.New(), queued.TakeID
	persist := func(ctx context.Context, again stock.Take) (o Order, out Outcome) {
		again.QueuedAt = queued.QueuedAt
		for try := 1; ; try++ {
			o, out = record(ctx, again)   // twice commits the take once
			if try > 1 && out.Refused() { // says nothing about the tries before
				out = Unknown(out.Reason())
			}
			if !out.Unknown() || try == maxTries || ctx.Err() != nil {
				return o, out
			}
			retry.Wait(ctx, try)
		}
	}
	if s.gate == nil { // no units need to go back, so an unknown outcome may stay unknown
		_, out := persist(ctx, stock.Take{Deduction: d})
		return out
	}
	_, out := s.attempt(ctx, d, persist)
	return out
}

// placedBefore returns the outcome of a queued take whose order the ledger has.
func placedBefore(t stock.Take, found *Order) Outcome {
	switch {
	case found.Holds(t.TakeID):
		return Committed()
	case found.Replaceable(): // since the ledger was asked; the order is still queued
		return Unknown(errVoided)
	}
	return Duplicate(found)
}

// Learn remembers the reason for which the ledger refused a queued order. asked is a
// time before the ledger was asked. Later orders may be refused at once for the same
// reason.
func (s *Service) Learn(asked time.Time, reason error) { s.hours.learn(asked, reason) }

// RulesChanged must be called when the rules of the SKU may have been changed. The
// next order asks the ledger.
func (s *Service) RulesChanged(sku stock.SKU) { s.hours.forget(sku) }
