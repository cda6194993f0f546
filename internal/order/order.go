// Package order places orders: it takes units at a gate, records orders in the
// ledger, and mends what a crash, a lost answer or a forgetful Redis left in
// between. The rules are those of docs/protocol.md.
package order

import (
	"errors"
	"time"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

// Status says what became of an order.
type Status string

// The statuses. A void order never was one: its row keeps a transaction whose
// outcome was unknown from committing later.
const (
	Pending   Status = "pending"
	Paid      Status = "paid"
	Cancelled Status = "cancelled"
	Expired   Status = "expired"
	Void      Status = "void"
)

// Order is the durable record of a deduction and of what became of it.
type Order struct {
	ID        uuid.UUID
	Buyer     string
	Status    Status
	Lines     []stock.Line // by SKU
	Strategy  string       // the strategy that cut the units
	CreatedAt time.Time    // UTC, whole microseconds
	ExpiresAt time.Time    // zero: it does not expire
}

// Request asks for an order.
type Request struct {
	Buyer string
	Key   string // the idempotency key; empty: none
	Lines []stock.Line
}

// Setting is what an administrator says of a SKU.
type Setting struct {
	SKU   stock.SKU
	Kind  stock.Kind
	Total int64
}

// Stock is the count of one SKU as it stands.
type Stock struct {
	SKU        stock.SKU
	Kind       stock.Kind
	Total      int64
	Available  int64 // the gate's count, or the stock row's without a gate
	Sold       int64 // Total less the stock row's available
	BuyerLimit int64
}

// Audit holds a SKU's counts against one another. It is exact at rest.
type Audit struct {
	SKU             stock.SKU
	Total           int64
	Sold            int64  // recounted from the lines of pending and paid orders
	Oversold        int64  // units sold beyond Total
	GateAvailable   *int64 // nil without a gate
	GateInFlight    *int64 // units; nil without a gate
	LedgerAvailable int64
	// Drift is available + in flight + sold - total by the gate's count, or by
	// the stock row's where there is no gate.
	Drift int64
}

// Errors of the service, beside stock.ErrSoldOut and stock.ErrUnknownSKU (both
// as *stock.Refusal).
var (
	ErrUnknownOrder = errors.New("unknown order")
	// ErrInProgress: another request with the same key is under way.
	ErrInProgress = errors.New("a request with this idempotency key is in progress")
	// ErrKeyReused: the key named another set of lines before.
	ErrKeyReused = errors.New("the idempotency key was used for other lines")
	// ErrBusy: nothing was cut; try again.
	ErrBusy = errors.New("too busy; nothing was cut")
	// ErrUnavailable: a store did not answer and the outcome is open; trying
	// again with the same key is safe.
	ErrUnavailable = errors.New("a store did not answer; the outcome is open")
	// ErrSuperseded: another strategy or layout has taken the stock over;
	// nothing was cut.
	ErrSuperseded = errors.New("another strategy or layout has taken the stock over")
	// ErrBelowSold: the new total is less than what is sold or in flight.
	ErrBelowSold = errors.New("the total would be less than what is sold")
	// ErrKindFixed: a SKU's kind cannot change.
	ErrKindFixed = errors.New("the kind of a SKU cannot change")
)
