package reconcile

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-stock/holdfast/internal/ledger"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// TestStoresUp checks whether the instance is ready, and the metrics that say so and name the store
// that does not answer. A check that failed must be logged; one of stock that another layout has
// taken over did not fail. An instance must find that out even if its gate does not answer.
func TestStoresUp(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		broken              func(l *fakeLedger, g *fakeGate)
		ready, ledger, gate float64
		err                 error // why the instance is not ready
	}{
		"all is well":                  {func(*fakeLedger, *fakeGate) {}, 1, 1, 1, nil},
		"the ledger does not answer":   {func(l *fakeLedger, _ *fakeGate) { l.on = failing("Beat") }, 0, 0, 1, errUnreachable},
		"the gate does not answer":     {func(_ *fakeLedger, g *fakeGate) { g.onMark = answering(0, errUnreachable) }, 0, 1, 0, errUnreachable},
		"the gate is frozen":           {func(_ *fakeLedger, g *fakeGate) { g.onMark = answering(time.Hour, nil) }, 0, 1, 0, context.DeadlineExceeded},
		"neither of the two answers":   {func(l *fakeLedger, g *fakeGate) { l.on, g.onMark = failing("Beat"), answering(0, errUnreachable) }, 0, 0, 0, errUnreachable},
		"another layout has the stock": {func(l *fakeLedger, _ *fakeGate) { l.shared.owner.Layout = "other" }, 0, 1, 1, stock.ErrSuperseded},
		"another layout has the stock, and the gate does not answer": {func(l *fakeLedger, g *fakeGate) {
			l.shared.owner.Layout, g.onMark = "other", answering(0, errUnreachable)
		}, 0, 1, 0, stock.ErrSuperseded},
		"the clock is unknown": {func(l *fakeLedger, _ *fakeGate) { l.on = failing("ClockKnown") }, 0, 1, 1, errUnreachable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r, g, l := started(t, &ownerRow{})
				l.on = func(ctx context.Context, _ string) error { return ctx.Err() }
				log := r.logged()
				check := func(ready, ledger, gate float64) {
					t.Helper()
					if got := value(t, r.metrics.ready); got != ready {
						t.Errorf("ready is %v, want %v", got, ready)
					}
					stores := r.metrics.stores
					if l, g := value(t, stores.WithLabelValues(ledgerStore)), value(t, stores.WithLabelValues(gateStore)); l != ledger || g != gate {
						t.Errorf("the ledger is %v and the gate %v, want %v and %v", l, g, ledger, gate)
					}
				}
				checking := func(within time.Duration) {
					ctx, cancel := context.WithTimeout(t.Context(), within)
					defer cancel()
					r.keepChecking(ctx)
				}
				checking(checkPause / 2)
				check(1, 1, 1)
				test.broken(l, g)
				checking(checkTimeout + checkPause/2)
				check(test.ready, test.ledger, test.gate)
				failed := test.err != nil && !errors.Is(test.err, stock.ErrSuperseded)
				if w := log.String(); strings.Contains(w, "checking the stores failed") != failed {
					t.Errorf("logged %q", w)
				}
				if err := r.Ready(t.Context()); !errors.Is(err, test.err) {
					t.Errorf("ready: %v, want %v", err, test.err)
				}
			})
		})
	}
}

// TestOversoldUnits checks that the comparison counts the units that stock rows miss.
func TestOversoldUnits(t *testing.T) {
	t.Parallel()
	r, gate, l := started(t, &ownerRow{})
	stockUp(t, l, gate, "a", "b", "c", "d")
	for sku, available := range map[stock.SKU]int64{"a": -2, "b": 0, "c": 10, "d": -3} {
		row := l.rows[sku]
		row.Available = available
		l.rows[sku] = row
	}
	for range 2 { // each round counts again from 0
		if _, err := r.compareNext(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := value(t, r.metrics.oversold); got != 5 {
			t.Errorf("%v units are oversold, want 5", got)
		}
	}
	shown := []prometheus.Gauge{r.metrics.oversold, r.metrics.drift, r.metrics.inFlight}
	for _, gauge := range shown {
		gauge.Set(7)
	}
	r.hideComparison()
	for n, gauge := range shown {
		if got := value(t, gauge); got != 0 {
			t.Errorf("gauge %d is %v on an instance that does not compare", n, got)
		}
	}
}

// TestComparisonSums checks that each comparison counts the units in flight, and those by which gate
// and ledger differ where nothing is in flight.
func TestComparisonSums(t *testing.T) {
	t.Parallel()
	r, gate, l := started(t, &ownerRow{})
	epoch := stockUp(t, l, gate, "high", "in flight", "low", "same")
	for sku, level := range map[stock.SKU]stock.Level{"high": {Available: 13}, "in flight": {Available: 6, InFlight: 4}, "low": {Available: 8}} {
		level.SKU, level.Filled, level.Epoch = sku, true, epoch
		gate.redis.counts[sku] = level
	}
	for range 2 {
		if _, err := r.compareNext(t.Context()); err != nil {
			t.Fatal(err)
		}
		if inFlight, drift := value(t, r.metrics.inFlight), value(t, r.metrics.drift); inFlight != 4 || drift != 3+2 {
			t.Errorf("%v in flight, drift %v", inFlight, drift)
		}
	}
}

// TestOutboxChanges checks that the additions that the gate cannot accept are counted.
func TestOutboxChanges(t *testing.T) {
	t.Parallel()
	r, g, l := started(t, &ownerRow{})
	l.outbox = []stock.Change{
		{SKU: "a", Number: 1}, {SKU: "a", Number: 2}, {SKU: "b", Number: 1}, {SKU: "c", Number: 1}, {SKU: "c", Number: 2},
	}
	for _, test := range []struct {
		filled stock.SKU
		want   float64
	}{{"b", 4}, {"c", 3}} {
		g.adjusts = func(c stock.Change) error {
			if c.SKU == test.filled {
				return nil
			}
			return stock.ErrNotFilled
		}
		if _, err := r.deliverAll(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := value(t, r.metrics.outbox); got != test.want {
			t.Errorf("%v additions are left, want %v", got, test.want)
		}
	}
	if len(l.applied) != 3 {
		t.Errorf("applied %v", l.applied)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if r.keepDelivering(ended); value(t, r.metrics.outbox) != 0 {
		t.Error("an instance that does not deliver shows additions")
	}
}

// TestRefundsDue checks that the instance that expires orders counts the payments that
// are due back, now and then.
func TestRefundsDue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLedger(&ownerRow{})
		r := newReconciler(nil, l)
		counts := 0
		l.refunds = func() (int, time.Duration) {
			counts++
			return 3, time.Hour
		}
		var n, oldest float64
		l.expire = func(ledger.Job, int) (ledger.Expiry, error) {
			n, oldest = value(t, r.metrics.refundsDue), value(t, r.metrics.oldestRefund)
			return ledger.Expiry{Failed: 1}, nil
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		r.keepExpiring(ctx)
		if n != 3 || oldest != 3600 {
			t.Errorf("%v payments are due, the oldest for %v s", n, oldest)
		}
		if least, most := 12, 13; counts < least || counts > most {
			t.Errorf("counted %d times in a minute", counts)
		}
		if n := value(t, r.metrics.refundsDue) + value(t, r.metrics.oldestRefund) + value(t, r.metrics.failed); n != 0 {
			t.Errorf("an instance without the job shows %v", n)
		}
	})
}

// TestJobSuccess checks that the last success of a job is that of its steps that do not
// fail.
func TestJobSuccess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLedger(&ownerRow{})
		r := newReconciler(nil, l)
		began := time.Now()
		l.expire = func(ledger.Job, int) (ledger.Expiry, error) {
			if time.Since(began) > 10*time.Second {
				return ledger.Expiry{}, errUnreachable
			}
			return ledger.Expiry{}, nil
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		r.keepExpiring(ctx)
		last := value(t, r.metrics.jobs.succeeded.WithLabelValues(expiryJob)) - float64(began.UnixNano())/1e9
		if last < 9 || last > 10.1 {
			t.Errorf("the last success was %v s after the start, want about 10", last)
		}
	})
}

// TestSeriesFromTheStart checks that an instance has a series for each value of a label
// that it may use, and no others.
func TestSeriesFromTheStart(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		gate Counter
		want map[string]int
	}{
		"a gate":  {newGate(newRedis()), map[string]int{"holdfast_job_held": 3, "holdfast_job_last_success_timestamp_seconds": 3, "holdfast_recoveries_total": 2, "holdfast_store_up": 2}},
		"no gate": {nil, map[string]int{"holdfast_job_held": 1, "holdfast_job_last_success_timestamp_seconds": 1, "holdfast_recoveries_total": 2, "holdfast_store_up": 1}},
	} {
		registry := prometheus.NewRegistry()
		r := New(test.gate, newLedger(&ownerRow{}), Options{Metrics: registry})
		r.Close()
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, family := range families {
			if want := max(test.want[family.GetName()], 1); len(family.GetMetric()) != want {
				t.Errorf("%s: %s has %d series, want %d", name, family.GetName(), len(family.GetMetric()), want)
			}
			delete(test.want, family.GetName())
		}
		if len(test.want) > 0 {
			t.Errorf("%s: there is no %v", name, test.want)
		}
	}
}
