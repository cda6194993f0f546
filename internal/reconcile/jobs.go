package reconcile

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/ledger"
	"github.com/holdfast-stock/holdfast/internal/retry"
)

const (
	// renewPause is the pause between two renewals of a job.
	renewPause = time.Second
	// claimPause is the shortest pause between two tries to claim a job. Up to a quarter of it is
	// added as jitter.
	claimPause = 800 * time.Millisecond
	// jobCallTimeout bounds one call that renews or releases a job. It is shorter than a lease.
	// The ledger itself bounds a claim.
	jobCallTimeout = 2 * time.Second
)

// JobLedger is the part of the ledger that jobs use.
type JobLedger interface {
	ClaimJob(ctx context.Context, name, holder string) (ledger.Job, error)
	RenewJob(ctx context.Context, j ledger.Job) error
	ReleaseJob(ctx context.Context, j ledger.Job) error
}

// jobs runs work that only one instance of the cluster does at a time. A lease that ends during the
// work does no harm: the work's own transactions check the job's token, and the rest of the work
// may run twice. jobs is safe for concurrent use.
type jobs struct {
	ledger     JobLedger
	holder     string
	superseded *atomic.Bool // another layout owns the stock, so this instance must not hold jobs
	log        *slog.Logger
	metrics    jobMetrics
}

// step does a part of a job's work. It returns how long to wait before the next step. After an
// error the job is released, so that another instance can try.
type step func(ctx context.Context, held ledger.Job) (pause time.Duration, err error)

// newHolder returns a name for this process as the holder of jobs.
func newHolder() string {
	host, _ := os.Hostname() // without the host name, the rest is still unique
	return fmt.Sprintf("%.40s/%d/%s", host, os.Getpid(), uuid.NewString())
}

// run does the job until ctx ends, whenever no other instance does it. idle is called when the job
// is left to other instances, and at the end. It is not called after a step that failed, unless
// another instance then does the job.
func (j *jobs) run(ctx context.Context, name string, do step, idle func()) {
	defer idle()
	for ctx.Err() == nil {
		if j.superseded.Load() {
			idle()
		} else {
			held, err := j.ledger.ClaimJob(ctx, name, j.holder)
			switch {
			case err == nil:
				j.work(ctx, held, do)
			case errors.Is(err, ledger.ErrJobHeld):
				idle()
			case ctx.Err() == nil:
				j.log.Warn("claiming a job failed and will be retried", "job", name, "error", err)
			}
		}
		_ = retry.Sleep(ctx, claimPause+rand.N(claimPause/4))
	}
}

// work takes steps while this instance holds the job, and then releases the job.
func (j *jobs) work(ctx context.Context, held ledger.Job, do step) {
	j.metrics.held.WithLabelValues(held.Name).Set(1)
	j.log.Info("took over a job", "job", held.Name, "token", held.Token)

	working, stop := context.WithCancel(ctx)
	var renewing sync.WaitGroup
	renewing.Go(func() {
		defer stop()
		j.keepRenewing(working, held)
	})
	defer func() {
		stop()
		renewing.Wait()
		j.metrics.held.WithLabelValues(held.Name).Set(0) // reset the metric before another instance can claim the job
		j.release(ctx, held)
	}()
	for working.Err() == nil && !j.superseded.Load() {
		pause, err := do(working, held)
		if err != nil { // another instance may be able to reach the stores
			if !errors.Is(err, ledger.ErrJobLost) && working.Err() == nil {
				j.log.Warn("a job failed and is released", "job", held.Name, "error", err)
			}
			return
		}
		j.metrics.succeeded.WithLabelValues(held.Name).SetToCurrentTime()
		_ = retry.Sleep(working, pause)
	}
}

// keepRenewing renews the job until ctx ends or the job is lost. The job is lost if another
// instance has claimed it, or if no renewal has succeeded for the length of a lease.
func (j *jobs) keepRenewing(ctx context.Context, held ledger.Job) {
	for last := time.Now(); time.Since(last) < ledger.JobLease; {
		if retry.Sleep(ctx, renewPause) != nil {
			return
		}
		renewing, cancel := context.WithTimeout(ctx, jobCallTimeout)
		err := j.ledger.RenewJob(renewing, held)
		cancel()
		switch {
		case err == nil:
			last = time.Now()
		case errors.Is(err, ledger.ErrJobLost):
			j.log.Warn("another instance has claimed a job of this instance", "job", held.Name)
			return
		case ctx.Err() == nil:
			j.log.Warn("renewing a job failed and will be retried", "job", held.Name, "error", err)
		}
	}
}

// release releases the job, so that another instance need not wait for the end of the lease. It
// works even if ctx has ended.
func (j *jobs) release(ctx context.Context, held ledger.Job) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), jobCallTimeout)
	defer cancel()
	if err := j.ledger.ReleaseJob(ctx, held); err != nil && !errors.Is(err, ledger.ErrJobLost) {
		j.log.Warn("releasing a job failed; its lease will run out", "job", held.Name, "error", err)
	}
}
