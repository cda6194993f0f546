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
//
// A gate runs under one generation. It believes no count that was filled under
// another, and whatever its store has kept of earlier generations cannot run
// under this one. ErrNoGeneration is the answer of every call that the store
// cannot run under the generation: nothing was done.
type Gate interface {
	// Use makes the gate run under the generation from now on. A gate that
	// was never told runs under none.
	Use(g Generation)

	// Load enables the store, all of its servers, to run the generation. Only
	// the caller that raised the ledger to the generation may call it, and only
	// once, whatever it returned: a store that came back with old data after
	// the first Load must not run the generation.
	Load(ctx context.Context, g Generation) error

	// Loaded reports whether every server of the store can run the generation
	// that the gate uses.
	Loaded(ctx context.Context) (bool, error)

	// Mark returns the store's mark; a store without one has the zero Mark.
	Mark(ctx context.Context) (Mark, error)

	// SetMark replaces the store's mark.
	SetMark(ctx context.Context, m Mark) error

	// Take cuts all lines or none, and in the same step records the deduction
	// as in flight. It returns the deduction with each line's epoch. The same
	// take sent again gets its first answer.
	//
	// Errors: ErrSoldOut, ErrNotFilled and ErrSuperseded (as *Refusal),
	// ErrInFlight, ErrBurned, ErrBusy, ErrNoGeneration. See Refuses.
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
	// all its lines. Beside an error, the list has what could be read.
	InFlight(ctx context.Context, olderThan time.Duration, limit int, skus ...SKU) ([]Deduction, error)

	// Level returns the counts of the SKUs, in their order. One that could
	// not be read has its Err; the error joins them.
	Level(ctx context.Context, skus ...SKU) ([]Level, error)
}
