package order

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"

	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/store"
)

// SetStock creates the SKU, or moves its total to the one given and what is
// available by the difference; created says which. In mid-sale too.
//
// Errors: ErrBelowSold, ErrKindFixed, ErrBusy, ErrSuperseded, ErrUnavailable.
// Trying again is safe.
func (s *Service) SetStock(ctx context.Context, set Setting) (st Stock, created bool, err error) {
	row, created, err := s.setRow(ctx, set)
	if err != nil {
		return Stock{}, false, s.adminError(err)
	}
	st, err = s.asStock(ctx, row)
	return st, created, err
}

func (s *Service) setRow(ctx context.Context, set Setting) (row stockRow, created bool, err error) {
	for try := 1; try <= placeTries; try++ {
		if err := s.generations.usable(ctx); err != nil {
			return row, false, err
		}
		row, created, err = s.ledger.Set(ctx, set)
		switch {
		case store.IsDuplicate(err): // created by another a moment ago
			continue
		case created && err == nil:
			s.fillNew(ctx, row)
			return row, true, nil
		case err == nil && row.Total <= set.Total:
			s.applyNow(ctx, row.SKU)
			return row, false, nil
		case err == nil:
			row, err = s.shrink(ctx, set, row.Total-set.Total)
		}
		switch {
		case mendable(err):
			if err := s.mend(ctx, err, []stock.Line{{SKU: set.SKU}}); err != nil {
				return row, false, err
			}
		case !errors.Is(err, errRowChanged):
			return row, false, err
		}
		waitFor(ctx, try)
	}
	return row, false, fmt.Errorf("%w: %w", ErrBusy, err)
}

// fillNew fills the gate with a new SKU. If it cannot, the first take does.
func (s *Service) fillNew(ctx context.Context, row stockRow) {
	if s.gate == nil {
		return
	}
	err := s.gate.Fill(ctx, row.SKU, row.Epoch, row.Available)
	if err != nil && !errors.Is(err, stock.ErrStaleEpoch) {
		s.log.WarnContext(ctx, "a new SKU is not at the gate yet", "sku", row.SKU, "error", err)
	}
}

// applyNow hands the SKU's additions to the gate. If it cannot, a sweep does.
func (s *Service) applyNow(ctx context.Context, sku stock.SKU) {
	if s.gate == nil {
		return
	}
	if err := s.applyChanges(ctx, sku); err != nil {
		s.log.WarnContext(ctx, "added stock is not at the gate yet", "sku", sku, "error", err)
	}
}

// shrink takes n units away as an order would: at the gate first, so that they
// cannot be sold meanwhile, then in the ledger. errRowChanged: look again. A
// mendable error asks for the mend.
func (s *Service) shrink(ctx context.Context, set Setting, n int64) (stockRow, error) {
	d := shrinking(set.SKU, n)
	if s.gate != nil {
		taken, err := s.gate.Take(ctx, d)
		switch {
		case errors.Is(err, stock.ErrSoldOut):
			return stockRow{}, ErrBelowSold // what is in flight counts as sold
		case stock.Refuses(err):
			return stockRow{}, err
		case err != nil:
			s.give(ctx, d)
			return stockRow{}, err
		}
		d = taken
	}
	row, out := s.ledger.Shrink(ctx, d, set)
	switch ended := s.resolveTake(ctx, d, out); {
	case ended.kind != committed:
		return stockRow{}, ended.reason()
	case out.kind != committed: // the row was read before the answer was lost
		return s.ledger.Row(ctx, set.SKU)
	}
	return row, nil
}

func (s *Service) adminError(err error) error {
	switch {
	case errors.Is(err, ErrBelowSold), errors.Is(err, ErrKindFixed), errors.Is(err, ErrBusy), errors.Is(err, ErrSuperseded):
		return err
	case stock.Refuses(err):
		return fmt.Errorf("%w: %w", ErrBusy, err)
	default:
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
}

// Stock returns the counts of a SKU as they stand.
//
// Errors: stock.ErrUnknownSKU (as *stock.Refusal), ErrUnavailable.
func (s *Service) Stock(ctx context.Context, sku stock.SKU) (Stock, error) {
	row, err := s.ledger.Row(ctx, sku)
	if err != nil {
		return Stock{}, readError(err)
	}
	return s.asStock(ctx, row)
}

// ListStock returns up to limit SKUs that follow after, by SKU, and the one to
// continue after; next is empty at the end.
func (s *Service) ListStock(ctx context.Context, after stock.SKU, limit int) (page []Stock, next stock.SKU, err error) {
	rows, err := s.ledger.Rows(ctx, after, limit+1)
	if err != nil {
		return nil, "", readError(err)
	}
	if len(rows) > limit {
		rows = rows[:limit]
		next = rows[limit-1].SKU
	}
	page, err = s.asStocks(ctx, rows)
	return page, next, err
}

func (s *Service) asStock(ctx context.Context, row stockRow) (Stock, error) {
	page, err := s.asStocks(ctx, []stockRow{row})
	if err != nil {
		return Stock{}, err
	}
	return page[0], nil
}

func (s *Service) asStocks(ctx context.Context, rows []stockRow) ([]Stock, error) {
	levels, err := s.filledLevels(ctx, rows)
	if err != nil {
		return nil, readError(err)
	}
	page := make([]Stock, len(rows))
	for i, row := range rows {
		page[i] = Stock{
			SKU: row.SKU, Kind: row.Kind, Total: row.Total, Available: row.Available,
			Sold: row.Total - row.Available, BuyerLimit: row.BuyerLimit,
		}
		if s.gate != nil {
			page[i].Available = levels[i].Available
		}
	}
	return page, nil
}

// filledLevels asks the gate for its counts of the rows, and fills those it
// lacks. Without a gate there are none.
func (s *Service) filledLevels(ctx context.Context, rows []stockRow) ([]stock.Level, error) {
	if s.gate == nil || len(rows) == 0 {
		return nil, nil
	}
	levels, err := s.levels(ctx, rows)
	if err != nil {
		return nil, err
	}
	var lacking []stockRow
	for i, row := range rows {
		if !levels[i].Filled {
			lacking = append(lacking, row)
		}
	}
	if len(lacking) == 0 {
		return levels, nil
	}
	g := new(errgroup.Group)
	g.SetLimit(refillParallel)
	for _, row := range lacking {
		g.Go(func() error { return s.refill(ctx, row.SKU) })
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	return s.levels(ctx, rows)
}

// Audit holds a SKU's counts against one another.
//
// Errors: stock.ErrUnknownSKU (as *stock.Refusal), ErrUnavailable.
func (s *Service) Audit(ctx context.Context, sku stock.SKU) (Audit, error) {
	row, err := s.ledger.Row(ctx, sku)
	if err != nil {
		return Audit{}, readError(err)
	}
	levels, err := s.filledLevels(ctx, []stockRow{row})
	if err != nil {
		return Audit{}, readError(err)
	}
	sold, err := s.ledger.Sold(ctx, sku)
	if err != nil {
		return Audit{}, readError(err)
	}
	a := Audit{
		SKU: sku, Total: row.Total, Sold: sold, Oversold: max(0, sold-row.Total),
		LedgerAvailable: row.Available,
		Drift:           row.Available + sold - row.Total,
	}
	if s.gate != nil {
		a.GateAvailable, a.GateInFlight = &levels[0].Available, &levels[0].InFlight
		a.Drift = levels[0].Available + levels[0].InFlight + sold - row.Total
	}
	return a, nil
}

func readError(err error) error {
	if errors.Is(err, stock.ErrUnknownSKU) || errors.Is(err, ErrSuperseded) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}
