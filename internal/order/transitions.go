package order

import (
	"errors"
	"slices"
)

// event is what can happen to an order after it was placed.
type event string

// The events.
const (
	pay    event = "pay"    // paid in time
	revive event = "revive" // paid after expiry, and the units could be cut again
	cancel event = "cancel"
	expire event = "expire" // the payment window has ended
	refund event = "refund"
)

// transitions says which status each event leads to. An event without a row for the order's status
// does not change the order.
var transitions = []struct {
	from Status
	on   event
	to   Status
	// returns says that the units return to stock. A refund returns them only if
	// the administrator says so.
	returns bool
}{
	{Pending, pay, Paid, false},
	{Pending, cancel, Cancelled, true},
	{Pending, expire, Expired, true},
	{Paid, refund, Refunded, true},
	{Expired, revive, Paid, false},
}

// Holding returns the statuses in which an order holds its units: those from which the units can
// return to stock. A refunded order holds its units, too, if it was not restocked.
func Holding() (statuses []Status) {
	for _, t := range transitions {
		if t.returns && !slices.Contains(statuses, t.from) {
			statuses = append(statuses, t.from)
		}
	}
	return statuses
}

// after returns the transition of an order with this status at the event. ok is false
// if the event is not allowed in this status.
func after(from Status, on event) (c Transition, ok bool) {
	for _, t := range transitions {
		if t.from == from && t.on == on {
			return Transition{To: t.to, Returns: t.returns}, true
		}
	}
	return Transition{}, false
}

// Transition is a change of an order. The zero Transition changes nothing.
type Transition struct {
	To      Status // the new status; empty: the status does not change
	Returns bool   // the order's units return to stock
	// PaymentID and PaymentStatus record a payment. An order that becomes paid is paid by this
	// payment.
	PaymentID     string
	PaymentStatus PaymentStatus
}

// Apply makes the transition.
func (o *Order) Apply(c Transition) {
	if c.To == "" {
		return
	}
	o.Status, o.Version = c.To, o.Version+1
	switch c.To {
	case Paid:
		o.PaymentID = c.PaymentID
	case Refunded:
		o.Restocked = c.Returns
	}
}

// Locked is an order as read by a transaction that holds the order's row lock.
type Locked struct {
	Order   Order
	Due     bool     // the payment window has ended, by the database's clock
	Payment *Payment // the payment with the caller's payment ID; nil: none is recorded under that ID
}

// Decide decides on the change of an order. An error means that the order does not change, and says
// why.
type Decide func(Locked) (Transition, error)

// ChangeOptions say what a Decide needs to know, and which changes it may make.
type ChangeOptions struct {
	Buyer   string // only an order of this buyer may be changed; empty: of any buyer
	Payment string // ID of the reported payment; empty: none
	// Returns means that the change may return units to stock. The stock rows are
	// then locked before the order.
	Returns bool
}

// Late says how a payment for an expired order is treated.
type Late string

// The ways to treat a late payment.
const (
	Revive Late = "revive" // the payment pays the order if the units can be cut again
	Refuse Late = "refuse" // the payment must be paid back to the buyer
)

// Why a payment cannot be decided in one step.
var (
	errDue  = errors.New("the order's time to be paid has passed")
	errLate = errors.New("the order has expired")
)

// onPayment decides what a payment does to an order. Every payment either pays its order or is
// recorded as due back to the buyer. errDue means that the order must expire first. errLate means
// that the order must be revived, or paid with Refuse.
func onPayment(payment string, late Late) Decide {
	return func(l Locked) (Transition, error) {
		if l.Payment != nil { // the payment was reported before
			if l.Payment.OrderID != l.Order.ID {
				return Transition{}, ErrPaymentReused
			}
			return Transition{}, nil
		}
		c, ok := after(l.Order.Status, pay)
		_, revivable := after(l.Order.Status, revive)
		switch {
		case ok && l.Due:
			return Transition{}, errDue
		case ok:
			c.PaymentID, c.PaymentStatus = payment, PaymentPaid
			return c, nil
		case revivable && late == Revive:
			return Transition{}, errLate
		}
		return Transition{PaymentID: payment, PaymentStatus: PaymentRefundDue}, nil
	}
}

// Revival is the change by which an expired order becomes paid, after its units were cut
// again. It is zero for an order with another status.
func Revival(o Order, payment string) Transition {
	c, ok := after(o.Status, revive)
	if ok {
		c.PaymentID, c.PaymentStatus = payment, PaymentPaid
	}
	return c
}

// Expiry is the change of a pending order whose payment window has ended. It is zero for every
// other order.
func Expiry(l Locked) Transition {
	if !l.Due {
		return Transition{}
	}
	c, _ := after(l.Order.Status, expire)
	return c
}

func onExpiry(l Locked) (Transition, error) { return Expiry(l), nil }

// onCancel decides that a pending order is cancelled. Its payment window may have ended, but the
// order must not have expired.
func onCancel(l Locked) (Transition, error) {
	c, ok := after(l.Order.Status, cancel)
	if !ok && l.Order.Status != Cancelled {
		return Transition{}, &WrongStatus{l.Order.Status}
	}
	return c, nil
}

// onRefund decides that a paid order is refunded. Its payment must then be paid back to the buyer.
func onRefund(restock bool) Decide {
	return func(l Locked) (Transition, error) {
		c, ok := after(l.Order.Status, refund)
		switch {
		case ok:
			c.Returns = c.Returns && restock
			c.PaymentID, c.PaymentStatus = l.Order.PaymentID, PaymentRefundDue
		case l.Order.Status != Refunded:
			return Transition{}, &WrongStatus{l.Order.Status}
		}
		return c, nil
	}
}
