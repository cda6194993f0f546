package order

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/ledger"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// Journal is what placing needs of a gate's journal. See stock.Journal.
type Journal interface {
	Queue(ctx context.Context, d stock.Deduction, at time.Time) (stock.Take, error)
	Queued(ctx context.Context, order uuid.UUID) (stock.Take, error)
	Finish(ctx context.Context, takes ...stock.Take) error
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
	if s.journal == nil || !mayBeQueued(found, err) {
		return found, err
	}
	t, queuedErr := s.journal.Queued(ctx, id)
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

// Learn remembers the reason for which the ledger refused a queued order. asked is a
// time before the ledger was asked. Later orders may be refused at once for the same
// reason.
func (s *Service) Learn(asked time.Time, reason error) { s.hours.learn(asked, reason) }
