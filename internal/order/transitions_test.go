package order

import (
	"testing"
)

// TestTransitions checks the effect of every event on an order with every status.
func TestTransitions(t *testing.T) {
	events := []event{pay, revive, cancel, expire, refund}
	const (
		keeps   = false
		returns = true
	)
	type change struct {
		to    Status
		units bool
	}
	want := map[Status]map[event]change{
		Pending: {
			pay:    {Paid, keeps},
			cancel: {Cancelled, returns},
			expire: {Expired, returns},
		},
		Paid:       {refund: {Refunded, returns}},
		Expired:    {revive: {Paid, keeps}},
		Cancelled:  {},
		Refunded:   {},
		Void:       {},
		Queued:     {},
		TurnedDown: {},
	}
	for from, row := range want {
		for _, on := range events {
			c, ok := after(from, on)
			wanted, may := row[on]
			if ok != may || c != (Transition{To: wanted.to, Returns: wanted.units}) {
				t.Errorf("%s when %s: %+v, %v; want %+v, %v", on, from, c, ok, wanted, may)
			}
		}
	}
}
