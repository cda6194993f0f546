package modelcheck

import (
	"slices"
	"strings"
	"testing"
)

// This file models the takes of one order at a gate with two segments, guard off. Concurrent
// requests with one key place the order. It expires, is paid late, and may be refunded. Every
// instance can die between two steps, and every settle and give can arrive late, again, or never.
// So the steps of the model have no instances.

// The bounds of the search.
const (
	orderTakes    = 4 // takes of the order, one unit each
	orderSegments = 2
	segmentUnits  = orderTakes // units in each segment at first, so that no take is sold out
)

// row is the order in the ledger.
type row uint8

const (
	absent row = iota
	void
	pending
	expired
	paid // paid late
	refunded
)

// attempt is one take of the order.
type attempt struct {
	begun      bool
	revives    bool // the take belongs to a late payment
	looked     bool // the take has found no record in any segment
	cut        bool
	segment    uint8
	recorded   bool // the gate has the take's record
	ended      bool // the take's transaction has ended
	committed  bool
	rowChanged bool // the row's version has changed since the take read the row
	settle     bool // a settle is under way, and may arrive at any time
	give       bool // a give is under way
}

// life is the state of the order and of the gate's counts.
type life struct {
	row         row
	holder      int8 // the attempt whose take the row names
	attempts    [orderTakes]attempt
	available   [orderSegments]int8
	undelivered int8 // returned units that the gate does not have yet
	restored    bool // a record that was settled has come back
}

// takeRules are the rules of revivals, and a fault.
type takeRules struct {
	looks     bool // a revival looks for records of the order in all segments before it cuts
	remembers bool // the ledger knows every take of the order that was committed
	restores  bool // a settle can be undone, as in a Redis that loses its last writes unnoticed
}

// steps yields the states that can follow.
func (r takeRules) steps(from life, emit func(step[life])) {
	do := func(what string, n int, change func(s *life)) {
		s := from
		change(&s)
		if s != from {
			emit(step[life]{s, what, n})
		}
	}
	switch from.row {
	case pending:
		do("the order expires", 0, func(s *life) { s.row, s.undelivered = expired, s.undelivered+1 })
	case paid:
		do("the order is refunded", 0, func(s *life) { s.row, s.undelivered = refunded, s.undelivered+1 })
	}
	if from.undelivered > 0 {
		for n := range orderSegments {
			do("a returned unit arrives in segment %d", n, func(s *life) { s.available[n], s.undelivered = s.available[n]+1, s.undelivered-1 })
		}
	}
	for i := range from.attempts {
		r.take(from, i, do)
		r.end(from, i, do)
		if !from.attempts[i].begun {
			break // the other attempts are equivalent
		}
	}
}

// lifeDoer yields the state after a change, and the description of the change. n replaces %d in
// what.
type lifeDoer func(what string, n int, change func(s *life))

// take yields the steps of take i up to its commit.
func (r takeRules) take(from life, i int, do lifeDoer) {
	recordIn := func(segment int) bool {
		return slices.ContainsFunc(from.attempts[:], func(a attempt) bool { return a.recorded && int(a.segment) == segment })
	}
	switch a := from.attempts[i]; {
	case !a.begun:
		if from.row == absent || from.row == pending {
			do("a request begins take %d", i, func(s *life) { s.attempts[i].begun = true })
		}
		if from.row == expired {
			do("a late payment begins take %d", i, func(s *life) { s.attempts[i].begun, s.attempts[i].revives = true, true })
		}
	case a.revives && r.looks && !a.looked && !a.cut:
		if !recordIn(0) && !recordIn(1) {
			do("take %d finds no record", i, func(s *life) { s.attempts[i].looked = true })
		}
	case !a.cut:
		for n := range orderSegments {
			if !recordIn(n) {
				do("take %d is cut", i, func(s *life) {
					s.available[n]--
					s.attempts[i].cut, s.attempts[i].looked, s.attempts[i].recorded, s.attempts[i].segment = true, false, true, uint8(n)
				})
			}
		}
	case !a.ended:
		do("the transaction of take %d ends", i, func(s *life) {
			a := &s.attempts[i]
			a.ended = true
			switch {
			case !a.revives && s.row == absent:
				s.row, s.holder, a.committed, a.settle = pending, int8(i), true, true
			case a.revives && s.row == expired && !a.rowChanged:
				s.row, s.holder, a.committed, a.settle = paid, int8(i), true, true
			default:
				a.give = true
			}
		})
	}
}

// end yields the steps that end take i.
func (r takeRules) end(from life, i int, do lifeDoer) {
	a := from.attempts[i]
	if !a.cut {
		return
	}
	do("take %d is resolved", i, func(s *life) {
		knows := int(s.holder) == i && s.attempts[i].committed || r.remembers && s.attempts[i].committed
		switch {
		case s.row == absent:
			s.row = void
		case knows:
			s.attempts[i].settle = true
			return
		case s.row == expired:
			for j := range s.attempts {
				if b := &s.attempts[j]; b.revives && !b.ended {
					b.rowChanged = true
				}
			}
		}
		s.attempts[i].give = true
	})
	if a.settle && a.recorded {
		do("take %d is settled", i, func(s *life) { s.attempts[i].recorded = false })
	}
	if a.give && a.recorded {
		do("take %d is given back", i, func(s *life) {
			s.attempts[i].recorded = false
			s.available[s.attempts[i].segment]++
		})
	}
	if r.restores && !from.restored && a.settle && !a.recorded {
		do("the record of take %d comes back", i, func(s *life) { s.restored, s.attempts[i].recorded = true, true })
	}
}

// lifeViolation describes what is wrong with a state, or returns "". The ledger's units must be
// those at the gate, those on their way there, and those of uncommitted takes.
func lifeViolation(s life) string {
	units, want := s.undelivered, int8(orderSegments*segmentUnits)
	for _, n := range s.available {
		units += n
	}
	for _, a := range s.attempts {
		if a.recorded && !a.committed {
			units++
		}
	}
	if s.row == pending || s.row == paid {
		want--
	}
	switch {
	case units > want:
		return oversold
	case units < want:
		return "undersell: the gate has lost a unit"
	}
	return ""
}

// TestTakes searches the takes of one order. Each of two rules keeps recovery from giving the units
// of an earlier take back twice. If a settle can be undone, only the ledger's memory prevents that.
func TestTakes(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		takeRules
		sound bool
	}{
		"only the look":                   {takeRules{looks: true}, true},
		"only the memory":                 {takeRules{remembers: true}, true},
		"neither rule":                    {takeRules{}, false},
		"an undone settle":                {takeRules{looks: true, remembers: true, restores: true}, true},
		"an undone settle without memory": {takeRules{looks: true, restores: true}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			start := life{available: [orderSegments]int8{segmentUnits, segmentUnits}}
			states, trace := search([]life{start}, test.steps, lifeViolation)
			switch {
			case test.sound && trace != nil:
				t.Errorf("found after %d states:\n%s", states, strings.Join(trace, "\n"))
			case !test.sound && (trace == nil || trace[len(trace)-1] != oversold):
				t.Errorf("no oversell in %d states", states)
			}
			t.Logf("%d states:\n%s", states, strings.Join(trace, "\n"))
		})
	}
}
