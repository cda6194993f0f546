// Package faults makes stores fail in tests, at the n-th statement or command.
// The connection breaks before the statement is sent or after it ran, the
// statement runs late, or the server returns an error. A Wire injects faults
// into connections to MariaDB and PostgreSQL, a Driver into any driver of
// database/sql, and a Hook into a Redis client. Only tests import the package.
package faults

import (
	"fmt"
	"strings"
	"sync"
	"time"
)

// Kind is a kind of fault. It says what happens to a statement.
type Kind string

// The kinds of fault that break or block a connection.
const (
	// None means no fault: the statement runs.
	None Kind = ""
	// Refused breaks the connection before the statement is sent.
	Refused Kind = "refused"
	// Lost runs the statement and breaks the connection before the answer.
	Lost Kind = "lost"
	// Late breaks the connection and runs the statement later: shortly after the
	// next statement that records a void order, or after lateWait.
	Late Kind = "late"
	// Hung does not send the statement. No answer comes until the caller gives
	// up.
	Hung Kind = "hung"
	// HungDone runs the statement. No answer comes until the caller gives up.
	HungDone Kind = "hung-done"
	// Gone is Refused for this statement, for every later one and for every new
	// connection.
	Gone Kind = "gone"
)

// Garbled makes a statement return rows whose values cannot be scanned, a script that
// redis.Client.Eval runs an empty answer, and XRANGE messages with unreadable IDs. It has
// no effect on other statements and commands. A Wire does not have it.
const Garbled Kind = "garbled"

// Cut breaks the connection after a statement has returned its first row. It has no effect on other
// statements and commands. Only a Driver supports it.
const Cut Kind = "cut"

// The kinds of fault that are errors of a database. Each leaves the transaction
// in the same state as the real error.
const (
	Deadlock    Kind = "deadlock"     // the transaction is rolled back
	LockTimeout Kind = "lock-timeout" // in MySQL the transaction stays open
	ReadOnly    Kind = "read-only"
	Duplicate   Kind = "duplicate"
	BadValue    Kind = "bad-value"
	DiskFull    Kind = "disk-full"
	Killed      Kind = "killed" // the server ends the session
	// Serialization is the answer of a serializable PostgreSQL that meets a conflict.
	Serialization Kind = "serialization"
	// RolledBack makes PostgreSQL answer a COMMIT with ROLLBACK.
	RolledBack Kind = "rolled-back"
)

// The kinds of fault that are errors of Redis, in addition to ReadOnly. The
// command does not run.
const (
	OutOfMemory Kind = "out-of-memory"
	Loading     Kind = "loading"
	NoScript    Kind = "no-script"
)

// Always is a value of Times that no test reaches.
const Always = 1 << 30

// Fault is injected into the Nth matching statement. If Times is set, it is
// injected into that many matching statements, from the Nth on.
type Fault struct {
	Kind  Kind
	Nth   int    // from 1
	Times int    // number of statements; 0 means 1
	Only  string // only statements that contain this text match
	After string // only statements after one that contains this text match
}

// String returns the fault as a Go composite literal without its type.
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

// Injector chooses the fault of each statement. It is safe for concurrent use.
type Injector struct {
	mu       sync.Mutex
	armed    bool
	gone     bool
	faults   []Fault
	counts   []int         // matching statements, by fault; or notYet
	seen     int           // statements since Arm
	injected []string      // descriptions of the injected faults
	voided   chan struct{} // closed at the first statement that records a void order
	late     sync.WaitGroup
}

// notYet marks a fault whose After statement has not been seen.
const notYet = -1

const (
	// lateWait bounds how long a late statement waits for a statement that
	// records a void order. The database ends idle transactions after 2 s.
	lateWait = 300 * time.Millisecond
	// lateAfter is the time between the recorded void order and the late statement.
	lateAfter = 15 * time.Millisecond
)

// voidMark occurs in every statement that records a void order.
const voidMark = "void"

// Arm counts statements from now on and injects the faults.
func (i *Injector) Arm(faults ...Fault) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.armed, i.gone, i.faults = true, false, faults
	i.counts, i.seen, i.injected = make([]int, len(faults)), 0, nil
	i.voided = make(chan struct{})
	for n, f := range faults {
		if f.After != "" {
			i.counts[n] = notYet
		}
	}
}

// Disarm ends all faults and waits until the late statements have run. It returns
// the number of statements since Arm and a description of each injected fault.
func (i *Injector) Disarm() (seen int, injected []string) {
	i.mu.Lock()
	i.armed, i.gone = false, false
	i.mu.Unlock()
	i.late.Wait()
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.seen, i.injected
}

// Next counts a statement and returns its fault. It never returns Gone: it
// returns Refused for that statement and all later ones.
func (i *Injector) Next(text string) Kind {
	i.mu.Lock()
	defer i.mu.Unlock()
	if !i.armed {
		return None
	}
	i.seen++
	if strings.Contains(text, voidMark) {
		select {
		case <-i.voided:
		default:
			close(i.voided)
		}
	}
	kind := i.match(text)
	if i.gone {
		return Refused
	}
	if kind != None {
		i.injected = append(i.injected, fmt.Sprintf("%d %s: %s", i.seen, kind, brief(text)))
	}
	if kind == Gone {
		i.gone = true
		return Refused
	}
	return kind
}

// match counts the statement for every fault that it matches, and returns the
// kind of the first fault that happens to it. The caller holds mu.
func (i *Injector) match(text string) Kind {
	kind := None
	for n, f := range i.faults {
		if i.counts[n] == notYet {
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
	return kind
}

// isGone reports whether a Gone fault has been injected.
func (i *Injector) isGone() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.gone
}

// later runs a late statement when it is due, on a goroutine that Disarm waits
// for.
func (i *Injector) later(run func()) {
	i.mu.Lock()
	voided := i.voided
	i.late.Add(1)
	i.mu.Unlock()
	go func() {
		defer i.late.Done()
		select {
		case <-voided:
			time.Sleep(lateAfter) // the delay is part of the fault; no event marks its end
		case <-time.After(lateWait):
		}
		run()
	}()
}

// brief returns the printable part of a statement, shortened in the middle.
func brief(text string) string {
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return -1
		}
		return r
	}, text)
	const maxLength = 100
	if len(text) > maxLength {
		text = text[:maxLength/2] + " … " + text[len(text)-maxLength/2:]
	}
	return text
}
