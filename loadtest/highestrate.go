package main

import (
	"cmp"
	"context"
	"math"

	"github.com/holdfast-stock/holdfast/internal/assembly"
	"github.com/holdfast-stock/holdfast/internal/lab/measure"
	"github.com/holdfast-stock/holdfast/loadtest/results"
)

const (
	// minRate is the rate at which a search begins. It ends at results.MaxRate.
	minRate = 50
	// maxSteps bounds the bisection of a search.
	maxSteps = 6
)

// search looks for the highest rate at which a strategy keeps --p99.
type search struct {
	*lab
	strategy string
	load     func(rate int) (*results.Result, error)
	all      []results.Probe
}

// bisect doubles the rate until the limit is missed, and then bisects. It returns the
// highest rate that held and the lowest that missed, each nil if there is none. A load
// that broke a promise or was interrupted ends the search.
func (s *search) bisect() (held, missed, ended *results.Result, err error) {
	rate := minRate
	for step := 0; step <= maxSteps; {
		result, kept, err := s.try(rate)
		switch {
		case err != nil || result.Verdict != results.AsPromised:
			return held, missed, result, err
		case kept:
			held = result
		default:
			missed = result
		}
		switch {
		case held == nil || missed == nil && rate == results.MaxRate:
			return held, missed, nil, nil
		case missed == nil:
			rate = min(rate*2, results.MaxRate)
		case missed.Rate-held.Rate <= max(held.Rate/20, 1):
			return held, missed, nil, nil
		default:
			step++
			rate = (held.Rate + missed.Rate) / 2
		}
	}
	return held, missed, nil, nil
}

// try loads one rate until the majority of its probes agree, so that a single pause of
// the machine does not decide. It returns the probe of that majority with the median p99.
func (s *search) try(rate int) (result *results.Result, kept bool, err error) {
	var held, missed []*results.Result
	for 2*len(held) < s.Probes && 2*len(missed) < s.Probes {
		result, err := s.load(rate)
		if err != nil || result.Verdict != results.AsPromised {
			return result, false, err
		}
		probe := results.Probe{
			Rate: rate, Held: holds(result, s.P99), P99: result.P99,
			Accepted: result.Accepted, Failed: result.Failed, Late: result.Late, Dropped: result.Dropped,
		}
		s.all = append(s.all, probe)
		s.tell("%-13s %s\n", s.strategy, arrivalsText(result))
		if probe.Held {
			held = append(held, result)
		} else {
			missed = append(missed, result)
		}
	}
	if len(held) > len(missed) {
		return measure.MedianItem(held, p99), true, nil
	}
	return measure.MedianItem(missed, p99), false, nil
}

// p99 returns the p99 in milliseconds. It is infinite without answers.
func p99(r *results.Result) float64 {
	if r.P99 == nil {
		return math.Inf(1)
	}
	return *r.P99
}

// highest searches for the highest rate at which the strategy keeps --p99.
func (l *lab) highest(ctx context.Context, spec assembly.Spec, f *fleet) (*results.Result, error) {
	s := &search{lab: l, strategy: spec.Name, load: func(rate int) (*results.Result, error) { return l.arrive(ctx, spec, f, rate) }}
	held, missed, ended, err := s.bisect()
	answer := cmp.Or(held, missed, ended)
	if ended != nil && (ended.Verdict == results.Broken || err != nil) {
		answer = ended
	}
	if answer == nil {
		return nil, err
	}
	answer.Probes = s.all
	if answer.Verdict == results.Broken {
		return answer, err
	}
	if err == nil && answer != ended {
		l.describeHighest(answer, held, missed)
	}
	if ctx.Err() != nil {
		answer.Describe("; the search was interrupted", "；搜索被中断")
		answer.Verdict = results.Undecided
	}
	return answer, err
}

// describeHighest adds the outcome of a search to its result.
func (l *lab) describeHighest(answer, held, missed *results.Result) {
	highest := 0
	if held == nil {
		answer.Describe("; even this rate misses a p99 of %v: ", "；这个到达率也达不到 p99 %v：", l.P99)
		answer.Describe(arrivalsFormat, arrivalsFormatChinese, arrivalsArgs(missed)...)
	} else {
		highest = held.Rate
		answer.Describe("; the highest rate found that keeps a p99 of %v", "；p99 不超过 %v 的最高到达率", l.P99)
		if missed != nil {
			answer.Describe("; the lowest that misses it: ", "；未能满足的最低到达率：")
			answer.Describe(arrivalsFormat, arrivalsFormatChinese, arrivalsArgs(missed)...)
		}
	}
	answer.Highest = &highest
}
