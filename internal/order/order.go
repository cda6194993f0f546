// Package order places orders: it takes units at the gate, records the order in
// the ledger, and answers once the ledger has committed. docs/protocol.md has the
// rules that it follows.
package order

import (
	"errors"
	"fmt"

	"github.com/holdfast-stock/holdfast/internal/ledger"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// Order is the durable record of a deduction, as the ledger keeps it.
type Order = ledger.Order

// Request asks for an order.
type Request struct {
	Buyer string
	Key   string // the idempotency key; empty if there is none
	Lines []stock.Line
}

// Errors of placing and reading orders, beside those of package stock.
var (
	ErrUnknownOrder = errors.New("unknown order")
	// ErrInProgress: another request with the same key is under way, or the order
	// that is to be changed is still queued.
	ErrInProgress = errors.New("the order is in progress")
	// ErrKeyReused: the key was used for another set of lines before.
	ErrKeyReused = errors.New("the idempotency key was used for other lines")
)

// Errors of what happens to an order afterwards.
var (
	ErrUnknownPayment = errors.New("unknown payment")
	// ErrPaymentReused: the payment was reported for another order before.
	ErrPaymentReused = errors.New("the payment was reported for another order")
)

// RefundDue says that a payment does not pay its order and is due back to the
// buyer: it came too late, or was not the first. It is recorded.
type RefundDue struct {
	PaymentID string
	Status    ledger.Status // of the order
}

func (e *RefundDue) Error() string {
	return fmt.Sprintf("payment %s is due back to the buyer: the order is %s", e.PaymentID, e.Status)
}

// WrongStatus says that an order's status does not allow what was asked.
type WrongStatus struct{ Status ledger.Status }

func (e *WrongStatus) Error() string { return fmt.Sprintf("the order is %s", e.Status) }
