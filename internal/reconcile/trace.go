package reconcile

import (
	"context"
	"time"
)

// trace records a trace of background work that began at start and handled count orders
// or SKUs. Work that found nothing to do gets no trace, because it happens every second.
func (r *Reconciler) trace(ctx context.Context, name string, start time.Time, count int, err error) {
	if count == 0 && err == nil || ctx.Err() != nil {
		return
	}
	_, span := r.tracer.Root(ctx, name, start)
	span.Int("holdfast.job.count", count)
	if err != nil {
		span.Fail("failed")
	}
	span.End()
}
