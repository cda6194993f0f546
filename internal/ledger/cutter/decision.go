package cutter

import "errors"

// Decision says whether a cutter took a deduction's units. The zero Decision
// says that it did not, for no known reason.
type Decision struct {
	Taken  bool
	reason error // nil if the units were taken
}

// Refused returns the decision that nothing was taken, for the reason.
func Refused(reason error) Decision { return Decision{reason: reason} }

// Reason returns why the units were not taken. It is nil only if they were taken.
func (d Decision) Reason() error {
	if !d.Taken && d.reason == nil {
		return errUndecided
	}
	return d.reason
}

var errUndecided = errors.New("the cutter did not decide")
