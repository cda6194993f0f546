package reconcile

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-stock/holdfast/internal/ledger"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// PrepareRetry removes the reason why a take of the SKUs was refused. The reason must be
// stock.Reconcilable. PrepareRetry makes gate and ledger agree on the SKUs' epochs, or moves the
// instance to the current generation. It checks all SKUs of the take, because the cause for one SKU
// usually applies to all.
func (r *Reconciler) PrepareRetry(ctx context.Context, reason error, skus ...stock.SKU) error {
	if errors.Is(reason, stock.ErrNoGeneration) {
		return r.generations.follow(ctx, r.generations.current())
	}
	for _, sku := range skus {
		if err := r.Refill(ctx, sku); err != nil {
			return err
		}
	}
	return nil
}

// fillsOf returns fills of the gate with the available units of the stock rows.
func fillsOf(rows ...ledger.StockRow) []stock.Fill {
	fills := make([]stock.Fill, len(rows))
	for i, row := range rows {
		fills[i] = stock.Fill{SKU: row.SKU, Epoch: row.Epoch, Units: max(row.Available, 0)}
	}
	return fills
}

// Refill makes gate and ledger agree on the SKU's epoch in the current generation. If they differ,
// it raises the epoch and fills the gate with the stock row's available. If it finds a later
// generation, it first moves the instance to it. Concurrent callers in one process share one
// refill. A nil error does not mean that the gate is filled: another instance may be filling it.
func (r *Reconciler) Refill(ctx context.Context, sku stock.SKU) error {
	return r.refillIf(ctx, sku, r.differ)
}

// differ reports whether gate and ledger do not agree on the SKU's epoch in the current generation.
func (r *Reconciler) differ(row ledger.StockRow, level stock.Level) bool {
	return stock.GenerationOf(row.Epoch) != r.generations.current() || r.counter != nil && !level.FilledUnder(row.Epoch)
}

// refillIf refills the SKU if needed returns true for its counts.
func (r *Reconciler) refillIf(ctx context.Context, sku stock.SKU, needed func(ledger.StockRow, stock.Level) bool) error {
	_, err, _ := r.refills.Do(string(sku), func() (any, error) {
		ctx, cancel := detached(ctx) // the refill is shared, so it must not end with one caller's ctx
		defer cancel()
		row, level, err := r.counts(ctx, sku)
		if err != nil {
			return nil, err
		}
		if later := max(stock.GenerationOf(row.Epoch), stock.GenerationOf(level.Epoch)); later > r.generations.current() {
			return nil, r.generations.catchUp(ctx, later)
		}
		if !needed(row, level) {
			return nil, nil
		}
		return nil, r.refillFrom(ctx, row, level)
	})
	return err
}

// counts reads the stock row, and then the gate's count. Without a gate, level is the zero value.
func (r *Reconciler) counts(ctx context.Context, sku stock.SKU) (row ledger.StockRow, level stock.Level, err error) {
	if row, err = r.ledger.Row(ctx, sku); err != nil || r.counter == nil {
		return row, level, err
	}
	levels, err := r.Levels(ctx, []ledger.StockRow{row})
	if err != nil {
		return row, level, err
	}
	return row, levels[0], nil
}

// always makes refillIf refill the SKU, whatever its counts are.
func always(ledger.StockRow, stock.Level) bool { return true }

// refillFrom refills the SKU. It does nothing if the row has changed, because then another instance
// is refilling it.
func (r *Reconciler) refillFrom(ctx context.Context, row ledger.StockRow, level stock.Level) error {
	raised, err := r.ledger.RaiseEpoch(ctx, row.SKU, row.Epoch, level.Epoch)
	if errors.Is(err, stock.ErrRowChanged) {
		return nil
	}
	if err != nil || r.counter == nil {
		return err
	}
	_, err = r.fill(ctx, raised)
	return err
}

// fill fills the gate from rows whose epochs were raised, and returns how many counts it filled.
// Units in flight are not subtracted, because no take of an earlier epoch can commit.
func (r *Reconciler) fill(ctx context.Context, raised ...ledger.StockRow) (filled int, err error) {
	var errs []error
	for _, err := range r.counter.FillAll(ctx, fillsOf(raised...)) {
		switch {
		case err == nil:
			filled++
			r.metrics.refills.Inc()
		case errors.Is(err, stock.ErrNoGeneration):
			return filled, r.generations.follow(ctx, r.generations.current())
		case !errors.Is(err, stock.ErrStaleEpoch): // a stale epoch means that a later refill was faster
			errs = append(errs, fmt.Errorf("filling the gate: %w", err))
		}
	}
	return filled, joined(errs)
}

// AfterRefusal is called after the ledger has refused the take for the reason, and the take was
// given back. It does nothing unless the ledger had too few units. Then it refills the SKU, whose
// gate admitted units that the ledger does not have, unless it has been refilled since the take. It
// does so at most once a second for each SKU. If the gate has no more units than the ledger, it does
// not refill: recovery gave this take back while it waited for its transaction, and another order
// has its units.
func (r *Reconciler) AfterRefusal(ctx context.Context, t stock.Take, reason error) {
	var refusal *stock.Refusal
	if !errors.As(reason, &refusal) || !errors.Is(reason, stock.ErrSoldOut) {
		return
	}
	r.metrics.guardRefusals.Inc()
	if r.limiter.Take(refusal.SKU, time.Now()) > 0 {
		return
	}
	var epoch int64
	for i, line := range t.Lines {
		if line.SKU == refusal.SKU {
			epoch = t.Epoch(i)
		}
	}
	err := r.refillIf(ctx, refusal.SKU, func(row ledger.StockRow, level stock.Level) bool {
		if row.Epoch != epoch || stock.Compare(row.Units(), &level, row.Units()).Most <= 0 {
			return false
		}
		r.log.WarnContext(ctx, "the gate admitted units that the ledger does not have; refilling",
			"sku", refusal.SKU, "gate", level.Available, "in_flight", level.InFlight, "ledger", row.Available)
		return true
	})
	if err != nil {
		r.log.WarnContext(ctx, "refilling the gate after a guard refusal failed", "sku", refusal.SKU, "error", err)
	}
}

// refillRows refills the rows in bulk, and returns how many counts it filled. levels are the gate's
// counts of the rows. It leaves out rows that have changed or are locked, which another instance or
// the next round refills.
func (r *Reconciler) refillRows(ctx context.Context, rows []ledger.StockRow, levels []stock.Level) (filled int, err error) {
	if len(rows) == 0 {
		return 0, nil
	}
	var greatest int64 // greatest epoch
	for i, row := range rows {
		greatest = max(greatest, row.Epoch, levels[i].Epoch)
	}
	if later := stock.GenerationOf(greatest); later > r.generations.current() {
		return 0, r.generations.catchUp(ctx, later)
	}
	raised, err := r.ledger.RaiseEpochs(ctx, rows, greatest)
	if err != nil {
		return 0, err
	}
	return r.fill(ctx, raised...)
}
