package reconcile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

// Deliver applies the SKU's committed additions at the gate. If sku is empty, it applies those of
// every SKU. An addition that the gate cannot accept yet stays in the outbox.
func (r *Reconciler) Deliver(ctx context.Context, sku stock.SKU) error {
	if r.counter == nil {
		return nil
	}
	_, _, err := r.deliverChanges(ctx, sku)
	return err
}

// CatchUp brings the gate's counts of the SKUs up to what the ledger has committed. The gate may
// lack units for a moment after they were added or returned. Call CatchUp before such a lack has a
// lasting consequence.
//
// stock.ErrNotFilled (as *stock.Refusal) means that a count is being refilled and may still be the
// old one. Call CatchUp again before relying on it.
func (r *Reconciler) CatchUp(ctx context.Context, skus ...stock.SKU) error {
	if r.counter == nil {
		return nil
	}
	for _, sku := range skus {
		_, left, err := r.deliverChanges(ctx, sku)
		if err != nil {
			return err
		}
		// The epochs are compared last. Another instance that has raised the row's epoch has also
		// removed the additions from the outbox, and may not have filled the gate yet.
		row, level, err := r.counts(ctx, sku)
		if err != nil {
			return err
		}
		if left > 0 || r.differ(row, level) {
			return cmp.Or(r.Refill(ctx, sku), error(stock.Refuse(sku, stock.ErrNotFilled)))
		}
	}
	return nil
}

// deliverChanges is Deliver with a gate. It returns how many additions it has applied, and how many
// it has read that are still in the outbox.
func (r *Reconciler) deliverChanges(ctx context.Context, sku stock.SKU) (applied, left int, err error) {
	var (
		errs    []error
		after   stock.Change // the last change that was read
		blocked stock.SKU    // SKU whose later changes must wait for an earlier one
	)
	for {
		changes, last, err := r.ledger.Changes(ctx, sku, after)
		if err != nil {
			return applied, left, joined(append(errs, err))
		}
		var done []stock.Change
		for _, c := range changes {
			after = c
			if c.SKU == blocked {
				continue
			}
			ok, err := r.deliver(ctx, c)
			if err != nil {
				errs = append(errs, fmt.Errorf("applying an addition to SKU %s: %w", c.SKU, err))
			}
			if ok {
				done = append(done, c)
			} else {
				blocked = c.SKU
			}
		}
		// A change that stays in the outbox by mistake is not applied again, because the gate knows
		// its number.
		errs = append(errs, r.ledger.Applied(ctx, done...))
		applied += len(done)
		left += len(changes) - len(done)
		if last {
			return applied, left, joined(errs)
		}
	}
}

// BringToGate takes additions that the ledger has just committed, and applies them to the gate's
// counts. If it cannot, Run applies them later. It continues after ctx ends.
//
// It reads the outbox only if an earlier addition to the SKU has not reached the gate. Another
// request, or another instance, has then committed that addition and is about to apply it.
func (r *Reconciler) BringToGate(ctx context.Context, additions ...stock.Change) {
	if r.counter == nil {
		return
	}
	ctx, cancel := detached(ctx)
	defer cancel()
	for _, c := range additions {
		err := r.counter.Adjust(ctx, c)
		switch {
		case err == nil:
			_ = r.applied.Send(c) // if the change cannot be queued, the next delivery clears it
		case errors.Is(err, stock.ErrNotFilled): // a refill will include the change, or a take will request a refill
			err = nil
		case errors.Is(err, stock.ErrChangeGap):
			err = r.Deliver(ctx, c.SKU)
		}
		if err != nil {
			r.log.WarnContext(ctx, "returning units to the gate failed and will be retried", "sku", c.SKU, "error", err)
			return
		}
	}
}

// clear removes additions that the gate has applied from the outbox. If it fails, the next delivery
// removes them.
func (r *Reconciler) clear(additions []stock.Change) {
	ctx, cancel := context.WithTimeout(context.Background(), compensationTimeout)
	defer cancel()
	if err := r.ledger.Applied(ctx, additions...); err != nil {
		r.log.Warn("clearing the outbox failed and will be retried", "error", err)
	}
	time.Sleep(settlePause) // lets further additions gather
}

// deliver applies one addition at the gate. If applied is false, the SKU's later
// additions must wait.
func (r *Reconciler) deliver(ctx context.Context, c stock.Change) (applied bool, err error) {
	err = r.counter.Adjust(ctx, c)
	switch {
	case errors.Is(err, stock.ErrNotFilled):
		return false, nil // a refill will include the change, or a take will request a refill
	case errors.Is(err, stock.ErrChangeGap):
		// The gate has lost a change that it had applied.
		return false, r.refillIf(ctx, c.SKU, always)
	}
	return err == nil, err
}
