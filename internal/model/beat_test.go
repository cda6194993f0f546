package model

import (
	"math/bits"
	"strings"
	"testing"
)

// This file models how a database that was restored from a backup is noticed
// while Redis goes on: every instance polls the ledger. A poll reads the beat
// that Redis holds, adds a beat of its own to the ledger's, in a transaction that
// also looks for the one from Redis, and after its commit writes its own to Redis.
// A beat in Redis that the ledger does not know was committed and then lost.

const (
	maxBeats   = 6
	maxPollers = 2
)

// beats is the rules of a poll, and which of them are left out.
type beats struct {
	reused  bool // a beat is a number, one above the last; else it is never used twice
	late    bool // Redis is read after the transaction
	blindly bool // Redis is written whatever it holds; else only if it still holds what was read
}

// poll is what an instance knows while it polls.
type poll struct {
	phase uint8
	read  uint8 // the beat that Redis held
	mine  uint8
}

type ledgerAndRedis struct {
	beats    uint8 // the ledger's, a bit each; beat 0 is always there
	backup   uint8
	redis    uint8 // the beat that Redis holds
	last     uint8 // the last beat that was ever made
	restored bool
	owed     bool // the restored ledger misses the beat in Redis, and no poll has noticed
	alarm    bool
	pollers  [maxPollers]poll
}

func (b beats) steps(from ledgerAndRedis, emit func(step[ledgerAndRedis])) {
	do := func(what string, n int, change func(s *ledgerAndRedis)) {
		s := from
		change(&s)
		emit(step[ledgerAndRedis]{s, what, n})
	}
	if !from.restored {
		do("a backup is made", 0, func(s *ledgerAndRedis) { s.backup = s.beats })
		do("the backup is restored", 0, func(s *ledgerAndRedis) {
			s.beats, s.restored = s.backup, true
			s.owed = s.beats&bit(s.redis) == 0
		})
	}
	for i, p := range from.pollers {
		look := func(s *ledgerAndRedis, beat uint8) {
			if s.beats&bit(beat) == 0 {
				s.alarm, s.owed = true, false
			}
		}
		switch p.phase {
		case 0:
			do("instance %d reads the beat in Redis", i, func(s *ledgerAndRedis) {
				s.pollers[i] = poll{phase: 1, read: s.redis}
			})
		case 1:
			if from.last == maxBeats {
				continue
			}
			do("instance %d commits its beat", i, func(s *ledgerAndRedis) {
				mine := s.last + 1
				if b.reused {
					mine = uint8(bits.Len8(s.beats))
				}
				s.last = max(s.last, mine)
				if !b.late {
					look(s, p.read)
				}
				s.beats |= bit(mine)
				s.pollers[i].phase, s.pollers[i].mine = 2, mine
			})
		case 2:
			do("instance %d writes its beat to Redis", i, func(s *ledgerAndRedis) {
				if b.late {
					if s.redis >= p.mine {
						s.alarm, s.owed = true, false
					}
				}
				if b.blindly || s.redis == p.read {
					s.redis = p.mine
				}
				s.pollers[i] = poll{}
			})
			do("instance %d fails to write its beat", i, func(s *ledgerAndRedis) { s.pollers[i] = poll{} })
		}
	}
}

func (beats) wrong(s ledgerAndRedis) string {
	switch {
	case s.alarm && !s.restored:
		return "nothing was restored, and a poll says so"
	case s.owed && s.beats&bit(s.redis) != 0:
		return "the ledger was restored, and no poll will notice"
	}
	return ""
}

// TestBeat searches the polls of two instances, a backup and its restoration.
func TestBeat(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		rules beats
		wrong string
	}{
		{"all rules", beats{}, ""},
		{"beats are numbers", beats{reused: true}, "no poll will notice"},
		{"Redis is read late", beats{late: true}, "nothing was restored"},
		{"Redis is written blindly", beats{blindly: true}, "no poll will notice"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			start := ledgerAndRedis{beats: 1, backup: 1}
			states, trace := search([]ledgerAndRedis{start}, test.rules.steps, test.rules.wrong)
			found := strings.Join(trace, "\n")
			if (trace != nil) != (test.wrong != "") || !strings.Contains(found, test.wrong) {
				t.Errorf("after %d states, expecting %q:\n%s", states, test.wrong, found)
			}
			t.Logf("%d states\n%s", states, found)
		})
	}
}
