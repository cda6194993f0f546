package main

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"
)

// holder is who contends: a goroutine of a process.
type holder struct{ process, goroutine int }

// record is one request, by the monotonic clock in nanoseconds. granted is 0 if
// it was not granted before the end.
type record struct {
	holder
	asked, granted, unlocking int64
}

// window is the measured time: from ≤ t < until.
type window struct{ from, until int64 }

func (w window) has(at int64) bool { return w.from <= at && at < w.until }

// sample is one measured run, or the median of several.
type sample struct {
	grants, handOffs, between float64 // per second; between: hand-offs to another process
	fewest, most              float64 // grants of a contender
	longest                   time.Duration
	p50, p99                  time.Duration // from an unlock's call to the next grant
	requests, commands        float64       // to the servers per grant; negative: not known
	failed                    int           // requests that ended with an error, and were made again
	failure                   string        // the first such error
	fault                     string        // exclusion was broken, or the run failed; then there are no figures
}

func (s sample) String() string {
	if s.fault != "" {
		return "FAILED: " + s.fault
	}
	return fmt.Sprintf("%8.0f grants/s %8.0f hand-offs/s, longest wait %8.1f ms, unlock to grant %.2f ms", s.grants, s.handOffs, millis(s.longest), millis(s.p50))
}

// evaluate makes the figures of a run by so many contenders.
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
		counted           int
		of                = make(map[holder]int)
		latencies         []time.Duration
	)
	for i, g := range grants {
		if !w.has(g.granted) {
			continue
		}
		counted++
		of[g.holder]++
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
	fewest, most := math.MaxInt, 0
	for _, n := range of {
		fewest, most = min(fewest, n), max(most, n)
	}
	if len(of) < contenders { // somebody was never granted
		fewest = 0
	}
	s.fewest, s.most = float64(fewest), float64(most)
	slices.Sort(latencies)
	s.p50, s.p99 = percentile(latencies, 50), percentile(latencies, 99)
	return s
}

// overlap finds a grant that came before the last holder had called Unlock, among
// grants in their order. Some libraries end leases at the end of a run: what
// comes after it is not looked at.
func overlap(grants []record, until int64) string {
	n, first := 0, ""
	held := record{unlocking: math.MinInt64} // who unlocks last of those so far
	for _, g := range grants {
		if g.granted >= until {
			break
		}
		if g.granted < held.unlocking {
			if n == 0 {
				first = fmt.Sprintf("%v was granted it %v before %v unlocked", g.holder, time.Duration(held.unlocking-g.granted), held.holder)
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
	return fmt.Sprintf("two held the lock at once, %d times: %s", n, first)
}

// longestWait is the longest that anybody waited, until the grant, or until the
// end for those who were not served by then.
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

// percentile of sorted values, by the nearest rank.
func percentile(sorted []time.Duration, p int) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[max(0, (len(sorted)*p+99)/100-1)]
}

// perGrant spreads what the servers counted over all grants between the counts.
func (s *sample) perGrant(before, after counters, records []record) {
	s.requests, s.commands = -1, -1
	var grants float64
	for _, r := range records {
		if r.granted != 0 {
			grants++
		}
	}
	if grants == 0 {
		return
	}
	if after.requests >= 0 {
		s.requests = (after.requests - before.requests) / grants
	}
	if after.commands >= 0 {
		s.commands = (after.commands - before.commands) / grants
	}
}

// median of each figure by itself. One run at fault is all of them.
func median(samples []sample) (m sample) {
	for _, s := range samples {
		if s.fault != "" {
			return s
		}
		m.failed += s.failed
		m.failure = cmp.Or(m.failure, s.failure)
	}
	middle := func(figure func(s sample) float64) float64 {
		values := make([]float64, len(samples))
		for i, s := range samples {
			values[i] = figure(s)
		}
		slices.Sort(values)
		return values[len(values)/2]
	}
	duration := func(figure func(s sample) time.Duration) time.Duration {
		return time.Duration(middle(func(s sample) float64 { return float64(figure(s)) }))
	}
	m.grants = middle(func(s sample) float64 { return s.grants })
	m.handOffs = middle(func(s sample) float64 { return s.handOffs })
	m.between = middle(func(s sample) float64 { return s.between })
	m.fewest = middle(func(s sample) float64 { return s.fewest })
	m.most = middle(func(s sample) float64 { return s.most })
	m.requests = middle(func(s sample) float64 { return s.requests })
	m.commands = middle(func(s sample) float64 { return s.commands })
	m.longest = duration(func(s sample) time.Duration { return s.longest })
	m.p50 = duration(func(s sample) time.Duration { return s.p50 })
	m.p99 = duration(func(s sample) time.Duration { return s.p99 })
	return m
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
