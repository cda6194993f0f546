// Package stock defines the terms that every way of cutting stock shares: SKUs,
// deductions, takes, epochs, and the errors. It depends
// on no HTTP, SQL or Redis package.
//
// A gate admits, the ledger remembers, a lock only advises, the fence decides.
package stock

import (
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
)

// Limits of a deduction. They bound every request, record and script call.
const (
	MaxLines    = 20
	MaxQuantity = 1000
	MaxTotal    = 1_000_000_000
	MaxIDLength = 64
)

// SKU names what is counted: 1–64 of [A-Za-z0-9._:-], the first a letter or a
// digit.
type SKU string

// Kind says what a SKU is.
type Kind string

// The kinds of SKU.
const (
	Product Kind = "product"
	Coupon  Kind = "coupon"
)

// Valid reports whether k is a known kind.
func (k Kind) Valid() bool { return k == Product || k == Coupon }

// ValidID reports whether s may name a SKU or a buyer.
func ValidID(s string) bool {
	if s == "" || len(s) > MaxIDLength {
		return false
	}
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case i > 0 && (c == '.' || c == '_' || c == ':' || c == '-'):
		default:
			return false
		}
	}
	return true
}

// Line asks for units of one SKU. Its names in JSON are part of the HTTP contract.
type Line struct {
	SKU      SKU   `json:"sku"`
	Quantity int64 `json:"quantity"` // 1 to MaxQuantity
}

// Deduction is one order's request for units: all lines or none.
type Deduction struct {
	OrderID uuid.UUID // OrderID is the same for all attempts under one idempotency key
	TakeID  uuid.UUID // TakeID is new for every attempt
	Buyer   string    // empty if an administrator removes stock
	Lines   []Line    // 1 to MaxLines, sorted by SKU, SKUs distinct
	// Trace is the traceparent of a request whose order is queued, so that its consumer can
	// continue the trace. It is empty if there is no trace, or if the order is not queued.
	Trace string
	// Again says that an earlier take of the order was committed, and that its units have been
	// returned since. The gate may still have records of the earlier take.
	Again bool
}

// SKUs returns the SKUs of the lines, in SKU order.
func (d Deduction) SKUs() []SKU { return SKUsOf(Take{Deduction: d}) }

// SortLines sorts lines by SKU, the order in which gates, cutters and locks take
// them.
func SortLines(lines []Line) {
	slices.SortFunc(lines, func(a, b Line) int { return strings.Compare(string(a.SKU), string(b.SKU)) })
}

// Level is a gate's count of one SKU.
type Level struct {
	SKU       SKU
	Filled    bool  // the gate has a count of the SKU under its generation; if not, Available and InFlight are 0
	Epoch     int64 // the epoch of the last fill, of any generation; 0: the count was not filled
	Available int64 // units not taken
	InFlight  int64 // units taken and not yet settled
	Err       error // if not nil, the count could not be read and the other fields are unknown
}

// FilledUnder reports whether the gate has a count of the SKU under the epoch.
func (l Level) FilledUnder(epoch int64) bool { return l.Filled && l.Epoch == epoch }

// Fill is the new count of a SKU at the gate: its available units under an epoch.
type Fill struct {
	SKU          SKU
	Epoch, Units int64
}

// Setting is what an administrator sets for a SKU.
type Setting struct {
	SKU   SKU
	Kind  Kind
	Total int64 // 0 to MaxTotal

	// The rules say how much one buyer may hold, and when units are sold. For nil, an existing SKU
	// keeps its rule, and a new SKU has none.
	BuyerLimit *int64     // units that one buyer may hold, 0 to MaxTotal; 0: any number
	OpensAt    *time.Time // when sales begin; the zero time: sales have begun
	ClosesAt   *time.Time // when sales end; the zero time: sales do not end
}

// Change is one addition to a stock row that the ledger has committed and the
// gate has not applied yet.
type Change struct {
	SKU    SKU
	Epoch  int64 // the stock row's epoch when the change was committed
	Number int64 // 1 for the first change under the epoch, then rising by 1
	Delta  int64 // units, > 0
}
