package reconcile

import (
	"context"
	"fmt"
)

// recoverAll resolves all takes that are in flight past the deadline.
func (r *Reconciler) recoverAll(ctx context.Context) error {
	var errs []error
	for cursor := ""; ; {
		next, err := r.recoverNext(ctx, cursor)
		errs = append(errs, err)
		if cursor = next; cursor == "" || ctx.Err() != nil {
			return joined(errs)
		}
	}
}

// recoverNext resolves the takes past the deadline that the next step of the gate's
// scan lists, and returns the cursor of the step after it. It looks for takes in the
// gate's records, so its cost does not grow with the number of SKUs. A take that
// cannot be ended does not keep the others from recovery.
func (r *Reconciler) recoverNext(ctx context.Context, cursor string) (next string, err error) {
	takes, next, err := r.gate.ScanInFlight(ctx, r.takeDeadline, cursor)
	errs := []error{err}
	for _, t := range takes {
		if ctx.Err() != nil {
			return next, ctx.Err()
		}
		if err := r.recoverTake(ctx, t); err != nil {
			errs = append(errs, fmt.Errorf("recovering take %s: %w", t.TakeID, err))
		}
	}
	return next, joined(errs)
}
