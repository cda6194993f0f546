package modelcheck

import (
	"math/bits"
	"strings"
	"testing"
)

// This file models how the service notices that the database was restored from a backup while Redis
// kept running. Every instance polls the ledger, in three steps:
//
//  1. It reads the beat that Redis holds.
//  2. In one transaction, it checks that the ledger contains this beat and adds a
//     new beat of its own.
//  3. After the commit, it writes its own beat to Redis.
//
// A beat in Redis that is missing in the ledger was committed and then lost: the database was
// restored.

const (
	maxBeats   = 6
	maxPollers = 2
)

// pollRules are the rules of a poll. Each field disables one of them.
type pollRules struct {
	reusedBeats  bool // a new beat is the ledger's highest plus one, so a lost beat can return; the rule: no beat is used twice
	readsLate    bool // the poll reads Redis after the transaction; the rule: it reads before
	writesAlways bool // the poll overwrites any beat in Redis; the rule: it overwrites only the beat that it has read
}

// poll is the state of an instance's poll.
type poll struct {
	step uint8 // number of completed steps
	read uint8 // the beat that the poll read from Redis
	own  uint8 // the beat that the poll has committed
}

// stores are the ledger, its backup, Redis and the polls.
type stores struct {
	ledger   uint8 // a bit for each beat; beat 0 is always there
	backup   uint8 // a bit for each beat
	redis    uint8 // the beat in Redis
	last     uint8 // the last beat that any poll has made
	restored bool
	// unnoticed means that the restored ledger lacks the beat in Redis and that no
	// poll has noticed it yet.
	unnoticed bool
	noticed   bool // a poll has reported that the ledger was restored
	pollers   [maxPollers]poll
}

// steps yields the states that can follow.
func (r pollRules) steps(from stores, emit func(step[stores])) {
	do := func(what string, n int, change func(s *stores)) {
		s := from
		change(&s)
		emit(step[stores]{s, what, n})
	}
	if !from.restored {
		do("a backup is made", 0, func(s *stores) { s.backup = s.ledger })
		do("the backup is restored", 0, func(s *stores) {
			s.ledger, s.restored = s.backup, true
			s.unnoticed = s.ledger&bit(s.redis) == 0
		})
	}
	for i, p := range from.pollers {
		switch p.step {
		case 0:
			do("instance %d reads the beat in Redis", i, func(s *stores) {
				s.pollers[i] = poll{step: 1, read: s.redis}
			})
		case 1:
			if from.last < maxBeats {
				do("instance %d commits its beat", i, func(s *stores) { r.commit(s, i) })
			}
		case 2:
			do("instance %d writes its beat to Redis", i, func(s *stores) { r.write(s, i) })
			do("instance %d fails to write its beat", i, func(s *stores) { s.pollers[i] = poll{} })
		}
	}
}

// commit is the transaction of poller i.
func (r pollRules) commit(s *stores, i int) {
	own := s.last + 1
	if r.reusedBeats {
		own = uint8(bits.Len8(s.ledger))
	}
	s.last = max(s.last, own)
	if !r.readsLate && s.ledger&bit(s.pollers[i].read) == 0 {
		s.noticed, s.unnoticed = true, false
	}
	s.ledger |= bit(own)
	s.pollers[i].step, s.pollers[i].own = 2, own
}

// write is the last step of poller i.
func (r pollRules) write(s *stores, i int) {
	p := s.pollers[i]
	if r.readsLate && s.redis >= p.own {
		s.noticed, s.unnoticed = true, false
	}
	if r.writesAlways || s.redis == p.read {
		s.redis = p.own
	}
	s.pollers[i] = poll{}
}

// violation describes what is wrong with a state, or returns "".
func (pollRules) violation(s stores) string {
	switch {
	case s.noticed && !s.restored:
		return "a poll reports a restored ledger, but nothing was restored"
	case s.unnoticed && s.ledger&bit(s.redis) != 0:
		return "the ledger was restored, and no poll will notice"
	}
	return ""
}

// TestBeat searches the polls of two instances, a backup and its restoration.
func TestBeat(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name      string
		rules     pollRules
		violation string
	}{
		{"all rules", pollRules{}, ""},
		{"beats are reused", pollRules{reusedBeats: true}, "no poll will notice"},
		{"Redis is read late", pollRules{readsLate: true}, "nothing was restored"},
		{"Redis is always written", pollRules{writesAlways: true}, "no poll will notice"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			start := stores{ledger: 1, backup: 1}
			states, trace := search([]stores{start}, test.rules.steps, test.rules.violation)
			found := strings.Join(trace, "\n")
			if (trace != nil) != (test.violation != "") || !strings.Contains(found, test.violation) {
				t.Errorf("want the violation %q, found after %d states:\n%s", test.violation, states, found)
			}
			t.Logf("%d states\n%s", states, found)
		})
	}
}
