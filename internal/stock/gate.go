package stock

import (
	"context"
	"time"
)

// Gate is the fast count that admits a deduction before the database sees it.
// It never invents stock: what it was not filled with it does not give away.
//
// Implementations are safe for concurrent use, by several processes over one
// store too, as far as their strategy promises it. An error that is none of
// this package's leaves the outcome open: the caller gives the take back.
type Gate interface {
	// Take cuts all lines or none, and in the same step records the deduction
	// as in flight. It returns the deduction with each line's epoch. The same
	// take sent again gets its first answer.
	//
	// Errors: ErrSoldOut and ErrNotFilled (as *Refusal), ErrInFlight,
	// ErrBurned, ErrBusy.
	Take(ctx context.Context, d Deduction) (Deduction, error)

	// Settle forgets the records of takes that the ledger has. A take that is
	// not in flight, or another's, is passed over.
	Settle(ctx context.Context, ds ...Deduction) error

	// Give returns the units that the take's records say, once; a take that
	// has no record is burned, so that it cannot arrive later.
	Give(ctx context.Context, d Deduction) error

	// Fill replaces the SKU's count and forgets what was in flight, under a
	// new epoch. ErrStaleEpoch: the gate has been filled under this epoch or
	// a later one.
	Fill(ctx context.Context, sku SKU, epoch, units int64) error

	// Adjust applies an addition once, and drops it if the gate was filled
	// under a later epoch, as that fill has counted it. Nothing was applied
	// with ErrNotFilled (as *Refusal): the gate was not filled under the
	// change's epoch yet, and a fill on its way may not have counted it; and
	// with ErrChangeGap (as *Refusal): the change before this one is missing.
	Adjust(ctx context.Context, c Change) error

	// InFlight lists takes of the SKUs that were recorded at least olderThan
	// ago by the gate's own clock, limit at the most. Each comes once, with
	// all its lines.
	InFlight(ctx context.Context, olderThan time.Duration, limit int, skus ...SKU) ([]Deduction, error)

	// Level returns the counts of the SKUs, in their order.
	Level(ctx context.Context, skus ...SKU) ([]Level, error)
}
