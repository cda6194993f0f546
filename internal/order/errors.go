package order

import (
	"errors"
	"fmt"
)

// Errors of placing and reading orders, beside those of package stock.
var (
	ErrUnknownOrder = errors.New("unknown order")
	// ErrInProgress means that another request with the same key is under way, or that the order to
	// change is still queued.
	ErrInProgress = errors.New("the order is in progress")
	// ErrKeyReused means that the key was used for another set of lines before.
	ErrKeyReused = errors.New("the idempotency key was used for other lines")
)

// Errors of changes of an order.
var (
	ErrUnknownPayment = errors.New("unknown payment")
	// ErrPaymentReused means that the payment was reported for another order before.
	ErrPaymentReused = errors.New("the payment was reported for another order")
	// ErrRefundDue means that the payment does not pay the order. It comes as a *RefundDue.
	ErrRefundDue = errors.New("the payment is due back to the buyer")
	// ErrWrongStatus means that the order's status does not allow the change. It comes as a
	// *WrongStatus.
	ErrWrongStatus = errors.New("the order's status does not allow it")
)

// RefundDue is an ErrRefundDue with the payment. The payment came too late, or was not the first.
// It is recorded.
type RefundDue struct {
	PaymentID string
	Status    Status // status of the order
}

func (e *RefundDue) Error() string {
	return fmt.Sprintf("payment %s is due back to the buyer: the order is %s", e.PaymentID, e.Status)
}

// Unwrap returns ErrRefundDue, so that errors.Is finds it.
func (e *RefundDue) Unwrap() error { return ErrRefundDue }

// WrongStatus is an ErrWrongStatus with the order's status.
type WrongStatus struct{ Status Status }

func (e *WrongStatus) Error() string { return fmt.Sprintf("the order is %s", e.Status) }

// Unwrap returns ErrWrongStatus, so that errors.Is finds it.
func (e *WrongStatus) Unwrap() error { return ErrWrongStatus }
