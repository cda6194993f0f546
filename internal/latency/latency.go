// Package latency measures how long work takes, in Prometheus histograms that all have
// the same buckets.
package latency

import (
	"context"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-stock/holdfast/internal/tracing"
)

// buckets are the upper bounds in seconds. They follow each other closely where orders
// are: between 50 µs and 100 ms, a quantile that is interpolated within a bucket is
// wrong by a third at most.
var buckets = []float64{
	50e-6, 100e-6, 200e-6, 300e-6, 500e-6, 750e-6,
	1e-3, 1.5e-3, 2e-3, 3e-3, 5e-3, 7.5e-3,
	10e-3, 15e-3, 20e-3, 30e-3, 50e-3, 75e-3,
	0.1, 0.2, 0.5, 1, 2, 5, 10,
}

// Options returns the options of a histogram of seconds with buckets from 50 µs to
// 10 s, and with these bounds beyond.
func Options(name, help string, beyond ...float64) prometheus.HistogramOpts {
	return prometheus.HistogramOpts{Name: name, Help: help, Buckets: append(slices.Clone(buckets), beyond...)}
}

// Observe adds a duration to a histogram, with an exemplar that names the trace of ctx if
// it is sampled.
func Observe(ctx context.Context, h prometheus.Observer, took time.Duration) {
	tracing.Observe(ctx, h, took.Seconds())
}
