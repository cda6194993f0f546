// Package faults makes stores fail for tests: at the n-th statement or command,
// before it is sent, after it ran, much later, or by an error of the server's
// own. A Wire does so to the connections of MariaDB and PostgreSQL, a Driver to
// any driver of database/sql, and a Hook to Redis. Only tests import it.
package faults

import (
	"fmt"
	"strings"
	"sync"
	"time"
)

// Kind is what becomes of a statement.
type Kind string

// The kinds that lose a connection.
const (
	None Kind = ""
	// Refused: the connection breaks, and the statement is not sent.
	Refused Kind = "refused"
	// Lost: the statement runs. The connection breaks before its answer.
	Lost Kind = "lost"
	// Late: the connection breaks, and the statement runs later: soon after
	// somebody tried to record a void order, or after a while.
	Late Kind = "late"
	// Hung: the statement is not sent, and no answer comes until the caller
	// gives up.
	Hung Kind = "hung"
	// HungDone: the statement runs, and no answer comes until the caller gives
	// up.
	HungDone Kind = "hung-done"
	// Gone: as Refused, for every statement and every new connection from this
	// one on.
	Gone Kind = "gone"
)

// The kinds that a database answers. Its transaction is in the state in which
// such an error leaves it.
const (
	Deadlock    Kind = "deadlock"     // the transaction is rolled back
	LockTimeout Kind = "lock-timeout" // in MySQL the transaction stays open
	ReadOnly    Kind = "read-only"
	Duplicate   Kind = "duplicate"
	BadValue    Kind = "bad-value"
	DiskFull    Kind = "disk-full"
	Killed      Kind = "killed" // the server ends the session
	// RolledBack: PostgreSQL answers a COMMIT with ROLLBACK.
	RolledBack Kind = "rolled-back"
)

// The kinds that Redis answers, beside ReadOnly. The command does not run.
const (
	OutOfMemory Kind = "out-of-memory"
	Loading     Kind = "loading"
	NoScript    Kind = "no-script"
)

// Fault strikes the Nth statement, and with Times the ones that follow it.
type Fault struct {
	Kind  Kind
	Nth   int    // from 1
	Times int    // how many statements; 0 is 1
	Only  string // counts only statements with this text in them
	After string // counts only what follows a statement with this text in it
}

// String writes the fault as Go does.
func (f Fault) String() string {
	text := fmt.Sprintf("{Kind: %q, Nth: %d", string(f.Kind), f.Nth)
	if f.Times > 1 {
		text += fmt.Sprintf(", Times: %d", f.Times)
	}
	if f.Only != "" {
		text += fmt.Sprintf(", Only: %q", f.Only)
	}
	if f.After != "" {
		text += fmt.Sprintf(", After: %q", f.After)
	}
	return text + "}"
}

// Injector decides what becomes of each statement. It is safe for concurrent
// use.
type Injector struct {
	mu     sync.Mutex
	armed  bool
	gone   bool
	faults []Fault
	counts []int    // matching statements seen, by fault; -1: what it is to follow was not
	seen   int      // statements seen
	struck []string // what was done to which
	voided chan struct{}
	late   sync.WaitGroup
}

// lateWait is how long a late statement waits for a void order, and lateAfter
// how long after it runs. The database bounds idle transactions to 2 s.
const lateWait, lateAfter = 300 * time.Millisecond, 15 * time.Millisecond

// voidMark is in every statement that records a void order.
const voidMark = "void"

// Arm counts statements from now on, and strikes those that the faults name.
func (i *Injector) Arm(faults ...Fault) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.armed, i.gone, i.faults = true, false, faults
	i.counts, i.seen, i.struck = make([]int, len(faults)), 0, nil
	i.voided = make(chan struct{})
	for n, f := range faults {
		if f.After != "" {
			i.counts[n] = -1
		}
	}
}

// Disarm heals the store, and waits for the statements that are late. It
// returns how many statements were counted, and what was done to which.
func (i *Injector) Disarm() (seen int, struck []string) {
	i.mu.Lock()
	i.armed, i.gone = false, false
	i.mu.Unlock()
	i.late.Wait()
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.seen, i.struck
}

// next counts a statement, and says what becomes of it.
func (i *Injector) next(text string) Kind {
	i.mu.Lock()
	defer i.mu.Unlock()
	if !i.armed {
		return None
	}
	i.seen++
	if strings.Contains(text, voidMark) && i.voided != nil {
		select {
		case <-i.voided:
		default:
			close(i.voided)
		}
	}
	kind := None
	for n, f := range i.faults {
		if i.counts[n] < 0 {
			if strings.Contains(text, f.After) {
				i.counts[n] = 0
			}
			continue
		}
		if !strings.Contains(text, f.Only) {
			continue
		}
		i.counts[n]++
		if kind == None && i.counts[n] >= f.Nth && i.counts[n] < f.Nth+max(f.Times, 1) {
			kind = f.Kind
		}
	}
	if i.gone {
		return Refused
	}
	if kind != None {
		i.struck = append(i.struck, fmt.Sprintf("%d %s: %s", i.seen, kind, brief(text)))
	}
	if kind == Gone {
		i.gone = true
		return Refused
	}
	return kind
}

// isGone reports whether the store takes no connections.
func (i *Injector) isGone() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.gone
}

// later runs do when a late statement's time has come.
func (i *Injector) later(do func()) {
	i.mu.Lock()
	voided := i.voided
	i.late.Add(1)
	i.mu.Unlock()
	go func() {
		defer i.late.Done()
		select {
		case <-voided:
			time.Sleep(lateAfter)
		case <-time.After(lateWait):
		}
		do()
	}()
}

// brief is the readable part of a statement, cut short.
func brief(text string) string {
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return -1
		}
		return r
	}, text)
	const most = 100
	if len(text) > most {
		text = text[:most/2] + " … " + text[len(text)-most/2:]
	}
	return text
}
