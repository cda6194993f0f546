package recipe

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/retry"
)

// Ticks remembers the last completed tick of each job. All processes of a cluster share it. It is
// safe for concurrent use.
type Ticks interface {
	// LastTick returns the number of the last tick that was recorded for the job, or 0
	// if there is none.
	LastTick(ctx context.Context, job string) (int64, error)
	// RecordTick records the tick, and reports whether it did. It records nothing if the same tick
	// or a later one has been recorded.
	RecordTick(ctx context.Context, job string, tick int64) (recorded bool, err error)
}

// Job runs once for the whole cluster in each interval. A lock keeps two processes from running it
// at the same time. The tick that is recorded after a run keeps other processes from running it
// again.
//
// If a process dies in the middle of a run, the tick is not recorded, and another process runs the
// job again when the lock is free. So a run may be repeated, and must be safe to repeat. A process
// that outlives its lease can run the job at the same time as the next process. If that does harm,
// the run must pass its fencing token to the data that it changes.
type Job struct {
	Name   string
	Locker lock.Locker
	Ticks  Ticks
	// Every is the interval. Its ticks are at the multiples of it since the year 1 in UTC, as those
	// of time.Truncate: weekly ticks are on Mondays. Each machine uses its own clock. A machine
	// whose clock is ahead runs the job early, and the cluster does not repeat that tick. When
	// several ticks have passed during a run, or while no process ran, only the last of them is
	// run.
	Every time.Duration
	// Run does the work of one tick. After an error, any process may try the tick again.
	Run func(ctx context.Context, tick time.Time, token uint64) error
	Log *slog.Logger
}

// Keep runs the job at its ticks until ctx ends, and then returns ctx's error. If the
// job's name makes no valid name of a lock, Keep returns lock.ErrName at once.
func (j Job) Keep(ctx context.Context) error {
	if err := lock.CheckName(j.lockName()); err != nil {
		return err
	}
	for ctx.Err() == nil {
		tick := time.Now().Truncate(j.Every)
		err := j.runOnce(ctx, tick)
		wait := time.Until(tick.Add(j.Every)) // the next tick, however long the run took
		if err != nil && ctx.Err() == nil {
			j.Log.Warn("a job failed and will be retried", "job", j.Name, "tick", tick, "error", err)
			wait = retryPause
		}
		_ = retry.Sleep(ctx, wait)
	}
	return ctx.Err()
}

func (j Job) lockName() string { return "job:" + j.Name }

// runOnce runs the job unless the tick is recorded. While another process runs it,
// runOnce waits, in case that process dies.
func (j Job) runOnce(ctx context.Context, tick time.Time) error {
	number := tick.UnixNano() / int64(j.Every)
	if done, err := j.done(ctx, number); done || err != nil {
		return err
	}
	lease, err := j.Locker.Lock(ctx, j.lockName())
	if err != nil {
		return err
	}
	defer func() { _ = lease.Unlock(ctx) }() // if Unlock fails, the lock ends with its lease
	if done, err := j.done(ctx, number); done || err != nil {
		return err
	}
	err = workUnder(ctx, lease, func(ctx context.Context, token uint64) error { return j.Run(ctx, tick, token) })
	if err != nil {
		return err
	}
	// Record a successful run even if ctx has ended meanwhile.
	recording, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTimeout)
	defer cancel()
	recorded, err := j.Ticks.RecordTick(recording, j.Name, number)
	if err == nil && !recorded {
		err = fmt.Errorf("another process has run it too: %w", lock.ErrLost)
	}
	return err
}

// recordTimeout bounds recording a tick.
const recordTimeout = 5 * time.Second

// done reports whether the tick or a later one is recorded.
func (j Job) done(ctx context.Context, tick int64) (bool, error) {
	last, err := j.Ticks.LastTick(ctx, j.Name)
	return last >= tick, err
}
