package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// sample is one measured run.
type sample struct {
	perSecond        float64 // orders, or refusals where nothing is left
	app, redis, db   float64 // µs of CPU per order
	p50, p99         time.Duration
	retries, grouped float64 // per order; orders per group
	fault            string  // what the audit found; then there are no figures
}

func (s sample) all() float64 { return s.app + s.redis + s.db }

// median of each figure by itself.
func median(samples []sample) sample {
	for _, s := range samples {
		if s.fault != "" {
			return s
		}
	}
	return sample{
		perSecond: middle(samples, func(s sample) float64 { return s.perSecond }),
		app:       middle(samples, func(s sample) float64 { return s.app }),
		redis:     middle(samples, func(s sample) float64 { return s.redis }),
		db:        middle(samples, func(s sample) float64 { return s.db }),
		p50:       middle(samples, func(s sample) time.Duration { return s.p50 }),
		p99:       middle(samples, func(s sample) time.Duration { return s.p99 }),
		retries:   middle(samples, func(s sample) float64 { return s.retries }),
		grouped:   middle(samples, func(s sample) float64 { return s.grouped }),
	}
}

func middle[N cmp.Ordered](samples []sample, figure func(sample) N) N {
	values := make([]N, len(samples))
	for i, s := range samples {
		values[i] = figure(s)
	}
	return halfway(values)
}

// halfway sorts values and returns their median.
func halfway[N cmp.Ordered](values []N) N {
	slices.Sort(values)
	return values[len(values)/2]
}

// compared is the median of what each round says of two variants: a machine
// whose speed changes between rounds changes it less than each one's median.
// ok is false unless both have figures.
func compared(mine, theirs []sample, figure func(mine, theirs sample) float64) (median float64, ok bool) {
	if len(mine) == 0 || len(mine) != len(theirs) {
		return 0, false
	}
	values := make([]float64, len(mine))
	for i := range mine {
		if mine[i].fault != "" || theirs[i].fault != "" {
			return 0, false
		}
		values[i] = figure(mine[i], theirs[i])
	}
	return halfway(values), true
}

// target is what a variant must reach, against others of the same run.
type target struct {
	variant, against string
	what             string
	most             bool // at most, not at least
	limit            float64
	figure           func(mine, theirs sample) float64
}

func rate(mine, theirs sample) float64 { return mine.perSecond / theirs.perSecond }

// targets are the project's promises to itself.
var targets = []target{
	{"lua", "b", "orders/s", false, 0.5, rate},
	{"lua", "c", "orders/s", false, 1.5, rate},
	{"lua", "lua", "µs of CPU per order", true, 140, func(mine, _ sample) float64 { return mine.all() }},
	{"lua", "d", "p99", true, 2, func(mine, theirs sample) float64 { return float64(mine.p99) / float64(theirs.p99) }},
	{"merged", "b", "orders/s", false, 0.65, rate},
	{"merged", "c", "orders/s", false, 2, rate},
	{"merged", "merged", "µs of CPU per order", true, 95, func(mine, _ sample) float64 { return mine.all() }},
	{"sold-out", "b", "answers/s", false, 0.85, rate},
}

// writeTable writes the medians as Markdown, with the rounds' ratios to the
// reference programs, in the order of names. samples are by variant and round.
func writeTable(w io.Writer, names []string, samples map[string][]sample) {
	fmt.Fprintln(w, "| | orders/s | × (b) | × (c) | × (d) | µs CPU per order: all | app | Redis | database | p50 ms | p99 ms | orders a group | retries per order |")
	fmt.Fprintln(w, "|---|---|---|---|---|---|---|---|---|---|---|---|---|")
	for _, name := range names {
		s := median(samples[name])
		if s.fault != "" {
			fmt.Fprintf(w, "| %s | failed: %s |%s\n", name, s.fault, strings.Repeat(" |", 11))
			continue
		}
		fmt.Fprintf(w, "| %s | %.0f | %s | %s | %s | %.0f | %.0f | %.0f | %.0f | %.1f | %.1f | %s | %s |\n", name, s.perSecond,
			ratio(name, "b", samples), ratio(name, "c", samples), ratio(name, "d", samples),
			s.all(), s.app, s.redis, s.db, millis(s.p50), millis(s.p99), known(s.grouped, "%.1f"), known(s.retries, "%.2f"))
	}
}

func ratio(name, to string, samples map[string][]sample) string {
	r, ok := compared(samples[name], samples[to], rate)
	if !ok {
		return "–"
	}
	return fmt.Sprintf("%.2f", r)
}

func known(figure float64, format string) string {
	if figure < 0 {
		return "–"
	}
	return fmt.Sprintf(format, figure)
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// writeVerdicts holds the samples against the targets, as far as both sides
// were measured.
func writeVerdicts(w io.Writer, samples map[string][]sample) {
	for _, t := range targets {
		got, ok := compared(samples[t.variant], samples[t.against], t.figure)
		if !ok {
			continue
		}
		met, bound := got >= t.limit, "at least"
		if t.most {
			met, bound = got <= t.limit, "at most"
		}
		verdict := map[bool]string{true: "met", false: "MISSED"}[met]
		to := ""
		if t.against != t.variant {
			to = " × (" + t.against + ")"
		}
		fmt.Fprintf(w, "- %s: %s %s %g%s: %.2f, %s\n", t.variant, t.what, bound, t.limit, to, got, verdict)
	}
}
