// Package latency measures how long work takes, in Prometheus histograms that all have
// the same buckets. It also estimates their quantiles.
package latency

import (
	"math"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
)

// buckets are the upper bounds in seconds. They are dense where orders are: between 50 µs and 100
// ms, an interpolated quantile is wrong by a third at most.
var buckets = []float64{
	50e-6, 100e-6, 200e-6, 300e-6, 500e-6, 750e-6,
	1e-3, 1.5e-3, 2e-3, 3e-3, 5e-3, 7.5e-3,
	10e-3, 15e-3, 20e-3, 30e-3, 50e-3, 75e-3,
	0.1, 0.2, 0.5, 1, 2, 5, 10,
}

// Options returns the options of a histogram of seconds, with buckets from 50 µs to 10 s and with
// the bounds in beyond.
func Options(name, help string, beyond ...float64) prometheus.HistogramOpts {
	return prometheus.HistogramOpts{Name: name, Help: help, Buckets: append(slices.Clone(buckets), beyond...)}
}

// Quantile estimates a quantile between 0 and 1 of a histogram as Prometheus does: observations are
// assumed to be spread evenly within a bucket. An observation above all bounds counts as the
// highest bound. count is the number of observations, and below has the number up to each bound.
// Quantile returns 0 without observations.
func Quantile(q float64, count uint64, bounds []float64, below []uint64) float64 {
	if count == 0 {
		return 0
	}
	rank := q * float64(count)
	lower, before := 0.0, 0.0
	for i, bound := range bounds {
		if math.IsInf(bound, 1) {
			break
		}
		upTo := float64(below[i])
		if upTo >= rank && upTo > before {
			return lower + (bound-lower)*(rank-before)/(upTo-before)
		}
		lower, before = bound, upTo
	}
	return lower
}
