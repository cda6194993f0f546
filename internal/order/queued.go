package order

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/ledger"
	"github.com/holdfast-stock/holdfast/internal/retry"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// Journal is what placing needs of a gate's journal. See stock.Journal.
type Journal interface {
	Queue(ctx context.Context, d stock.Deduction, at time.Time) (stock.Take, error)
	Finish(ctx context.Context, takes ...stock.Take) error
}

// Queued finds queued orders, also those that another strategy has queued. See
// stock.QueuedOrders.
type Queued interface {
	Queued(ctx context.Context, order uuid.UUID) (stock.Take, error)
}

// enqueue takes the units at the gate and queues the order, once. The outcome is
// Committed if the order is queued: its consumer brings it to an end.
//
// The gate knows only the orders that are queued or in flight. So a keyed order is
// looked up in the ledger before it counts as queued, and after it was taken: an
// earlier order of the key had left the gate before the take, so the ledger had it.
func (s *Service) enqueue(ctx context.Context, d stock.Deduction, keyed bool) (Order, ledger.Outcome) {
	now, err := s.ledger.Now()
	if err != nil {
		return Order{}, ledger.Refused(fmt.Errorf("%w: %w", stock.ErrBusy, err))
	}
	start := time.Now()
	take, err := s.journal.Queue(ctx, d, now)
	s.metrics.gateSeconds.Observe(time.Since(start).Seconds())
	switch {
	case stock.NothingTaken(err):
		return Order{}, ledger.Refused(err)
	case err != nil: // it may be queued, and then a consumer may commit it: nothing is given back
		return Order{}, ledger.Unknown(fmt.Errorf("queueing the order: %w", err))
	case !keyed:
		return s.ledger.Queued(take), ledger.Committed()
	}
	switch found, err := s.ledger.Order(ctx, d.OrderID); {
	case err == nil && found.TakeID == take.TakeID: // a consumer was fast
	case err == nil:
		s.withdraw(ctx, take)
		return Order{}, ledger.Duplicate(found)
	case !errors.Is(err, ledger.ErrNoOrder):
		return Order{}, ledger.Unknown(err)
	}
	return s.ledger.Queued(take), ledger.Committed()
}

// withdraw removes a queued order whose ID the ledger has already, for another take: no
// consumer can commit this one. If withdraw fails, a consumer does the rest.
func (s *Service) withdraw(ctx context.Context, t stock.Take) {
	if s.reconciler.GiveBack(ctx, t) {
		_ = s.journal.Finish(ctx, t)
	}
}

// find reads an order from the ledger, or from the journal if it is still queued.
// ledger.ErrNoOrder: there is none.
func (s *Service) find(ctx context.Context, id uuid.UUID) (*Order, error) {
	found, err := s.ledger.Order(ctx, id)
	if s.queued == nil || !mayBeQueued(found, err) {
		return found, err
	}
	t, queuedErr := s.queued.Queued(ctx, id)
	if queuedErr != nil && !errors.Is(queuedErr, stock.ErrNotQueued) {
		return nil, queuedErr
	}
	// Ask the ledger again: an order leaves the journal when the ledger has it, and
	// the first answer may be older than that.
	found, err = s.ledger.Order(ctx, id)
	if queuedErr == nil && mayBeQueued(found, err) {
		o := s.ledger.Queued(t)
		return &o, nil
	}
	return found, err
}

// mayBeQueued reports whether the order for which the ledger has this answer may be
// queued. It may if it is void: its consumer then replaces the void order.
func mayBeQueued(found *Order, err error) bool {
	return errors.Is(err, ledger.ErrNoOrder) || err == nil && found.Status == ledger.Void
}

// inProgress returns ErrInProgress if the order is queued. Otherwise it returns why
// the order cannot be changed: ledger.ErrNoOrder if there is none.
func (s *Service) inProgress(ctx context.Context, id uuid.UUID) error {
	switch found, err := s.find(ctx, id); {
	case err != nil:
		return err
	case found.Status == ledger.Void:
		return ledger.ErrNoOrder
	}
	return ErrInProgress // queued, or recorded just now
}

// PlaceQueued places the order of a take that another strategy has cut and queued. That
// take can no longer be committed, because the stock now belongs to this instance's
// strategy. So PlaceQueued takes the units again, like those of a new order, under the
// queued order's ID. Several instances may place the same order: the ledger records it
// once.
//
// Refused: the order is not placed, and this instance holds no units of it. Duplicate:
// another row has the order's ID.
func (s *Service) PlaceQueued(ctx context.Context, t stock.Take) ledger.Outcome {
	switch found, err := s.ledger.Order(ctx, t.OrderID); {
	case err == nil:
		return placedBefore(t, found)
	case !errors.Is(err, ledger.ErrNoOrder):
		return ledger.Unknown(err)
	}
	record := func(ctx context.Context, again stock.Take) (o Order, out ledger.Outcome) {
		again.QueuedAt = t.QueuedAt
		for try := 1; ; try++ {
			// Recording a take twice commits it once. A void order, by which End
			// resolves an unknown outcome, would refuse what was acknowledged.
			o, out = s.ledger.Record(ctx, again)
			if try > 1 && out.Refused() { // says nothing about the tries before
				out = ledger.Unknown(out.Reason())
			}
			if !out.Unknown() || try == maxTries || ctx.Err() != nil {
				return o, out
			}
			retry.Wait(ctx, try)
		}
	}
	for try := 1; ; try++ {
		d := t.Deduction
		d.TakeID = uuid.New()
		_, out := s.attempt(ctx, d, record)
		if found, exists := out.Duplicate(); exists {
			return placedBefore(t, found)
		}
		if !out.Refused() || !stock.Reconcilable(out.Reason()) || try == maxTries {
			return out
		}
		if err := s.reconciler.Mend(ctx, out.Reason(), d.SKUs()...); err != nil {
			return ledger.Refused(err)
		}
		retry.Wait(ctx, try)
	}
}

// placedBefore returns the outcome of a queued take whose order the ledger has.
func placedBefore(t stock.Take, found *Order) ledger.Outcome {
	if found.Holds(t.TakeID) {
		return ledger.Committed()
	}
	return ledger.Duplicate(found)
}

// Learn remembers the reason for which the ledger refused a queued order. asked is a
// time before the ledger was asked. Later orders may be refused at once for the same
// reason.
func (s *Service) Learn(asked time.Time, reason error) { s.hours.learn(asked, reason) }
