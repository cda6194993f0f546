package order

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

const (
	// sweepEvery is how long a sweep waits after the one before it, with as
	// much again of jitter, so that instances do not sweep in step. One that
	// took long, over many SKUs or under load, is followed by a longer wait,
	// so that sweeping takes at most a part in sweepShare of the time.
	sweepEvery, sweepMost = 1500 * time.Millisecond, 5 * time.Second
	sweepShare            = 20
	// sweepTimeout bounds one sweep.
	sweepTimeout = time.Minute
	// recoverAtOnce bounds the takes that are listed, and then resolved, at once.
	recoverAtOnce = 200
)

// sweeper remembers, from one sweep to the next, the SKUs at rest whose gate
// and ledger differed.
type sweeper struct {
	differed map[stock.SKU]difference
}

// difference is what a sweep saw of a SKU at rest.
type difference struct {
	epoch, gate, ledger int64
}

// Adopt lays the stock out for this instance's strategy, so that instances of
// another strategy are refused from now on. Call it once, before serving.
func (s *Service) Adopt(ctx context.Context) error {
	adopted, err := s.ledger.Adopt(ctx)
	if adopted > 0 {
		s.log.Info("laid the stock out for this strategy", "strategy", s.strategy, "skus", adopted)
	}
	return err
}

// Run sweeps until ctx ends. Every instance runs it; two at once do no harm.
func (s *Service) Run(ctx context.Context) {
	if s.gate == nil {
		return
	}
	for ctx.Err() == nil {
		start := time.Now()
		if err := s.Sweep(ctx); err != nil && ctx.Err() == nil {
			s.log.Warn("a sweep failed and will be tried again", "error", err)
		}
		wait := min(max(sweepEvery, sweepShare*time.Since(start)), sweepMost)
		select {
		case <-ctx.Done():
		case <-time.After(wait + rand.N(sweepEvery)):
		}
	}
}

// Sweep goes once over all stock: it refills what the gate lacks or has under
// another epoch, resolves takes in flight past their deadline, applies
// additions that have not reached the gate, and refills a count that differs
// from the ledger's at rest. Safe beside other sweeps and under load; one
// goroutine a Service.
func (s *Service) Sweep(ctx context.Context) error {
	if s.gate == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, sweepTimeout)
	defer cancel()

	if err := s.applyChanges(ctx, ""); err != nil {
		return err
	}
	var inFlight, drift int64
	differed := make(map[stock.SKU]difference)
	err := s.ledger.EachPage(ctx, func(rows []stockRow) error {
		return s.sweepRows(ctx, s.own(rows), func(row stockRow, level stock.Level) {
			inFlight += level.InFlight
			if fill := max(row.Available, 0); level.InFlight == 0 && level.Available != fill {
				drift += abs(level.Available - fill)
				differed[row.SKU] = difference{row.Epoch, level.Available, row.Available}
			}
		})
	})
	if err != nil {
		return err
	}
	s.metrics.inFlight.Set(float64(inFlight))
	s.metrics.drift.Set(float64(drift))
	return s.mendDrift(ctx, differed)
}

// sweepRows refills and resolves one page, and shows the counts that are under
// the ledger's epoch to seen.
func (s *Service) sweepRows(ctx context.Context, rows []stockRow, seen func(stockRow, stock.Level)) error {
	if len(rows) == 0 {
		return nil
	}
	levels, err := s.levels(ctx, rows)
	if err != nil {
		return err
	}
	var (
		lacking    []stockRow
		lackLevels []stock.Level
		inFlight   []stock.SKU
	)
	for i, row := range rows {
		level := levels[i]
		if !level.Filled || level.Epoch != row.Epoch {
			lacking, lackLevels = append(lacking, row), append(lackLevels, level)
			continue
		}
		seen(row, level)
		if level.InFlight > 0 {
			inFlight = append(inFlight, row.SKU)
		}
	}
	return errors.Join(s.recover(ctx, inFlight), s.refillRows(ctx, lacking, lackLevels))
}

// recover resolves takes of the SKUs that are in flight past the deadline.
func (s *Service) recover(ctx context.Context, skus []stock.SKU) error {
	for len(skus) > 0 {
		ds, err := s.gate.InFlight(ctx, s.takeDeadline, recoverAtOnce, skus...)
		if err != nil {
			return err
		}
		var failed error
		for _, d := range ds {
			if err := s.conclude(ctx, d); err != nil {
				failed = errors.Join(failed, fmt.Errorf("recovering take %s: %w", d.TakeID, err))
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
		}
		if failed != nil || len(ds) < recoverAtOnce {
			return failed
		}
	}
	return nil
}

// conclude finds out what became of a take left in flight, and ends it.
func (s *Service) conclude(ctx context.Context, d stock.Deduction) error {
	recorded, err := s.ledger.Resolve(ctx, d)
	if err != nil {
		return err
	}
	if recorded {
		err = s.gate.Settle(ctx, d)
		s.metrics.recoveries.WithLabelValues("settled").Inc()
	} else {
		err = s.gate.Give(ctx, d)
		s.metrics.recoveries.WithLabelValues("given").Inc()
	}
	if err != nil {
		return err
	}
	s.log.Info("recovered a take left in flight", "order", d.OrderID, "recorded", recorded)
	return nil
}

// mendDrift refills SKUs that showed the same difference in two sweeps: gate
// and ledger are read one after the other, so a single difference may be a
// sale between the two readings.
func (s *Service) mendDrift(ctx context.Context, differed map[stock.SKU]difference) error {
	before := s.sweeper.differed
	s.sweeper.differed = differed
	for sku, now := range differed {
		if before[sku] != now {
			continue
		}
		s.log.Warn("gate and ledger differ at rest; refilling", "sku", sku, "gate", now.gate, "ledger", now.ledger)
		err := s.refillOnce(ctx, sku, func(row stockRow, _ stock.Level) bool { return row.Epoch == now.epoch })
		if err != nil && !errors.Is(err, errMoved) {
			return err
		}
		delete(differed, sku)
	}
	return nil
}

func abs(n int64) int64 { return max(n, -n) }
