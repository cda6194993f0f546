package order

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-stock/holdfast/internal/ledger"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// metrics counts what the service does. No label holds a SKU or a buyer, so that
// the number of series stays bounded.
type metrics struct {
	orders        *prometheus.CounterVec
	changes       *prometheus.CounterVec
	gateSeconds   prometheus.Histogram
	ledgerSeconds prometheus.Histogram
}

func newMetrics(r prometheus.Registerer) *metrics {
	latency := prometheus.ExponentialBuckets(0.0001, 2, 16) // 100 µs to 3.3 s
	m := &metrics{
		orders: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "holdfast_orders_total", Help: "Orders by result.",
		}, []string{"result"}),
		changes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "holdfast_order_changes_total", Help: "Answered payments, cancellations and refunds by the order's status afterwards, or refund_due.",
		}, []string{"status"}),
		gateSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "holdfast_gate_take_seconds", Help: "Time of one take at the gate.", Buckets: latency,
		}),
		ledgerSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "holdfast_ledger_record_seconds", Help: "Time from handing an order to the ledger to its answer.", Buckets: latency,
		}),
	}
	r.MustRegister(m.orders, m.changes, m.gateSeconds, m.ledgerSeconds)
	return m
}

// result is the label by which an answer is counted. status is the answered order's.
func result(status ledger.Status, replayed bool, err error) string {
	switch {
	case err != nil:
		return failure(err)
	case replayed:
		return "replayed"
	case status == ledger.Queued:
		return "queued"
	}
	return "accepted"
}

// failures are the labels of refused orders. The first row whose error is wrapped in
// the given one counts. ErrUnavailable is on top, because it may wrap the others.
var failures = []struct {
	err   error
	label string
}{
	{stock.ErrUnavailable, "unavailable"},
	{stock.ErrSuperseded, "superseded"},
	{stock.ErrBusy, "busy"},
	{ErrInProgress, "in_progress"},
	{ErrKeyReused, "key_reused"},
	{stock.ErrSoldOut, "sold_out"},
	{stock.ErrBuyerLimit, "buyer_limit"},
	{stock.ErrNotOpen, "not_open"},
	{stock.ErrClosed, "closed"},
	{stock.ErrUnknownSKU, "unknown_sku"},
}

func failure(err error) string {
	for _, f := range failures {
		if errors.Is(err, f.err) {
			return f.label
		}
	}
	return "unavailable"
}
