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

// Finding is one result of an inspection, in one line.
type Finding struct {
	Level  Level
	Detail string // what was found
	Fix    string // what the operator should do; empty with OK
}

// Findings collects the results of an inspection.
type Findings []Finding

// OK adds a finding that needs no action.
func (f *Findings) OK(format string, args ...any) {
	*f = append(*f, Finding{Level: OK, Detail: fmt.Sprintf(format, args...)})
}

// Warn adds a Warning.
func (f *Findings) Warn(fix, format string, args ...any) {
	*f = append(*f, Finding{Warning, fmt.Sprintf(format, args...), fix})
}

// Problem adds a Problem.
func (f *Findings) Problem(fix, format string, args ...any) {
	*f = append(*f, Finding{Problem, fmt.Sprintf(format, args...), fix})
}

// number parses a number that a server reports. It returns 0 if the text is not a number.
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
	Ahead  time.Duration // at least, without what the network may add; negative: the clock is behind
}

// offset returns how far a clock that was read between start and now is ahead, at least. It is
// negative if the clock is behind.
func offset(start, read time.Time) time.Duration {
	ahead, late := read.Sub(start), time.Until(read)
	switch { // without a network, ahead and late would be equal
	case late > 0:
		return late
	case ahead < 0:
		return ahead
	}
	return 0
}
