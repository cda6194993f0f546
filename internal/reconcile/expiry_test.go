package reconcile

import (
	"context"
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
		const took, backlog = 20 * time.Millisecond, 1000
		var (
			l         = newLedger(&ownerRow{})
			r         = newReconciler(newGate(newRedis()), l)
			due       = backlog
			starts    []time.Time
			delivered int
			steps     int // after which the instance stops
			stop      context.CancelFunc
		)
		defer r.Close()
		l.onDeliver = func() { delivered++ } // the outbox is read
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
			return ledger.Expiry{Found: n, Oldest: time.Minute, Expired: n, SKUs: []stock.SKU{"a", "b"}, Locked: shortLock}, nil
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

		const batches = (backlog + minExpiryBatch - 1) / minExpiryBatch
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
		if delivered != 2*batches {
			t.Errorf("the outbox was read %d times, want twice for each of %d batches", delivered, batches)
		}
		if n := value(t, r.metrics.expired); n != backlog {
			t.Errorf("%v orders are counted", n)
		}
		gauges(0, 0)
	})
}

// TestExpiryBacklog checks that the gauges show a backlog while it is worked off, and
// the failures of a batch.
func TestExpiryBacklog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLedger(&ownerRow{})
		r := newReconciler(nil, l)
		e := &expiry{Reconciler: r, batch: 400}
		l.due = func() int { return 777 }
		l.expire = func(_ ledger.Job, limit int) (ledger.Expiry, error) {
			return ledger.Expiry{Found: limit, Oldest: time.Minute, Expired: limit - 1, Locked: maxLock + 1}, nil
		}
		if _, err := e.step(t.Context(), ledger.Job{}); err != nil {
			t.Fatal(err)
		}
		m := r.metrics
		if b, o, n, s := value(t, m.backlog), value(t, m.oldest), value(t, m.expired), value(t, m.slowExpiries); b != 777 || o != 60 || n != 399 || s != 1 {
			t.Errorf("backlog %v, oldest %v s, expired %v, slow %v", b, o, n, s)
		}
		l.expire = func(ledger.Job, int) (ledger.Expiry, error) { return ledger.Expiry{}, errAway }
		if _, err := e.step(t.Context(), ledger.Job{}); err == nil || e.batch != 100 {
			t.Errorf("a batch that failed: %v, the next has %d orders", err, e.batch)
		}
	})
}

// TestExpiryBatch checks how the size of a batch follows the time for which the one
// before held the stock rows.
func TestExpiryBatch(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name        string
		batch, next int
		locked      time.Duration
		full        bool
	}{
		{"short", 100, 125, shortLock - 1, true},
		{"the last of a backlog", 100, 100, shortLock - 1, false},
		{"neither short nor long", 100, 100, longLock, true},
		{"long", 200, 100, longLock + 1, true},
		{"long although it was small", 200, 100, longLock + 1, false},
		{"the smallest", minExpiryBatch, minExpiryBatch, time.Second, true},
		{"the largest", maxExpiryBatch, maxExpiryBatch, 0, true},
	} {
		e := &expiry{batch: test.batch}
		if e.resize(test.locked, test.full); e.batch != test.next {
			t.Errorf("%s: a batch of %d is followed by one of %d, want %d", test.name, test.batch, e.batch, test.next)
		}
	}
}
