package order

import "github.com/prometheus/client_golang/prometheus"

// Metrics counts what the service does. No label holds a SKU or a buyer, so
// that their number stays bounded.
type Metrics struct {
	orders        *prometheus.CounterVec
	gateSeconds   prometheus.Histogram
	ledgerSeconds prometheus.Histogram
	groupSize     prometheus.Histogram
	retries       prometheus.Counter
	guardRefusals prometheus.Counter
	refills       prometheus.Counter
	recoveries    *prometheus.CounterVec
	inFlight      prometheus.Gauge
	drift         prometheus.Gauge
}

// NewMetrics registers the service's metrics with r.
func NewMetrics(r prometheus.Registerer) *Metrics {
	latency := prometheus.ExponentialBuckets(0.0001, 2, 16) // 100 µs to 3.3 s
	m := &Metrics{
		orders: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "holdfast_orders_total", Help: "Orders by result.",
		}, []string{"result"}),
		gateSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "holdfast_gate_take_seconds", Help: "Time of one take at the gate.", Buckets: latency,
		}),
		ledgerSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "holdfast_ledger_record_seconds", Help: "Time from handing an order to the ledger to its answer.", Buckets: latency,
		}),
		groupSize: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "holdfast_ledger_group_orders", Help: "Orders in one ledger group.", Buckets: prometheus.ExponentialBuckets(1, 2, 9),
		}),
		retries: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "holdfast_ledger_retries_total", Help: "Ledger transactions tried again: deadlocks, serialization failures, moved versions.",
		}),
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
			Name: "holdfast_gate_in_flight", Help: "Units taken and not yet settled at the gate, over all SKUs, at the last sweep.",
		}),
		drift: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "holdfast_gate_drift_units", Help: "Units by which gate and ledger differ where nothing is in flight, over all SKUs, at the last sweep.",
		}),
	}
	r.MustRegister(m.orders, m.gateSeconds, m.ledgerSeconds, m.groupSize, m.retries,
		m.guardRefusals, m.refills, m.recoveries, m.inFlight, m.drift)
	return m
}
