// Package history records every call of a load with its begin and its end. The library Porcupine
// then checks that the answers are those of counters. For each SKU there must be an order of the
// calls that explains all answers, with each call at one moment between its begin and its end.
//
// A history is a file with one JSON object a line: a [Call].
package history

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	"github.com/holdfast-stock/holdfast/client"
)

// Kind is the kind of a call.
type Kind string

// The kinds of calls.
const (
	Take   Kind = "take"   // POST /orders
	Cancel Kind = "cancel" // POST /orders/{id}/cancel
	Pay    Kind = "pay"    // POST /orders/{id}/pay
	Refund Kind = "refund" // POST /orders/{id}/refund
	Set    Kind = "set"    // PUT /stock/{sku}: creates, restocks or shrinks
	Audit  Kind = "audit"  // GET /stock/{sku}/audit
	Order  Kind = "order"  // GET /orders/{id}
	Orders Kind = "orders" // GET /orders?buyer_id=…
	// Fault is not a call: something failed, or was made to fail.
	Fault Kind = "fault"
)

// Outcome is the meaning of the answer to a call.
type Outcome string

// The outcomes.
const (
	Accepted Outcome = "accepted" // the answer is 2xx, except 202
	Queued   Outcome = "queued"   // the answer is 202; a later Order call shows the end of the order
	// Refused is an answer that says something about the units left: sold-out or
	// below-sold.
	Refused Outcome = "refused"
	Nothing Outcome = "nothing" // any other answer: nothing was changed, as when the service is busy
	Unknown Outcome = "unknown" // no answer, or one that leaves the outcome open
)

var (
	kinds    = []Kind{Take, Cancel, Pay, Refund, Set, Audit, Order, Orders, Fault}
	outcomes = []Outcome{Accepted, Queued, Refused, Nothing, Unknown}
)

// Forever is the end of a call or hold that has no end.
const Forever = math.MaxInt64

// Call is one call and its answer. Fields that do not belong to its kind are empty.
type Call struct {
	Who  string `json:"who,omitempty"` // the client that made the call
	Call Kind   `json:"call"`
	// Begin is when the request was sent, and End when the answer had arrived or was given up. Both
	// are nanoseconds since the start of the history, by a monotonic clock.
	Begin   int64   `json:"begin"`
	End     int64   `json:"end"`
	Outcome Outcome `json:"outcome"`
	Status  int     `json:"status,omitempty"`  // HTTP status; 0: no answer
	Problem string  `json:"problem,omitempty"` // last part of the problem type

	Buyer string        `json:"buyer,omitempty"` // of a Take and Orders; of an Order, from the answer
	Key   string        `json:"key,omitempty"`   // of a Take: the Idempotency-Key
	Lines []client.Line `json:"lines,omitempty"` // of a Take; of an Order, from the answer
	// SKU is the SKU of a Set or an Audit, or the one that a refused Take names.
	SKU     string `json:"sku,omitempty"`
	OrderID string `json:"order,omitempty"` // of a Take, from the answer; of Cancel, Pay, Refund and Order, from the request
	Restock bool   `json:"restock,omitempty"`
	// Window is the payment window of the order in the answer, in nanoseconds.
	Window int64 `json:"window,omitempty"`
	Total  int64 `json:"total,omitempty"` // of a Set and an Audit

	OrderStatus client.OrderStatus `json:"order_status,omitempty"` // of an Order
	// Steps are the statuses of an Order after pending, the oldest first.
	Steps []client.OrderStatus `json:"steps,omitempty"`
	Found []client.Order       `json:"orders,omitempty"` // of Orders

	Counts *client.Audit `json:"counts,omitempty"` // of an Audit
	What   string        `json:"what,omitempty"`   // of a Fault
}

// Read reads a history. It refuses unknown calls and outcomes, which a check would ignore.
func Read(r io.Reader) (calls []Call, err error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if len(lines.Bytes()) == 0 {
			continue
		}
		var c Call
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			return nil, fmt.Errorf("reading call %d: %w", len(calls)+1, err)
		}
		if !slices.Contains(kinds, c.Call) || !slices.Contains(outcomes, c.Outcome) {
			return nil, fmt.Errorf("reading call %d: %q with the outcome %q is not a call", len(calls)+1, c.Call, c.Outcome)
		}
		if c.End < c.Begin {
			return nil, fmt.Errorf("reading call %d: it ends at %d, before it begins at %d", len(calls)+1, c.End, c.Begin)
		}
		calls = append(calls, c)
	}
	return calls, lines.Err()
}

// String describes the request and the answer in one line, with the times in milliseconds.
func (c Call) String() string {
	at := func(ns int64) string { return fmt.Sprintf("%.3f", time.Duration(ns).Seconds()*1000) }
	text := fmt.Sprintf("%s..%s ms %s", at(c.Begin), at(c.End), c.Call)
	if c.Who != "" {
		text += " by " + c.Who
	}
	for _, line := range c.Lines {
		text += fmt.Sprintf(" %d of %s", line.Quantity, line.SKU)
	}
	switch c.Call {
	case Set:
		text += fmt.Sprintf(" total %d", c.Total)
	case Audit:
		if n := c.Counts; n != nil {
			text += fmt.Sprintf(" total %d, sold %d, %d left in the ledger", n.Total, n.Sold, n.LedgerAvailable)
			if n.GateAvailable != nil && n.GateInFlight != nil {
				text += fmt.Sprintf(", %d at the gate, %d in flight", *n.GateAvailable, *n.GateInFlight)
			}
		}
	}
	text += ": " + string(c.Outcome)
	if c.Problem != "" {
		text += " (" + c.Problem + ")"
	}
	if c.OrderStatus != "" {
		text += ", " + string(c.OrderStatus)
	}
	if c.OrderID != "" {
		text += ", order " + c.OrderID
	}
	return text
}
