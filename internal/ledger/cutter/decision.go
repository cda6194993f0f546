package cutter

import "errors"

// Decision says whether a cutter took a deduction's units. The zero Decision
// says that it did not, for no known reason.
type Decision struct {
	taken  bool
	reason error
}

// Taken returns the decision that the units were taken.
func Taken() Decision { return Decision{taken: true} }

// Refused returns the decision that nothing was taken, for the reason.
func Refused(reason error) Decision { return Decision{reason: reason} }

// Taken reports whether the units were taken.
func (d Decision) Taken() bool { return d.taken }

// Reason returns why the units were not taken. It is nil only if they were taken.
func (d Decision) Reason() error {
	if !d.taken && d.reason == nil {
		return errUndecided
	}
	return d.reason
}

var errUndecided = errors.New("the cutter did not decide")
