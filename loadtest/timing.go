package main

import (
	"slices"
	"time"
)

func millisEach(cpu time.Duration, orders int64) *float64 {
	each := cpu.Seconds() * 1000 / float64(orders)
	return &each
}

// timed fills in throughput and latency. Both count correct answers only.
func (r *Result) timed(rec *record) {
	var (
		last  time.Duration
		times []time.Duration
	)
	for _, a := range rec.answers {
		if a.outcome == failed {
			continue
		}
		times = append(times, a.took)
		if a.outcome == accepted {
			last = max(last, a.at)
			r.Sales = append(r.Sales, a.at.Seconds())
		}
	}
	slices.Sort(r.Sales)
	if last > 0 {
		r.PerSecond = float64(rec.accepted.Load()) / last.Seconds()
	}
	slices.Sort(times)
	r.Percentiles = percentiles(times)
	r.P50, r.P99 = at(times, 0.50), at(times, 0.99)
}

// at is a quantile of sorted times in milliseconds, nil if there are none.
func at(times []time.Duration, quantile float64) *float64 {
	if len(times) == 0 {
		return nil
	}
	i := min(int(quantile*float64(len(times))), len(times)-1)
	millis := times[i].Seconds() * 1000
	return &millis
}

// curve is where the latency curve is drawn.
var curve = []float64{0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 0.999, 1}

// Percentile is one point of a latency curve.
type Percentile struct {
	Quantile float64 `json:"quantile"`
	Millis   float64 `json:"millis"`
}

func percentiles(times []time.Duration) (points []Percentile) {
	for _, quantile := range curve {
		if millis := at(times, quantile); millis != nil {
			points = append(points, Percentile{quantile, *millis})
		}
	}
	return points
}
