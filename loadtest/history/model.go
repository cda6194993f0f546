package history

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/holdfast-stock/holdfast/client"
)

// step is what an operation does to the counts of a SKU, and what its answer implies about them.
type step int

const (
	take      step = iota // takes n units, which must be available
	mayTake               // takes n units if they are available, or nothing; may come after everything else
	soldOut               // n units were refused: fewer must be left, apart from the slack
	give                  // returns n units
	mayGive               // returns n units, or nothing; may come after everything else
	set                   // changes total and left by n; left must not fall below 0
	maySet                // does what set does if left stays at 0 or above, or nothing; may come after everything else
	belowSet              // a refused set: left would fall below 0, apart from the slack
	readCount             // the counts are the given ones
)

// operation is a call, or a part of it, in the form of a porcupine operation.
type operation struct {
	step       step
	n          int64
	slack      int64 // for a refusal: units that other calls may hold temporarily
	read       counts
	begin, end int64
	call       *Call
}

// counts is the state of the model: the units ever put in, and those left.
type counts struct{ total, left int64 }

// apply returns the counts after the operation. ok is false if the answer contradicts the
// counts.
func (o operation) apply(s counts) (after counts, ok bool) {
	switch o.step {
	case take:
		return counts{s.total, s.left - o.n}, s.left >= o.n
	case mayTake:
		if s.left >= o.n {
			s.left -= o.n
		}
		return s, true
	case soldOut:
		return s, s.left-o.slack < o.n
	case give, mayGive:
		return counts{s.total, s.left + o.n}, true
	case set:
		return counts{s.total + o.n, s.left + o.n}, s.left+o.n >= 0
	case maySet:
		if s.left+o.n >= 0 {
			s = counts{s.total + o.n, s.left + o.n}
		}
		return s, true
	case belowSet:
		return s, s.left-o.slack+o.n < 0
	}
	return s, s == o.read
}

// delta returns the change that the operation makes.
func (o operation) delta() counts {
	switch o.step {
	case take:
		return counts{0, -o.n}
	case give:
		return counts{0, o.n}
	case set:
		return counts{o.n, o.n}
	}
	return counts{}
}

// pending returns the operation for a moment before its end, when it may have had its effect. ok is
// false if it has no effect.
func (o operation) pending() (_ operation, ok bool) {
	o.end = Forever
	switch o.step {
	case take:
		o.step = mayTake
	case give:
		o.step = mayGive
	case set:
		o.step = maySet
	case mayTake, mayGive, maySet:
	default:
		return o, false
	}
	return o, true
}

// projection is the history of one SKU. Checking each SKU alone is necessary but not sufficient,
// because an order of several SKUs takes all lines or none at one moment.
type projection struct {
	operations []operation // sorted by begin
	rests      []*Call     // audits at rest, sorted by begin
	gated      bool        // a gate counts the SKU too
	lastBegin  int64       // the last begin of an operation that changes counts
	missing    string      // what the history lacks for a decision
}

// endsAtRest reports whether an audit at rest comes after all changes.
func (p *projection) endsAtRest() bool {
	return len(p.rests) > 0 && p.rests[len(p.rests)-1].Begin >= p.lastBegin
}

// project returns the operations on the SKU.
func (h *history) project(sku string, o Options) *projection {
	p := &projection{}
	p.findRests(h, sku)
	disturbed := h.disturbances(p)
	late := func(begin, end int64) bool { return p.gated || disturbed(begin, end) }
	for _, s := range h.sales {
		if n := quantity(s.lines, sku); n > 0 {
			p.addSale(s, n, late)
		}
	}
	sets := p.addSets(h, sku, late)
	holds := p.holdsOf(h, sku, sets, disturbed, late)
	for i := range h.calls {
		c := &h.calls[i]
		if n := quantity(c.Lines, sku); c.Call == Take && c.Outcome == Refused && c.SKU == sku && n > 0 {
			begin := max(0, c.Begin-int64(o.Memory))
			p.operations = append(p.operations, operation{step: soldOut, n: n, slack: slack(holds, c, begin), begin: begin, end: c.End, call: c})
		}
	}
	for _, set := range sets {
		if set.refused {
			p.operations = append(p.operations, operation{step: belowSet, n: set.n, slack: slack(holds, set.call, set.begin), begin: set.begin, end: set.end, call: set.call})
		}
	}
	for _, o := range p.operations {
		p.lastBegin = max(p.lastBegin, o.begin)
	}
	for _, c := range p.rests {
		p.operations = append(p.operations, operation{step: readCount, read: counts{c.Counts.Total, c.Counts.LedgerAvailable}, begin: c.Begin, end: c.End, call: c})
	}
	slices.SortStableFunc(p.operations, func(a, b operation) int { return cmp.Compare(a.begin, b.begin) })
	return p
}

// findRests finds the audits at rest: their counts agree, nothing is in flight, and no call that
// may change counts is under way. Other reads of counts prove nothing, because the gate's count is
// ahead of the ledger's while orders are placed.
func (p *projection) findRests(h *history, sku string) {
	for i := range h.calls {
		c := &h.calls[i]
		if c.Call != Audit || c.SKU != sku || c.Counts == nil {
			continue
		}
		p.gated = p.gated || c.Counts.GateAvailable != nil
		if agree(c.Counts) && !h.changesDuring(c) {
			p.rests = append(p.rests, c)
		}
	}
	slices.SortFunc(p.rests, func(a, b *Call) int { return cmp.Compare(a.Begin, b.Begin) })
}

// agree reports whether the counts of an audit agree, with nothing in flight.
func agree(n *client.Audit) bool {
	return n.Drift == 0 && (n.GateInFlight == nil || *n.GateInFlight == 0) && n.LedgerAvailable == n.Total-n.Sold
}

// changesDuring reports whether a call that may change counts is under way at a moment of
// the audit.
func (h *history) changesDuring(audit *Call) bool {
	for i := range h.calls {
		c := &h.calls[i]
		switch c.Call {
		case Take, Set, Cancel, Pay, Refund:
			if c.Begin <= audit.End && c.End >= audit.Begin {
				return true
			}
		}
	}
	return false
}

// nextRest returns the time of the first audit at rest after the time at.
func (p *projection) nextRest(at int64) int64 {
	for _, c := range p.rests {
		if c.Begin >= at {
			return c.Begin
		}
	}
	return Forever
}

// disturbances returns a function that reports whether something failed between the
// moments at rest before begin and after end.
func (h *history) disturbances(p *projection) func(begin, end int64) bool {
	return func(begin, end int64) bool {
		before, after := int64(0), p.nextRest(end)
		for _, c := range p.rests {
			if c.End <= begin {
				before = c.End
			}
		}
		return slices.ContainsFunc(h.faults, func(f Call) bool { return f.Begin <= after && f.End >= before })
	}
}

// addSale adds an order of n units. Units that it returned may be late. With a gate, or after a
// fault, they may be sold again only after the next moment at rest. The ledger has them at once,
// and a gate gets them from the outbox at the latest.
func (p *projection) addSale(s *sale, n int64, late func(begin, end int64) bool) {
	o := operation{step: take, n: n, begin: s.begin, end: s.end, call: s.answered}
	if s.maybe {
		o.step = mayTake
	}
	p.operations = append(p.operations, o)
	for _, r := range s.returns {
		o := operation{step: give, n: n, begin: r.begin, end: r.end, call: r.call}
		if r.units < 0 {
			o.step = take
		} else if late(r.begin, r.end) {
			o.end = max(o.end, p.nextRest(o.end))
		}
		p.operations = append(p.operations, o)
	}
}

// setting is a change of the total, with all its tries.
type setting struct {
	begin, end int64
	n          int64
	refused    bool
	call       *Call
}

// addSets adds the changes of the total. They must follow each other, and each must be repeated
// until its outcome is known.
func (p *projection) addSets(h *history, sku string, late func(begin, end int64) bool) (all []setting) {
	tries := h.setsOf(sku)
	var total int64
	var open *Call // the first try with an unknown outcome
	for i, c := range tries {
		if i > 0 && c.Begin < tries[i-1].End || open != nil && open.Total != c.Total {
			p.missing = fmt.Sprintf("the changes of the total overlap, or one was not repeated until it was answered: %v", c)
			return all
		}
		s := setting{begin: c.Begin, end: c.End, n: c.Total - total, refused: c.Outcome == Refused, call: c}
		if open != nil {
			s.begin = open.Begin
		}
		switch c.Outcome {
		case Unknown, Nothing:
			if open == nil {
				open = c
			}
			continue
		case Accepted:
			total = c.Total
			p.addSet(s, i > 0 && late(s.begin, s.end))
		}
		all = append(all, s)
		open = nil
	}
	if open != nil {
		p.missing = fmt.Sprintf("a change of the total was not repeated until it was answered: %v", open)
	}
	return all
}

// setsOf returns the calls that set the total of the SKU, sorted by begin.
func (h *history) setsOf(sku string) (tries []*Call) {
	for i := range h.calls {
		if c := &h.calls[i]; c.Call == Set && c.SKU == sku {
			tries = append(tries, c)
		}
	}
	slices.SortStableFunc(tries, func(a, b *Call) int { return cmp.Compare(a.Begin, b.Begin) })
	return tries
}

// addSet adds an accepted change of the total. If the added units may be late, they may be sold
// only after the next moment at rest.
func (p *projection) addSet(s setting, late bool) {
	o := operation{step: set, n: s.n, begin: s.begin, end: s.end, call: s.call}
	if s.n > 0 && late {
		o.end = max(o.end, p.nextRest(o.end))
	}
	p.operations = append(p.operations, o)
}

// held is units that a call may hold temporarily.
type held struct {
	begin, end, n int64
	call          *Call
}

// holdsOf returns the units of the SKU that calls may hold temporarily. These units may be late,
// too. After a fault, an accepted order may have been taken more than once.
func (p *projection) holdsOf(h *history, sku string, sets []setting, disturbed, late func(begin, end int64) bool) (all []held) {
	for _, d := range h.holds {
		n := quantity(d.lines, sku)
		if n == 0 || d.call.Outcome == Refused && d.call.SKU == sku {
			continue
		}
		end := d.end
		if d.open || late(d.begin, d.end) {
			end = p.nextRest(end)
		}
		all = append(all, held{d.begin, end, n, d.call})
	}
	for _, s := range sets {
		if s.refused && s.n < 0 {
			all = append(all, held{s.begin, s.end, -s.n, s.call})
		}
	}
	for _, s := range h.sales {
		if n := quantity(s.lines, sku); n > 0 && disturbed(s.begin, s.end) {
			all = append(all, held{s.begin, s.end, n, s.answered})
		}
	}
	return all
}

// slack returns the most units that other calls may hold at one moment of a refused call.
func slack(holds []held, c *Call, begin int64) (most int64) {
	at := func(moment int64) (n int64) {
		for _, h := range holds {
			if h.call != c && h.begin <= moment && moment <= h.end {
				n += h.n
			}
		}
		return n
	}
	most = at(begin)
	for _, h := range holds {
		if begin < h.begin && h.begin <= c.End {
			most = max(most, at(h.begin))
		}
	}
	return most
}

// search searches the parts of the history between moments at rest for an order of the
// operations that explains all answers.
func (p *projection) search(timeout time.Duration) Verdict {
	var state counts
	rest := p.operations
	for len(rest) > 0 {
		n := cut(rest)
		part := rest[:n]
		rest = rest[n:]
		switch linearizable(part, state, timeout) {
		case porcupine.Unknown:
			return Verdict{Decision: Undecided, Why: fmt.Sprintf("the search through %d calls did not end within %v", len(part), timeout)}
		case porcupine.Illegal:
			return shortest(part, state, timeout)
		}
		for _, o := range part {
			state = counts{state.total + o.delta().total, state.left + o.delta().left}
		}
	}
	return Verdict{Decision: Linearizable}
}

// cut returns the number of operations before the first gap: a moment at which no operation is
// under way and another one follows. It returns their total number if there is no gap.
func cut(operations []operation) int {
	end := operations[0].end
	for i, o := range operations[1:] {
		if o.begin > end {
			return i + 1
		}
		end = max(end, o.end)
	}
	return len(operations)
}

// linearizable runs porcupine.
func linearizable(operations []operation, state counts, timeout time.Duration) porcupine.CheckResult {
	model := porcupine.Model{
		Init: func() any { return state },
		StepContext: func(_ context.Context, state, input, _ any) (bool, any) {
			after, ok := input.(operation).apply(state.(counts))
			return ok, after
		},
		Hash: func(state any) uint64 { return uint64(state.(counts).left) },
	}
	all := make([]porcupine.Operation, len(operations))
	for i, o := range operations {
		all[i] = porcupine.Operation{ClientId: i, Input: o, Call: o.begin, Return: o.end}
	}
	return porcupine.CheckOperationsTimeout(model, all, timeout)
}

// shortest returns the verdict on operations that no order explains: the first call whose answer
// cannot be explained, with those before it. A part is not linearizable if its beginning is not, so
// bisection finds that call.
func shortest(operations []operation, state counts, timeout time.Duration) Verdict {
	ends := make([]int64, 0, len(operations))
	for _, o := range operations {
		ends = append(ends, o.end)
	}
	slices.Sort(ends)
	ends = slices.Compact(ends)
	low, high := 0, len(ends)-1 // the operations up to high are not linearizable
	for low < high {
		middle := (low + high) / 2
		if linearizable(until(operations, ends[middle]), state, timeout) == porcupine.Illegal {
			high = middle
		} else {
			low = middle + 1
		}
	}
	v := Verdict{Decision: NotLinearizable, Total: state.total, Left: state.left}
	var last operation
	for _, o := range until(operations, ends[high]) {
		if o.call != nil {
			v.Part = append(v.Part, *o.call)
		}
		if o.end == ends[high] {
			last = o
		}
	}
	if last.call != nil {
		v.Why = fmt.Sprintf("no order of the calls explains the answer to %v", *last.call)
	} else {
		v.Why = "no order of the calls explains an order whose answer was lost"
	}
	return v
}

// until returns the operations as they are at the given time.
func until(operations []operation, moment int64) (some []operation) {
	for _, o := range operations {
		switch {
		case o.begin > moment:
		case o.end <= moment:
			some = append(some, o)
		default:
			if o, ok := o.pending(); ok {
				some = append(some, o)
			}
		}
	}
	return some
}
