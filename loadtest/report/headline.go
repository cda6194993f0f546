package report

import (
	"slices"

	"github.com/holdfast-stock/holdfast/loadtest/results"
)

// headline states the outcome of the run in one sentence. Unexpected outcomes come first: a
// strategy that oversold and must not, or a broken one that did not oversell.
func (d dictionary) headline(run *results.Run) text {
	all, broken := len(run.Strategies), run.Count(results.Broken)
	switch {
	case all == 0 && len(run.Pitfalls) > 0:
		return d.pitfallHeadline(run.Pitfalls)
	case all == 0:
		return d.say("headline.none")
	}
	if names := surprising(run, results.Oversell); len(names) > 0 {
		return d.counted("headline.surprise", len(names), names[0])
	}
	if names := surprising(run, results.NoOversell); len(names) > 0 {
		return d.counted("headline.no-oversell", len(names), names[0])
	}
	if names := surprising(run, results.NoCatch); len(names) > 0 {
		return d.say("headline.no-catch", list(names))
	}
	undecided, oversold := run.Count(results.Undecided), oversellers(run)
	switch {
	case broken > 0:
		return d.say("headline.broken", broken, all)
	case len(oversold) > 0:
		return d.counted("headline.oversold", len(oversold), oversold[0])
	case undecided > 0:
		return d.say("headline.undecided", undecided, all)
	case run.Search():
		return d.say("headline.search")
	case run.Open():
		return d.say("headline.rate", run.Strategies[0].Rate)
	case run.Lifecycle():
		return d.say("headline.lifecycle")
	}
	return d.say("headline.oversold.0")
}

// surprising names the strategies with this surprise.
func surprising(run *results.Run, s results.Surprise) (names []string) {
	for i := range run.Strategies {
		if r := &run.Strategies[i]; r.SurprisedBy(s) {
			names = append(names, r.Strategy)
		}
	}
	return names
}

// oversellers names the strategies that oversold.
func oversellers(run *results.Run) (names []string) {
	for _, r := range run.Strategies {
		if r.Oversold > 0 {
			names = append(names, r.Strategy)
		}
	}
	return names
}

// lead returns the explanation below the headline.
func (d dictionary) lead(run *results.Run) (sentences []text) {
	if len(run.Strategies) == 0 {
		return nil
	}
	switch {
	case run.Lifecycle():
		sentences = append(sentences, d.say("lead.lifecycle"))
	case run.Open():
		sentences = append(sentences, d.say("lead.open"))
	default:
		sentences = append(sentences, d.rushLead(run)...)
	}
	if broken := run.Count(results.Broken); broken > 0 {
		sentences = append(sentences, d.say("lead.faults"))
	}
	if undecided := run.Count(results.Undecided); undecided > 0 {
		sentences = append(sentences, d.say("lead.undecided", undecided, len(run.Strategies)))
	}
	return sentences
}

// rushLead explains how much the outcome of a rush proves.
func (d dictionary) rushLead(run *results.Run) (sentences []text) {
	oversold := oversellers(run)
	var caught int64
	for _, r := range run.Strategies {
		if r.Caught != nil {
			caught += *r.Caught
		}
	}
	switch controls := slices.ContainsFunc(run.Strategies, func(r results.Result) bool { return !r.Sound }); {
	case len(surprising(run, results.NoOversell)) > 0:
		sentences = append(sentences, d.say("lead.proves-nothing"))
	case len(surprising(run, results.Oversell)) > 0:
	case len(oversold) == 1:
		sentences = append(sentences, d.say("lead.expected.1", oversold[0]))
	case len(oversold) > 1:
		sentences = append(sentences, d.say("lead.expected", list(oversold)))
	case caught > 0:
		sentences = append(sentences, d.say("lead.caught", caught))
	case controls:
		sentences = append(sentences, d.say("lead.quiet-control"))
	default:
		sentences = append(sentences, d.say("lead.no-control"))
	}
	if others := len(run.Strategies) - len(oversold); len(oversold) > 0 && others > 0 {
		if others == 1 {
			sentences = append(sentences, d.say("lead.others.1"))
		} else {
			sentences = append(sentences, d.say("lead.others", others))
		}
	}
	return append(sentences, d.say("lead.rush"))
}

// pitfallHeadline states the outcome of the experiments in one sentence.
func (d dictionary) pitfallHeadline(all []results.Experiment) text {
	ran, failed, notRun := tally(all)
	switch {
	case failed > 0:
		return d.say("headline.pitfalls.failed", failed, ran)
	case len(notRun) > 0:
		return d.say("headline.pitfalls.not-run", ran, len(notRun))
	}
	return d.say("headline.pitfalls")
}
