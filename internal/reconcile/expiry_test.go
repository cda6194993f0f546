package reconcile

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-stock/holdfast/internal/ledger"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// value returns the value of a counter or gauge.
func value(t *testing.T, c prometheus.Collector) float64 {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(c)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	m := families[0].GetMetric()[0]
	return m.GetCounter().GetValue() + m.GetGauge().GetValue()
}

// TestExpiryStep checks the pause after each batch, that its units are brought to the
// gate, and the metrics.
func TestExpiryStep(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const took, backlog = 20 * time.Millisecond, 20 * expiryBatch
		var (
			l      = newLedger(&ownerRow{})
			gate   = newGate(newRedis())
			r      = newReconciler(gate, l)
			due    = backlog
			starts []time.Time
			steps  int // number of steps after which the instance stops
			stop   context.CancelFunc
		)
		defer r.Close()
		l.due = func() int { return due }
		l.expire = func(_ ledger.Job, limit int) (ledger.Expiry, error) {
			if starts = append(starts, time.Now()); len(starts) == steps {
				stop()
			}
			n := min(limit, due)
			if due -= n; n == 0 {
				return ledger.Expiry{}, nil
			}
			time.Sleep(took)
			return ledger.Expiry{More: true, Expired: n, Returned: []stock.Change{{SKU: "a", Delta: 1}, {SKU: "b", Delta: 2}}, Locked: slowBatch}, nil
		}
		expiring := func(n int) {
			var ctx context.Context
			ctx, stop = context.WithCancel(t.Context())
			starts, steps = nil, n
			r.keepExpiring(ctx)
		}
		gauges := func(backlog, oldest float64) {
			t.Helper()
			if b, o := value(t, r.metrics.backlog), value(t, r.metrics.oldest); b != backlog || o != oldest {
				t.Errorf("the backlog is %v, the oldest %v, want %v and %v", b, o, backlog, oldest)
			}
		}

		const batches = backlog / expiryBatch
		expiring(batches / 2)
		gauges(0, 0) // another instance may hold the job
		expiring(batches - batches/2 + 5)
		full := 0
		for n := 1; n < len(starts); n++ {
			switch pause := starts[n].Sub(starts[n-1]); {
			case pause == expiryShare*took:
				full++
			case pause < expiryShare*took:
				t.Errorf("batch %d follows after %v", n, pause)
			}
		}
		if full < batches/2-3 {
			t.Errorf("only %d batches are followed by the next at once", full)
		}
		if rest := starts[len(starts)-1].Sub(starts[len(starts)-2]); rest != expiryPause {
			t.Errorf("without a backlog the pause is %v", rest)
		}
		if n := len(gate.adjusted); n != 2*batches || gate.adjusted[n-1] != (stock.Change{SKU: "b", Delta: 2}) {
			t.Errorf("the gate got %d additions, want two of each of %d batches", n, batches)
		}
		if n := value(t, r.metrics.expired); n != backlog {
			t.Errorf("%v orders are counted", n)
		}
		gauges(0, 0)
	})
}

// TestExpiryTells checks that the caller of New is notified of the SKUs to which an expiry has
// returned units, even without a gate, and only if it succeeded.
func TestExpiryTells(t *testing.T) {
	t.Parallel()
	var told []stock.SKU
	l := newLedger(&ownerRow{})
	r := newReconciler(nil, l)
	r.onReturn = func(skus ...stock.SKU) { told = append(told, skus...) }
	e := &expiry{Reconciler: r}
	for _, err := range []error{errUnreachable, nil} {
		l.expire = func(ledger.Job, int) (ledger.Expiry, error) {
			if len(told) > 0 {
				t.Error("told before the units have returned")
			}
			return ledger.Expiry{Expired: 2, SKUs: []stock.SKU{"a", "b"}}, err
		}
		if _, got := e.step(t.Context(), ledger.Job{}); !errors.Is(got, err) {
			t.Errorf("answered %v, want %v", got, err)
		}
	}
	if !slices.Equal(told, []stock.SKU{"a", "b"}) {
		t.Errorf("told of %v", told)
	}
}

// TestExpiryBacklog checks that the metrics show a backlog while it is processed, slow batches, and
// the orders that cannot expire once a round has found them all.
func TestExpiryBacklog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLedger(&ownerRow{})
		r := newReconciler(nil, l)
		e := &expiry{Reconciler: r}
		l.due = func() int { return 777 }
		var done ledger.Expiry
		l.expire = func(ledger.Job, int) (ledger.Expiry, error) { return done, nil }
		for n, step := range []struct {
			done          ledger.Expiry
			expired, slow float64
			failed        float64
		}{
			{ledger.Expiry{More: true, Expired: 99, Failed: 1, Locked: slowBatch + 1}, 99, 1, 1},
			{ledger.Expiry{Failed: 2, Locked: slowBatch}, 99, 1, 2},
			{ledger.Expiry{More: true, Expired: 1}, 100, 1, 2}, // the next round has not reached these orders
			{ledger.Expiry{}, 100, 1, 0},
		} {
			done = step.done
			if _, err := e.step(t.Context(), ledger.Job{}); err != nil {
				t.Fatal(err)
			}
			m := r.metrics
			if b, o := value(t, m.backlog), value(t, m.oldest); b != 777 || o != 60 {
				t.Errorf("step %d: backlog %v, oldest %v s", n+1, b, o)
			}
			if x, s, f := value(t, m.expired), value(t, m.slowExpiries), value(t, m.failed); x != step.expired || s != step.slow || f != step.failed {
				t.Errorf("step %d: expired %v, slow %v, failed %v", n+1, x, s, f)
			}
		}
		l.expire = func(ledger.Job, int) (ledger.Expiry, error) { return ledger.Expiry{}, errUnreachable }
		if _, err := e.step(t.Context(), ledger.Job{}); err == nil {
			t.Error("the error of a batch is lost")
		}
	})
}
