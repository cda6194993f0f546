package reconcile

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// metrics are the metrics of reconciling. Each series exists from the start, with the value 0.
type metrics struct {
	ready         prometheus.Gauge
	stores        *prometheus.GaugeVec
	guardRefusals prometheus.Counter
	refills       prometheus.Counter
	recoveries    *prometheus.CounterVec
	inFlight      prometheus.Gauge
	drift         prometheus.Gauge
	oversold      prometheus.Gauge
	outbox        prometheus.Gauge
	jobs          jobMetrics
	expired       prometheus.Counter
	backlog       prometheus.Gauge
	oldest        prometheus.Gauge
	slowExpiries  prometheus.Counter
	failed        prometheus.Gauge
	refundsDue    prometheus.Gauge
	oldestRefund  prometheus.Gauge
}

// The labels of the stores.
const gateStore, ledgerStore = "gate", "ledger"

// newMetrics registers the metrics. hasGate says that there is a gate.
func newMetrics(r prometheus.Registerer, hasGate bool) *metrics {
	auto := promauto.With(r)
	m := &metrics{
		ready: auto.NewGauge(prometheus.GaugeOpts{
			Name: "holdfast_ready", Help: "1 if this instance could place orders when it last checked its stores, otherwise 0.",
		}),
		stores: auto.NewGaugeVec(prometheus.GaugeOpts{
			Name: "holdfast_store_up", Help: "1 if the store answered the last check, otherwise 0.",
		}, []string{"store"}),
		guardRefusals: auto.NewCounter(prometheus.CounterOpts{
			Name: "holdfast_guard_refusals_total", Help: "Orders that the gate admitted and the ledger refused for lack of stock.",
		}),
		refills: auto.NewCounter(prometheus.CounterOpts{
			Name: "holdfast_gate_refills_total", Help: "Counts filled at the gate under a new epoch.",
		}),
		recoveries: auto.NewCounterVec(prometheus.CounterOpts{
			Name: "holdfast_recoveries_total", Help: "Takes left in flight past the deadline, by what became of them.",
		}, []string{"outcome"}),
		inFlight: auto.NewGauge(prometheus.GaugeOpts{
			Name: "holdfast_gate_in_flight", Help: "Units taken and not yet settled at the gate, over all SKUs, in the last complete comparison.",
		}),
		drift: auto.NewGauge(prometheus.GaugeOpts{
			Name: "holdfast_gate_drift_units", Help: "Units by which gate and ledger differ where nothing is in flight, over all SKUs, in the last complete comparison.",
		}),
		oversold: auto.NewGauge(prometheus.GaugeOpts{
			Name: "holdfast_oversold_units", Help: "Units sold beyond the total, over all SKUs, as the stock rows have it, in the last complete comparison.",
		}),
		outbox: auto.NewGauge(prometheus.GaugeOpts{
			Name: "holdfast_outbox_changes", Help: "Additions to stock that had not reached the gate after the last delivery, on the instance that delivers them; 0 on the others.",
		}),
		jobs: newJobMetrics(auto),
		expired: auto.NewCounter(prometheus.CounterOpts{
			Name: "holdfast_expired_orders_total", Help: "Orders that this instance has expired.",
		}),
		backlog: auto.NewGauge(prometheus.GaugeOpts{
			Name: "holdfast_expiry_backlog_orders", Help: "Pending orders whose time has passed, counted up to 10001 by the instance that expires orders; 0 on the others.",
		}),
		oldest: auto.NewGauge(prometheus.GaugeOpts{
			Name: "holdfast_expiry_oldest_seconds", Help: "How long the oldest order of the backlog has been due, on the instance that expires orders; 0 on the others.",
		}),
		slowExpiries: auto.NewCounter(prometheus.CounterOpts{
			Name: "holdfast_expiry_slow_batches_total", Help: "Batches of expired orders that held stock rows locked for more than 50 ms.",
		}),
		failed: auto.NewGauge(prometheus.GaugeOpts{
			Name: "holdfast_expiry_failed_orders", Help: "Orders that cannot expire, counted by the instance that expires orders; 0 on the others. The log has the cause.",
		}),
		refundsDue: auto.NewGauge(prometheus.GaugeOpts{
			Name: "holdfast_refunds_due", Help: "Payments that are due back to their buyers, counted up to 1001 by the instance that expires orders; 0 on the others.",
		}),
		oldestRefund: auto.NewGauge(prometheus.GaugeOpts{
			Name: "holdfast_refunds_due_oldest_seconds", Help: "How long the oldest of them has been due.",
		}),
	}
	for _, ended := range []string{settled, given} {
		m.recoveries.WithLabelValues(ended)
	}
	m.stores.WithLabelValues(ledgerStore)
	if hasGate {
		m.stores.WithLabelValues(gateStore)
	}
	return m
}

// checked records whether a store answered.
func (m *metrics) checked(store string, err error) {
	m.stores.WithLabelValues(store).Set(oneIf(err == nil))
}

func oneIf(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}

// jobMetrics are the metrics of jobs. Their label is not called job, because
// Prometheus gives every series a label of that name.
type jobMetrics struct {
	held      *prometheus.GaugeVec // 1 for each job that this instance holds
	succeeded *prometheus.GaugeVec
}

func newJobMetrics(auto promauto.Factory) jobMetrics {
	return jobMetrics{
		held: auto.NewGaugeVec(prometheus.GaugeOpts{
			Name: "holdfast_job_held", Help: "1 if this instance holds the job, otherwise 0.",
		}, []string{"name"}),
		succeeded: auto.NewGaugeVec(prometheus.GaugeOpts{
			Name: "holdfast_job_last_success_timestamp_seconds", Help: "When this instance last did a part of the job, or found nothing to do; 0 if it never did.",
		}, []string{"name"}),
	}
}

// expect creates the series of a job that this instance may hold.
func (m jobMetrics) expect(name string) {
	m.held.WithLabelValues(name)
	m.succeeded.WithLabelValues(name)
}
