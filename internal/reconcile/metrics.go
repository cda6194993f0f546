package reconcile

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	guardRefusals prometheus.Counter
	refills       prometheus.Counter
	recoveries    *prometheus.CounterVec
	inFlight      prometheus.Gauge
	drift         prometheus.Gauge
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
	}
	r.MustRegister(m.guardRefusals, m.refills, m.recoveries, m.inFlight, m.drift)
	return m
}
