// Package stock holds the words every way of cutting stock shares: what a
// deduction asks for, what a gate and a cutter promise, and the errors they
// answer with. It knows nothing of HTTP and nothing of how orders are kept.
//
// A gate admits, the ledger remembers, a lock only advises, the fence decides.
package stock

import (
	"errors"
	"fmt"
	"slices"
	"strings"

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
	if s == "" || len(s) > MaxIDLength || !alphanumeric(s[0]) {
		return false
	}
	for i := 1; i < len(s); i++ {
		if c := s[i]; !alphanumeric(c) && c != '.' && c != '_' && c != ':' && c != '-' {
			return false
		}
	}
	return true
}

func alphanumeric(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
}

// Line asks for units of one SKU.
type Line struct {
	SKU      SKU
	Quantity int64 // 1 to MaxQuantity
	// Epoch is set by Gate.Take: the epoch under which the gate cut the
	// units. It is 0 where no gate did.
	Epoch int64
	// Parts are set by the Take of a gate that divides SKUs into segments: the
	// segments that the units were cut from. nil: not known, or not divided.
	Parts []Part
}

// Part is what a line took from one segment.
type Part struct {
	Segment  int
	Quantity int64
}

// Deduction is one order's request for units, all lines or none.
type Deduction struct {
	OrderID uuid.UUID // the same for every try under one idempotency key and generation
	TakeID  uuid.UUID // fresh for every try
	Buyer   string    // empty for an administrator's shrinking of stock
	Lines   []Line    // 1 to MaxLines, by SKU, SKUs distinct
}

// SortLines puts lines in SKU order, the order in which every gate, cutter and
// lock takes them.
func SortLines(lines []Line) {
	slices.SortFunc(lines, func(a, b Line) int { return strings.Compare(string(a.SKU), string(b.SKU)) })
}

// SKUsOf returns the SKUs of the deductions, each once, in SKU order.
func SKUsOf(ds ...Deduction) []SKU {
	skus := make([]SKU, 0, len(ds))
	for _, d := range ds {
		for _, line := range d.Lines {
			skus = append(skus, line.SKU)
		}
	}
	slices.Sort(skus)
	return slices.Compact(skus)
}

// Level is what a gate counts for one SKU.
type Level struct {
	SKU       SKU
	Filled    bool  // the gate has a count for the SKU under its generation; else Available and InFlight are zero
	Epoch     int64 // the epoch it was filled under, of whatever generation; 0: never
	Available int64 // units not taken
	InFlight  int64 // units taken and not yet settled
	Err       error // the count could not be read, and nothing else is known
}

// Change is one addition to a stock row that the ledger has committed and the
// gate has yet to apply.
type Change struct {
	SKU    SKU
	Epoch  int64 // the stock row's epoch when the change was committed
	Number int64 // 1 for the first change under the epoch, then rising by 1
	Delta  int64 // units, > 0
}

// Errors that gates and cutters answer with. Those that concern one SKU come
// wrapped in a *Refusal.
var (
	ErrSoldOut    = errors.New("sold out")
	ErrNotFilled  = errors.New("the gate has no count for the SKU")
	ErrInFlight   = errors.New("another take of the same order is in flight")
	ErrBurned     = errors.New("the take was given back before it arrived")
	ErrBusy       = errors.New("too busy, nothing was cut")
	ErrStaleEpoch = errors.New("the gate's epoch is not the stock row's")
	ErrUnknownSKU = errors.New("unknown SKU")
	// ErrNotAdopted: the stock row belongs to an earlier generation and must be
	// adopted first.
	ErrNotAdopted = errors.New("the stock row belongs to an earlier generation")
	// ErrSuperseded: a stock row or a count belongs to a later generation than
	// the caller's.
	ErrSuperseded = errors.New("a later generation owns the stock")
	// ErrNoGeneration: the gate's store cannot run the caller's generation.
	ErrNoGeneration = errors.New("the gate's store does not run this generation")
	// ErrConflict asks the ledger to try again in a new transaction.
	ErrConflict = errors.New("the stock row changed since it was read")
	// ErrChangeGap: a change arrived before the one that precedes it, so the
	// gate has lost a write.
	ErrChangeGap = errors.New("the gate misses an earlier change")
)

// Refusal is a reason that concerns one SKU of a deduction.
type Refusal struct {
	SKU    SKU
	Reason error // one of the errors above
}

// Refuse names the SKU that reason concerns.
func Refuse(sku SKU, reason error) *Refusal { return &Refusal{SKU: sku, Reason: reason} }

func (r *Refusal) Error() string { return fmt.Sprintf("SKU %s: %v", r.SKU, r.Reason) }

// Unwrap returns the reason, so that errors.Is finds it.
func (r *Refusal) Unwrap() error { return r.Reason }

// Refuses reports whether err is a gate's own refusal of a take: nothing was
// cut, and nothing of the take is at the gate.
func Refuses(err error) bool {
	for _, reason := range []error{ErrSoldOut, ErrNotFilled, ErrInFlight, ErrBurned, ErrBusy, ErrSuperseded, ErrNoGeneration} {
		if errors.Is(err, reason) {
			return true
		}
	}
	return false
}
