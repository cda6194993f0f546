package ledger

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/holdfast-stock/holdfast/internal/latency"
)

type metrics struct {
	groupSize   prometheus.Histogram
	transaction prometheus.Histogram
	retries     prometheus.Counter
}

// newMetrics registers the ledger's metrics. queued returns the orders that wait for
// a group.
func newMetrics(r prometheus.Registerer, queued func() int) *metrics {
	auto := promauto.With(r)
	m := &metrics{
		groupSize: auto.NewHistogram(prometheus.HistogramOpts{
			Name: "holdfast_ledger_group_orders", Help: "Orders in one ledger group.", Buckets: prometheus.ExponentialBuckets(1, 2, 9),
		}),
		transaction: auto.NewHistogram(latency.Options("holdfast_ledger_transaction_seconds",
			"Time for which the transaction of a group holds a connection: from its beginning to the answer to its COMMIT or ROLLBACK.")),
		retries: auto.NewCounter(prometheus.CounterOpts{
			Name: "holdfast_ledger_retries_total", Help: "Tries of ledger transactions that ended with a deadlock, a serialization failure, a lock timeout or a version conflict.",
		}),
	}
	auto.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "holdfast_ledger_queue_orders", Help: "Orders that wait for a ledger group.",
	}, func() float64 { return float64(queued()) })
	return m
}
