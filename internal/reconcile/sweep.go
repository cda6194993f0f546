package reconcile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-stock/holdfast/internal/ledger"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

const (
	// sweepTimeout bounds one sweep.
	sweepTimeout = time.Minute
	// maxRecoveries bounds the takes that are listed, and then resolved, at once.
	maxRecoveries = 200
	// maxCounted bounds the records that are read to account for one SKU's units
	// in flight.
	maxCounted = 10_000
)

// difference is what a sweep saw of a SKU whose gate and ledger differ.
type difference struct {
	epoch, gate, inFlight, ledger int64
}

// Sweep goes once over all stock. It refills counts that the gate lacks or has
// under another epoch, resolves takes in flight past their deadline, delivers
// additions that have not reached the gate, and refills counts that differ at
// rest. A failure for one SKU does not affect the others. It is safe beside sweeps
// of other instances and under load; one Reconciler must not run two at once.
func (r *Reconciler) Sweep(ctx context.Context) error {
	if r.gate == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, sweepTimeout)
	defer cancel()
	if err := r.generations.usable(ctx); err != nil {
		if errors.Is(err, stock.ErrSuperseded) { // other instances mend the stock
			return nil
		}
		return err
	}

	errs := []error{r.Deliver(ctx, "")}
	var inFlight, drift int64
	differed := make(map[stock.SKU]difference)
	err := r.ledger.EachPage(ctx, func(rows []ledger.StockRow) error {
		errs = append(errs, r.sweepRows(ctx, rows, func(row ledger.StockRow, level stock.Level) {
			inFlight += level.InFlight
			fill := max(row.Available, 0)
			if level.InFlight != 0 || level.Available != fill {
				differed[row.SKU] = difference{row.Epoch, level.Available, level.InFlight, row.Available}
			}
			if level.InFlight == 0 {
				drift += abs(level.Available - fill)
			}
		}))
		return ctx.Err()
	})
	errs = append(errs, err)
	r.metrics.inFlight.Set(float64(inFlight))
	r.metrics.drift.Set(float64(drift))
	return joined(append(errs, r.mendDrift(ctx, differed)))
}

// sweepRows refills and recovers one page of rows. It calls seen with each count
// that is under the ledger's epoch.
func (r *Reconciler) sweepRows(ctx context.Context, rows []ledger.StockRow, seen func(ledger.StockRow, stock.Level)) error {
	levels, err := r.Levels(ctx, rows)
	if len(levels) != len(rows) {
		return err
	}
	var (
		lacking    []ledger.StockRow
		lackLevels []stock.Level
		inFlight   []stock.SKU
	)
	for i, row := range rows {
		level := levels[i]
		switch {
		case level.Err != nil: // err includes it
		case !level.Filled || level.Epoch != row.Epoch:
			lacking, lackLevels = append(lacking, row), append(lackLevels, level)
		default:
			seen(row, level)
			if level.InFlight > 0 {
				inFlight = append(inFlight, row.SKU)
			}
		}
	}
	return joined([]error{err, r.recover(ctx, inFlight), r.refillRows(ctx, lacking, lackLevels)})
}

// recover resolves takes of the SKUs that are in flight past the deadline. If it
// cannot end a take, it does not list that take's SKUs again, because they would
// fill the list and hide the others.
func (r *Reconciler) recover(ctx context.Context, skus []stock.SKU) error {
	var errs []error
	for len(skus) > 0 {
		takes, err := r.gate.InFlight(ctx, r.takeDeadline, maxRecoveries, skus...)
		errs = append(errs, err)
		failed := make(map[stock.SKU]bool)
		for _, t := range takes {
			if err := r.recoverTake(ctx, t); err != nil {
				errs = append(errs, fmt.Errorf("recovering take %s: %w", t.TakeID, err))
				for _, line := range t.Lines {
					failed[line.SKU] = true
				}
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
		}
		if len(takes) < maxRecoveries {
			break
		}
		skus = slices.DeleteFunc(slices.Clone(skus), func(sku stock.SKU) bool { return failed[sku] })
	}
	return joined(errs)
}

// mendDrift refills the SKUs whose counts differ in the same way as in the sweep
// before. Gate and ledger are read one after the other, so a single difference may
// be a sale between the two reads. Units in flight that records account for are no
// difference.
func (r *Reconciler) mendDrift(ctx context.Context, differed map[stock.SKU]difference) error {
	before := r.differed
	r.differed = differed
	var errs []error
	for sku, now := range differed {
		if before[sku] != now {
			continue
		}
		if now.inFlight != 0 {
			recorded, err := r.unitsInFlight(ctx, sku)
			if err != nil || recorded == now.inFlight {
				errs = append(errs, err)
				continue
			}
		}
		r.log.Warn("gate and ledger differ at rest; refilling",
			"sku", sku, "gate", now.gate, "in_flight", now.inFlight, "ledger", now.ledger)
		err := r.refillIf(ctx, sku, func(row ledger.StockRow, level stock.Level) bool {
			return row.Epoch == now.epoch && level.Available == now.gate && level.InFlight == now.inFlight
		})
		if err == nil {
			delete(differed, sku)
		}
		errs = append(errs, err)
	}
	return joined(errs)
}

// Levels reads the gate's counts of the rows, in the order of the rows. If some
// counts cannot be read, it returns the others too, with an error.
func (r *Reconciler) Levels(ctx context.Context, rows []ledger.StockRow) ([]stock.Level, error) {
	skus := make([]stock.SKU, len(rows))
	for i, row := range rows {
		skus[i] = row.SKU
	}
	levels, err := r.gate.Level(ctx, skus...)
	if err != nil {
		return levels, fmt.Errorf("reading the gate's counts: %w", err)
	}
	return levels, nil
}

// unitsInFlight adds up the SKU's units in the records of takes in flight.
func (r *Reconciler) unitsInFlight(ctx context.Context, sku stock.SKU) (units int64, err error) {
	takes, err := r.gate.InFlight(ctx, 0, maxCounted, sku)
	for _, t := range takes {
		for _, line := range t.Lines {
			if line.SKU == sku {
				units += line.Quantity
			}
		}
	}
	return units, err
}

func abs(n int64) int64 { return max(n, -n) }
