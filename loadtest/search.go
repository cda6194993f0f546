package main

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/holdfast-stock/holdfast/internal/stock/strategy"
)

const (
	// lowestRate and highestRate are where a search begins and ends.
	lowestRate, highestRate = 50, 200_000
	// searchSteps bounds the halvings of a search.
	searchSteps = 6
)

// Probe is one load of a search.
type Probe struct {
	Rate     int      `json:"rate"`
	Held     bool     `json:"held"`
	P99      *float64 `json:"p99_millis"`
	Accepted int64    `json:"accepted"`
	Failed   int64    `json:"failed"`
	Late     int64    `json:"late"`
	Dropped  int64    `json:"dropped"`
}

// search looks for the highest rate that holds the limit.
type search struct {
	probes int // of each rate
	load   func(rate int) (*Result, error)
	holds  func(*Result) bool
	tell   func(*Result)

	all []Probe
}

// highest doubles the rate until one does not hold, and halves what is between. It
// returns the highest rate that held and the lowest that did not, nil where there is
// none. A load that broke a promise, or that was cut short, ends it.
func (s *search) highest() (held, missed, ended *Result, err error) {
	rate := lowestRate
	for step := 0; step <= searchSteps; {
		result, holds, err := s.try(rate)
		switch {
		case err != nil || result.Verdict != asPromised:
			return held, missed, result, err
		case holds:
			held = result
		default:
			missed = result
		}
		switch {
		case held == nil || missed == nil && rate == highestRate:
			return held, missed, nil, nil
		case missed == nil:
			rate = min(rate*2, highestRate)
		case missed.Rate-held.Rate <= max(held.Rate/20, 1):
			return held, missed, nil, nil
		default:
			step++
			rate = (held.Rate + missed.Rate) / 2
		}
	}
	return held, missed, nil, nil
}

// try loads one rate until most of the probes agree. The result is the one with the
// median p99 of those. A pause of the machine spoils one probe, not the rate.
func (s *search) try(rate int) (result *Result, holds bool, err error) {
	var held, missed []*Result
	for 2*len(held) < s.probes && 2*len(missed) < s.probes {
		result, err := s.load(rate)
		if err != nil || result.Verdict != asPromised {
			return result, false, err
		}
		probe := Probe{rate, s.holds(result), result.P99, result.Accepted, result.Failed, result.Late, result.Dropped}
		s.all = append(s.all, probe)
		s.tell(result)
		if probe.Held {
			held = append(held, result)
		} else {
			missed = append(missed, result)
		}
	}
	if holds = len(held) > len(missed); holds {
		return median(held), true, nil
	}
	return median(missed), false, nil
}

// median is the result with the median p99. One without answers is the slowest.
func median(results []*Result) *Result {
	p99 := func(r *Result) float64 {
		if r.P99 == nil {
			return math.Inf(1)
		}
		return *r.P99
	}
	slices.SortFunc(results, func(a, b *Result) int { return cmp.Compare(p99(a), p99(b)) })
	return results[(len(results)-1)/2]
}

// highest searches the highest rate that the strategy holds.
func (l *lab) highest(ctx context.Context, spec strategy.Spec, f *fleet) (*Result, error) {
	s := &search{
		probes: l.probes,
		load:   func(rate int) (*Result, error) { return l.arrive(ctx, spec, f, rate) },
		holds:  func(r *Result) bool { return r.holds(l.p99) },
		tell:   func(r *Result) { fmt.Fprintf(l.display.w, "%-13s %s\n", spec.Name, r.borne()) },
	}
	held, missed, ended, err := s.highest()
	answer := cmp.Or(held, missed, ended)
	if ended != nil && (ended.Verdict == promise || err != nil) {
		answer = ended
	}
	if answer == nil {
		return nil, err
	}
	answer.Probes = s.all
	if err != nil || answer.Verdict == promise {
		return answer, err
	}
	highest := 0
	switch {
	case held == nil && missed != nil:
		answer.Load += fmt.Sprintf("; not even this holds a p99 of %v: %s", l.p99, missed.borne())
	case held != nil:
		highest = held.Rate
		answer.Load += fmt.Sprintf("; the highest rate found that holds a p99 of %v", l.p99)
		if missed != nil {
			answer.Load += "; the lowest that does not: " + missed.borne()
		}
	}
	if answer != ended {
		answer.Highest = &highest
	}
	if ctx.Err() != nil {
		answer.Load += "; the search was cut short"
		answer.Verdict = undecided
	}
	return answer, nil
}
