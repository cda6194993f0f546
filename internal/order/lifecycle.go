package order

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

// Cancel cancels a pending order and returns its units to stock. Cancelling it again does nothing.
// If buyer is not empty, another buyer's order counts as unknown.
//
// Errors: ErrUnknownOrder, ErrInProgress if the order is queued, *WrongStatus; stock.ErrBusy, after
// which nothing was changed; stock.ErrUnavailable. A retry is safe.
func (s *Service) Cancel(ctx context.Context, id uuid.UUID, buyer string) (Order, error) {
	return s.end(ctx, id, buyer, onCancel)
}

// Refund refunds a paid order, and returns its units to stock if restock is true. The payment must
// then be paid back to the buyer. Refunding the order again does nothing.
//
// Errors: those of Cancel.
func (s *Service) Refund(ctx context.Context, id uuid.UUID, restock bool) (Order, error) {
	return s.end(ctx, id, "", onRefund(restock))
}

// end makes a change that ends an order and may return its units.
func (s *Service) end(ctx context.Context, id uuid.UUID, buyer string, decide Decide) (Order, error) {
	o, err := s.returning(ctx, id, buyer, decide)
	if err != nil {
		return Order{}, s.changeError(ctx, id, buyer, err)
	}
	s.metrics.changes.WithLabelValues(string(o.Status)).Inc()
	return o, nil
}

// returning makes a change that may return the order's units, and brings them to
// the gate.
func (s *Service) returning(ctx context.Context, id uuid.UUID, buyer string, decide Decide) (Order, error) {
	o, returned, err := s.ledger.Change(ctx, id, ChangeOptions{Buyer: buyer, Returns: true}, decide)
	if err != nil {
		return Order{}, err
	}
	s.StockChanged(o.SKUs()...)
	s.reconciler.BringToGate(ctx, returned...)
	return o, nil
}

// changeError returns err in the form that the methods for changes document. An order that the
// ledger does not have may be queued.
func (s *Service) changeError(ctx context.Context, id uuid.UUID, buyer string, err error) error {
	if errors.Is(err, ErrUnknownOrder) {
		err = s.inProgress(ctx, id, buyer)
	}
	switch {
	case errors.Is(err, ErrInProgress):
		return err
	case errors.Is(err, ErrUnknownOrder):
		return ErrUnknownOrder
	case errors.Is(err, ErrPaymentReused), errors.As(err, new(*WrongStatus)):
		return err
	case errors.Is(err, stock.ErrUnavailable), errors.Is(err, stock.ErrSuperseded):
		return err
	case stock.NothingTaken(err): // ErrBusy, too
		return stock.Busy(err)
	}
	return fmt.Errorf("%w: %w", stock.ErrUnavailable, err)
}

// List returns up to f.Limit orders, sorted by ID, without their histories. next is
// the ID to continue after; it is uuid.Nil at the end.
//
// Errors: stock.ErrUnavailable.
func (s *Service) List(ctx context.Context, f Filter) (page []Order, next uuid.UUID, err error) {
	limit := f.Limit
	f.Limit++
	page, err = s.ledger.Orders(ctx, f)
	if err != nil {
		return nil, uuid.Nil, fmt.Errorf("%w: %w", stock.ErrUnavailable, err)
	}
	if len(page) > limit {
		page = page[:limit]
		next = page[limit-1].ID
	}
	return page, next, nil
}
