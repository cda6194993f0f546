package reconcile

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-stock/holdfast/internal/ledger"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// TestSweepPause checks that the pause between two rounds of a loop grows with their
// length, up to a bound.
func TestSweepPause(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ length, shortest, longest time.Duration }{
		{0, sweepPause, 2 * sweepPause},
		{sweepPause / sweepShare, sweepPause, 2 * sweepPause},
		{100 * time.Millisecond, 2 * time.Second, 2*time.Second + sweepPause},
		{200 * time.Millisecond, 4 * time.Second, 4*time.Second + sweepPause},
		{time.Second, maxSweepPause, maxSweepPause + sweepPause},
		{30 * time.Second, maxSweepPause, maxSweepPause + sweepPause},
	} {
		t.Run(test.length.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, _, l := started(t, &ownerRow{})
				var starts, ends []time.Time
				l.onPage = func() {
					starts = append(starts, time.Now())
					time.Sleep(test.length)
					ends = append(ends, time.Now())
				}
				stop := testenv.Background(t, r.keepComparing)
				time.Sleep(20 * (test.length + test.longest))
				stop()
				if len(starts) < 20 {
					t.Errorf("only %d sweeps", len(starts))
				}
				jitter := false
				for n := 1; n < len(starts); n++ {
					pause := starts[n].Sub(ends[n-1])
					if pause < test.shortest || pause >= test.longest {
						t.Errorf("paused for %v after sweep %d, want %v to %v", pause, n, test.shortest, test.longest)
					}
					jitter = jitter || n > 1 && pause != starts[n-1].Sub(ends[n-2])
				}
				if !jitter {
					t.Error("all pauses are the same: instances sweep in step")
				}
			})
		})
	}
}

// TestJoined checks that an error joins a bounded number of errors.
func TestJoined(t *testing.T) {
	err := joined(append([]error{nil}, slices.Repeat([]error{errUnreachable}, maxErrors+2)...))
	if text := err.Error(); strings.Count(text, errUnreachable.Error()) != maxErrors || !strings.HasSuffix(text, "and 2 more errors") {
		t.Errorf("%s", text)
	}
}

// TestOneInstanceSweeps checks that only one of two instances delivers additions and compares gate
// and ledger, and that the other takes over within seconds when it stops.
func TestOneInstanceSweeps(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		row, store, jobs := &ownerRow{}, newRedis(), &fakeJobs{}
		var delivered, compared [2]int
		var stops [2]func()
		for n := range stops {
			l := newLedger(row)
			l.fakeJobs = jobs
			l.onDeliver = func() { delivered[n]++ }
			l.onPage = func() { compared[n]++ }
			r := newReconciler(newGate(store), l)
			if err := r.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			stops[n] = testenv.Background(t, r.Run)
			time.Sleep(time.Second)
		}
		time.Sleep(20 * time.Second)
		synctest.Wait()
		if delivered[0] < 4 || compared[0] < 4 || delivered[1] != 0 || compared[1] != 0 {
			t.Errorf("deliveries %v, comparisons %v, want those of the first instance only", delivered, compared)
		}
		stops[0]()
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if delivered[1] == 0 || compared[1] == 0 {
			t.Errorf("deliveries %v, comparisons %v, 5 s after the first instance stopped", delivered, compared)
		}
		stops[1]()
	})
}

// TestRun checks that Run checks the stores about once a second, does each kind of its work, and
// returns once its context has ended.
func TestRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		row := &ownerRow{}
		r, gate, l := started(t, row)
		before, sweeps, batches, clocks, scans := row.owner.Beat, 0, 0, 0, 0
		l.onDeliver = func() { sweeps++ }
		l.on = func(_ context.Context, call string) error {
			if call == "MeasureClock" {
				clocks++
			}
			return nil
		}
		gate.scan = func(context.Context, string) ([]stock.Take, string, error) {
			scans++
			return nil, "", nil
		}
		l.expire = func(ledger.Job, int) (ledger.Expiry, error) {
			batches++
			return ledger.Expiry{}, nil
		}
		r.leaveOpen(&openTake{takeOf("a", 1), false})
		ctx, cancel := context.WithTimeout(t.Context(), 10*checkPause+checkPause/2)
		defer cancel()
		start := time.Now()
		r.Run(ctx)
		r.Close()
		if took := time.Since(start); took != 10*checkPause+checkPause/2 {
			t.Errorf("returned after %v", took)
		}
		if beats := row.owner.Beat - before; beats != 11 {
			t.Errorf("%d checks, want 11", beats)
		}
		if sweeps < 4 || sweeps > 8 {
			t.Errorf("%d sweeps, want 4 to 8", sweeps)
		}
		if clocks != 11 || scans < 4 || batches < 4 || len(gate.given) != 1 {
			t.Errorf("measured the clock %d times, looked %d times for takes in flight, and expired %d batches; gave back %v", clocks, scans, batches, gate.given)
		}
		if gate.redis.mark.Beat != row.owner.Beat || gate.redis.mark.Generation != l.Generation() {
			t.Errorf("the mark is %+v, the owner %+v", gate.redis.mark, row.owner)
		}
	})
}
