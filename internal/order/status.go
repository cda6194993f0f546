package order

import (
	"errors"
	"slices"
	"time"

	"github.com/holdfast-stock/holdfast/internal/ledger"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// event is what can happen to an order after it was placed.
type event string

// The events.
const (
	pay    event = "pay"    // in time
	revive event = "revive" // paid late, and its units could be cut again
	cancel event = "cancel"
	expire event = "expire" // its time to be paid has passed
	refund event = "refund"
)

// transitions is the table of what each event makes of an order. An event without
// a row for the order's status does not change the order.
var transitions = []struct {
	from ledger.Status
	on   event
	to   ledger.Status
	// returns says that the units return to stock. A refund returns them only if
	// the administrator says so.
	returns bool
}{
	{ledger.Pending, pay, ledger.Paid, false},
	{ledger.Pending, cancel, ledger.Cancelled, true},
	{ledger.Pending, expire, ledger.Expired, true},
	{ledger.Paid, refund, ledger.Refunded, true},
	{ledger.Expired, revive, ledger.Paid, false},
}

// after returns what the event makes of an order with this status. ok is false if
// it may not happen to it.
func after(from ledger.Status, on event) (c ledger.Change, ok bool) {
	for _, t := range transitions {
		if t.from == from && t.on == on {
			return ledger.Change{To: t.to, Returns: t.returns}, true
		}
	}
	return ledger.Change{}, false
}

// Late says what becomes of a payment for an order that has expired.
type Late string

// The ways to treat a late payment.
const (
	Revive Late = "revive" // it pays the order if the units can be cut again
	Refuse Late = "refuse" // it is due back to the buyer
)

// Why a payment cannot be decided in one step.
var (
	errDue  = errors.New("the order's time to be paid has passed")
	errLate = errors.New("the order has expired")
)

// onPayment decides what a payment does to an order. Every payment ends in one
// place: it pays the order, or it is recorded as due back to the buyer. errDue:
// the order must expire first. errLate: the order must be revived, or paid with
// Refuse.
func onPayment(payment string, late Late) func(ledger.State) (ledger.Change, error) {
	return func(s ledger.State) (ledger.Change, error) {
		if s.Payment != nil { // it was reported before
			if s.Payment.OrderID != s.Order.ID {
				return ledger.Change{}, ErrPaymentReused
			}
			return ledger.Change{}, nil
		}
		c, ok := after(s.Order.Status, pay)
		_, revivable := after(s.Order.Status, revive)
		switch {
		case ok && s.Due:
			return ledger.Change{}, errDue
		case ok:
			c.PaymentID, c.PaymentStatus = payment, ledger.PaymentPaid
			return c, nil
		case revivable && late == Revive:
			return ledger.Change{}, errLate
		}
		return ledger.Change{PaymentID: payment, PaymentStatus: ledger.PaymentRefundDue}, nil
	}
}

// onExpiry decides that a pending order whose time has passed expires.
func onExpiry(s ledger.State) (ledger.Change, error) {
	if !s.Due {
		return ledger.Change{}, nil
	}
	c, _ := after(s.Order.Status, expire)
	return c, nil
}

// onCancel decides that a pending order is cancelled. Its time to be paid may have
// passed, as long as it has not expired.
func onCancel(s ledger.State) (ledger.Change, error) {
	c, ok := after(s.Order.Status, cancel)
	if !ok && s.Order.Status != ledger.Cancelled {
		return ledger.Change{}, &WrongStatus{s.Order.Status}
	}
	return c, nil
}

// onRefund decides that a paid order is refunded. Its payment is then due back to
// the buyer.
func onRefund(restock bool) func(ledger.State) (ledger.Change, error) {
	return func(s ledger.State) (ledger.Change, error) {
		c, ok := after(s.Order.Status, refund)
		switch {
		case ok:
			c.Returns = c.Returns && restock
			c.PaymentID, c.PaymentStatus = s.Order.PaymentID, ledger.PaymentRefundDue
		case s.Order.Status != ledger.Refunded:
			return ledger.Change{}, &WrongStatus{s.Order.Status}
		}
		return c, nil
	}
}

// movesKeyOn reports whether a key must use its next ID because of the order under its
// present ID. A void order stands for an order that was never committed, and a queued
// order may have been refused, or will be because its key has passed it. Their IDs cannot
// be used again.
func movesKeyOn(o *Order) bool {
	s := o.Status
	return s == ledger.Void || s == ledger.TurnedDown || o.Passed()
}

// replay returns the answer to a request whose key already belongs to the order
// found. It repeats the first answer, even if the order's status has changed since:
// an order that was queued at first is answered as queued. ErrKeyReused: the lines
// differ.
func replay(r Request, found *Order) (Order, error) {
	if !slices.EqualFunc(r.Lines, found.Lines, sameLine) {
		return Order{}, ErrKeyReused
	}
	first := *found
	first.Status, first.PaymentID = ledger.Pending, ""
	if found.Status == ledger.Queued || !found.QueuedUntil.IsZero() {
		first.Status, first.ExpiresAt = ledger.Queued, time.Time{}
	}
	return first, nil
}

func sameLine(a, b stock.Line) bool { return a == b }
