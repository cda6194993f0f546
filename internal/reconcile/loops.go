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

// Sweep does all repairs once. It delivers additions that have not reached the gate, and resolves
// takes in flight past their deadline. It refills counts that the gate lacks, has under another
// epoch, or that still differ as in the previous sweep. A failure for one SKU does not affect the
// others. It is safe under load, and beside Run and sweeps of other instances.
//
// Run does the same repairs in separate loops. Sweep does not pause, so with very many SKUs it
// loads the stores.
func (r *Reconciler) Sweep(ctx context.Context) error {
	if r.counter == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, sweepTimeout)
	defer cancel()
	if err := r.Usable(ctx); err != nil {
		if errors.Is(err, stock.ErrSuperseded) { // other instances repair the stock
			return nil
		}
		return err
	}
	errs := []error{r.Deliver(ctx, "")}
	errs = append(errs, r.recoverAll(ctx))
	errs = append(errs, r.compareAll(ctx))
	return joined(errs)
}

// pace determines the pause of a loop after a step. The pause is share times the duration of the
// step, at least least and at most most, plus up to least as jitter.
type pace struct {
	share       float64
	least, most time.Duration
}

const (
	// sweepPause is the shortest pause after a round, plus up to the same time as jitter, so that
	// instances do not work in step. A slow round is followed by a longer pause, up to
	// maxSweepPause.
	sweepPause, maxSweepPause = 1500 * time.Millisecond, 5 * time.Second
	// sweepShare: a round takes at most 1/sweepShare of the time.
	sweepShare = 20
)

var (
	// afterRound is the pace after the last step of a round.
	afterRound = pace{share: sweepShare, least: sweepPause, most: maxSweepPause}
	// withinRound is the pace between steps of a comparison that find nothing to
	// do. They cost each store at most a fiftieth of one processor.
	withinRound = pace{share: 50, most: maxSweepPause}
	// withinScan is the pace between steps of a recovery. Many steps are needed
	// only on a cluster, where each step asks one of at least three servers.
	withinScan = pace{share: sweepShare, most: maxSweepPause}
	// whileRefilling is the pace between steps that refill counts.
	whileRefilling = pace{share: 2, most: time.Second}
)

func (p pace) pause(took time.Duration) time.Duration {
	pause := min(max(p.least, time.Duration(p.share*float64(took))), p.most)
	if p.least > 0 {
		pause += rand.N(p.least)
	}
	return pause
}

// loopStep does a part of some work, and returns the pace for the next part.
type loopStep func(context.Context) (pace, error)

// The names of the jobs that deliver additions, and that compare gate and ledger. If two instances
// run one of these jobs at once, nothing is applied twice, because an addition has a number, and a
// refill compares epochs.
const outboxJob, driftJob = "outbox", "drift"

// keepDelivering delivers additions until ctx ends, whenever no other instance does.
func (r *Reconciler) keepDelivering(ctx context.Context) {
	r.jobs.run(ctx, outboxJob, r.asJob(r.deliverAll), func() { r.metrics.outbox.Set(0) })
}

// deliverAll delivers the additions of every SKU. SKUs on a dead master of a cluster may take the
// time of every call. The comparison then refills the SKUs after them.
func (r *Reconciler) deliverAll(ctx context.Context) (pace, error) {
	start := time.Now()
	applied, left, err := r.deliverChanges(ctx, "")
	r.metrics.outbox.Set(float64(left))
	r.trace(ctx, "job.outbox", start, applied, err)
	return afterRound, err
}

// keepComparing compares gate and ledger, and repairs the gate, until ctx ends, whenever no other
// instance does.
func (r *Reconciler) keepComparing(ctx context.Context) {
	r.jobs.run(ctx, driftJob, r.asJob(r.compareNext), r.hideComparison)
}

// asJob returns the loop's steps as those of a job.
func (r *Reconciler) asJob(do loopStep) step {
	return func(ctx context.Context, _ ledger.Job) (time.Duration, error) { return r.try(ctx, do) }
}

// keepRecovering resolves takes in flight past their deadline until ctx ends. Every instance does
// so, because the work is cheap, and claiming a job would only delay it.
func (r *Reconciler) keepRecovering(ctx context.Context) {
	var cursor string
	recoverStep := func(ctx context.Context) (next pace, err error) {
		if cursor, err = r.recoverNext(ctx, cursor); cursor != "" {
			return withinScan, err
		}
		return afterRound, err
	}
	for ctx.Err() == nil {
		pause, err := r.try(ctx, recoverStep)
		if err != nil && ctx.Err() == nil {
			r.log.Warn("recovering takes failed and will be retried", "error", err)
		}
		_ = retry.Sleep(ctx, pause)
	}
}

// try takes one step, and returns how long to pause after it. It takes no step if nothing can be
// cut now, or if another layout owns the stock, because that layout's instances repair it.
func (r *Reconciler) try(ctx context.Context, do loopStep) (pause time.Duration, err error) {
	start, next := time.Now(), afterRound
	ctx, cancel := context.WithTimeout(ctx, sweepTimeout)
	defer cancel()
	if err = r.Usable(ctx); err == nil {
		next, err = do(ctx)
	}
	if errors.Is(err, stock.ErrSuperseded) {
		err = nil
	}
	return next.pause(time.Since(start)), err
}
