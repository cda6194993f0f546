package reconcile

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/holdfast-stock/holdfast/internal/ledger"
	"github.com/holdfast-stock/holdfast/internal/retry"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// sweepTimeout bounds one sweep, and one step of a loop.
const sweepTimeout = time.Minute

// Sweep goes once over everything: it delivers additions that have not reached the
// gate, resolves takes in flight past their deadline, refills counts that the gate
// lacks or has under another epoch, and refills counts that still differ as in the
// sweep before. A failure for one SKU does not affect the others. It is safe under
// load, and beside Run and sweeps of other instances.
//
// Run does the same in loops of their own. Sweep does not pause, so with very many
// SKUs it loads the stores.
func (r *Reconciler) Sweep(ctx context.Context) error {
	if r.gate == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, sweepTimeout)
	defer cancel()
	if err := r.generations.usable(ctx); err != nil {
		if errors.Is(err, stock.ErrSuperseded) { // other instances mend the stock
			return nil
		}
		return err
	}
	errs := []error{r.Deliver(ctx, "")}
	errs = append(errs, r.recoverAll(ctx))
	errs = append(errs, r.compareAll(ctx))
	return joined(errs)
}

// pace says how long a loop pauses after a step: share times as long as the step
// took, but at least least and at most most, plus up to jitter.
type pace struct {
	share               time.Duration
	least, most, jitter time.Duration
}

const (
	// sweepPause is the shortest pause after a round, with as much again of
	// jitter, so that instances do not work in step. A slow round is followed by a
	// longer pause, up to maxSweepPause.
	sweepPause, maxSweepPause = 1500 * time.Millisecond, 5 * time.Second
	// sweepShare: a round takes at most 1/sweepShare of the time.
	sweepShare = 20
)

var (
	// afterRound is the pace after the last step of a round.
	afterRound = pace{share: sweepShare, least: sweepPause, most: maxSweepPause, jitter: sweepPause}
	// withinRound is the pace between steps that look and find nothing to do. They
	// cost each store at most a fiftieth of one processor.
	withinRound = pace{share: 50, most: maxSweepPause}
	// whileRefilling is the pace between steps that refill counts.
	whileRefilling = pace{share: 2, most: time.Second}
)

func (p pace) pause(took time.Duration) time.Duration {
	pause := min(max(p.least, p.share*took), p.most)
	if p.jitter > 0 {
		pause += rand.N(p.jitter)
	}
	return pause
}

// The jobs of these loops. They need not check their token: an addition is applied at
// the gate once, by its number, and a refill raises an epoch that it has seen. So two
// instances that work at once do no harm.
const (
	outboxJob     = "outbox"
	comparisonJob = "comparison"
)

// keepDelivering delivers additions, whenever no other instance does, until ctx ends.
func (r *Reconciler) keepDelivering(ctx context.Context) {
	r.jobs.run(ctx, outboxJob, r.paced(func(ctx context.Context) (pace, error) {
		return afterRound, r.Deliver(ctx, "")
	}), nil)
}

// keepRecovering resolves takes in flight past their deadline until ctx ends. Every
// instance does: a take is ended once however many resolve it, and recovery must not
// wait until a job is handed over.
func (r *Reconciler) keepRecovering(ctx context.Context) {
	var cursor string
	for ctx.Err() == nil {
		start := time.Now()
		next, err := r.try(ctx, func(ctx context.Context) (next pace, err error) {
			if cursor, err = r.recoverNext(ctx, cursor); cursor != "" {
				return withinRound, err
			}
			return afterRound, err
		})
		if err != nil && ctx.Err() == nil {
			r.log.Warn("recovering takes failed and will be retried", "error", err)
		}
		_ = retry.Sleep(ctx, next.pause(time.Since(start)))
	}
}

// keepComparing compares gate and ledger, and mends the gate, whenever no other
// instance does, until ctx ends.
func (r *Reconciler) keepComparing(ctx context.Context) {
	r.jobs.run(ctx, comparisonJob, r.paced(r.compareNext), func() {
		r.metrics.inFlight.Set(0)
		r.metrics.drift.Set(0)
	})
}

// paced is the step of a job that pauses at the pace that next returns.
func (r *Reconciler) paced(next func(context.Context) (pace, error)) step {
	return func(ctx context.Context, _ ledger.Job) (time.Duration, error) {
		start := time.Now()
		p, err := r.try(ctx, next)
		return p.pause(time.Since(start)), err
	}
}

// try runs one step, unless nothing can be cut now.
func (r *Reconciler) try(ctx context.Context, step func(context.Context) (pace, error)) (pace, error) {
	ctx, cancel := context.WithTimeout(ctx, sweepTimeout)
	defer cancel()
	switch err := r.generations.usable(ctx); {
	case errors.Is(err, stock.ErrSuperseded): // other instances mend the stock
		return afterRound, nil
	case err != nil:
		return afterRound, err
	}
	return step(ctx)
}
