package order

import (
	"time"

	"github.com/google/uuid"
)

// Payment is a payment that a payment provider reported for an order.
type Payment struct {
	ID        string // the provider's, unique
	OrderID   uuid.UUID
	Status    PaymentStatus
	CreatedAt time.Time // when it was first reported, by the database's clock
	ChangedAt time.Time // when its status last changed
}

// PaymentStatus is what became of a payment.
type PaymentStatus string

// The statuses of a payment. Every payment that is reported has one of them.
const (
	PaymentPaid      PaymentStatus = "paid"       // it pays its order
	PaymentRefundDue PaymentStatus = "refund-due" // it must go back to the buyer
	PaymentRefunded  PaymentStatus = "refunded"   // it went back to the buyer
)

// PaymentFilter selects payments.
type PaymentFilter struct {
	Status PaymentStatus // empty: any
	After  string        // only IDs that follow this one
	Limit  int
}
