package main

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/holdfast-stock/holdfast/internal/lab/measure"
	"github.com/holdfast-stock/holdfast/internal/lab/table"
)

// target is a bound that this project's lock must keep in one arrangement.
type target struct {
	backend, arrangement string
	measure.Target[sample]
}

func handOffs(mine, theirs sample) float64 { return mine.handOffs / theirs.handOffs }

func grants(mine, theirs sample) float64 { return mine.grants / theirs.grants }

func longest(mine, theirs sample) float64 { return float64(mine.longest) / float64(theirs.longest) }

var targets = []target{
	{"redis", "4x8", measure.Target[sample]{What: "hand-offs/s", Against: "redsync", Limit: 3, Figure: handOffs}},
	{"redis", "4x8", measure.Target[sample]{What: "hand-offs/s", Against: "rueidislock", Limit: 3, Figure: handOffs}},
	{"redis", "4x8", measure.Target[sample]{What: "hand-offs/s", Against: "rueidislock, 3 keys", Limit: 3, Figure: handOffs}},
	{"redis", "4x8", measure.Target[sample]{What: "longest wait", Against: "redsync", AtMost: true, Limit: 0.1, Figure: longest}},
	{"redis", "alone", measure.Target[sample]{What: "grants/s", Against: "redsync", Limit: 0.9, Figure: grants}},
	{"redis", "32x1", measure.Target[sample]{What: "hand-offs/s", Against: "bsm/redislock", Limit: 1, Figure: handOffs}},
	{"zookeeper", "4x8", measure.Target[sample]{What: "hand-offs/s", Against: "zk.Lock", Limit: 1, Figure: handOffs}},
	{"etcd", "4x8", measure.Target[sample]{What: "hand-offs/s", Against: "concurrency.Mutex", Limit: 1, Figure: handOffs}},
	{"etcd", "32x1", measure.Target[sample]{What: "hand-offs/s", Against: "concurrency.Mutex", Limit: 1, Figure: handOffs}},
}

var errFailed = errors.New("a run failed, or two contenders held the lock at once")

// write writes a table for each backend and arrangement, and the verdicts. It returns
// errFailed if a contestant failed.
func write(w io.Writer, s settings, samples map[string][]sample) error {
	medians := make(map[string]sample)
	for _, c := range s.cells() {
		m := median(samples[c.key()])
		figure := handOffs
		if c.arrangement.contenders() == 1 {
			figure = grants // there are no hand-offs
		}
		mine := samples[cell{c.arrangement, contestant{backend: c.contestant.backend, name: ours}}.key()]
		m.ratio, _ = measure.Compared(mine, samples[c.key()], figure)
		medians[c.key()] = m
	}
	for _, rows := range s.tables() {
		if len(rows) > 0 {
			writeTable(w, rows, medians)
		}
	}
	var err error
	for _, c := range s.cells() {
		m := medians[c.key()]
		if m.fault != "" {
			err = errFailed
		}
		if m.failed > 0 {
			fmt.Fprintf(w, "%s failed to get the lock and tried again; the first error: %s\n\n", c.key(), m.failure)
		}
	}
	writeVerdicts(w, samples)
	return err
}

// writeTable writes the table of one backend in one arrangement. Each cell is a row.
func writeTable(w io.Writer, cells []cell, medians map[string]sample) {
	a, backend := cells[0].arrangement, cells[0].contestant.backend
	fmt.Fprintf(w, "### %s, %s (processes: %d, goroutines of each: %d)\n\n", backend, a.name, a.processes, a.goroutines)
	rows := table.New("", "grants/s", "hand-offs/s", "ours ÷ this", "between processes/s", "fewest to most grants of a contender",
		"request to grant ms: p50", "p99", "longest wait ms", "unlock to grant ms: p50", "p99", "requests per grant", "commands per grant", "failed attempts")
	for _, c := range cells {
		m := medians[c.key()]
		if m.fault != "" {
			rows.Add(c.contestant.name, "FAILED: "+m.fault)
			continue
		}
		format := func(format string, figure float64) string { return fmt.Sprintf(format, figure) }
		millis := func(d time.Duration) string { return format("%.3f", measure.Millis(d)) }
		rows.Add(c.contestant.name, format("%.0f", m.grants), format("%.0f", m.handOffs), format("%.2f", m.ratio), format("%.0f", m.between),
			fmt.Sprintf("%.0f to %.0f", m.fewest, m.most), millis(m.wait50), millis(m.wait99), format("%.1f", measure.Millis(m.longest)),
			millis(m.p50), millis(m.p99), table.Figure("%.1f", m.requests), table.Figure("%.1f", m.commands), m.failed)
	}
	rows.WriteMarkdown(w)
	fmt.Fprintln(w)
}

// writeVerdicts compares the samples with the targets whose contestants were measured.
func writeVerdicts(w io.Writer, samples map[string][]sample) {
	for _, t := range targets {
		key := t.backend + " " + t.arrangement + " "
		if verdict, ok := t.Verdict(samples[key+ours], samples[key+t.Against]); ok {
			fmt.Fprintf(w, "- %s, %s: %s\n", t.backend, t.arrangement, verdict)
		}
	}
}
