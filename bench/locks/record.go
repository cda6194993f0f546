package main

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/holdfast-stock/holdfast/internal/lab/measure"
)

// holder is one contender: a goroutine of a process.
type holder struct{ process, goroutine int }

// record is one request for the lock. Its times are nanoseconds of the monotonic
// clock. granted is 0 if the run ended before the lock was granted.
type record struct {
	holder
	asked, granted, unlocking int64 // unlocking: when Unlock was called
}

// window is the measured time: from ≤ t < until.
type window struct{ from, until int64 }

func (w window) has(at int64) bool { return w.from <= at && at < w.until }

// sample is one measured run, or the median of several.
type sample struct {
	grants, handOffs, between float64       // per second; between: hand-offs to another process
	fewest, most              float64       // grants of one contender
	wait50, wait99, longest   time.Duration // from the request to its grant: p50, p99 and the longest wait
	p50, p99                  time.Duration // from the call of Unlock to the next grant
	requests, commands        float64       // to the servers per grant; NaN: unknown
	ratio                     float64       // in a median: our rate divided by this contestant's, within a round
	failed                    int           // attempts that failed and were repeated
	failure                   string        // first error of those attempts
	fault                     string        // the run failed, or two contenders held the lock at once; there are no figures
}

// Failed reports whether the run failed, or two contenders held the lock at once.
func (s sample) Failed() bool { return s.fault != "" }

func (s sample) String() string {
	if s.fault != "" {
		return "FAILED: " + s.fault
	}
	return fmt.Sprintf("%8.0f grants/s %8.0f hand-offs/s, longest wait %8.1f ms, unlock to grant %.2f ms",
		s.grants, s.handOffs, measure.Millis(s.longest), measure.Millis(s.p50))
}

// evaluate computes the figures of a run from the records of its contenders, in any
// order. A hand-off is a grant whose holder differs from the one before.
func evaluate(records []record, w window, contenders int) (s sample) {
	var grants []record
	for _, r := range records {
		if r.granted != 0 {
			grants = append(grants, r)
		}
	}
	slices.SortFunc(grants, func(a, b record) int { return cmp.Compare(a.granted, b.granted) })
	s.fault = overlap(grants, w.until)
	s.longest = longestWait(records, w)

	var (
		seconds           = time.Duration(w.until - w.from).Seconds()
		handOffs, between int
		perHolder         = make(map[holder]int)
		counted           int
		waits, latencies  []time.Duration
	)
	for i, g := range grants {
		if !w.has(g.granted) {
			continue
		}
		counted++
		perHolder[g.holder]++
		waits = append(waits, time.Duration(g.granted-g.asked))
		if i == 0 {
			continue
		}
		before := grants[i-1]
		if before.holder != g.holder {
			handOffs++
		}
		if before.process != g.process {
			between++
		}
		latencies = append(latencies, time.Duration(g.granted-before.unlocking))
	}
	s.grants, s.handOffs, s.between = float64(counted)/seconds, float64(handOffs)/seconds, float64(between)/seconds
	s.fewest, s.most = spread(perHolder, contenders)
	slices.Sort(waits)
	s.wait50, s.wait99 = measure.Quantile(waits, 0.50), measure.Quantile(waits, 0.99)
	slices.Sort(latencies)
	s.p50, s.p99 = measure.Quantile(latencies, 0.50), measure.Quantile(latencies, 0.99)
	return s
}

// spread returns the fewest and the most grants of one contender. Contenders without
// a grant are not in the map.
func spread(grants map[holder]int, contenders int) (fewest, most float64) {
	if len(grants) == contenders {
		fewest = math.Inf(1)
	}
	for _, n := range grants {
		fewest, most = min(fewest, float64(n)), max(most, float64(n))
	}
	return fewest, most
}

// overlap describes the grants that came before the last holder called Unlock. The
// grants are sorted by time. It ignores the end of the run, at which some libraries end
// their leases.
func overlap(grants []record, until int64) string {
	n, first := 0, ""
	held := record{unlocking: math.MinInt64} // the grant so far that was unlocked last
	for _, g := range grants {
		if g.granted >= until {
			break
		}
		if g.granted < held.unlocking {
			if n == 0 {
				first = fmt.Sprintf("%v got the lock %v before %v unlocked it", g.holder, time.Duration(held.unlocking-g.granted), held.holder)
			}
			n++
		}
		if g.unlocking > held.unlocking {
			held = g
		}
	}
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("two contenders held the lock at once, %d times: %s", n, first)
}

// longestWait returns the longest wait for a grant within the window. A wait without a
// grant lasts until the end of the window.
func longestWait(records []record, w window) (longest time.Duration) {
	for _, r := range records {
		end := r.granted
		if end == 0 || end > w.until {
			end = w.until
		}
		if end >= w.from {
			longest = max(longest, time.Duration(end-r.asked))
		}
	}
	return longest
}

// perGrant divides what the servers counted by the number of grants between the counts.
func (s *sample) perGrant(before, after counters, records []record) {
	var grants float64
	for _, r := range records {
		if r.granted != 0 {
			grants++
		}
	}
	if grants == 0 {
		grants = math.NaN()
	}
	s.requests = (after.requests - before.requests) / grants
	s.commands = (after.commands - before.commands) / grants
}

// median returns a sample whose figures are each the median of that figure. If a run
// failed, it returns that run. Failed attempts are added up.
func median(samples []sample) (m sample) {
	for _, s := range samples {
		if s.fault != "" {
			return s
		}
		m.failed += s.failed
		m.failure = cmp.Or(m.failure, s.failure)
	}
	m.grants = measure.Median(samples, func(s sample) float64 { return s.grants })
	m.handOffs = measure.Median(samples, func(s sample) float64 { return s.handOffs })
	m.between = measure.Median(samples, func(s sample) float64 { return s.between })
	m.fewest = measure.Median(samples, func(s sample) float64 { return s.fewest })
	m.most = measure.Median(samples, func(s sample) float64 { return s.most })
	m.requests = measure.Median(samples, func(s sample) float64 { return s.requests })
	m.commands = measure.Median(samples, func(s sample) float64 { return s.commands })
	m.longest = measure.Median(samples, func(s sample) time.Duration { return s.longest })
	m.wait50 = measure.Median(samples, func(s sample) time.Duration { return s.wait50 })
	m.wait99 = measure.Median(samples, func(s sample) time.Duration { return s.wait99 })
	m.p50 = measure.Median(samples, func(s sample) time.Duration { return s.p50 })
	m.p99 = measure.Median(samples, func(s sample) time.Duration { return s.p99 })
	return m
}
