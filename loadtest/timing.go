package main

import (
	"slices"
	"time"

	"github.com/holdfast-stock/holdfast/internal/lab/measure"
	"github.com/holdfast-stock/holdfast/loadtest/results"
)

// addTimes adds throughput and latency to the result. Failures do not count.
func addTimes(r *results.Result, rec *record) {
	var (
		last  time.Duration
		times []time.Duration
	)
	for _, a := range rec.answers {
		if a.outcome == failed {
			continue
		}
		times = append(times, a.Took)
		if a.outcome == accepted || a.Outcome() == queued {
			last = max(last, a.at)
			r.Sales = append(r.Sales, a.at.Seconds())
		}
	}
	slices.Sort(r.Sales)
	if last > 0 {
		r.PerSecond = float64(len(r.Sales)) / last.Seconds()
	}
	slices.Sort(times)
	r.Percentiles = percentiles(times)
	r.P50, r.P99 = quantile(times, 0.50), quantile(times, 0.99)
}

// quantile returns a quantile of sorted times in milliseconds, nil without times.
func quantile(times []time.Duration, quantile float64) *float64 {
	if len(times) == 0 {
		return nil
	}
	millis := measure.Millis(measure.Quantile(times, quantile))
	return &millis
}

// curve has the quantiles of the latency curve. They are denser towards 1, because latency charts
// have a logarithmic scale.
var curve = []float64{
	0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.925, 0.95, 0.965, 0.975, 0.98, 0.985, 0.99,
	0.9925, 0.995, 0.9975, 0.998, 0.9985, 0.999, 0.9995, 0.99975, 0.9999, 0.99995, 0.99999, 1,
}

func percentiles(times []time.Duration) (points []results.Percentile) {
	for _, q := range curve {
		if millis := quantile(times, q); millis != nil {
			points = append(points, results.Percentile{Quantile: q, Millis: *millis})
		}
	}
	return points
}
