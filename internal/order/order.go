// Package order owns orders, their payments, and the rules for their changes: see Order and
// transitions. Its Service takes units at the gate, records the order in the ledger, and answers
// once the ledger has committed. docs/protocol.md has the rules that it follows.
package order

import (
	"bytes"
	"crypto/sha256"
	"time"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

// Status is the state of an order.
type Status string

// The statuses.
const (
	Pending   Status = "pending"
	Paid      Status = "paid"
	Cancelled Status = "cancelled"
	Expired   Status = "expired"
	Refunded  Status = "refunded"
	// Queued is the status of an accepted order that the ledger does not have yet. No row has this
	// status.
	Queued Status = "queued"
	// TurnedDown is the final status of a queued order that was refused.
	TurnedDown Status = "refused"
	// Void marks a row that is not an order. It keeps a transaction whose outcome was unknown from
	// committing an order under the ID later.
	Void Status = "void"
)

// Order is the durable record of a deduction and of its outcome.
type Order struct {
	ID        uuid.UUID
	TakeID    uuid.UUID // the last take that cut the order's units
	Buyer     string
	Status    Status
	Lines     []stock.Line // sorted by SKU
	Strategy  string       // the strategy that cut the units
	CreatedAt time.Time    // UTC, whole microseconds
	ExpiresAt time.Time    // the zero time: the order does not expire
	// QueuedUntil is the time at which the ledger recorded a queued order. It is zero if the order
	// was never queued, or still is.
	QueuedUntil time.Time
	Version     int64  // number of changes of the order
	PaymentID   string // the payment that paid the order; empty: no payment has paid the order
	Restocked   bool   // a refund returned the order's units
	History     []Step // changes since CreatedAt; only set where a method says so
}

// Step is one entry of an order's history.
type Step struct {
	Status Status
	At     time.Time // UTC, whole microseconds
}

// Filter selects orders.
type Filter struct {
	Buyer  string    // empty: any
	Status Status    // empty: any
	After  uuid.UUID // only orders whose IDs follow this ID
	Limit  int
}

// Request asks for an order.
type Request struct {
	Buyer string
	Key   string // the idempotency key; empty: the request has no key
	Lines []stock.Line
}

// New returns the order of a take under a strategy. The caller must set its times with RecordedAt,
// unless its status is Queued. A void order has no lines.
func New(t stock.Take, status Status, strategy string) Order {
	o := Order{
		ID: t.OrderID, TakeID: t.TakeID, Buyer: t.Buyer, Status: status, Lines: t.Lines,
		Strategy: strategy, CreatedAt: t.QueuedAt,
	}
	if status != Queued {
		o.QueuedUntil = t.QueuedAt
	}
	if status == Void {
		o.Lines = nil
	}
	return o
}

// SKUs returns the SKUs of the order's lines.
func (o *Order) SKUs() []stock.SKU {
	skus := make([]stock.SKU, len(o.Lines))
	for i, line := range o.Lines {
		skus[i] = line.SKU
	}
	return skus
}

// RecordedAt sets the times of an order that is recorded now. An order that was queued keeps its
// creation time.
func (o *Order) RecordedAt(now, expires time.Time) {
	if o.QueuedUntil.IsZero() {
		o.CreatedAt = now
	} else {
		o.QueuedUntil = now
	}
	o.ExpiresAt = expires
}

// Holds reports whether the take was committed: it cut the order's units, or a revival cut them
// again after it. The row of a refused or void order names a take that was not committed.
func (o *Order) Holds(take uuid.UUID) bool {
	return (o.TakeID == take || follows(o.TakeID, take)) && o.Status != Void && o.Status != TurnedDown
}

// NextTake returns a new ID for the take that cuts the order's units again when the order is
// revived. The order will then name the new take. The first half of the new ID is a hash of
// o.TakeID. So the order still shows that the earlier take was committed: see Holds.
func (o *Order) NextTake() uuid.UUID {
	id, hash := uuid.New(), hashOf(o.TakeID)
	copy(id[:], hash[:])
	return id
}

// follows reports whether the take's ID is a NextTake of the earlier one.
func follows(take, earlier uuid.UUID) bool {
	hash := hashOf(earlier)
	return bytes.HasPrefix(take[:], hash[:])
}

// hashOf returns the first half of the IDs that NextTake returns. They are UUIDs of
// version 8, so a random ID never follows another take.
func hashOf(take uuid.UUID) [8]byte {
	hash := uuid.NewHash(sha256.New(), take, nil, 8)
	return [8]byte(hash[:8])
}
