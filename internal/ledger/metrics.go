package ledger

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	groupSize prometheus.Histogram
	retries   prometheus.Counter
}

// newMetrics registers the ledger's metrics. queued returns the orders that wait for
// a group.
func newMetrics(r prometheus.Registerer, queued func() int) *metrics {
	m := &metrics{
		groupSize: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "holdfast_ledger_group_orders", Help: "Orders in one ledger group.", Buckets: prometheus.ExponentialBuckets(1, 2, 9),
		}),
		retries: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "holdfast_ledger_retries_total", Help: "Retries of ledger transactions after deadlocks, serialization failures and version conflicts.",
		}),
	}
	queue := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "holdfast_ledger_queue_orders", Help: "Orders that wait for a ledger group.",
	}, func() float64 { return float64(queued()) })
	r.MustRegister(m.groupSize, m.retries, queue)
	return m
}
