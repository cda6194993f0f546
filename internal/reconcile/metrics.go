package reconcile

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	guardRefusals prometheus.Counter
	refills       prometheus.Counter
	recoveries    *prometheus.CounterVec
	inFlight      prometheus.Gauge
	drift         prometheus.Gauge
	jobs          *prometheus.GaugeVec
	expired       prometheus.Counter
	backlog       prometheus.Gauge
	oldest        prometheus.Gauge
	lastExpiry    prometheus.Gauge
	slowExpiries  prometheus.Counter
	failed        prometheus.Gauge
}

func newMetrics(r prometheus.Registerer) *metrics {
	m := &metrics{
		guardRefusals: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "holdfast_guard_refusals_total", Help: "Orders that the gate admitted and the ledger refused for lack of stock.",
		}),
		refills: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "holdfast_gate_refills_total", Help: "Counts filled at the gate under a new epoch.",
		}),
		recoveries: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "holdfast_recoveries_total", Help: "Takes left in flight past the deadline, by what became of them.",
		}, []string{"outcome"}),
		inFlight: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "holdfast_gate_in_flight", Help: "Units taken and not yet settled at the gate, over all SKUs, in the last complete comparison.",
		}),
		drift: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "holdfast_gate_drift_units", Help: "Units by which gate and ledger differ where nothing is in flight, over all SKUs, in the last complete comparison.",
		}),
		jobs: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "holdfast_job_held", Help: "1 if this instance holds the job, otherwise 0.",
		}, []string{"job"}),
		expired: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "holdfast_expired_orders_total", Help: "Orders that this instance has expired.",
		}),
		backlog: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "holdfast_expiry_backlog_orders", Help: "Pending orders whose time has passed, counted up to 10001 by the instance that expires orders; 0 on the others.",
		}),
		oldest: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "holdfast_expiry_oldest_seconds", Help: "How long the oldest order of the backlog has been due, on the instance that expires orders; 0 on the others.",
		}),
		lastExpiry: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "holdfast_expiry_last_success_timestamp_seconds", Help: "When this instance last expired orders or found none to expire; 0 if it never did.",
		}),
		slowExpiries: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "holdfast_expiry_slow_batches_total", Help: "Batches of expired orders that held stock rows locked for more than 50 ms.",
		}),
		failed: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "holdfast_expiry_failed_orders", Help: "Orders that cannot expire, counted up to 1000 by the instance that expires orders; 0 on the others. The log has the cause.",
		}),
	}
	r.MustRegister(m.guardRefusals, m.refills, m.recoveries, m.inFlight, m.drift,
		m.jobs, m.expired, m.backlog, m.oldest, m.lastExpiry, m.slowExpiries, m.failed)
	return m
}
