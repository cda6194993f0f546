package stock

import (
	"context"
	"time"
)

// Gate is the fast count that admits a deduction before the database sees it. A
// gate never admits more than it was filled with.
//
// Implementations are safe for concurrent use, also by several processes that
// share a store, as far as their strategy promises it. An error that is not one
// of this package's leaves the outcome open: the caller must give the take back.
//
// A gate runs under one generation. It ignores counts that were filled under
// another, and scripts of earlier generations cannot run under this one. Every
// call answers ErrNoGeneration, and does nothing, if the store cannot run the
// generation.
type Gate interface {
	// Use makes the gate run under generation g from now on. A new gate runs
	// under no generation.
	Use(g Generation)

	// Load enables every server of the store to run generation g. Only the
	// caller that raised the ledger to g may call it, and only once, whatever
	// it returned: a store that came back with old data after the first Load
	// must not run g.
	Load(ctx context.Context, g Generation) error

	// Loaded reports whether every server of the store can run the generation
	// in use.
	Loaded(ctx context.Context) (bool, error)

	// Mark returns the store's mark, or the zero Mark if it has none.
	Mark(ctx context.Context) (Mark, error)

	// SetMark replaces the store's mark, unless that is of a later generation.
	SetMark(ctx context.Context, m Mark) error

	// Take cuts all lines or none, and records the deduction as in flight in
	// the same step. The same deduction sent again gets its first answer. If d.Again
	// is true and any record of another take of the order is left, Take cuts nothing
	// and returns ErrInFlight.
	//
	// Errors: ErrSoldOut, ErrNotFilled and ErrLaterGeneration (as *Refusal),
	// ErrInFlight, ErrBurned, ErrBusy, ErrNoGeneration. See NothingTaken.
	Take(ctx context.Context, d Deduction) (Take, error)

	// Settle removes the records of takes that the ledger has. It ignores a
	// take that is not in flight, or whose order another take holds.
	Settle(ctx context.Context, takes ...Take) error

	// Give returns the units that the take's records name, once. It burns a
	// take that has no record, so that the take cannot arrive later.
	Give(ctx context.Context, t Take) error

	// Fill replaces the SKU's count under a new epoch and drops what was in
	// flight. ErrStaleEpoch: the gate was filled under this epoch or a later
	// one already.
	Fill(ctx context.Context, sku SKU, epoch, units int64) error

	// FillAll fills the counts of different SKUs. Its errors are those of Fill,
	// one for each count, in the order of fills.
	FillAll(ctx context.Context, fills []Fill) []error

	// Adjust applies an addition once. It drops the addition if the gate was
	// filled under a later epoch, because that fill included it. A refusal has
	// applied nothing. After any other error Adjust may have applied the addition,
	// or a part of it: call it again, which applies the rest. ErrNotFilled (as
	// *Refusal): the gate is not filled under the change's epoch yet, and the fill
	// under way may not include it. ErrChangeGap (as *Refusal): an earlier change is
	// missing.
	Adjust(ctx context.Context, c Change) error

	// InFlight lists up to limit takes of the SKUs that were recorded at least
	// olderThan ago, by the gate's own clock. Each take is listed once, with
	// all its lines, and with the units of its records of these SKUs. Takes
	// whose orders are queued are listed only if olderThan is 0: their consumer ends
	// them, whatever their age. Beside an error, the list has what could be read.
	InFlight(ctx context.Context, olderThan time.Duration, limit int, skus ...SKU) ([]Take, error)

	// ScanInFlight lists the takes of all SKUs that were recorded at least
	// olderThan ago. Each call is one step, which reads a bounded number of
	// records and may list none. The first step has an empty cursor, each later
	// one the cursor that the step before returned. An empty next says that the
	// scan is complete.
	//
	// A take that is in flight throughout the scan is listed at least once, with
	// all its lines, unless its order is queued. Beside an error, the list
	// has what could be read.
	ScanInFlight(ctx context.Context, olderThan time.Duration, cursor string) (takes []Take, next string, err error)

	// Level returns a count for each of the SKUs, in their order. A count that
	// could not be read has its Err set; the error joins them.
	Level(ctx context.Context, skus ...SKU) ([]Level, error)
}

// Fill is what a gate is filled with: the SKU's units available under an epoch.
type Fill struct {
	SKU          SKU
	Epoch, Units int64
}
