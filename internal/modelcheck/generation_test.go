package modelcheck

import (
	"cmp"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// This file models the generation (docs/decisions/0036-generation.md): one SKU, one Redis, one
// ledger, guard off.
//
// The model has no instances. An instance acts only through its generation and the commands that it
// sends under it, and both can be arbitrarily old. So every generation that was ever raised keeps
// acting, even after later ones were raised. This covers any number of instances, with any layout,
// started in any order, paused, killed, or late with any command.

// Bounds of all searches. A protocol has further ones.
const (
	maxGeneration = 4
	maxTakes      = 3
	maxRefills    = 2 // refills of each generation, if old epochs are kept
)

// perGeneration is the number of epochs of a generation. An epoch is
// generation*perGeneration + n. (Holdfast uses 1<<28.)
const perGeneration = 256

// keepOldEpochs turns dropOldEpochs off. The search for one unit then takes
// minutes and several gigabytes, with the same result.
const keepOldEpochs = false

// rule is a rule of the protocol, or an assumption, that a search can leave out.
type rule int

const (
	noRule          rule = iota
	scriptTextRule       // the generation is part of the scripts' text
	loadOnceRule         // only the instance that raised the generation loads its scripts
	noRetryRule          // a load is sent once
	adoptionRule         // an adoption raises the row's epoch
	gatelessRule         // a sale without a gate adopts the row first
	commitRule           // the ledger's transaction checks the take's epoch
	takeRule             // a take checks the count's generation
	fillRule             // a fill only raises the count's epoch
	giveRule             // a give checks the count's epoch
	writeRule            // a write under a lock checks the count's epoch
	scriptsLostRule      // a Redis that restarts from a snapshot has lost its scripts
)

// layout is the way in which the instances of a generation sell.
type layout uint8

const (
	unset    layout = iota
	scripted        // a script reads, checks and writes the count
	locked          // one script reads and another writes, under a lock
	gateless        // a statement cuts the ledger's row conditionally
)

type epoch uint16

func (e epoch) generation() int { return int(e) / perGeneration }

// base returns the epoch just below those of the generation's rows.
func base(generation int) epoch { return epoch(generation * perGeneration) }

// last reports whether e is the last epoch of its generation within the bounds.
func (e epoch) last() bool { return e%perGeneration == maxRefills }

// status is the status of a take.
type status uint8

const (
	unused    status = iota
	inFlight         // taken at the gate; its transaction commits at some time, or never
	committed        // counted by the ledger
	failed           // refused by the ledger, or void: its units must be given back
)

type take struct {
	status   status
	epoch    epoch // epoch of the count when the take was made
	recorded bool  // Redis has an in-flight record of the take
	saved    bool  // the snapshot has that record
}

// count is the SKU's count at the gate. Epoch 0 means that there is none.
type count struct {
	epoch     epoch
	available int8
}

// state is the state of the whole system. The generation's layout is the one in the ledger. The
// layouts of earlier generations are kept, because those generations keep acting.
type state struct {
	total int8

	generation uint8
	layouts    [maxGeneration + 1]layout
	row        epoch // epoch of the stock row
	takes      [maxTakes]take

	count    count
	scripts  uint8 // the generations whose scripts Redis has
	snapshot count // the count with which Redis restarts
	restarts uint8

	loads  uint8    // the generations whose scripts are being sent to Redis
	fills  [2]count // fills under way to Redis; each may arrive late, twice, or never
	read   count    // the count that the holder of the lock has read; epoch 0: the lock is free
	holder uint8    // the generation of that holder
}

// bit returns the mask of bit n.
func bit[N int | uint8](n N) uint8 { return 1 << n }

// rowAvailable returns the stock row's available. It may be negative, because the
// guard is off.
func (s *state) rowAvailable() int8 {
	n := s.total
	for _, t := range s.takes {
		if t.status == committed {
			n--
		}
	}
	return n
}

// canonical makes states equal if their difference does not matter. Such differences are the order
// of takes or fills, and data that has no effect any more.
func (p protocol) canonical(s state) state {
	if p.refusesOldEpochs() && !keepOldEpochs {
		s.dropOldEpochs()
	}
	for i := range s.takes {
		t := &s.takes[i]
		t.saved = t.saved && s.restarts < p.restarts
		if t.status == committed {
			*t = take{status: committed}
		}
	}
	if s.restarts == p.restarts {
		s.snapshot = count{}
	}
	if s.fills[1].epoch < s.fills[0].epoch {
		s.fills[0], s.fills[1] = s.fills[1], s.fills[0]
	}
	slices.SortFunc(s.takes[:], func(a, b take) int { return cmp.Compare(a.key(), b.key()) })
	return s
}

// refusesOldEpochs reports whether takes, fills and records of an epoch older than the row's have
// no effect.
func (p protocol) refusesOldEpochs() bool {
	switch p.without {
	case commitRule, adoptionRule, giveRule, writeRule:
		return false
	}
	return true
}

// dropOldEpochs drops takes, fills and records of an epoch older than the row's. The ledger refuses
// an older epoch, and the row's epoch only rises. All remaining epochs equal the row's, so
// dropOldEpochs replaces them with the first epoch of the generation. That makes the number of
// refills unbounded.
func (s *state) dropOldEpochs() {
	row := s.row
	if row != 0 {
		s.row = base(row.generation()) + 1
	}
	keep := func(e *epoch) bool {
		if *e != row {
			return false
		}
		*e = s.row
		return true
	}
	for _, c := range []*count{&s.count, &s.snapshot, &s.fills[0], &s.fills[1]} {
		if !keep(&c.epoch) {
			*c = count{}
		}
	}
	if !keep(&s.read.epoch) {
		s.read, s.holder = count{}, 0
	}
	for i := range s.takes {
		if t := &s.takes[i]; !keep(&t.epoch) {
			*t = take{status: t.status}
			if t.status == inFlight {
				t.status = failed
			}
		}
	}
	for g := range s.row.generation() {
		s.layouts[g] = unset // the generation's instances have no effect any more
		s.scripts &^= bit(g)
		s.loads &^= bit(g)
	}
}

// key is different for different takes.
func (t take) key() int {
	key := int(t.status)<<24 | int(t.epoch)<<8
	if t.saved {
		key |= 2
	}
	if t.recorded {
		key |= 1
	}
	return key
}

// protocol is the set of rules without one of them, and the bounds of its search.
type protocol struct {
	without     rule
	generations uint8
	restarts    uint8
}

// hasScripts reports whether Redis has the scripts of the generation.
func (p protocol) hasScripts(s *state, generation int) bool {
	if p.without == scriptTextRule {
		return s.scripts != 0
	}
	return s.scripts&bit(generation) != 0
}

// mayTake reports whether the scripts of the generation may take from the count.
func (p protocol) mayTake(s *state, generation int) bool {
	if s.count.epoch == 0 {
		return false
	}
	return s.count.epoch.generation() == generation ||
		p.without == takeRule && s.count.epoch.generation() < generation
}

// mayCommit reports whether a take of the epoch taken may commit.
func (p protocol) mayCommit(taken, row epoch) bool {
	switch p.without {
	case commitRule:
		return true
	case adoptionRule:
		return taken%perGeneration == row%perGeneration
	}
	return taken == row
}

// steps yields the states that can follow.
func (p protocol) steps(from state, emit func(step[state])) {
	do := func(what string, n int, change func(s *state)) {
		s := from
		change(&s)
		if s := p.canonical(s); s != from {
			emit(step[state]{s, what, n})
		}
	}
	p.raise(from, do)
	p.redis(from, do)
	for g := 1; g <= int(from.generation); g++ {
		switch from.layouts[g] {
		case scripted:
			p.takeByScript(from, g, do)
			p.gate(from, g, do)
		case locked:
			p.takeUnderLock(from, g, do)
			p.gate(from, g, do)
		case gateless:
			p.sellWithoutGate(from, g, do)
		}
	}
	p.resolve(from, do)
}

// doer yields the state after a change, and the description of the change. n replaces %d in what.
type doer func(what string, n int, change func(s *state))

// raise yields the ways to raise the generation.
func (p protocol) raise(from state, do doer) {
	if from.generation == p.generations {
		return
	}
	raiseTo := func(l layout) func(*state) {
		return func(s *state) {
			s.generation++
			s.layouts[s.generation] = l
			if l != gateless {
				s.loads |= bit(s.generation)
			}
		}
	}
	current, g := from.layouts[from.generation], int(from.generation)+1
	if current != scripted {
		do("an instance with scripts starts and raises the generation to %d", g, raiseTo(scripted))
	}
	if current != locked {
		do("an instance with a lock starts and raises the generation to %d", g, raiseTo(locked))
	}
	if current != gateless {
		do("an instance without a gate starts and raises the generation to %d", g, raiseTo(gateless))
		// The instance may have got NOSCRIPT at any earlier time: the compare-and-swap on the
		// generation decides.
		do("an instance that met NOSCRIPT raises the generation to %d", g, raiseTo(current))
	}
}

// redis yields snapshots, restarts and loads of scripts.
func (p protocol) redis(from state, do doer) {
	do("Redis saves a snapshot", 0, func(s *state) {
		s.snapshot = s.count
		for i := range s.takes {
			s.takes[i].saved = s.takes[i].recorded
		}
	})
	if from.restarts < p.restarts {
		do("Redis restarts from its snapshot", 0, func(s *state) {
			s.restarts++
			s.count = s.snapshot
			if p.without != scriptsLostRule {
				s.scripts = 0
			}
			for i := range s.takes {
				s.takes[i].recorded = s.takes[i].saved
			}
		})
	}
	for g := 1; g <= int(from.generation); g++ {
		if from.loads&bit(g) != 0 {
			do("the scripts of generation %d are loaded", g, func(s *state) {
				if p.without != noRetryRule {
					s.loads &^= bit(g)
				}
				s.scripts |= bit(g)
			})
		}
	}
	if p.without == loadOnceRule && from.layouts[from.generation] != gateless {
		do("an instance that met NOSCRIPT loads generation %d again", int(from.generation), func(s *state) {
			s.scripts |= bit(s.generation)
		})
	}
}

// takeByScript yields the takes of instances with scripts.
func (p protocol) takeByScript(from state, g int, do doer) {
	if !p.hasScripts(&from, g) || !p.mayTake(&from, g) || from.count.available <= 0 {
		return
	}
	for i, t := range from.takes {
		if t.status == unused {
			do("a take under generation %d", g, func(s *state) {
				s.count.available--
				s.takes[i] = take{status: inFlight, epoch: s.count.epoch, recorded: true}
			})
			return // the other unused takes are equivalent
		}
	}
}

// takeUnderLock yields the steps of takes under the lock. The lock excludes only other holders of
// the same lock.
func (p protocol) takeUnderLock(from state, g int, do doer) {
	if from.read.epoch == 0 {
		if p.hasScripts(&from, g) && p.mayTake(&from, g) && from.count.available > 0 {
			do("the holder of the lock reads under generation %d", g, func(s *state) {
				s.read, s.holder = s.count, uint8(g)
			})
		}
		return
	}
	if int(from.holder) != g {
		return
	}
	release := func(s *state) { s.read, s.holder = count{}, 0 }
	do("the holder releases the lock without a write", 0, release)
	if !p.hasScripts(&from, g) {
		return
	}
	if from.count.epoch != from.read.epoch && p.without != writeRule {
		return
	}
	for i, t := range from.takes {
		if t.status == unused {
			do("the holder of the lock writes under generation %d", g, func(s *state) {
				s.takes[i] = take{status: inFlight, epoch: s.count.epoch, recorded: true}
				s.count.available = s.read.available - 1
				release(s)
			})
			return
		}
	}
}

// gate yields refills, fills and gives of instances with a gate.
func (p protocol) gate(from state, g int, do doer) {
	if from.layouts[g] == locked && from.read.epoch != 0 {
		return // every change of a count happens under its lock
	}
	p.refill(from, g, do)
	if p.hasScripts(&from, g) {
		p.fill(from, g, do)
		p.give(from, g, do)
	}
}

// refill yields the refill's transaction, which then sends a fill. The fill replaces one of the
// fills under way, which is lost.
func (p protocol) refill(from state, g int, do doer) {
	epoch, ok := p.nextEpoch(from.row, g)
	if !ok {
		return
	}
	for i := range from.fills {
		do("a refill's transaction under generation %d", g, func(s *state) {
			s.row = epoch
			s.fills[i] = count{epoch, s.rowAvailable()}
		})
	}
}

// fill yields the arrivals of fills.
func (p protocol) fill(from state, g int, do doer) {
	for _, f := range from.fills {
		if f.epoch != 0 && f.epoch.generation() == g && (from.count.epoch < f.epoch || p.without == fillRule) {
			do("a fill under generation %d", g, func(s *state) {
				s.count = f
			})
		}
	}
}

// give yields the gives of failed takes.
func (p protocol) give(from state, g int, do doer) {
	if from.count.epoch.generation() > g {
		return
	}
	for i, t := range from.takes {
		if t.status == failed && t.recorded && (t.epoch == from.count.epoch || p.without == giveRule) {
			do("a give under generation %d", g, func(s *state) {
				s.count.available++
				s.takes[i].recorded = false
			})
		}
	}
}

// nextEpoch returns the epoch to which a refill under the generation raises the
// row. It returns false if the row belongs to a later generation, or if the epoch
// would exceed the bounds of the model.
func (p protocol) nextEpoch(row epoch, g int) (epoch, bool) {
	if row.generation() > g {
		return 0, false
	}
	if p.without == adoptionRule && row.generation() < g {
		return base(g) + max(row%perGeneration, 1), true
	}
	row = max(row, base(g))
	return row + 1, !row.last()
}

// sellWithoutGate yields the adoption of the row and the sales of instances without a gate.
func (p protocol) sellWithoutGate(from state, g int, do doer) {
	if from.row.generation() < g {
		if p.without != gatelessRule {
			do("the row is adopted under generation %d", g, func(s *state) { s.row = base(g) + 1 })
			return
		}
	} else if from.row.generation() > g {
		return
	}
	if from.rowAvailable() < 1 {
		return
	}
	for i, t := range from.takes {
		if t.status == unused {
			do("a unit is sold without a gate under generation %d", g, func(s *state) { s.takes[i].status = committed })
			return
		}
	}
}

// resolve yields the ends of takes in flight: commit, refusal or a void order.
func (p protocol) resolve(from state, do doer) {
	for i, t := range from.takes {
		if t.status != inFlight {
			continue
		}
		if p.mayCommit(t.epoch, from.row) {
			do("a take of epoch %d commits", int(t.epoch), func(s *state) { s.takes[i].status = committed })
		} else {
			do("a take of epoch %d is refused as stale", int(t.epoch), func(s *state) { s.takes[i].status = failed })
		}
		do("a take of epoch %d is made void", int(t.epoch), func(s *state) { s.takes[i].status = failed })
	}
}

const oversold = "oversell: more units are sold than the total"

// violation describes what is wrong with a state, or returns "".
func (p protocol) violation(s state) string {
	if s.rowAvailable() < 0 {
		return oversold
	}
	if s.rowAvailable() > 0 && !p.canSell(s) {
		return "undersell: no instance can sell the remaining units"
	}
	return ""
}

// canSell reports whether the next buyer gets a unit after the following: a single instance with
// the ledger's layout is left, all messages under way are lost, and no further fault occurs.
func (p protocol) canSell(s state) bool {
	g := int(s.generation)
	l := s.layouts[g]
	for range 8 {
		switch {
		case s.row.generation() > g:
			return false
		case l == gateless && s.row.generation() < g:
			s.row = base(g) + 1
		case l == gateless:
			return true
		case !p.hasScripts(&s, g): // the instance raises the generation and loads
			g++
			s.scripts |= bit(g)
		case s.count.epoch.generation() > g:
			return false
		case !p.mayTake(&s, g), s.count.available <= 0, s.count.epoch != s.row: // not filled, drift, stale
			s.row = max(s.row, base(g)) + 1
			if s.count.epoch < s.row {
				s.count = count{s.row, s.rowAvailable()}
			}
		default:
			return true
		}
	}
	return false
}

// starts returns a state for each layout in which nothing has been sold yet.
func starts(total int8) []state {
	var all []state
	for _, l := range []layout{scripted, locked, gateless} {
		s := state{total: total, generation: 1, row: 1}
		s.layouts[1] = l
		if l != gateless {
			s.loads = bit(1)
		}
		all = append(all, s)
	}
	return all
}

// TestGeneration searches the complete protocol, where it must find no violation.
// Then it leaves out one rule at a time and must find an oversell.
//
// The search of four generations takes as long as all others together. Unless the
// run is thorough, it stops at three.
func TestGeneration(t *testing.T) {
	t.Parallel()
	generations := uint8(3)
	if testenv.Thorough() {
		generations = maxGeneration
	}
	for _, test := range []struct {
		name  string
		total int8
		protocol
	}{
		{"one unit", 1, protocol{generations: generations, restarts: 2}},
		{"two units", 2, protocol{generations: 3, restarts: 2}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			states, trace := search(starts(test.total), test.steps, test.violation)
			if trace != nil {
				t.Errorf("found after %d states:\n%s", states, strings.Join(trace, "\n"))
			}
			t.Logf("%d states", states)
		})
	}
	for without, name := range map[rule]string{
		scriptTextRule:  "the generation in the scripts' text",
		loadOnceRule:    "a single load",
		noRetryRule:     "a load that is sent once",
		adoptionRule:    "an adoption that raises the epoch",
		gatelessRule:    "an adoption before a sale without a gate",
		commitRule:      "a transaction that checks the take's epoch",
		takeRule:        "a take that checks the count's generation",
		fillRule:        "a fill that only raises the epoch",
		giveRule:        "a give that checks the epoch",
		writeRule:       "a write under a lock that checks the epoch",
		scriptsLostRule: "scripts lost at a restart", // a master that was a replica for a while keeps its scripts
	} {
		t.Run("without "+name, func(t *testing.T) {
			t.Parallel()
			p := protocol{without, 2, 1}
			states, trace := search(starts(1), p.steps, p.violation)
			if trace == nil || trace[len(trace)-1] != oversold {
				t.Errorf("no oversell in %d states", states)
			}
			t.Logf("after %d states:\n%s", states, strings.Join(trace, "\n"))
		})
	}
}
