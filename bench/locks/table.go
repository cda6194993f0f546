package main

import (
	"errors"
	"fmt"
	"io"
	"strings"
)

// target is what ours must reach against another, in one arrangement.
type target struct {
	backend, arrangement, against string
	what                          string
	most                          bool // at most, not at least
	limit                         float64
	figure                        func(mine, theirs sample) float64
}

func handOffs(mine, theirs sample) float64 { return mine.handOffs / theirs.handOffs }

func grants(mine, theirs sample) float64 { return mine.grants / theirs.grants }

func longest(mine, theirs sample) float64 { return float64(mine.longest) / float64(theirs.longest) }

// targets are the project's promises to itself.
var targets = []target{
	{"redis", "4x8", "redsync", "hand-offs/s", false, 3, handOffs},
	{"redis", "4x8", "rueidislock", "hand-offs/s", false, 3, handOffs},
	{"redis", "4x8", "rueidislock, 3 keys", "hand-offs/s", false, 3, handOffs},
	{"redis", "4x8", "redsync", "longest wait", true, 0.1, longest},
	{"redis", "alone", "redsync", "grants/s", false, 0.9, grants},
	{"zookeeper", "4x8", "zk.Lock", "hand-offs/s", false, 1, handOffs},
	{"etcd", "4x8", "concurrency.Mutex", "hand-offs/s", false, 1, handOffs},
}

var errFailed = errors.New("not every run came to its end with mutual exclusion kept")

// write writes a table for each backend and arrangement, and the verdicts. An
// error says that a contestant failed.
func write(w io.Writer, s settings, samples map[string][]sample) error {
	var (
		err     error
		heading string
		medians = make(map[string]sample)
	)
	cells := s.cells()
	for _, c := range cells {
		medians[c.key()] = median(samples[c.key()])
	}
	for _, c := range cells {
		a := c.arrangement
		m := medians[c.key()]
		mine := medians[cell{a, contestant{backend: c.contestant.backend, name: ours}}.key()]
		if h := fmt.Sprintf("%s, %s", c.contestant.backend, a.name); h != heading {
			heading = h
			fmt.Fprintf(w, "\n### %s (%s)\n\n", heading, a.described())
			fmt.Fprintln(w, "| | grants/s | hand-offs/s | ours ÷ this | between processes/s | fewest to most grants of a contender | longest wait ms | unlock to grant ms: p50 | p99 | requests per grant | commands per grant | gave up |")
			fmt.Fprintln(w, "|---|---|---|---|---|---|---|---|---|---|---|---|")
		}
		if m.fault != "" {
			err = errFailed
			fmt.Fprintf(w, "| %s | FAILED: %s |%s\n", c.contestant.name, m.fault, strings.Repeat(" |", 10))
			continue
		}
		rate := handOffs
		if a.processes*a.goroutines == 1 {
			rate = grants // there is nobody to hand it to
		}
		fmt.Fprintf(w, "| %s | %.0f | %.0f | %.2f | %.0f | %.0f to %.0f | %.1f | %.3f | %.3f | %s | %s | %d |\n",
			c.contestant.name, m.grants, m.handOffs, rate(mine, m), m.between, m.fewest, m.most,
			millis(m.longest), millis(m.p50), millis(m.p99), known(m.requests), known(m.commands), m.failed)
	}
	fmt.Fprintln(w)
	for _, c := range cells {
		if m := medians[c.key()]; m.failed > 0 {
			fmt.Fprintf(w, "%s gave up and asked again, the first time for: %s\n\n", c.key(), m.failure)
		}
	}
	writeVerdicts(w, medians)
	return err
}

func (a arrangement) described() string {
	return fmt.Sprintf("processes: %d, goroutines of each: %d", a.processes, a.goroutines)
}

func known(figure float64) string {
	if figure < 0 {
		return "–"
	}
	return fmt.Sprintf("%.1f", figure)
}

// writeVerdicts holds the medians against the targets, as far as both sides
// were measured.
func writeVerdicts(w io.Writer, medians map[string]sample) {
	for _, t := range targets {
		key := t.backend + " " + t.arrangement + " "
		mine, ok := medians[key+ours]
		theirs, measured := medians[key+t.against]
		if !ok || !measured || mine.fault != "" || theirs.fault != "" {
			continue
		}
		got := t.figure(mine, theirs)
		met, bound := got >= t.limit, "at least"
		if t.most {
			met, bound = got <= t.limit, "at most"
		}
		verdict := map[bool]string{true: "met", false: "MISSED"}[met]
		fmt.Fprintf(w, "- %s, %s: %s %s %g × (%s): %.2f, %s\n", t.backend, t.arrangement, t.what, bound, t.limit, t.against, got, verdict)
	}
}
