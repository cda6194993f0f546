package main

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/holdfast-stock/holdfast/internal/stock/strategy"
)

// Verdicts.
const (
	asPromised = "as promised"
	promise    = "promise broken"
	undecided  = "undecided" // the load ended before all was sold
)

// ending is why a load ended.
type ending int

const (
	soldOut     ending = iota // or, of an open load, all arrivals were sent
	crashed                   // enough was ordered after an instance was killed
	atLimit                   // --limit
	interrupted               // by a signal
)

// terms are what a load is held to.
type terms struct {
	spec   strategy.Spec
	ending ending
	// mayOversell and mustOversell: a strategy that is known to oversell does so.
	// One that must and does not shows that the load proves nothing.
	mayOversell, mustOversell bool
	// mustCatch: the guard behind such a strategy has something to catch.
	mustCatch   bool
	maxFailures share // of the orders that were not refused; 1: no limit
}

// terms are those of a load on the strategy. Instances started here are known to
// oversell by their strategy, unless they stand alone under its mutex; targets by
// --expect-oversell. Where a guard stands behind the gate nothing may be oversold,
// and under an open load there is stock in plenty, so that nothing can.
func (l *lab) terms(spec strategy.Spec, end ending) terms {
	t := terms{spec: spec, ending: end, maxFailures: l.maxFailures}
	if l.search || end == crashed || end == interrupted {
		t.maxFailures = 1
	}
	if l.open() || end == crashed {
		return t
	}
	targets, guarded := len(l.targets) > 0, l.guarded(spec)
	several := len(l.targets) > 1 || !targets && l.settings.instances > 1
	t.mayOversell = !guarded && (l.expectOversell || !targets && !spec.Sound)
	t.mustOversell = t.mayOversell && end == soldOut && (several || l.expectOversell)
	t.mustCatch = guarded && !spec.Sound && end == soldOut && several
	return t
}

// judge says whether the strategy did as it promises. A load that ended before all
// was sold can convict, but not acquit.
func (r *Result) judge(t terms) {
	if t.ending != soldOut {
		r.Undersold = 0 // not everybody heard "sold out"
	}
	r.judgeSales(t)
	r.judgeOrders()
	r.judgeCounts(t)
	r.judgeFailures(t)
	if t.ending == atLimit {
		r.Load += fmt.Sprintf(", stopped at the limit with %d of %d units sold", r.Sold, r.Stock)
	}
	stopped := t.ending == atLimit || t.ending == interrupted
	switch {
	case len(r.Faults) > 0:
		r.Verdict = promise
	case stopped && !(t.mayOversell && r.Oversold > 0):
		r.Verdict = undecided
	default:
		r.Verdict = asPromised
	}
}

func (r *Result) fault(format string, args ...any) {
	r.Faults = append(r.Faults, fmt.Sprintf(format, args...))
}

// judgeSales holds what was sold against what there was.
func (r *Result) judgeSales(t terms) {
	switch {
	case r.Oversold > 0 && !t.mayOversell:
		r.fault("oversold %d units", r.Oversold)
	case r.Oversold == 0 && t.mustOversell:
		r.inconclusive = true
		r.fault("it should oversell and did not: the load proves nothing")
	case t.mustCatch && r.Caught != nil && *r.Caught == 0:
		r.inconclusive = true
		r.fault("the guard caught nothing: the load proves nothing")
	}
	if r.Accepted == 0 && t.ending != interrupted {
		r.fault("no order was accepted")
	}
	if t.spec.Sound && r.Undersold > 0 && r.Rate == 0 {
		r.fault("%d units were left when everybody heard \"sold out\"", r.Undersold)
	}
}

// judgeOrders holds the answers against the orders in the ledger. Only a request
// whose outcome is open may have one that nobody was told of.
func (r *Result) judgeOrders() {
	for _, finding := range r.Findings {
		r.fault("%v", finding)
	}
	switch most := r.Accepted + r.Unknown; {
	case r.Sold < r.Accepted:
		r.fault("%d orders were answered 201, and %d sold", r.Accepted, r.Sold)
	case r.Sold > most:
		r.fault("%d orders were answered 201, %d left open, and %d sold", r.Accepted, r.Unknown, r.Sold)
	}
}

// judgeCounts holds the counts against one another. They agree at rest, and a load
// that was stopped may leave none.
func (r *Result) judgeCounts(t terms) {
	if !t.spec.Sound || r.Ledger == nil || t.ending == atLimit || t.ending == interrupted {
		return
	}
	if *r.Ledger != r.Stock-r.Sold {
		r.fault("the stock row has %d units left, by its orders %d", *r.Ledger, r.Stock-r.Sold)
	}
	if r.Gate == nil {
		return
	}
	if *r.Gate+*r.InFlight != *r.Ledger {
		r.fault("the gate has %d units left and %d in flight, the ledger %d", *r.Gate, *r.InFlight, *r.Ledger)
	}
	if t.ending == crashed && *r.InFlight > 0 {
		r.fault("recovery has left %d units in flight", *r.InFlight)
	}
}

// judgeFailures holds the failures against their limit. Those of optimistic that
// met too many others are its nature: nothing was cut, and the buyer asks again.
func (r *Result) judgeFailures(t terms) {
	counted := r.Failed
	if t.spec.Cutter == "optimistic" {
		counted -= r.Failures["503 "+problemBusy]
	}
	all := r.Accepted + r.Failed // refusals come for nothing once all is sold
	if part := share(counted) / share(max(all, 1)); part > t.maxFailures {
		r.fault("%v of %d orders failed, more than %v: %s", part, all, t.maxFailures, r.FailuresText())
	}
}

// judgeCrash counts the faults of the crash among the strategy's.
func (r *Result) judgeCrash(crash *Result) {
	r.Crash = crash
	for _, fault := range crash.Faults {
		r.fault("after kill -9: %s", fault)
	}
	if crash.Verdict == promise {
		r.Verdict = promise
	}
}

// FailuresText lists the failures by status and problem type.
func (r *Result) FailuresText() string {
	var each []string
	for _, name := range slices.Sorted(maps.Keys(r.Failures)) {
		each = append(each, fmt.Sprintf("%d %s", r.Failures[name], name))
	}
	return strings.Join(each, ", ")
}

// Kept is how many of the 201s before and after a kill -9 were found again.
func (r *Result) Kept() string {
	if r.Crash == nil {
		return "–"
	}
	kept := r.Crash.Accepted
	for _, finding := range r.Crash.Findings {
		if finding.Kind == missing {
			kept -= finding.Count
		}
	}
	return fmt.Sprintf("%d of %d", kept, r.Crash.Accepted)
}

// share is a part of a whole, written in per cent.
type share float64

func (s share) String() string { return strconv.FormatFloat(float64(s)*100, 'g', 3, 64) + "%" }

// Set reads "5%", or "5".
func (s *share) Set(text string) error {
	percent, err := strconv.ParseFloat(strings.TrimSuffix(text, "%"), 64)
	if err != nil || percent < 0 || percent > 100 {
		return fmt.Errorf("%q is not between 0%% and 100%%", text)
	}
	*s = share(percent / 100)
	return nil
}

// Type names the value in the usage text.
func (s *share) Type() string { return "percent" }
