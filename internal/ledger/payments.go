package ledger

import (
	"time"

	"github.com/google/uuid"
)

// A placeholder until the branch of the lifecycle is merged, which replaces this file.

// Statuses that an order has after it was placed.
const (
	Queued   Status = "queued"
	Refunded Status = "refunded"
)

// Step is one status of an order and when the order got it.
type Step struct {
	Status Status
	At     time.Time
}

// PaymentStatus is what became of a payment.
type PaymentStatus string

// The statuses of payments.
const (
	PaymentPaid      PaymentStatus = "paid"
	PaymentRefundDue PaymentStatus = "refund-due"
	PaymentRefunded  PaymentStatus = "refunded"
)

// Payment is a payment that was reported for an order.
type Payment struct {
	ID                   string
	OrderID              uuid.UUID
	Status               PaymentStatus
	CreatedAt, ChangedAt time.Time
}

// OrderFilter selects a page of orders.
type OrderFilter struct {
	Buyer  string
	Status Status
	After  uuid.UUID
	Limit  int
}

// PaymentFilter selects a page of payments.
type PaymentFilter struct {
	Status PaymentStatus
	After  string
	Limit  int
}
