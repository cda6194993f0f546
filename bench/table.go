package main

import (
	"fmt"
	"io"
	"time"

	"github.com/holdfast-stock/holdfast/internal/lab/measure"
	"github.com/holdfast-stock/holdfast/internal/lab/table"
)

// sample is one measured run, or the median of several.
type sample struct {
	perSecond        float64 // orders, or refusals when no stock is left
	app, redis, db   float64 // µs of CPU per order
	p50, p99         time.Duration
	held50, held99   time.Duration // how long an order's transaction holds a connection
	retries, grouped float64       // retries per order, orders per group; NaN: unknown
	expired          float64       // orders that expired per second
	slow             float64       // batches of expired orders that held stock rows locked for too long
	fault            string        // the run failed its audit; it has no figures
}

// Failed reports whether the run failed.
func (s sample) Failed() bool { return s.fault != "" }

// cpu returns the µs of CPU per order of all processes.
func (s sample) cpu() float64 { return s.app + s.redis + s.db }

// median returns a sample whose figures are each the median of that figure. If a run
// failed, it returns that run.
func median(samples []sample) sample {
	for _, s := range samples {
		if s.fault != "" {
			return s
		}
	}
	return sample{
		perSecond: measure.Median(samples, func(s sample) float64 { return s.perSecond }),
		app:       measure.Median(samples, func(s sample) float64 { return s.app }),
		redis:     measure.Median(samples, func(s sample) float64 { return s.redis }),
		db:        measure.Median(samples, func(s sample) float64 { return s.db }),
		p50:       measure.Median(samples, func(s sample) time.Duration { return s.p50 }),
		p99:       measure.Median(samples, func(s sample) time.Duration { return s.p99 }),
		held50:    measure.Median(samples, func(s sample) time.Duration { return s.held50 }),
		held99:    measure.Median(samples, func(s sample) time.Duration { return s.held99 }),
		retries:   measure.Median(samples, func(s sample) float64 { return s.retries }),
		grouped:   measure.Median(samples, func(s sample) float64 { return s.grouped }),
		expired:   measure.Median(samples, func(s sample) float64 { return s.expired }),
		slow:      measure.Median(samples, func(s sample) float64 { return s.slow }),
	}
}

// target is a bound that a variant must keep.
type target struct {
	variant string
	measure.Target[sample]
}

func rate(mine, theirs sample) float64 { return mine.perSecond / theirs.perSecond }

func cost(mine, theirs sample) float64 { return mine.cpu() / theirs.cpu() }

func p99(mine, theirs sample) float64 { return float64(mine.p99) / float64(theirs.p99) }

var targets = []target{
	{"lua", measure.Target[sample]{What: "orders/s", Against: "b", Limit: 0.58, Figure: rate}},
	{"lua", measure.Target[sample]{What: "orders/s", Against: "c", Limit: 1.5, Figure: rate}},
	{"lua", measure.Target[sample]{What: "CPU per order", Against: "b", AtMost: true, Limit: 1.7, Figure: cost}},
	{"lua", measure.Target[sample]{What: "p99", Against: "d", AtMost: true, Limit: 2, Figure: p99}},
	{"merged", measure.Target[sample]{What: "orders/s", Against: "b", Limit: 0.7, Figure: rate}},
	{"merged", measure.Target[sample]{What: "orders/s", Against: "c", Limit: 2, Figure: rate}},
	{"merged", measure.Target[sample]{What: "CPU per order", Against: "b", AtMost: true, Limit: 1.3, Figure: cost}},
	{"sold-out", measure.Target[sample]{What: "answers/s", Against: "b", Limit: 0.85, Figure: rate}},
	{"sold-out", measure.Target[sample]{What: "CPU per answer", Against: "b", AtMost: true, Limit: 0.8, Figure: cost}},
	{"merged-sold-out", measure.Target[sample]{What: "answers/s", Against: "b", Limit: 1.3, Figure: rate}},
}

// writeTable writes the medians of each variant, and the ratios to the reference
// programs. samples has a sample for each round, by variant.
func writeTable(w io.Writer, variants []string, samples map[string][]sample) {
	rows := table.New("", "orders/s", "× (b)", "× (c)", "× (d)", "µs CPU per order: all", "× (b)", "app", "Redis", "database",
		"p50 ms", "p99 ms", "orders a group", "retries per order")
	for _, name := range variants {
		s := median(samples[name])
		if s.fault != "" {
			rows.Add(name, "failed: "+s.fault)
			continue
		}
		ratio := func(to string, figure func(mine, theirs sample) float64) string {
			r, ok := measure.Compared(samples[name], samples[to], figure)
			if !ok {
				return table.Unknown
			}
			return fmt.Sprintf("%.2f", r)
		}
		rows.Add(name, whole(s.perSecond), ratio("b", rate), ratio("c", rate), ratio("d", rate), whole(s.cpu()), ratio("b", cost), whole(s.app), whole(s.redis), whole(s.db),
			millis(s.p50), millis(s.p99), table.Figure("%.1f", s.grouped), table.Figure("%.2f", s.retries))
	}
	rows.WriteMarkdown(w)
}

func whole(figure float64) string { return fmt.Sprintf("%.0f", figure) }

func millis(d time.Duration) string { return fmt.Sprintf("%.1f", measure.Millis(d)) }

// writeVerdicts compares the samples with the targets whose variants were measured.
func writeVerdicts(w io.Writer, samples map[string][]sample) {
	for _, t := range targets {
		if verdict, ok := t.Verdict(samples[t.variant], samples[t.Against]); ok {
			fmt.Fprintf(w, "- %s: %s\n", t.variant, verdict)
		}
	}
}
