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

// TestApply checks what each transition changes of an order.
func TestApply(t *testing.T) {
	before := Order{Status: Paid, Version: 3, PaymentID: "p-1"}
	for _, test := range []struct {
		c    Transition
		want Order
	}{
		{Transition{}, before},
		{Transition{PaymentID: "p-2", PaymentStatus: PaymentRefundDue}, before},
		{Transition{To: Paid, PaymentID: "p-2"}, Order{Status: Paid, Version: 4, PaymentID: "p-2"}},
		{Transition{To: Cancelled, Returns: true}, Order{Status: Cancelled, Version: 4, PaymentID: "p-1"}},
		{Transition{To: Refunded, PaymentID: "p-1"}, Order{Status: Refunded, Version: 4, PaymentID: "p-1"}},
		{Transition{To: Refunded, Returns: true}, Order{Status: Refunded, Version: 4, PaymentID: "p-1", Restocked: true}},
	} {
		o := before
		if o.Apply(test.c); o.Status != test.want.Status || o.Version != test.want.Version || o.PaymentID != test.want.PaymentID || o.Restocked != test.want.Restocked {
			t.Errorf("%+v: %+v, want %+v", test.c, o, test.want)
		}
	}
}

// TestExpiry checks that only a pending order whose payment window has ended expires.
func TestExpiry(t *testing.T) {
	for status, expires := range map[Status]bool{Pending: true, Paid: false, Cancelled: false, Expired: false} {
		for _, due := range []bool{false, true} {
			if c := Expiry(Locked{Order: Order{Status: status}, Due: due}); (c.To == Expired) != (expires && due) || c.To == "" && c != (Transition{}) {
				t.Errorf("%s, due %v: %+v", status, due, c)
			}
		}
	}
}

// TestOnRefund checks that a refund returns units only if the administrator says so, and that the payment
// is due back to the buyer.
func TestOnRefund(t *testing.T) {
	for _, restock := range []bool{false, true} {
		c, err := onRefund(restock)(Locked{Order: Order{Status: Paid, PaymentID: "p-1"}})
		if want := (Transition{To: Refunded, Returns: restock, PaymentID: "p-1", PaymentStatus: PaymentRefundDue}); err != nil || c != want {
			t.Errorf("restock %v: %+v, %v; want %+v", restock, c, err, want)
		}
	}
}
