package order

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

// refillParallel is how many SKUs are refilled at once when all are.
const refillParallel = 8

// refill makes the gate's count of the SKU agree with the ledger's epoch, if it
// does not already: it raises the epoch and fills the gate with what the stock
// row has. Concurrent callers of one process share one refill. errMoved:
// another instance is at it.
func (s *Service) refill(ctx context.Context, sku stock.SKU) error {
	return s.refillOnce(ctx, sku, func(row stockRow, level stock.Level) bool {
		return !level.Filled || level.Epoch != row.Epoch
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
		levels, err := s.gate.Level(ctx, sku)
		if err != nil {
			return nil, fmt.Errorf("asking the gate for its count: %w", err)
		}
		if !needed(row, levels[0]) {
			return nil, nil
		}
		return nil, s.refillFrom(ctx, row, levels[0])
	})
	return err
}

// refillFrom refills the SKU unless its row has moved on from the one given.
func (s *Service) refillFrom(ctx context.Context, row stockRow, level stock.Level) error {
	raised, err := s.ledger.RaiseEpoch(ctx, row.SKU, row.Epoch, level.Epoch)
	if err != nil {
		return err
	}
	// In flight is not subtracted: no take of an earlier epoch commits now.
	err = s.gate.Fill(ctx, raised.SKU, raised.Epoch, max(raised.Available, 0))
	if err != nil && !errors.Is(err, stock.ErrStaleEpoch) { // stale: a later refill was faster
		return fmt.Errorf("filling the gate: %w", err)
	}
	s.metrics.refills.Inc()
	return nil
}

// disbelieve refills a SKU whose gate admitted what the ledger had not, if it
// is still under the epoch that did. At most once a second for each SKU.
func (s *Service) disbelieve(ctx context.Context, d stock.Deduction, sku stock.SKU) {
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
	if err != nil && !errors.Is(err, errMoved) {
		s.log.WarnContext(ctx, "the gate admits more than the ledger has and could not be refilled", "sku", sku, "error", err)
	}
}

// RefillAll refills every SKU: the gate's store is not the one that was filled,
// whatever it says.
func (s *Service) RefillAll(ctx context.Context) error {
	if s.gate == nil {
		return nil
	}
	err := s.ledger.EachPage(ctx, func(rows []stockRow) error {
		rows = s.own(rows)
		levels, err := s.levels(ctx, rows)
		if err != nil {
			return err
		}
		return s.refillRows(ctx, rows, levels)
	})
	if err != nil {
		return fmt.Errorf("refilling all: %w", err)
	}
	return nil
}

// own leaves out the rows that are laid out for another strategy: they are not
// this instance's to mend.
func (s *Service) own(rows []stockRow) []stockRow {
	return slices.DeleteFunc(rows, func(row stockRow) bool { return row.Layout != s.ledger.strategy.Layout })
}

// levels asks the gate for its counts of the rows.
func (s *Service) levels(ctx context.Context, rows []stockRow) ([]stock.Level, error) {
	skus := make([]stock.SKU, len(rows))
	for i, row := range rows {
		skus[i] = row.SKU
	}
	levels, err := s.gate.Level(ctx, skus...)
	if err != nil {
		return nil, fmt.Errorf("asking the gate for its counts: %w", err)
	}
	return levels, nil
}

// refillRows refills the rows, several at once, as far as they have not moved
// on from what they are here.
func (s *Service) refillRows(ctx context.Context, rows []stockRow, levels []stock.Level) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(refillParallel)
	for i, row := range rows {
		g.Go(func() error {
			err := s.refillFrom(ctx, row, levels[i])
			if errors.Is(err, errMoved) {
				return nil
			}
			return err
		})
	}
	return g.Wait()
}

// applyChanges hands the SKU's committed additions, or everybody's, to the
// gate. What the gate cannot take yet stays in the outbox.
func (s *Service) applyChanges(ctx context.Context, sku stock.SKU) error {
	changes, err := s.ledger.Changes(ctx, sku)
	if err != nil {
		return err
	}
	var blocked stock.SKU // its later changes must wait for an earlier one
	for _, c := range changes {
		if c.SKU == blocked {
			continue
		}
		err := s.gate.Adjust(ctx, c)
		switch {
		case errors.Is(err, stock.ErrNotFilled):
			blocked = c.SKU // a refill counts it, or the gate will ask for it
			continue
		case errors.Is(err, stock.ErrChangeGap):
			// The gate has lost a change that it once applied.
			blocked = c.SKU
			err := s.refillOnce(ctx, c.SKU, func(row stockRow, _ stock.Level) bool { return row.Epoch == c.Epoch })
			if err != nil && !errors.Is(err, errMoved) {
				return err
			}
			continue
		case err != nil:
			return fmt.Errorf("adjusting the gate: %w", err)
		}
		if err := s.ledger.Applied(ctx, c); err != nil {
			return err
		}
	}
	return nil
}
