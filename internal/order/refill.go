package order

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

// refillParallel is how many SKUs are refilled at once when all are.
const refillParallel = 8

// refill makes gate and ledger agree on the SKU's epoch, in the current
// generation, if they do not already: it raises the epoch and fills the gate with
// what the stock row has. A generation that the instance does not know is
// followed first. Concurrent callers of one process share one refill. nil does
// not promise that the gate is filled: another instance may be at it.
func (s *Service) refill(ctx context.Context, sku stock.SKU) error {
	return s.refillOnce(ctx, sku, func(row stockRow, level stock.Level) bool {
		return !s.generations.current().Holds(row.Epoch) || s.gate != nil && (!level.Filled || level.Epoch != row.Epoch)
	})
}

// refillOnce refills the SKU where needed says so of its counts.
func (s *Service) refillOnce(ctx context.Context, sku stock.SKU, needed func(stockRow, stock.Level) bool) error {
	_, err, _ := s.refills.Do(string(sku), func() (any, error) {
		ctx, cancel := detached(ctx) // shared with callers whose context goes on
		defer cancel()
		row, err := s.ledger.Row(ctx, sku)
		if err != nil {
			return nil, err
		}
		var level stock.Level
		if s.gate != nil {
			levels, err := s.gate.Level(ctx, sku)
			if err != nil {
				return nil, fmt.Errorf("asking the gate for its count: %w", err)
			}
			level = levels[0]
		}
		if later := max(stock.GenerationOf(row.Epoch), stock.GenerationOf(level.Epoch)); later > s.generations.current() {
			return nil, s.generations.reach(ctx, later)
		}
		if !needed(row, level) {
			return nil, nil
		}
		return nil, s.refillFrom(ctx, row, level)
	})
	return err
}

// refillFrom refills the SKU unless its row has moved on from the one given:
// then another instance is at it.
func (s *Service) refillFrom(ctx context.Context, row stockRow, level stock.Level) error {
	raised, err := s.ledger.RaiseEpoch(ctx, row.SKU, row.Epoch, level.Epoch)
	if errors.Is(err, errRowChanged) {
		return nil
	}
	if err != nil || s.gate == nil {
		return err
	}
	// In flight is not subtracted: no take of an earlier epoch commits now.
	err = s.gate.Fill(ctx, raised.SKU, raised.Epoch, max(raised.Available, 0))
	if errors.Is(err, stock.ErrNoGeneration) {
		return s.generations.follow(ctx, s.generations.current())
	}
	if err != nil && !errors.Is(err, stock.ErrStaleEpoch) { // stale: a later refill was faster
		return fmt.Errorf("filling the gate: %w", err)
	}
	s.metrics.refills.Inc()
	return nil
}

// refillAfterGuardRefusal refills a SKU whose gate admitted what the ledger does
// not have, if it is still under the epoch that did. At most once a second for
// each SKU.
func (s *Service) refillAfterGuardRefusal(ctx context.Context, d stock.Deduction, sku stock.SKU) {
	if !s.distrust.allow(sku, time.Now()) {
		return
	}
	var epoch int64
	for _, line := range d.Lines {
		if line.SKU == sku {
			epoch = line.Epoch
		}
	}
	err := s.refillOnce(ctx, sku, func(row stockRow, level stock.Level) bool {
		return row.Epoch == epoch || level.Epoch != row.Epoch
	})
	if err != nil {
		s.log.WarnContext(ctx, "the gate admits more than the ledger has and could not be refilled", "sku", sku, "error", err)
	}
}

// levels asks the gate for its counts of the rows. Where some could not be read,
// they are there beside the error.
func (s *Service) levels(ctx context.Context, rows []stockRow) ([]stock.Level, error) {
	skus := make([]stock.SKU, len(rows))
	for i, row := range rows {
		skus[i] = row.SKU
	}
	levels, err := s.gate.Level(ctx, skus...)
	if err != nil {
		return levels, fmt.Errorf("asking the gate for its counts: %w", err)
	}
	return levels, nil
}

// refillRows refills the rows, several at once, as far as they have not moved
// on from what they are here.
func (s *Service) refillRows(ctx context.Context, rows []stockRow, levels []stock.Level) error {
	errs := make([]error, len(rows))
	var g errgroup.Group
	g.SetLimit(refillParallel)
	for i, row := range rows {
		g.Go(func() error {
			errs[i] = s.refillFrom(ctx, row, levels[i])
			return nil
		})
	}
	_ = g.Wait()
	return joined(errs)
}

// applyChanges hands the SKU's committed additions, or everybody's, to the
// gate. What the gate cannot take yet stays in the outbox.
func (s *Service) applyChanges(ctx context.Context, sku stock.SKU) error {
	var (
		errs    []error
		blocked stock.SKU // its later changes must wait for an earlier one
		after   stock.Change
	)
	for {
		changes, err := s.ledger.Changes(ctx, sku, after)
		if err != nil {
			return joined(append(errs, err))
		}
		for _, c := range changes {
			after = c
			if c.SKU == blocked {
				continue
			}
			applied, err := s.applyChange(ctx, c)
			if err != nil {
				errs = append(errs, fmt.Errorf("applying an addition of SKU %s: %w", c.SKU, err))
			}
			if !applied {
				blocked = c.SKU
			}
		}
		if len(changes) < pageSize || ctx.Err() != nil {
			return joined(errs)
		}
	}
}

// applyChange hands one addition to the gate and takes it out of the outbox. Not
// applied: the SKU's later ones must wait.
func (s *Service) applyChange(ctx context.Context, c stock.Change) (applied bool, err error) {
	err = s.gate.Adjust(ctx, c)
	switch {
	case errors.Is(err, stock.ErrNotFilled):
		return false, nil // a refill counts it, or the gate will ask for it
	case errors.Is(err, stock.ErrChangeGap):
		// The gate has lost a change that it once applied.
		return false, s.refillOnce(ctx, c.SKU, func(row stockRow, _ stock.Level) bool { return row.Epoch == c.Epoch })
	case err != nil:
		return false, err
	}
	err = s.ledger.Applied(ctx, c)
	return err == nil, err
}
