package order

import (
	"testing"

	"github.com/holdfast-stock/holdfast/internal/ledger"
)

// TestTransitions checks what every event makes of an order with every status.
func TestTransitions(t *testing.T) {
	events := []event{pay, revive, cancel, expire, refund}
	const (
		keeps   = false
		returns = true
	)
	type change struct {
		to    ledger.Status
		units bool
	}
	want := map[ledger.Status]map[event]change{
		ledger.Pending: {
			pay:    {ledger.Paid, keeps},
			cancel: {ledger.Cancelled, returns},
			expire: {ledger.Expired, returns},
		},
		ledger.Paid:       {refund: {ledger.Refunded, returns}},
		ledger.Expired:    {revive: {ledger.Paid, keeps}},
		ledger.Cancelled:  {},
		ledger.Refunded:   {},
		ledger.Void:       {},
		ledger.Queued:     {},
		ledger.TurnedDown: {},
	}
	for from, row := range want {
		for _, on := range events {
			c, ok := after(from, on)
			wanted, may := row[on]
			if ok != may || c != (ledger.Change{To: wanted.to, Returns: wanted.units}) {
				t.Errorf("%s when %s: %+v, %v; want %+v, %v", on, from, c, ok, wanted, may)
			}
		}
	}
}
