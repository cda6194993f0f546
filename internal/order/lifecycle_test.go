package order

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

// act is one event that can happen to the order of a shop.
type act struct {
	name string
	do   func(t *testing.T, s *shop, id uuid.UUID) error
}

// acts lists all events that can happen to an order.
var acts = []act{
	{"pay-1", func(t *testing.T, s *shop, id uuid.UUID) error { return paidBy(t, s, id, "payment-1") }},
	{"pay-2", func(t *testing.T, s *shop, id uuid.UUID) error { return paidBy(t, s, id, "payment-2") }},
	{"cancel", func(t *testing.T, s *shop, id uuid.UUID) error { _, err := s.Cancel(t.Context(), id, ""); return err }},
	{"due", func(_ *testing.T, s *shop, id uuid.UUID) error { return s.passDeadline(id) }},
	{"expire", func(t *testing.T, s *shop, id uuid.UUID) error {
		_ = s.passDeadline(id)
		_, err := s.returning(t.Context(), id, "", onExpiry)
		return err
	}},
	{"refund", func(t *testing.T, s *shop, id uuid.UUID) error { _, err := s.Refund(t.Context(), id, true); return err }},
	{"refund-kept", func(t *testing.T, s *shop, id uuid.UUID) error {
		_, err := s.Refund(t.Context(), id, false)
		return err
	}},
}

func paidBy(t *testing.T, s *shop, id uuid.UUID, payment string) error {
	t.Helper()
	o, err := s.Pay(t.Context(), id, payment)
	if err == nil && o.PaymentID != payment {
		t.Errorf("%s was accepted, but the order is paid by %q", payment, o.PaymentID)
	}
	return err
}

// passDeadline ends the order's payment window.
func (s *shop) passDeadline(id uuid.UUID) error {
	o := s.ledger.orders[id]
	o.ExpiresAt = time.Now().Add(-time.Second)
	s.ledger.orders[id] = o
	return nil
}

// TestAllOrdersOfEvents runs every sequence of four events, including repeats, with and without a
// gate, and with each policy for late payments. After each event the units add up and every payment
// is in exactly one place. Each event that is repeated at the end gets the same answer twice.
func TestAllOrdersOfEvents(t *testing.T) {
	for _, withGate := range []bool{true, false} {
		for _, late := range []Late{Revive, Refuse} {
			each(4, func(sequence []act) {
				s := newShop(withGate)
				s.late = late
				runEvents(t, s, sequence)
			})
		}
	}
}

// each calls do with every sequence of n acts.
func each(n int, do func(sequence []act), prefix ...act) {
	if len(prefix) == n {
		do(prefix)
		return
	}
	for _, a := range acts {
		each(n, do, append(slices.Clone(prefix), a)...)
	}
}

func runEvents(t *testing.T, s *shop, sequence []act) {
	t.Helper()
	o := s.mustPlace(t, ask())
	var names []string
	for _, a := range sequence {
		names = append(names, a.name)
		first := a.do(t, s, o.ID)
		at := strings.Join(names, ", ")
		s.checkEvents(t, at, o.ID)
		status := s.ledger.orders[o.ID].Status
		if again := a.do(t, s, o.ID); a.name != "due" && fmt.Sprint(again) != fmt.Sprint(first) {
			t.Errorf("%s: answered %v, then %v", at, first, again)
		}
		if now := s.ledger.orders[o.ID].Status; now != status {
			t.Errorf("%s, repeated: the order was %s and is %s", at, status, now)
		}
		s.checkEvents(t, at+", repeated", o.ID)
		if t.Failed() {
			t.FailNow()
		}
	}
}

// checkEvents checks that the units add up and that every payment is in one place.
func (s *shop) checkEvents(t *testing.T, at string, id uuid.UUID) {
	t.Helper()
	o := s.ledger.orders[id]
	if sold := s.ledger.sold(apple); s.ledger.available[apple]+sold != units {
		t.Errorf("%s: %d units are available and %d sold of %d", at, s.ledger.available[apple], sold, units)
	}
	if s.gate != nil && (s.gate.available[apple] != s.ledger.available[apple] || len(s.gate.inFlight) > 0) {
		t.Errorf("%s: the gate has %d units and %d takes in flight, the ledger %d units",
			at, s.gate.available[apple], len(s.gate.inFlight), s.ledger.available[apple])
	}
	paying := 0
	for _, p := range s.ledger.payments {
		switch {
		case p.Status == PaymentPaid && (o.Status != Paid || o.PaymentID != p.ID):
			t.Errorf("%s: %s is kept, but the order is %s by %q", at, p.ID, o.Status, o.PaymentID)
		case p.Status == PaymentPaid:
			paying++
		}
	}
	if o.Status == Paid && paying != 1 {
		t.Errorf("%s: %d payments pay the order", at, paying)
	}
	steps := s.ledger.histories[id]
	if last := len(steps) - 1; last >= 0 && steps[last].Status != o.Status {
		t.Errorf("%s: the history ends with %s, the order is %s", at, steps[last].Status, o.Status)
	}
}

// TestPay checks the answers to payments.
func TestPay(t *testing.T) {
	for _, test := range []struct {
		name   string
		before []string // acts before the payment; flush: the gate loses its counts
		late   Late
		sold   bool // other buyers buy the order's units after the acts
		want   error
		status Status
	}{
		{"in time", nil, Revive, false, nil, Paid},
		{"late", []string{"expire"}, Revive, false, nil, Paid},
		{"late, not swept yet", []string{"due"}, Revive, false, nil, Paid},
		{"late, at an empty gate", []string{"expire", "flush"}, Revive, false, nil, Paid},
		{"late and refused", []string{"expire"}, Refuse, false, &RefundDue{"payment-9", Expired}, Expired},
		{"late, and the unit is resold", []string{"expire"}, Revive, true, &RefundDue{"payment-9", Expired}, Expired},
		{"after cancelling", []string{"cancel"}, Revive, false, &RefundDue{"payment-9", Cancelled}, Cancelled},
		{"the second payment", []string{"pay-1"}, Revive, false, &RefundDue{"payment-9", Paid}, Paid},
		{"after a refund", []string{"pay-1", "refund"}, Revive, false, &RefundDue{"payment-9", Refunded}, Refunded},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newShop(true)
			s.late = test.late
			o := s.mustPlace(t, asking(apple, pear))
			for _, name := range test.before {
				if name == "flush" {
					clear(s.gate.available)
					continue
				}
				a := acts[slices.IndexFunc(acts, func(a act) bool { return a.name == name })]
				if err := a.do(t, s, o.ID); err != nil {
					t.Fatalf("%s: %v", name, err)
				}
			}
			if test.sold {
				for range units {
					s.mustPlace(t, ask())
				}
			}
			_, err := s.Pay(t.Context(), o.ID, "payment-9")
			if fmt.Sprint(err) != fmt.Sprint(test.want) {
				t.Errorf("answered %v, want %v", err, test.want)
			}
			if got := s.ledger.orders[o.ID].Status; got != test.status {
				t.Errorf("the order is %s, want %s", got, test.status)
			}
			if _, ok := s.ledger.payments["payment-9"]; !ok {
				t.Error("the payment is not recorded")
			}
			s.checkEvents(t, test.name, o.ID)
		})
	}
}

// racingLedger has another report of the same payment come between decide and the commit of the
// first call of Change.
type racingLedger struct {
	*fakeLedger
	calls int
}

func (l *racingLedger) Change(ctx context.Context, id uuid.UUID, options ChangeOptions, decide Decide) (Order, []stock.Change, error) {
	o, returned, err := l.fakeLedger.Change(ctx, id, options, decide)
	if l.calls++; l.calls == 1 {
		return Order{}, nil, fmt.Errorf("changing: %w", stock.ErrRowChanged)
	}
	return o, returned, err
}

// TestPay_TwoReportsAtOnce checks that both reports of a payment that arrive at once get the same
// answer, although only one can record it.
func TestPay_TwoReportsAtOnce(t *testing.T) {
	for status, refundDue := range map[Status]bool{Pending: false, Cancelled: true} {
		t.Run(string(status), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newShop(true)
				o := s.mustPlace(t, ask())
				if status == Cancelled {
					if _, err := s.Cancel(t.Context(), o.ID, ""); err != nil {
						t.Fatal(err)
					}
				}
				racing := &racingLedger{fakeLedger: s.ledger}
				s.Service.ledger = racing
				paid, err := s.Pay(t.Context(), o.ID, "payment-1")
				if errors.Is(err, ErrRefundDue) != refundDue || !refundDue && (err != nil || paid.Status != Paid) || racing.calls != 2 {
					t.Errorf("answered %+v, %v after %d calls", paid, err, racing.calls)
				}
			})
		})
	}
}

// TestRevive_FirstTakeInFlight checks that a late payment waits while the order's first take is
// being settled, and revives the order then. If the take is not settled in time, nothing may be
// recorded.
func TestRevive_FirstTakeInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShop(true)
		placed(Expired)(t, s)
		o := s.ledger.orders[theOrder]
		s.gate.refuse = func() error { return stock.ErrInFlight }
		start := time.Now()
		if _, err := s.Pay(t.Context(), o.ID, "payment-1"); !errors.Is(err, stock.ErrBusy) || !errors.Is(err, stock.ErrInFlight) || errors.Is(err, stock.ErrUnavailable) {
			t.Errorf("paying in vain: %v", err)
		}
		if time.Since(start) == 0 {
			t.Error("it did not wait between its tries")
		}
		if len(s.ledger.payments) > 0 {
			t.Errorf("payments %v are recorded", s.ledger.payments)
		}
		s.gate.refuse = failing(3, stock.ErrInFlight)
		if _, err := s.Pay(t.Context(), o.ID, "payment-1"); err != nil {
			t.Errorf("paying: %v", err)
		}
		s.atRest(t, 1)
		if revived := s.ledger.orders[o.ID]; revived.TakeID == o.TakeID || !revived.Holds(o.TakeID) || !revived.Holds(revived.TakeID) {
			t.Errorf("the revived order names take %s, which does not follow %s", revived.TakeID, o.TakeID)
		}
	})
}

// TestOrder_History checks the history of an order that was queued, and of one that was not. Its times
// never decrease, although they come from different clocks.
func TestOrder_History(t *testing.T) {
	s := newShop(true)
	created := time.Date(2026, 11, 11, 20, 0, 0, 0, time.UTC)
	at := func(seconds int) time.Time { return created.Add(time.Duration(seconds) * time.Second) }
	steps := []Step{{Status: Expired, At: at(-2)}, {Status: Paid, At: at(5)}, {Status: Refunded, At: at(4)}}
	want := []Step{{Queued, at(0)}, {Pending, at(0)}, {Expired, at(0)}, {Paid, at(5)}, {Refunded, at(5)}}
	for _, queued := range []bool{true, false} {
		o := Order{ID: uuid.New(), Status: Refunded, CreatedAt: at(0), Version: 3}
		if queued {
			o.QueuedUntil = at(-1)
		} else {
			want = want[1:]
		}
		s.ledger.orders[o.ID], s.ledger.histories[o.ID] = o, steps
		if o, err := s.Order(t.Context(), o.ID); err != nil || !slices.Equal(o.History, want) {
			t.Errorf("queued %v: the history is %v (%v), want %v", queued, o.History, err, want)
		}
	}
}

// TestCancel_AnotherBuyer checks that an order does not exist for a buyer who did not place it,
// even while it is queued.
func TestCancel_AnotherBuyer(t *testing.T) {
	s := newShop(true)
	o := s.mustPlace(t, ask())
	inQueue(func(*shop) uuid.UUID { return theOrder })(t, s)
	for _, id := range []uuid.UUID{o.ID, theOrder} {
		if _, err := s.Cancel(t.Context(), id, "another"); !errors.Is(err, ErrUnknownOrder) || errors.Is(err, ErrInProgress) {
			t.Errorf("cancelling another buyer's order: %v", err)
		}
	}
	if _, err := s.Cancel(t.Context(), theOrder, o.Buyer); !errors.Is(err, ErrInProgress) {
		t.Errorf("cancelling a queued order: %v", err)
	}
	if status := s.ledger.orders[o.ID].Status; status != Pending {
		t.Errorf("the order is %s", status)
	}
	if o, err := s.Cancel(t.Context(), o.ID, o.Buyer); err != nil || o.Status != Cancelled {
		t.Errorf("the buyer's order is %s, %v", o.Status, err)
	}
}
