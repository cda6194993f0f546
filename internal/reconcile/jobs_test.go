package reconcile

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/holdfast-stock/holdfast/internal/ledger"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// fakeJobs is the ledger's table of jobs in memory, with the methods that expiry needs. It follows
// the contract of Ledger.
type fakeJobs struct {
	mu          sync.Mutex
	leases      map[string]jobLease // by name
	unreachable bool                // the ledger does not answer

	expire func(held ledger.Job, limit int) (ledger.Expiry, error) // nil: no order is due
	due    func() int                                              // nil: no order is due; the oldest has been due for a minute

	refunds func() (n int, oldest time.Duration) // nil: no payment is due

	on func(ctx context.Context, call string) error // called before some calls, unless nil; they return its error
}

func (t *fakeJobs) called(ctx context.Context, call string) error {
	if t.on == nil {
		return nil
	}
	return t.on(ctx, call)
}

// failing returns a hook that makes the calls fail.
func failing(calls ...string) func(context.Context, string) error {
	return func(_ context.Context, call string) error {
		if slices.Contains(calls, call) {
			return errUnreachable
		}
		return nil
	}
}

type jobLease struct {
	job   ledger.Job
	until time.Time
}

func (t *fakeJobs) ClaimJob(ctx context.Context, name, holder string) (ledger.Job, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.unreachable:
		return ledger.Job{}, errUnreachable
	case time.Now().Before(t.leases[name].until):
		return ledger.Job{}, ledger.ErrJobHeld
	}
	if t.leases == nil {
		t.leases = make(map[string]jobLease)
	}
	job := ledger.Job{Name: name, Holder: holder, Token: t.leases[name].job.Token + 1}
	t.leases[name] = jobLease{job, time.Now().Add(ledger.JobLease)}
	return job, nil
}

func (t *fakeJobs) RenewJob(ctx context.Context, j ledger.Job) error {
	return t.setLease(ctx, j, ledger.JobLease)
}

func (t *fakeJobs) ReleaseJob(ctx context.Context, j ledger.Job) error { return t.setLease(ctx, j, 0) }

func (t *fakeJobs) setLease(ctx context.Context, j ledger.Job, lease time.Duration) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case t.unreachable:
		return errUnreachable
	case j != t.leases[j.Name].job:
		return ledger.ErrJobLost
	}
	t.leases[j.Name] = jobLease{j, time.Now().Add(lease)}
	return nil
}

func (t *fakeJobs) setUnreachable(unreachable bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.unreachable = unreachable
}

func (t *fakeJobs) Expire(_ context.Context, held ledger.Job, _ *ledger.ExpiryRound, limit int) (ledger.Expiry, error) {
	if t.expire == nil {
		return ledger.Expiry{}, nil
	}
	return t.expire(held, limit)
}

func (t *fakeJobs) Due(ctx context.Context, _ int) (int, time.Duration, error) {
	if err := t.called(ctx, "Due"); err != nil {
		return 0, 0, err
	}
	if t.due == nil || t.due() == 0 {
		return 0, 0, nil
	}
	return t.due(), time.Minute, nil
}

func (t *fakeJobs) RefundsDue(ctx context.Context, _ int) (int, time.Duration, error) {
	if err := t.called(ctx, "RefundsDue"); err != nil {
		return 0, 0, err
	}
	if t.refunds == nil {
		return 0, 0, nil
	}
	n, oldest := t.refunds()
	return n, oldest, nil
}

func (t *fakeJobs) MeasureClock(ctx context.Context) error { return t.called(ctx, "MeasureClock") }
func (t *fakeJobs) ClockKnown() error                      { return t.called(context.Background(), "ClockKnown") }

// runner is an instance that runs a job.
type runner struct {
	*jobs
	steps      chan ledger.Job // receives the job at each step
	stop       func()          // stops the instance and waits until it has stopped
	superseded atomic.Bool
}

// startRunner starts an instance that runs a job. A step takes 10 ms.
func startRunner(t *testing.T, table JobLedger) *runner {
	t.Helper()
	r := &runner{steps: make(chan ledger.Job, 10_000)}
	r.jobs = &jobs{
		ledger: table, holder: newHolder(), superseded: &r.superseded, log: slog.New(slog.DiscardHandler),
		metrics: newJobMetrics(promauto.With(nil)),
	}
	r.stop = testenv.Background(t, func(ctx context.Context) {
		r.run(ctx, "job", func(_ context.Context, held ledger.Job) (time.Duration, error) {
			r.steps <- held
			return 10 * time.Millisecond, nil
		}, func() {})
	})
	return r
}

// taken returns and removes the steps that the runner has taken.
func (r *runner) taken() (steps []ledger.Job) {
	for {
		select {
		case j := <-r.steps:
			steps = append(steps, j)
		default:
			return steps
		}
	}
}

// silentJobs is a table of jobs that does not answer some calls. They have no effect, and return when
// their contexts end.
type silentJobs struct {
	JobLedger
	silent func(call string) bool
}

// hang waits until ctx ends if the call is not answered.
func (s silentJobs) hang(ctx context.Context, call string) error {
	if !s.silent(call) {
		return nil
	}
	<-ctx.Done()
	return ctx.Err()
}

func (s silentJobs) ClaimJob(ctx context.Context, name, holder string) (ledger.Job, error) {
	if err := s.hang(ctx, "claim"); err != nil {
		return ledger.Job{}, err
	}
	return s.JobLedger.ClaimJob(ctx, name, holder)
}

func (s silentJobs) RenewJob(ctx context.Context, j ledger.Job) error {
	if err := s.hang(ctx, "renew"); err != nil {
		return err
	}
	return s.JobLedger.RenewJob(ctx, j)
}

func (s silentJobs) ReleaseJob(ctx context.Context, j ledger.Job) error {
	if err := s.hang(ctx, "release"); err != nil {
		return err
	}
	return s.JobLedger.ReleaseJob(ctx, j)
}

// TestJobHandover checks how soon another instance takes over a job, and that the first does not
// continue.
func TestJobHandover(t *testing.T) {
	t.Parallel()
	const poll = claimPause + claimPause/4
	for name, test := range map[string]struct {
		end    func(r *runner, killed *atomic.Bool)
		within time.Duration
	}{
		"it stops":                  {func(r *runner, _ *atomic.Bool) { r.stop() }, poll},
		"another layout takes over": {func(r *runner, _ *atomic.Bool) { r.superseded.Store(true) }, poll + 10*time.Millisecond},
		"it can no longer renew":    {func(_ *runner, killed *atomic.Bool) { killed.Store(true) }, ledger.JobLease + poll},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				table, killed := &fakeJobs{}, new(atomic.Bool)
				first := startRunner(t, silentJobs{table, func(string) bool { return killed.Load() }})
				time.Sleep(time.Second)
				second := startRunner(t, table)
				time.Sleep(time.Minute)
				if n := len(first.taken()); n < 1000 {
					t.Errorf("the holder took %d steps in a minute", n)
				}
				if n := len(second.taken()); n != 0 {
					t.Errorf("the other instance took %d steps", n)
				}
				test.end(first, killed)
				time.Sleep(test.within + 100*time.Millisecond) // a renewal may have been under way
				steps := second.taken()
				if len(steps) == 0 {
					t.Fatalf("no other instance holds the job after %v", test.within)
				}
				if steps[0].Token != 2 {
					t.Errorf("the second holder has token %d", steps[0].Token)
				}
				if one, other := value(t, first.metrics.held.WithLabelValues("job")), value(t, second.metrics.held.WithLabelValues("job")); one != 0 || other != 1 {
					t.Errorf("the metric of the first instance is %v, that of the second %v", one, other)
				}
				first.taken()
				time.Sleep(time.Minute)
				if n := len(first.taken()); n != 0 {
					t.Errorf("the first instance took %d more steps", n)
				}
				if f, s := value(t, first.metrics.held.WithLabelValues("job")), value(t, second.metrics.held.WithLabelValues("job")); f != 0 || s != 1 {
					t.Errorf("by their metrics, the instances hold %v and %v jobs", f, s)
				}
			})
		})
	}
}

// TestJobSurvivesAnOutage checks that a holder continues after a short outage of the ledger, and
// that some instance does after a long one.
func TestJobSurvivesAnOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		table := &fakeJobs{}
		r := startRunner(t, table)
		time.Sleep(10 * time.Second)
		table.setUnreachable(true)
		time.Sleep(ledger.JobLease / 2)
		table.setUnreachable(false)
		time.Sleep(time.Second)
		r.taken()
		time.Sleep(time.Second)
		if steps := r.taken(); len(steps) == 0 || steps[0].Token != 1 {
			t.Errorf("after a short outage: %+v", steps)
		}
		table.setUnreachable(true)
		time.Sleep(time.Minute)
		if steps := r.taken(); len(steps) > 500 {
			t.Errorf("%d steps in a minute in which nothing could be renewed", len(steps))
		}
		table.setUnreachable(false)
		time.Sleep(2 * time.Second)
		if steps := r.taken(); len(steps) == 0 || steps[0].Token != 2 {
			t.Errorf("after a long outage: %+v", steps)
		}
	})
}

// TestJobStepsFail checks that a step that fails, or that finds its job lost, ends the claim, and
// that the instance claims the job again. The instance is idle only once another instance has the
// job. Only a step that fails is logged.
func TestJobStepsFail(t *testing.T) {
	t.Parallel()
	for _, failure := range []error{errUnreachable, ledger.ErrJobLost} {
		synctest.Test(t, func(t *testing.T) {
			var (
				steps []ledger.Job
				idle  int
				table fakeJobs
			)
			r := newReconciler(newGate(newRedis()), newLedger(&ownerRow{}))
			log := r.logged()
			r.jobs.ledger = &table
			ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
			defer cancel()
			r.jobs.run(ctx, "job", func(_ context.Context, held ledger.Job) (time.Duration, error) {
				if steps = append(steps, held); len(steps) == 2 {
					if idle != 0 {
						t.Errorf("idle %d times after %v, while no other instance had the job", idle, failure)
					}
					table.leases["job"] = jobLease{until: time.Now().Add(time.Hour)} // another instance's
				}
				return 0, fmt.Errorf("taking a step: %w", failure)
			}, func() { idle++ })
			r.Close()
			if len(steps) != 2 || steps[1].Token != 2 {
				t.Errorf("steps after %v: %+v", failure, steps)
			}
			if idle < 2 { // the last time is the end
				t.Error("not idle while another instance had the job")
			}
			if w := log.String(); strings.Contains(w, "a job failed") != errors.Is(failure, errUnreachable) {
				t.Errorf("after %v, logged %q", failure, w)
			}
		})
	}
}

// TestJobSuperseded checks that an instance that must not hold jobs claims none, and is idle.
func TestJobSuperseded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var table fakeJobs
		r := newReconciler(nil, newLedger(&ownerRow{}))
		r.jobs.ledger = &table
		r.generations.superseded.Store(true)
		ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
		defer cancel()
		idle := 0
		r.jobs.run(ctx, "job", func(context.Context, ledger.Job) (time.Duration, error) { return 0, nil }, func() { idle++ })
		if len(table.leases) > 0 || idle < 2 { // the last time is the end
			t.Errorf("claimed %v, idle %d times", table.leases, idle)
		}
	})
}

// lateRenewal is a table of jobs to which renewals come late, even if their contexts have ended. It
// calls released before a job is released.
type lateRenewal struct {
	*fakeJobs
	released func()
}

func (l lateRenewal) RenewJob(ctx context.Context, j ledger.Job) error {
	time.Sleep(jobCallTimeout / 2) // in a bubble
	return l.fakeJobs.RenewJob(context.WithoutCancel(ctx), j)
}

func (l lateRenewal) ReleaseJob(ctx context.Context, j ledger.Job) error {
	l.released()
	return l.fakeJobs.ReleaseJob(ctx, j)
}

// TestReleaseAfterRenewal checks that a job is released after its last renewal. Otherwise other
// instances would have to wait for the end of its lease. By then, the metric must not show the job
// any more, because another instance may claim it at once.
func TestReleaseAfterRenewal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		table := &fakeJobs{}
		var r *runner
		r = startRunner(t, lateRenewal{table, func() {
			if held := value(t, r.metrics.held.WithLabelValues("job")); held != 0 {
				t.Errorf("the metric is %v at the release", held)
			}
		}})
		time.Sleep(renewPause + jobCallTimeout/4) // a renewal is under way
		r.stop()
		time.Sleep(jobCallTimeout)
		if lease := table.leases["job"]; lease.until.After(time.Now()) {
			t.Errorf("the job is held for another %v", time.Until(lease.until))
		}
	})
}
