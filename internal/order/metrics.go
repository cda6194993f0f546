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
	case err == nil && replayed:
		return "replayed"
	case err == nil && status == ledger.Queued:
		return "queued"
	case err == nil:
		return "accepted"
	case errors.Is(err, stock.ErrUnavailable): // first: it may wrap the other errors
		return "unavailable"
	case errors.Is(err, stock.ErrSuperseded):
		return "superseded"
	case errors.Is(err, stock.ErrBusy):
		return "busy"
	case errors.Is(err, ErrInProgress):
		return "in_progress"
	case errors.Is(err, ErrKeyReused):
		return "key_reused"
	case errors.Is(err, stock.ErrSoldOut):
		return "sold_out"
	case errors.Is(err, stock.ErrBuyerLimit):
		return "buyer_limit"
	case errors.Is(err, stock.ErrNotOpen):
		return "not_open"
	case errors.Is(err, stock.ErrClosed):
		return "closed"
	case errors.Is(err, stock.ErrUnknownSKU):
		return "unknown_sku"
	default:
		return "unavailable"
	}
}
