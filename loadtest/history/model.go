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

// operation is a call, or a part of it, in the form of a porcupine operation. It changes the counts
// of a SKU, or was refused to change them, or reads them.
type operation struct {
	delta      counts  // what the change adds to the counts, or would have added
	maybe      bool    // the change is made, if units are left for it, or not; it may come after everything else
	refused    bool    // no units were left for the change, apart from the slack
	slack      int64   // units that other calls may hold temporarily
	read       *counts // the counts are these
	begin, end int64
	call       *Call
}

// counts is the state of the model: the units ever put in, and those left.
type counts struct{ total, left int64 }

func (s counts) plus(d counts) counts { return counts{s.total + d.total, s.left + d.left} }

// apply returns the counts after the operation. ok is false if the answer contradicts the
// counts.
func (o operation) apply(s counts) (after counts, ok bool) {
	after = s.plus(o.delta)
	switch {
	case o.read != nil:
		return s, s == *o.read
	case o.refused:
		return s, after.left-o.slack < 0
	case after.left < 0:
		return s, o.maybe
	}
	return after, true
}

// pending returns the operation for a moment before its end, when it may have had its effect. ok is
// false if it has no effect.
func (o operation) pending() (_ operation, ok bool) {
	o.end, o.maybe = Forever, true
	return o, !o.refused && o.read == nil
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
			p.operations = append(p.operations, operation{refused: true, delta: counts{left: -n}, slack: slack(holds, c, begin), begin: begin, end: c.End, call: c})
		}
	}
	for _, set := range sets {
		if set.refused {
			set.slack = slack(holds, set.call, set.begin)
			p.operations = append(p.operations, set)
		}
	}
	for _, o := range p.operations {
		p.lastBegin = max(p.lastBegin, o.begin)
	}
	for _, c := range p.rests {
		p.operations = append(p.operations, operation{read: &counts{c.Counts.Total, c.Counts.LedgerAvailable}, begin: c.Begin, end: c.End, call: c})
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
	p.operations = append(p.operations, operation{delta: counts{left: -n}, maybe: s.maybe, begin: s.begin, end: s.end, call: s.answered})
	for _, r := range s.returns {
		o := operation{delta: counts{left: r.units * n}, begin: r.begin, end: r.end, call: r.call}
		if r.units > 0 && late(r.begin, r.end) {
			o.end = max(o.end, p.nextRest(o.end))
		}
		p.operations = append(p.operations, o)
	}
}

// addSets adds the accepted changes of the total, and returns all of them, each with all its tries.
// They must follow each other, and each must be repeated until its outcome is known. If added units
// may be late, they may be sold only after the next moment at rest.
func (p *projection) addSets(h *history, sku string, late func(begin, end int64) bool) (all []operation) {
	tries := h.setsOf(sku)
	var total int64
	var open *Call // the first try with an unknown outcome
	for i, c := range tries {
		if i > 0 && c.Begin < tries[i-1].End || open != nil && open.Total != c.Total {
			p.missing = fmt.Sprintf("the changes of the total overlap, or one was not repeated until it was answered: %v", c)
			return all
		}
		added := c.Total - total
		o := operation{delta: counts{added, added}, refused: c.Outcome == Refused, begin: c.Begin, end: c.End, call: c}
		if open != nil {
			o.begin = open.Begin
		}
		switch c.Outcome {
		case Unknown, Nothing:
			if open == nil {
				open = c
			}
			continue
		case Accepted:
			total = c.Total
			if i > 0 && added > 0 && late(o.begin, o.end) {
				o.end = max(o.end, p.nextRest(o.end))
			}
			p.operations = append(p.operations, o)
		}
		all = append(all, o)
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

// held is units that a call may hold temporarily.
type held struct {
	begin, end, n int64
	call          *Call
}

// holdsOf returns the units of the SKU that calls may hold temporarily. These units may be late,
// too. After a fault, an accepted order may have been taken more than once.
func (p *projection) holdsOf(h *history, sku string, sets []operation, disturbed, late func(begin, end int64) bool) (all []held) {
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
		if s.refused && s.delta.left < 0 {
			all = append(all, held{s.begin, s.end, -s.delta.left, s.call})
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
			if !o.refused && !o.maybe {
				state = state.plus(o.delta)
			}
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
