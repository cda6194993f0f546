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

// Payment is a payment that a payment provider reported for an order.
type Payment struct {
	ID        string // the provider's ID, which is unique
	OrderID   uuid.UUID
	Status    PaymentStatus
	CreatedAt time.Time // when the payment was first reported, by the database's clock
	ChangedAt time.Time // when the status last changed
}

// PaymentStatus is the state of a payment.
type PaymentStatus string

// The statuses of a payment. Every reported payment has one of them.
const (
	PaymentPaid      PaymentStatus = "paid"       // the payment pays its order
	PaymentRefundDue PaymentStatus = "refund-due" // the payment must be paid back to the buyer
	PaymentRefunded  PaymentStatus = "refunded"   // the payment was paid back to the buyer
)

// PaymentFilter selects payments.
type PaymentFilter struct {
	Status PaymentStatus // empty: any
	After  string        // only payments whose IDs follow this ID
	Limit  int
}

// Pay reports a payment for an order, and returns the order that it pays. Payments may be reported
// late, repeatedly, and in any order relative to other events. Each payment either pays its order
// or is recorded as due back to the buyer, exactly once. A repeated report gets the same answer. An
// order that has expired is revived if its units can be cut again and the service allows it.
//
// Errors: ErrUnknownOrder, ErrInProgress if the order is queued, ErrPaymentReused, *RefundDue;
// ErrBusy and ErrSuperseded of package stock, after which nothing was recorded;
// stock.ErrUnavailable. A retry is safe.
func (s *Service) Pay(ctx context.Context, id uuid.UUID, payment string) (Order, error) {
	o, err := s.pay(ctx, id, payment)
	switch {
	case err != nil:
		return Order{}, s.changeError(ctx, id, "", err)
	case o.PaymentID != payment:
		s.metrics.changes.WithLabelValues(refundDue).Inc()
		return Order{}, &RefundDue{PaymentID: payment, Status: o.Status}
	}
	s.metrics.changes.WithLabelValues(string(o.Status)).Inc()
	return o, nil
}

func (s *Service) pay(ctx context.Context, id uuid.UUID, payment string) (Order, error) {
	var (
		late = s.late
		last error // why the latest try failed
	)
	for try := 1; try <= maxTries; try++ {
		found, _, err := s.ledger.Change(ctx, id, ChangeOptions{Payment: payment}, onPayment(payment, late))
		switch {
		case errors.Is(err, errDue):
			last = err
			if _, err := s.returning(ctx, id, "", onExpiry); err != nil {
				return Order{}, err
			}
			continue
		case errors.Is(err, stock.ErrRowChanged): // another report of the payment was faster
			last = err
			retry.Wait(ctx, try)
			continue
		case !errors.Is(err, errLate):
			return found, err
		}
		if err := s.reconciler.Usable(ctx); err != nil {
			return Order{}, err
		}
		revived, out := s.revive(ctx, found, payment)
		switch reason := out.Reason(); {
		case out.Committed():
			return revived, nil
		case out.Unknown():
			return Order{}, fmt.Errorf("%w: %w", stock.ErrUnavailable, reason)
		case errors.Is(reason, stock.ErrRowChanged), // another payment or recovery has changed the order
			errors.Is(reason, stock.ErrInFlight): // the order's first take, or another payment's, is not settled yet
			last = reason
		case stock.Reconcilable(reason):
			last = reason
			switch err := s.reconciler.PrepareRetry(ctx, reason, found.SKUs()...); {
			case stock.Final(err): // the SKU has no stock row any more
				late = Refuse
			case err != nil:
				return Order{}, err
			}
		case stock.Final(reason):
			late = Refuse
		default:
			return Order{}, reason
		}
		retry.Wait(ctx, try)
	}
	return Order{}, stock.Busy(last)
}

// revive cuts the units of an expired order again, and pays it. The gate may lack units that have
// returned, also those of this order. So revive does not believe that they are sold out until the
// gate has caught up.
func (s *Service) revive(ctx context.Context, expired Order, payment string) (Order, Outcome) {
	revived, out := s.reviveOnce(ctx, expired, payment)
	if !errors.Is(out.Reason(), stock.ErrSoldOut) {
		return revived, out
	}
	if err := s.reconciler.CatchUp(ctx, expired.SKUs()...); err != nil {
		return Order{}, Refused(err)
	}
	return s.reviveOnce(ctx, expired, payment)
}

func (s *Service) reviveOnce(ctx context.Context, expired Order, payment string) (Order, Outcome) {
	d := stock.Deduction{OrderID: expired.ID, TakeID: expired.NextTake(), Buyer: expired.Buyer, Lines: expired.Lines, Again: true}
	return s.takeAndRecord(ctx, d, func(ctx context.Context, t stock.Take) (Order, Outcome) {
		return s.ledger.Revive(ctx, expired, t, payment)
	})
}

// Refunded records that a due payment was paid back to the buyer, and returns the payment.
// Recording it again does nothing.
//
// Errors: ErrUnknownPayment; *WrongStatus if the payment pays an order; stock.ErrUnavailable. A
// retry is safe.
func (s *Service) Refunded(ctx context.Context, payment string) (Payment, error) {
	p, err := s.ledger.Refunded(ctx, payment)
	switch {
	case errors.Is(err, ErrUnknownPayment):
		return p, ErrUnknownPayment
	case err != nil:
		return p, fmt.Errorf("%w: %w", stock.ErrUnavailable, err)
	case p.Status != PaymentRefunded:
		return p, &WrongStatus{Status(p.Status)}
	}
	return p, nil
}

// Payments returns up to f.Limit payments, sorted by ID. next is the ID to continue
// after; it is empty at the end.
//
// Errors: stock.ErrUnavailable.
func (s *Service) Payments(ctx context.Context, f PaymentFilter) (page []Payment, next string, err error) {
	limit := f.Limit
	f.Limit++
	page, err = s.ledger.Payments(ctx, f)
	if err != nil {
		return nil, "", fmt.Errorf("%w: %w", stock.ErrUnavailable, err)
	}
	if len(page) > limit {
		page = page[:limit]
		next = page[limit-1].ID
	}
	return page, next, nil
}
