package console

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/holdfast-stock/holdfast/internal/latency"
)

// The metrics that the console shows. docs/operations.md explains them.
const (
	ordersMetric     = "holdfast_orders_total"
	requestMetric    = "holdfast_http_request_seconds"
	gateMetric       = "holdfast_gate_take_seconds"
	ledgerMetric     = "holdfast_ledger_record_seconds"
	groupMetric      = "holdfast_ledger_group_orders"
	retriesMetric    = "holdfast_ledger_retries_total"
	refillsMetric    = "holdfast_gate_refills_total"
	guardMetric      = "holdfast_guard_refusals_total"
	recoveriesMetric = "holdfast_recoveries_total"
	waitingMetric    = "holdfast_ledger_queue_orders"
	journalMetric    = "holdfast_journal_orders"

	ordersRoute = "POST /orders" // the label of requestMetric for orders
)

// figures is one sample. It has rates since the sample before, and current counts.
type figures struct {
	At     float64            `json:"t"`      // seconds since 1970
	Orders map[string]float64 `json:"orders"` // a second, by result; results that did not occur are left out
	// Percentiles of the time to the answer of an order, of the time at the gate, and of the time
	// in the ledger, in milliseconds. nil: there were no orders.
	Answer *percentiles `json:"answer"`
	Gate   *percentiles `json:"gate"`
	Ledger *percentiles `json:"ledger"`
	Group  *float64     `json:"group"` // orders in one transaction, on average. nil: no transaction was run

	Retries    float64 `json:"retries"` // since the process started, like the next three
	Refills    float64 `json:"refills"`
	Guard      float64 `json:"guard"`
	Recoveries float64 `json:"recoveries"`
	Waiting    float64 `json:"waiting"` // orders that wait for a transaction
	Journal    float64 `json:"journal"` // queued orders
}

type percentiles struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
}

// figureReader turns counters into rates.
type figureReader struct {
	metrics prometheus.Gatherer
	before  *counters // nil: none to compare with
}

// counters are the metrics at one time.
type counters struct {
	at     time.Time
	orders map[string]float64
	totals map[string]float64 // counters and gauges, over all labels
	times  map[string]*histogram
}

// histogram has cumulative counts by upper bound, over all labels.
type histogram struct {
	count  uint64
	sum    float64
	bounds []float64
	below  []uint64
}

func newFigureReader(metrics prometheus.Gatherer) *figureReader {
	return &figureReader{metrics: metrics}
}

// read returns a sample, or nil if there is no earlier one to compare with. If it also returns an
// error, the sample has what could be read.
func (r *figureReader) read(now time.Time) (*figures, error) {
	families, err := r.metrics.Gather()
	after := count(families, now)
	before := r.before
	r.before = after
	if before == nil {
		return nil, err
	}
	seconds := after.at.Sub(before.at).Seconds()
	f := &figures{
		At:         float64(now.UnixMilli()) / 1000,
		Orders:     make(map[string]float64),
		Answer:     since(before.times[requestMetric], after.times[requestMetric]),
		Gate:       since(before.times[gateMetric], after.times[gateMetric]),
		Ledger:     since(before.times[ledgerMetric], after.times[ledgerMetric]),
		Retries:    after.totals[retriesMetric],
		Refills:    after.totals[refillsMetric],
		Guard:      after.totals[guardMetric],
		Recoveries: after.totals[recoveriesMetric],
		Waiting:    after.totals[waitingMetric],
		Journal:    after.totals[journalMetric],
	}
	for result, n := range after.orders {
		if rate := (n - before.orders[result]) / seconds; rate > 0 {
			f.Orders[result] = rate
		}
	}
	if groups := after.times[groupMetric].minus(before.times[groupMetric]); groups.count > 0 {
		mean := groups.sum / float64(groups.count)
		f.Group = &mean
	}
	return f, err
}

// count picks the metrics that the console shows.
func count(families []*dto.MetricFamily, now time.Time) *counters {
	c := &counters{at: now, orders: make(map[string]float64), totals: make(map[string]float64), times: make(map[string]*histogram)}
	for _, family := range families {
		switch name := family.GetName(); name {
		case ordersMetric:
			for _, m := range family.GetMetric() {
				c.orders[labelOf(m, "result")] += m.GetCounter().GetValue()
			}
		case requestMetric, gateMetric, ledgerMetric, groupMetric:
			h := new(histogram)
			for _, m := range family.GetMetric() {
				if name != requestMetric || labelOf(m, "route") == ordersRoute {
					h.add(m.GetHistogram())
				}
			}
			c.times[name] = h
		case retriesMetric, refillsMetric, guardMetric, recoveriesMetric, waitingMetric, journalMetric:
			for _, m := range family.GetMetric() {
				c.totals[name] += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return c
}

// labelOf returns the value of a label of the metric.
func labelOf(m *dto.Metric, name string) string {
	for _, label := range m.GetLabel() {
		if label.GetName() == name {
			return label.GetValue()
		}
	}
	return ""
}

// add adds a metric, which has the same bounds as the others of its family.
func (h *histogram) add(m *dto.Histogram) {
	h.count += m.GetSampleCount()
	h.sum += m.GetSampleSum()
	for i, b := range m.GetBucket() {
		if i == len(h.bounds) {
			h.bounds = append(h.bounds, b.GetUpperBound())
			h.below = append(h.below, 0)
		}
		h.below[i] += b.GetCumulativeCount()
	}
}

// minus returns what was observed after before. h and before may be nil.
func (h *histogram) minus(before *histogram) histogram {
	if h == nil {
		return histogram{}
	}
	d := histogram{count: h.count, sum: h.sum, bounds: h.bounds, below: make([]uint64, len(h.below))}
	copy(d.below, h.below)
	if before != nil && len(before.below) == len(h.below) {
		d.count -= before.count
		d.sum -= before.sum
		for i := range d.below {
			d.below[i] -= before.below[i]
		}
	}
	return d
}

// since returns the percentiles of what was observed between two samples, or nil if
// nothing was.
func since(before, after *histogram) *percentiles {
	d := after.minus(before)
	if d.count == 0 {
		return nil
	}
	return &percentiles{P50: 1000 * latency.Quantile(0.5, d.count, d.bounds, d.below), P99: 1000 * latency.Quantile(0.99, d.count, d.bounds, d.below)}
}
