package order

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

const (
	// sweepEvery is how long a sweep waits after the one before it, with as
	// much again of jitter, so that instances do not sweep in step. One that
	// took long, over many SKUs or under load, is followed by a longer wait,
	// so that sweeping takes at most a part in sweepShare of the time.
	sweepEvery, maxSweepWait = 1500 * time.Millisecond, 5 * time.Second
	sweepShare               = 20
	// sweepTimeout bounds one sweep.
	sweepTimeout = time.Minute
	// recoverAtOnce bounds the takes that are listed, and then resolved, at once.
	recoverAtOnce = 200
	// maxTakesCounted bounds the records that are read to account for one SKU's
	// units in flight.
	maxTakesCounted = 10_000
	// maxOpenTakes bounds the takes that wait for a store to say what became
	// of them; the others wait for recovery.
	maxOpenTakes = 4096
	// openTakePause is between two tries to end one.
	openTakePause = 20 * time.Millisecond
)

// sweeper remembers, from one sweep to the next, the SKUs whose counts did not
// add up.
type sweeper struct {
	differed map[stock.SKU]difference
}

// difference is what a sweep saw of a SKU.
type difference struct {
	epoch, gate, inFlight, ledger int64
}

// openTake is a take that could not be ended when its request was answered.
type openTake struct {
	deduction stock.Deduction
	unknown   bool // it may have been committed; else it is to be given back
}

// leaveOpen has Run end the take. One too many is left to recovery.
func (s *Service) leaveOpen(t openTake) {
	if s.gate == nil {
		return
	}
	select {
	case s.open <- t:
	default:
	}
}

// Run keeps the instance under the current generation, ends takes whose outcome
// was open as soon as the stores answer, and sweeps, until ctx ends. Every
// instance runs it; several at once do no harm.
func (s *Service) Run(ctx context.Context) {
	var loops sync.WaitGroup
	defer loops.Wait()
	loops.Go(func() { s.keepChecking(ctx) })
	if s.gate != nil {
		loops.Go(func() { s.endOpenTakes(ctx) })
		loops.Go(func() { s.keepSweeping(ctx) })
	}
}

func (s *Service) keepChecking(ctx context.Context) {
	for ctx.Err() == nil {
		if err := s.generations.check(ctx); err != nil && !errors.Is(err, ErrSuperseded) && ctx.Err() == nil {
			s.log.Warn("the stores could not be checked", "error", err)
		}
		_ = sleep(ctx, checkEvery)
	}
}

func (s *Service) keepSweeping(ctx context.Context) {
	for ctx.Err() == nil {
		start := time.Now()
		if err := s.Sweep(ctx); err != nil && ctx.Err() == nil {
			s.log.Warn("a sweep failed and will be tried again", "error", err)
		}
		wait := min(max(sweepEvery, sweepShare*time.Since(start)), maxSweepWait)
		_ = sleep(ctx, wait+rand.N(sweepEvery))
	}
}

// endOpenTakes ends the takes that requests left open, each as soon as the
// stores say what became of it.
func (s *Service) endOpenTakes(ctx context.Context) {
	for failed := 0; ; { // in a row
		select {
		case <-ctx.Done():
			return
		case t := <-s.open:
			if s.endOpenTake(ctx, t) == nil {
				failed = 0
				continue
			}
			failed++
			s.leaveOpen(t) // behind the others, whose stores may answer
			_ = sleep(ctx, openTakePause+jitter(openTakePause, failed))
		}
	}
}

func (s *Service) endOpenTake(ctx context.Context, t openTake) error {
	ctx, cancel := context.WithTimeout(ctx, compensationTimeout)
	defer cancel()
	if t.unknown {
		return s.recoverTake(ctx, t.deduction)
	}
	return s.gate.Give(ctx, t.deduction)
}

// Sweep goes once over all stock: it refills what the gate lacks or has under
// another epoch, resolves takes in flight past their deadline, applies
// additions that have not reached the gate, and refills a count that does not
// add up at rest. What fails for one SKU does not keep it from the others. Safe
// beside other sweeps and under load; one goroutine a Service.
func (s *Service) Sweep(ctx context.Context) error {
	if s.gate == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, sweepTimeout)
	defer cancel()
	if err := s.generations.usable(ctx); err != nil {
		if errors.Is(err, ErrSuperseded) { // the stock is not this instance's to mend
			return nil
		}
		return err
	}

	errs := []error{s.applyChanges(ctx, "")}
	var inFlight, drift int64
	differed := make(map[stock.SKU]difference)
	err := s.ledger.EachPage(ctx, func(rows []stockRow) error {
		errs = append(errs, s.sweepRows(ctx, rows, func(row stockRow, level stock.Level) {
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
	s.metrics.inFlight.Set(float64(inFlight))
	s.metrics.drift.Set(float64(drift))
	return joined(append(errs, s.mendDrift(ctx, differed)))
}

// maxErrors bounds the errors of one sweep that are told.
const maxErrors = 5

// joined joins the first few of the errors that are not nil.
func joined(errs []error) error {
	errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	if more := len(errs) - maxErrors; more > 0 {
		errs = append(errs[:maxErrors:maxErrors], fmt.Errorf("and %d more errors", more))
	}
	return errors.Join(errs...)
}

// sweepRows refills and resolves one page, and shows the counts that are under
// the ledger's epoch to seen.
func (s *Service) sweepRows(ctx context.Context, rows []stockRow, seen func(stockRow, stock.Level)) error {
	levels, err := s.levels(ctx, rows)
	if len(levels) != len(rows) {
		return err
	}
	var (
		lacking    []stockRow
		lackLevels []stock.Level
		inFlight   []stock.SKU
	)
	for i, row := range rows {
		level := levels[i]
		switch {
		case level.Err != nil: // part of err
		case !level.Filled || level.Epoch != row.Epoch:
			lacking, lackLevels = append(lacking, row), append(lackLevels, level)
		default:
			seen(row, level)
			if level.InFlight > 0 {
				inFlight = append(inFlight, row.SKU)
			}
		}
	}
	return joined([]error{err, s.recover(ctx, inFlight), s.refillRows(ctx, lacking, lackLevels)})
}

// recover resolves takes of the SKUs that are in flight past the deadline. SKUs
// of takes that it cannot end are not listed again: they would hide the others.
func (s *Service) recover(ctx context.Context, skus []stock.SKU) error {
	var errs []error
	for len(skus) > 0 {
		ds, err := s.gate.InFlight(ctx, s.takeDeadline, recoverAtOnce, skus...)
		errs = append(errs, err)
		failed := make(map[stock.SKU]bool)
		for _, d := range ds {
			if err := s.recoverTake(ctx, d); err != nil {
				errs = append(errs, fmt.Errorf("recovering take %s: %w", d.TakeID, err))
				for _, line := range d.Lines {
					failed[line.SKU] = true
				}
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
		}
		if len(ds) < recoverAtOnce {
			break
		}
		skus = slices.DeleteFunc(slices.Clone(skus), func(sku stock.SKU) bool { return failed[sku] })
	}
	return joined(errs)
}

// recoverTake finds out what became of a take left in flight, and ends it.
func (s *Service) recoverTake(ctx context.Context, d stock.Deduction) error {
	var (
		err   error
		ended string
	)
	out := s.ledger.Resolve(ctx, d)
	switch out.kind {
	case committed:
		err, ended = s.gate.Settle(ctx, d), "settled"
	case refused:
		err, ended = s.gate.Give(ctx, d), "given"
	default:
		return out.reason()
	}
	if err != nil {
		return err
	}
	s.metrics.recoveries.WithLabelValues(ended).Inc()
	s.log.Info("recovered a take left in flight", "order", d.OrderID, "recorded", out.kind == committed)
	return nil
}

// mendDrift refills SKUs whose counts differ in the same way as in the sweep
// before: gate and ledger are read one after the other, so a single difference
// may be a sale between the two readings. Units in flight that records account
// for are no difference.
func (s *Service) mendDrift(ctx context.Context, differed map[stock.SKU]difference) error {
	before := s.sweeper.differed
	s.sweeper.differed = differed
	var errs []error
	for sku, now := range differed {
		if before[sku] != now {
			continue
		}
		if now.inFlight != 0 {
			recorded, err := s.unitsInFlight(ctx, sku)
			if err != nil || recorded == now.inFlight {
				errs = append(errs, err)
				continue
			}
		}
		s.log.Warn("gate and ledger differ at rest; refilling",
			"sku", sku, "gate", now.gate, "in_flight", now.inFlight, "ledger", now.ledger)
		err := s.refillOnce(ctx, sku, func(row stockRow, level stock.Level) bool {
			return row.Epoch == now.epoch && level.Available == now.gate && level.InFlight == now.inFlight
		})
		if err == nil {
			delete(differed, sku)
		}
		errs = append(errs, err)
	}
	return joined(errs)
}

// unitsInFlight adds up the units of the SKU in the records of takes in flight.
func (s *Service) unitsInFlight(ctx context.Context, sku stock.SKU) (units int64, err error) {
	ds, err := s.gate.InFlight(ctx, 0, maxTakesCounted, sku)
	for _, d := range ds {
		for _, line := range d.Lines {
			if line.SKU == sku {
				units += line.Quantity
			}
		}
	}
	return units, err
}

func abs(n int64) int64 { return max(n, -n) }
