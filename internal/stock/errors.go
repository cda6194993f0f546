package stock

import (
	"errors"
	"fmt"
	"time"
)

// Errors of gates, of the ledger, and of the services over them. Those that
// concern one SKU come wrapped in a *Refusal.
var (
	ErrSoldOut    = errors.New("sold out")
	ErrUnknownSKU = errors.New("unknown SKU")

	// ErrBuyerLimit means that the buyer would hold more units of the SKU than allowed.
	ErrBuyerLimit = errors.New("the buyer limit is reached")
	// ErrNotOpen means that the SKU is not sold yet. It comes as a *NotOpen.
	ErrNotOpen = errors.New("not open yet")
	// ErrClosed means that the SKU is not sold any more.
	ErrClosed = errors.New("closed")

	// ErrNotFilled means that the gate has no count of the SKU.
	ErrNotFilled = errors.New("the gate has no count of the SKU")
	// ErrInFlight means that another take of the same order is in flight.
	ErrInFlight = errors.New("another take of the same order is in flight")
	// ErrBurned means that the take was given back before it arrived.
	ErrBurned = errors.New("the take was given back before it arrived")
	// ErrChangeGap means that the gate has not applied the previous change. It has lost a write.
	ErrChangeGap = errors.New("the gate has not applied an earlier change")

	// ErrStaleEpoch means that the gate cut under another epoch than the stock row's.
	ErrStaleEpoch = errors.New("the gate's epoch differs from the stock row's")
	// ErrNotAdopted means that the stock row belongs to an earlier generation. It must be adopted
	// before units are cut.
	ErrNotAdopted = errors.New("the stock row belongs to an earlier generation")
	// ErrLaterGeneration means that a stock row or a count belongs to a later generation than the
	// caller's.
	ErrLaterGeneration = errors.New("a later generation owns the stock")
	// ErrRowChanged means that a row of the ledger differs from the row that the caller read. Read
	// it again.
	ErrRowChanged = errors.New("the row changed since it was read")
	// ErrNoGeneration means that the gate's store cannot run the caller's generation.
	ErrNoGeneration = errors.New("the gate's store does not run this generation")

	// ErrBusy means that nothing was cut or changed. Try again. The error that wraps it has the
	// cause: overload, or a store that cannot be reached.
	ErrBusy = errors.New("nothing was changed")
	// ErrUnavailable means that a store did not answer and the outcome is unknown. A retry with the
	// same idempotency key is safe.
	ErrUnavailable = errors.New("a store did not answer; the outcome is unknown")
	// ErrSuperseded means that another strategy or layout has taken over the stock. Nothing was
	// cut, and this instance cannot cut until an instance of its layout takes the stock back.
	ErrSuperseded = errors.New("another strategy or layout has taken over the stock")

	// ErrBelowSold means that the new total is less than the units sold or in flight.
	ErrBelowSold = errors.New("the total would be less than what is sold")
	// ErrKindFixed means that the kind of a SKU cannot change.
	ErrKindFixed = errors.New("the kind of a SKU cannot change")
	// ErrHours means that the opening hours would end before they begin.
	ErrHours = errors.New("closes_at must be after opens_at")
)

// NotOpen is an ErrNotOpen with the time at which sales begin.
type NotOpen struct {
	OpensAt time.Time
	// In is how long before OpensAt the database's clock was read.
	In time.Duration
}

func (e *NotOpen) Error() string {
	return fmt.Sprintf("%v: opens at %v", ErrNotOpen, e.OpensAt.Format(time.RFC3339Nano))
}

// Unwrap returns ErrNotOpen, so that errors.Is finds it.
func (e *NotOpen) Unwrap() error { return ErrNotOpen }

// Refusal is a reason to refuse a deduction because of one of its SKUs.
type Refusal struct {
	SKU    SKU
	Reason error // one of this package's errors
}

// Refuse returns the refusal of sku for reason.
func Refuse(sku SKU, reason error) *Refusal { return &Refusal{SKU: sku, Reason: reason} }

func (r *Refusal) Error() string { return fmt.Sprintf("SKU %s: %v", r.SKU, r.Reason) }

// Unwrap returns the reason, so that errors.Is finds it.
func (r *Refusal) Unwrap() error { return r.Reason }

// Busy returns the cause as an ErrBusy, which it may be already.
func Busy(cause error) error {
	if errors.Is(cause, ErrBusy) {
		return cause
	}
	return fmt.Errorf("%w: %w", ErrBusy, cause)
}

// NothingTaken reports whether err is a gate's own refusal of a take: nothing
// was cut, and the gate has no record of the take. Every other error leaves the
// outcome open, and the caller must give the take back.
func NothingTaken(err error) bool {
	return Reconcilable(err) || isAny(err, ErrSoldOut, ErrInFlight, ErrBurned, ErrBusy)
}

// Reconcilable reports whether err says that gate and ledger disagree about an
// epoch or a generation. The caller can try again once they are reconciled.
func Reconcilable(err error) bool {
	return isAny(err, ErrNotFilled, ErrStaleEpoch, ErrNotAdopted, ErrLaterGeneration, ErrNoGeneration)
}

// Final reports whether err refuses the deduction itself. Then no change of epoch or generation
// would allow it.
func Final(err error) bool {
	return isAny(err, ErrSoldOut, ErrUnknownSKU, ErrBuyerLimit, ErrNotOpen, ErrClosed)
}

func isAny(err error, targets ...error) bool {
	for _, target := range targets {
		if errors.Is(err, target) {
			return true
		}
	}
	return false
}
