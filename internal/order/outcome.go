package order

import "errors"

// outcome says what became of an order in the ledger. The zero outcome is
// unknown: an order that nobody answered is never taken for a committed one.
type outcome struct {
	kind  outcomeKind
	found *entry // of a duplicate: the order that has the ID
	err   error  // why it was refused, or why nothing is known
}

type outcomeKind int

const (
	unknown   outcomeKind = iota // it may have been committed, or may yet be
	committed                    // the ledger has it
	refused                      // the ledger does not have it and never will
	duplicate                    // the ledger has another order, or an earlier take of it, under its ID
)

var errUnanswered = errors.New("the ledger did not say")

// reason returns why the order is not known to be committed.
func (o outcome) reason() error {
	if o.err == nil {
		return errUnanswered
	}
	return o.err
}

func refusedFor(err error) outcome { return outcome{kind: refused, err: err} }

func unknownFor(err error) outcome { return outcome{kind: unknown, err: err} }
