package reconcile

import (
	"context"
	"fmt"
	"time"

	"github.com/holdfast-stock/holdfast/internal/stock"
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

// recoverNext resolves the takes past the deadline that the next step of the gate's scan lists, and
// returns the cursor of the step after it. It looks for takes in the gate's records, so its cost
// does not grow with the number of SKUs. A take that cannot be ended does not delay the recovery of
// others.
func (r *Reconciler) recoverNext(ctx context.Context, cursor string) (next string, err error) {
	start := time.Now()
	takes, next, err := r.counter.ScanInFlight(ctx, r.takeDeadline, cursor)
	ends := make(map[string]int)
	defer func() {
		r.trace(ctx, "recovery", start, len(takes), err)
		if len(ends) > 0 {
			r.log.Info("recovered takes left in flight", settled, ends[settled], given, ends[given])
		}
	}()
	errs := []error{err}
	for _, t := range takes {
		if ctx.Err() != nil {
			return next, ctx.Err()
		}
		ended, err := r.recoverTake(ctx, t)
		if err != nil {
			errs = append(errs, fmt.Errorf("recovering take %s: %w", t.TakeID, err))
			continue
		}
		ends[ended]++
	}
	return next, joined(errs)
}

// The ways in which a take that was left in flight can end.
const settled, given = "settled", "given"

// recoverTake resolves a take that was left in flight: it settles the take or gives it back, and
// returns which of the two.
func (r *Reconciler) recoverTake(ctx context.Context, t stock.Take) (ended string, err error) {
	switch out := r.ledger.Resolve(ctx, t.Deduction); {
	case out.Committed():
		err, ended = r.counter.Settle(ctx, t), settled
	case out.Refused():
		err, ended = r.counter.Give(ctx, t), given
	default:
		return "", out.Reason()
	}
	if err != nil {
		return "", err
	}
	r.metrics.recoveries.WithLabelValues(ended).Inc()
	r.log.Debug("recovered a take left in flight", "order", t.OrderID, "outcome", ended)
	return ended, nil
}
