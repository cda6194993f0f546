package order

import "errors"

// Outcome is the outcome of recording an order in the ledger. The zero Outcome is unknown, so an
// order without an answer never counts as committed.
type Outcome struct {
	kind  outcomeKind
	found *Order // for a duplicate: the order that has the ID
	err   error  // why the order was refused, or why the outcome is unknown
}

type outcomeKind int

const (
	unknown   outcomeKind = iota // the order may be committed, now or later
	committed                    // the ledger has the order
	refused                      // the ledger does not have the order and never will
	duplicate                    // the ledger has another order, or an earlier take of this one, under the ID
)

// Committed returns the outcome of an order that the ledger has.
func Committed() Outcome { return Outcome{kind: committed} }

// Refused returns the outcome of an order that the ledger does not have and never
// will.
func Refused(reason error) Outcome { return Outcome{kind: refused, err: reason} }

// Duplicate returns the outcome of an order whose ID belongs to found.
func Duplicate(found *Order) Outcome { return Outcome{kind: duplicate, found: found} }

// Unknown returns the outcome of an order that may be committed, now or later.
func Unknown(reason error) Outcome { return Outcome{kind: unknown, err: reason} }

// Committed reports whether the ledger has the order.
func (o Outcome) Committed() bool { return o.kind == committed }

// Refused reports whether the ledger does not have the order and never will.
func (o Outcome) Refused() bool { return o.kind == refused }

// Unknown reports whether the order may be committed, now or later.
func (o Outcome) Unknown() bool { return o.kind == unknown }

// Duplicate returns the order that has the ID already, if there is one.
func (o Outcome) Duplicate() (found *Order, ok bool) { return o.found, o.kind == duplicate }

// Kind returns the kind of outcome: "unknown", "committed", "refused" or "duplicate".
func (o Outcome) Kind() string {
	return [...]string{unknown: "unknown", committed: "committed", refused: "refused", duplicate: "duplicate"}[o.kind]
}

// Reason returns why the order is not known to be committed. It returns nil only
// for committed orders and duplicates.
func (o Outcome) Reason() error {
	if o.err == nil && (o.kind == unknown || o.kind == refused) {
		return errUnanswered
	}
	return o.err
}

var errUnanswered = errors.New("the ledger did not answer")
