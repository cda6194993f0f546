package store

import (
	"fmt"
	"strconv"
	"time"
)

// Level says how bad a finding is.
type Level string

// The levels. A Problem breaks a promise of the service, or keeps it from working. A
// Warning costs speed or safety in some cases.
const (
	OK      Level = "ok"
	Warning Level = "warning"
	Problem Level = "problem"
)

// Finding is what an inspection says about one thing, in one line.
type Finding struct {
	Level  Level
	Detail string // what is so
	Mend   string // what to do about it; empty with OK
}

// Findings collects what an inspection finds.
type Findings []Finding

// OK adds that something is as it should be.
func (f *Findings) OK(format string, args ...any) {
	*f = append(*f, Finding{Level: OK, Detail: fmt.Sprintf(format, args...)})
}

// Warn adds a Warning.
func (f *Findings) Warn(mend, format string, args ...any) {
	*f = append(*f, Finding{Warning, fmt.Sprintf(format, args...), mend})
}

// Problem adds a Problem.
func (f *Findings) Problem(mend, format string, args ...any) {
	*f = append(*f, Finding{Problem, fmt.Sprintf(format, args...), mend})
}

// number parses a number that a server reports. 0: it is none.
func number(text string) float64 {
	n, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return 0
	}
	return n
}

// Offset is how far the clock of a server is ahead of this machine's.
type Offset struct {
	Server string
	Ahead  time.Duration // at least, in either direction: less what the network may add
}

// offset returns how far a clock that was read between start and now is ahead, at least.
func offset(start, read time.Time) time.Duration {
	ahead, late := read.Sub(start), time.Until(read)
	switch { // without a network, both would be the same
	case late > 0:
		return late
	case ahead < 0:
		return ahead
	}
	return 0
}
