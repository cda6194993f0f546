package order

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/holdfast-stock/holdfast/internal/latency"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// metrics counts what the service does. No label holds a SKU or a buyer, so that the number of
// series stays bounded. Every label value is present from the start.
type metrics struct {
	orders        map[string]prometheus.Counter // counters by result
	changes       *prometheus.CounterVec
	gateSeconds   prometheus.Histogram
	ledgerSeconds prometheus.Histogram
}

func newMetrics(r prometheus.Registerer) *metrics {
	auto := promauto.With(r)
	orders := auto.NewCounterVec(prometheus.CounterOpts{
		Name: "holdfast_orders_total", Help: "Orders by result.",
	}, []string{"result"})
	m := &metrics{
		orders: make(map[string]prometheus.Counter),
		changes: auto.NewCounterVec(prometheus.CounterOpts{
			Name: "holdfast_order_changes_total", Help: "Answered payments, cancellations and refunds by the order's status afterwards, or refund_due.",
		}, []string{"status"}),
		gateSeconds:   auto.NewHistogram(latency.Options("holdfast_gate_take_seconds", "Time of one take at the gate.")),
		ledgerSeconds: auto.NewHistogram(latency.Options("holdfast_ledger_record_seconds", "Time from handing an order to the ledger to its answer.")),
	}
	for _, result := range results() {
		m.orders[result] = orders.WithLabelValues(result)
	}
	for _, status := range []Status{Paid, Cancelled, Refunded, refundDue} {
		m.changes.WithLabelValues(string(status))
	}
	return m
}

// refundDue is the label of payments that do not pay their order.
const refundDue = "refund_due"

// The labels of orders that were not refused.
const (
	accepted = "accepted"
	replayed = "replayed"
	queued   = "queued"
)

// results returns all labels of orders.
func results() []string {
	all := []string{accepted, replayed, queued}
	for _, f := range failures {
		all = append(all, f.label)
	}
	return all
}

// result returns the label that counts an answer. status is that of the answered order.
func result(status Status, again bool, err error) string {
	switch {
	case err != nil:
		return failure(err)
	case again:
		return replayed
	case status == Queued:
		return queued
	}
	return accepted
}

// failures are the labels of refused orders. The first row whose error the given error wraps
// counts. ErrUnavailable comes first, because it may wrap the others.
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
	return failures[0].label
}
