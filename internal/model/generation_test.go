package model

import (
	"strings"
	"testing"
)

// This file models the generation (docs/decisions/0036-generation.md): one SKU,
// one Redis, one ledger, no guard.
//
// The model has no instances. An instance is a generation and the commands sent
// under it, and both can be arbitrarily old. So every generation that was ever
// raised keeps working, whatever is raised after it. This covers any number of
// instances, of any layout, started in any order, paused, killed, or late with
// any command.

// Bounds of every search; a protocol has more.
const (
	maxGeneration = 4
	maxTakes      = 3
	maxRefills    = 2 // in a generation, where nothing is forgotten
)

// perGeneration is how many epochs a generation has: each is
// generation*perGeneration + n. (In Holdfast they are 1<<28.)
const perGeneration = 256

// longWay makes the search keep what forget drops. One unit then takes minutes
// and some gigabytes.
const longWay = false

// rule is a rule that can be left out.
type rule int

const (
	none rule = iota
	textRule
	onceRule
	twiceRule
	adoptRule
	directAdoptRule
	recordRule
	takeRule
	fillRule
	giveRule
	writeRule
	lossRule
)

// layout is how the instances of a generation sell.
type layout uint8

const (
	unset    layout = iota
	scripted        // a script reads, checks and writes the count
	locked          // two scripts, one that reads and one that writes, under a lock
	direct          // no gate: the ledger's row is cut conditionally
)

type epoch uint16

func (e epoch) generation() int { return int(e) / perGeneration }

// first is the epoch below all those that rows of the generation have.
func first(generation int) epoch { return epoch(generation * perGeneration) }

// full reports whether the bounds leave no epoch above e in its generation.
func (e epoch) full() bool { return e%perGeneration == maxRefills }

// phase is how far a take is.
type phase uint8

const (
	idle phase = iota
	cut        // by the gate; its transaction lands some time, or never
	sold       // committed
	back       // refused by the ledger, or void: its units go back
)

type take struct {
	phase phase
	epoch epoch // as the gate said
	saved bool  // the snapshot has it in flight
	held  bool  // Redis has it in flight
}

// count is the SKU at the gate; epoch 0: there is none.
type count struct {
	epoch epoch
	left  int8
}

// state is everything there is. The generation's layout is that of the ledger's
// row; those before it are kept because they go on working.
type state struct {
	total int8

	generation uint8
	layouts    [maxGeneration + 1]layout
	row        epoch
	takes      [maxTakes]take

	count    count
	scripts  uint8 // the generations whose scripts Redis has
	saved    count // the snapshot that Redis comes back with
	restarts uint8

	loading uint8    // the generations whose scripts are under way to Redis
	fills   [2]count // under way to Redis, too; they may arrive late, twice, or never
	read    count    // what the holder of the lock has read; epoch 0: nobody holds it
	reader  uint8    // the generation of that holder
}

func bit[N int | uint8](n N) uint8 { return 1 << n }

// available is the row's: guard off, it may fall below zero.
func (s *state) available() int8 {
	n := s.total
	for _, t := range s.takes {
		if t.phase == sold {
			n--
		}
	}
	return n
}

// canonical makes states equal that differ in nothing that matters: what can be
// lost at any moment anyway, or can do nothing more.
func (p protocol) canonical(s state) state {
	if p.forgets() {
		s.forget()
	}
	for i := range s.takes {
		t := &s.takes[i]
		t.saved = t.saved && s.restarts < p.restarts
		if t.phase == sold {
			*t = take{phase: sold}
		}
	}
	if s.restarts == p.restarts {
		s.saved = count{}
	}
	if s.fills[1].epoch < s.fills[0].epoch {
		s.fills[0], s.fills[1] = s.fills[1], s.fills[0]
	}
	order := func(i, j int) {
		if less(s.takes[j], s.takes[i]) {
			s.takes[i], s.takes[j] = s.takes[j], s.takes[i]
		}
	}
	order(0, 1)
	order(1, 2)
	order(0, 1)
	return s
}

// forgets reports whether what is older than the row can be forgotten.
func (p protocol) forgets() bool {
	switch p.without {
	case recordRule, adoptRule, giveRule, writeRule: // it is believed nevertheless
		return false
	}
	return !longWay
}

// forget drops everything of an epoch older than the row's: the ledger refuses
// it, and its epochs only rise. What is left is of the row's own epoch, which can
// then be the first of its generation, so that refills have no bound.
func (s *state) forget() {
	row := s.row
	if row != 0 {
		s.row = first(row.generation()) + 1
	}
	keep := func(e *epoch) bool {
		if *e != row {
			return false
		}
		*e = s.row
		return true
	}
	for _, c := range []*count{&s.count, &s.saved, &s.fills[0], &s.fills[1]} {
		if !keep(&c.epoch) {
			*c = count{}
		}
	}
	if !keep(&s.read.epoch) {
		s.read, s.reader = count{}, 0
	}
	for i := range s.takes {
		if t := &s.takes[i]; !keep(&t.epoch) {
			*t = take{phase: t.phase}
			if t.phase == cut {
				t.phase = back
			}
		}
	}
	for g := range s.row.generation() {
		s.layouts[g] = unset // its instances can do nothing more
		s.scripts &^= bit(g)
		s.loading &^= bit(g)
	}
}

func less(a, b take) bool { return a.key() < b.key() }

func (t take) key() int {
	key := int(t.phase)<<24 | int(t.epoch)<<8
	if t.saved {
		key |= 2
	}
	if t.held {
		key |= 1
	}
	return key
}

// protocol is the rules, but for one, and how far they are searched.
type protocol struct {
	without     rule
	generations uint8
	restarts    uint8
}

// runs reports whether Redis has the scripts of the generation.
func (p protocol) runs(s *state, generation int) bool {
	if p.without == textRule {
		return s.scripts != 0
	}
	return s.scripts&bit(generation) != 0
}

// current reports whether the scripts of the generation may use the count.
func (p protocol) current(s *state, generation int) bool {
	if s.count.epoch == 0 {
		return false
	}
	return s.count.epoch.generation() == generation ||
		p.without == takeRule && s.count.epoch.generation() < generation
}

// same reports whether a take of the epoch may still commit.
func (p protocol) same(taken, row epoch) bool {
	switch p.without {
	case recordRule:
		return true
	case adoptRule:
		return taken%perGeneration == row%perGeneration
	}
	return taken == row
}

// steps are what can happen next.
func (p protocol) steps(from state, emit func(step[state])) {
	do := func(what string, n int, change func(s *state)) {
		s := from
		change(&s)
		if s := p.canonical(s); s != from {
			emit(step[state]{s, what, n})
		}
	}
	p.hands(from, do)
	p.store(from, do)
	for g := 1; g <= int(from.generation); g++ {
		switch from.layouts[g] {
		case scripted:
			p.script(from, g, do)
			p.gate(from, g, do)
		case locked:
			p.lock(from, g, do)
			p.gate(from, g, do)
		case direct:
			p.direct(from, g, do)
		}
	}
	p.ledger(from, do)
}

type doer func(what string, n int, change func(s *state))

// hands is what changes the generation.
func (p protocol) hands(from state, do doer) {
	if from.generation == p.generations {
		return
	}
	raise := func(l layout) func(*state) {
		return func(s *state) {
			s.generation++
			s.layouts[s.generation] = l
			if l != direct {
				s.loading |= bit(s.generation)
			}
		}
	}
	was, g := from.layouts[from.generation], int(from.generation)+1
	if was != scripted {
		do("an instance with scripts starts and raises the generation to %d", g, raise(scripted))
	}
	if was != locked {
		do("an instance with a lock starts and raises the generation to %d", g, raise(locked))
	}
	if was != direct {
		do("an instance without a gate starts and raises the generation to %d", g, raise(direct))
		// It may have met NOSCRIPT long ago: the compare-and-swap is what counts.
		do("an instance that met NOSCRIPT raises the generation to %d", g, raise(was))
	}
}

// store is what happens to Redis, and what arrives there.
func (p protocol) store(from state, do doer) {
	do("Redis saves a snapshot", 0, func(s *state) {
		s.saved = s.count
		for i := range s.takes {
			s.takes[i].saved = s.takes[i].held
		}
	})
	if from.restarts < p.restarts {
		do("Redis restarts from its snapshot", 0, func(s *state) {
			s.restarts++
			s.count = s.saved
			if p.without != lossRule {
				s.scripts = 0
			}
			for i := range s.takes {
				s.takes[i].held = s.takes[i].saved
			}
		})
	}
	for g := 1; g <= int(from.generation); g++ {
		if from.loading&bit(g) != 0 {
			do("the scripts of generation %d are loaded", g, func(s *state) {
				if p.without != twiceRule {
					s.loading &^= bit(g)
				}
				s.scripts |= bit(g)
			})
		}
	}
	if p.without == onceRule && from.layouts[from.generation] != direct {
		do("an instance that met NOSCRIPT loads generation %d again", int(from.generation), func(s *state) {
			s.scripts |= bit(s.generation)
		})
	}
}

// script is how instances with scripts sell.
func (p protocol) script(from state, g int, do doer) {
	if !p.runs(&from, g) || !p.current(&from, g) || from.count.left <= 0 {
		return
	}
	for i, t := range from.takes {
		if t.phase == idle {
			do("a take under generation %d", g, func(s *state) {
				s.count.left--
				s.takes[i] = take{phase: cut, epoch: s.count.epoch, held: true}
			})
			return // the others are no different
		}
	}
}

// lock is how instances with a lock sell: they exclude each other, and nobody
// else.
func (p protocol) lock(from state, g int, do doer) {
	if from.read.epoch == 0 {
		if p.runs(&from, g) && p.current(&from, g) && from.count.left > 0 {
			do("the holder of the lock reads under generation %d", g, func(s *state) {
				s.read, s.reader = s.count, uint8(g)
			})
		}
		return
	}
	if int(from.reader) != g {
		return
	}
	end := func(s *state) { s.read, s.reader = count{}, 0 }
	do("the holder of the lock gives up", 0, end)
	if !p.runs(&from, g) {
		return
	}
	if from.count.epoch != from.read.epoch && p.without != writeRule {
		return
	}
	for i, t := range from.takes {
		if t.phase == idle {
			do("the holder of the lock writes under generation %d", g, func(s *state) {
				s.takes[i] = take{phase: cut, epoch: s.count.epoch, held: true}
				s.count.left = s.read.left - 1
				end(s)
			})
			return
		}
	}
}

// gate is what all instances with a gate do besides selling.
func (p protocol) gate(from state, g int, do doer) {
	if from.layouts[g] == locked && from.read.epoch != 0 {
		return // every change of a count happens under its lock
	}
	// The refill's transaction. It goes on to send a fill.
	if epoch, ok := p.refill(from.row, g); ok {
		for i := range from.fills {
			do("a refill's transaction under generation %d", g, func(s *state) {
				s.row = epoch
				s.fills[i] = count{epoch, s.available()} // what was there is lost
			})
		}
	}
	if !p.runs(&from, g) {
		return
	}
	for _, f := range from.fills {
		if f.epoch != 0 && f.epoch.generation() == g && (from.count.epoch < f.epoch || p.without == fillRule) {
			do("a fill under generation %d", g, func(s *state) {
				s.count = f
			})
		}
	}
	if from.count.epoch.generation() > g {
		return
	}
	for i, t := range from.takes {
		if t.phase == back && t.held && (t.epoch == from.count.epoch || p.without == giveRule) {
			do("a give under generation %d", g, func(s *state) {
				s.count.left++
				s.takes[i].held = false
			})
		}
	}
}

// refill is the epoch that a refill under the generation raises the row's to.
// False: the row is a later generation's, or the model's bounds are reached.
func (p protocol) refill(row epoch, g int) (epoch, bool) {
	if row.generation() > g {
		return 0, false
	}
	if p.without == adoptRule && row.generation() < g {
		return first(g) + max(row%perGeneration, 1), true
	}
	row = max(row, first(g))
	return row + 1, !row.full()
}

// direct is how instances without a gate sell.
func (p protocol) direct(from state, g int, do doer) {
	if from.row.generation() < g {
		if p.without != directAdoptRule {
			do("the row is adopted under generation %d", g, func(s *state) { s.row = first(g) + 1 })
			return
		}
	} else if from.row.generation() > g {
		return
	}
	if from.available() < 1 {
		return
	}
	for i, t := range from.takes {
		if t.phase == idle {
			do("a unit is sold without a gate under generation %d", g, func(s *state) { s.takes[i].phase = sold })
			return
		}
	}
}

// ledger is what becomes of what the gate has cut.
func (p protocol) ledger(from state, do doer) {
	for i, t := range from.takes {
		if t.phase != cut {
			continue
		}
		if p.same(t.epoch, from.row) {
			do("a take of epoch %d commits", int(t.epoch), func(s *state) { s.takes[i].phase = sold })
		} else {
			do("a take of epoch %d is refused as stale", int(t.epoch), func(s *state) { s.takes[i].phase = back })
		}
		do("a take of epoch %d is made void", int(t.epoch), func(s *state) { s.takes[i].phase = back })
	}
}

const oversold = "more is sold than there was"

// wrong is what is wrong with a state.
func (p protocol) wrong(s state) string {
	if s.available() < 0 {
		return oversold
	}
	if s.available() > 0 && !p.sells(s) {
		return "nobody can sell what is left"
	}
	return ""
}

// sells reports whether the next buyer is sold a unit, if all that is under way
// is lost, nothing more fails, and one instance is left of the ledger's layout.
func (p protocol) sells(s state) bool {
	g := int(s.generation)
	l := s.layouts[g]
	for range 8 {
		switch {
		case s.row.generation() > g:
			return false
		case l == direct && s.row.generation() < g:
			s.row = first(g) + 1
		case l == direct:
			return true
		case !p.runs(&s, g): // raise and load
			g++
			s.scripts |= bit(g)
		case s.count.epoch.generation() > g:
			return false
		case !p.current(&s, g), s.count.left <= 0, s.count.epoch != s.row: // not filled, drift, stale
			s.row = max(s.row, first(g)) + 1
			if s.count.epoch < s.row {
				s.count = count{s.row, s.available()}
			}
		default:
			return true
		}
	}
	return false
}

func starts(total int8) []state {
	var all []state
	for _, l := range []layout{scripted, locked, direct} {
		s := state{total: total, generation: 1, row: 1}
		s.layouts[1] = l
		if l != direct {
			s.loading = bit(1)
		}
		all = append(all, s)
	}
	return all
}

// TestGeneration searches the whole protocol, and then without each rule.
func TestGeneration(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		total int8
		protocol
	}{
		{"one unit", 1, protocol{generations: maxGeneration, restarts: 2}},
		{"two units", 2, protocol{generations: 3, restarts: 2}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			states, trace := search(starts(test.total), test.steps, test.wrong)
			if trace != nil {
				t.Errorf("after %d states:\n%s", states, strings.Join(trace, "\n"))
			}
			t.Logf("%d states", states)
		})
	}
	for without, name := range map[rule]string{
		textRule:        "the generation in the scripts' text",
		onceRule:        "the load once",
		twiceRule:       "the load that is never repeated",
		adoptRule:       "the epoch that rises with the adoption",
		directAdoptRule: "the adoption by who has no gate",
		recordRule:      "the epoch demanded by the transaction",
		takeRule:        "the generation checked by a take",
		fillRule:        "the fill that lowers no epoch",
		giveRule:        "the epoch checked by a give",
		writeRule:       "the epoch checked by a write under a lock",
		lossRule:        "the scripts lost with the data", // as by a master that was a replica for a while
	} {
		t.Run("without "+name, func(t *testing.T) {
			t.Parallel()
			p := protocol{without, 2, 1}
			states, trace := search(starts(1), p.steps, p.wrong)
			if trace == nil || trace[len(trace)-1] != oversold {
				t.Errorf("%d states hold no oversell", states)
			}
			t.Logf("after %d states:\n%s", states, strings.Join(trace, "\n"))
		})
	}
}
