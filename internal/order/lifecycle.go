package order

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/ledger"
)

// A placeholder until the branch of the lifecycle is merged, which replaces this file.

// Errors of payments.
var (
	ErrUnknownPayment = errors.New("unknown payment")
	ErrPaymentReused  = errors.New("the payment belongs to another order")
	errMissing        = errors.New("not implemented")
)

// RefundDue reports a payment that does not pay its order.
type RefundDue struct {
	PaymentID string
	Status    ledger.Status
}

func (r *RefundDue) Error() string { return fmt.Sprintf("payment %s is refund-due", r.PaymentID) }

// WrongStatus reports that the order's status does not allow the change.
type WrongStatus struct{ Status ledger.Status }

func (w *WrongStatus) Error() string { return fmt.Sprintf("the order is %s", w.Status) }

// Pay is not implemented.
func (s *Service) Pay(context.Context, uuid.UUID, string) (Order, error) {
	return Order{}, errMissing
}

// Cancel is not implemented.
func (s *Service) Cancel(context.Context, uuid.UUID) (Order, error) { return Order{}, errMissing }

// Refund is not implemented.
func (s *Service) Refund(context.Context, uuid.UUID, bool) (Order, error) {
	return Order{}, errMissing
}

// List is not implemented.
func (s *Service) List(context.Context, ledger.OrderFilter) ([]Order, uuid.UUID, error) {
	return nil, uuid.Nil, errMissing
}

// Payments is not implemented.
func (s *Service) Payments(context.Context, ledger.PaymentFilter) ([]ledger.Payment, string, error) {
	return nil, "", errMissing
}

// Refunded is not implemented.
func (s *Service) Refunded(context.Context, string) (ledger.Payment, error) {
	return ledger.Payment{}, errMissing
}
