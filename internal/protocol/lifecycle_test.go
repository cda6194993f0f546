package protocol

import (
	"database/sql"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/ledger"
	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

var races = flag.Int("lifecycle.races", 0, "races of payments, cancellations and expiry in TestRaces; 0: a few")

// expiresIn moves the end of the order's payment window to d from now, by the database's clock.
func (s *shop) expiresIn(t *testing.T, id uuid.UUID, d time.Duration) {
	t.Helper()
	db := s.sql.Ledger()
	now, err := db.Now(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	changed, err := db.Exec(t.Context(), "UPDATE orders SET expires_at = ? WHERE id = ?", now.Add(d), db.Dialect().UUID(id))
	if err != nil || changed != 1 {
		t.Fatalf("moving the deadline of %s: %d rows, %v", id, changed, err)
	}
}

// held counts the units of the SKU in orders that hold them: pending, paid, or refunded without
// returning the units.
func (s *shop) held(t *testing.T, sku stock.SKU) (units int64) {
	t.Helper()
	const query = `SELECT COALESCE(SUM(quantity), 0) FROM order_lines WHERE sku = ? AND order_id IN
		(SELECT id FROM orders WHERE status IN ('pending', 'paid') OR status = 'refunded' AND NOT restocked)`
	if err := s.sql.DB().Raw(query, string(sku)).Row().Scan(&units); err != nil {
		t.Fatal(err)
	}
	return units
}

// checkLifecycle checks, without the service, that the SKU's counts add up in the ledger and at the
// gate. It also checks that every payment of the order is in one place.
func (s *shop) checkLifecycle(t *testing.T, i *instance, sku stock.SKU, id uuid.UUID) {
	t.Helper()
	s.waitSettled(t, i, sku)
	b, held := s.ledgerCounts(t, sku), s.held(t, sku)
	if b.available+held != b.total {
		t.Errorf("%s: %d available, %d held of %d", sku, b.available, held, b.total)
	}
	if i.gate != nil {
		levels, err := i.counter.Level(t.Context(), sku)
		if err != nil || levels[0].Available != b.available || levels[0].InFlight != 0 {
			t.Errorf("%s: the gate has %+v, %v; the ledger %d", sku, levels, err, b.available)
		}
	}
	o, err := i.Order(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if last := o.History[len(o.History)-1]; last.Status != o.Status {
		t.Errorf("the history ends with %s, the order is %s", last.Status, o.Status)
	}
	var paying []string
	db := s.sql.Ledger()
	err = db.QueryEach(t.Context(), func(rows *sql.Rows) error {
		var payment string
		err := rows.Scan(&payment)
		paying = append(paying, payment)
		return err
	}, "SELECT id FROM payments WHERE order_id = ? AND status = 'paid'", db.Dialect().UUID(id))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{o.PaymentID}
	if o.Status != order.Paid {
		want = nil
	}
	if !slices.Equal(paying, want) {
		t.Errorf("the payments %q are kept, but the order is %s by %q", paying, o.Status, o.PaymentID)
	}
}

// off returns a clock that is wrong by d.
func off(d time.Duration) func() time.Time {
	return func() time.Time { return time.Now().Add(d) }
}

// lifeShop is a shop with one instance, which expires orders when the test calls it.
type lifeShop struct {
	*shop
	*instance
	job ledger.Job
}

func (s *shop) openLife(t *testing.T, set settings) lifeShop {
	t.Helper()
	l := lifeShop{shop: s, instance: s.open(t, set)}
	var err error
	if l.job, err = l.ledger.ClaimJob(t.Context(), uuid.NewString(), "lifecycle"); err != nil {
		t.Fatal(err)
	}
	return l
}

// events are all that can happen to an order.
var events = map[string]func(t *testing.T, s lifeShop, id uuid.UUID) error{
	"pay-1": func(t *testing.T, s lifeShop, id uuid.UUID) error {
		_, err := s.Pay(t.Context(), id, "1-"+id.String())
		return err
	},
	"pay-2": func(t *testing.T, s lifeShop, id uuid.UUID) error {
		_, err := s.Pay(t.Context(), id, "2-"+id.String())
		return err
	},
	"cancel": func(t *testing.T, s lifeShop, id uuid.UUID) error {
		_, err := s.Cancel(t.Context(), id, "")
		return err
	},
	"due": func(t *testing.T, s lifeShop, id uuid.UUID) error { s.expiresIn(t, id, -time.Second); return nil },
	"expire": func(t *testing.T, s lifeShop, id uuid.UUID) error {
		s.expiresIn(t, id, -time.Second)
		done, err := s.ledger.Expire(t.Context(), s.job, new(ledger.ExpiryRound), 100)
		s.BringToGate(t.Context(), done.Returned...)
		return err
	},
	"refund": func(t *testing.T, s lifeShop, id uuid.UUID) error {
		_, err := s.Refund(t.Context(), id, true)
		return err
	},
	"refund-kept": func(t *testing.T, s lifeShop, id uuid.UUID) error {
		_, err := s.Refund(t.Context(), id, false)
		return err
	},
}

// TestLifecycle checks what becomes of an order and its units, on every database, with a gate and
// without. Each event happens twice: the repeat must get the same answer and change nothing. After
// each event the units must add up, and every payment must have been recorded once.
// TestAllOrdersOfEvents of package order has every sequence of events, with stores in memory.
func TestLifecycle(t *testing.T) {
	t.Parallel()
	pending, paid, cancelled, expired, refunded := order.Pending, order.Paid, order.Cancelled, order.Expired, order.Refunded
	eachDatabase(t, withServer(0), func(t *testing.T, s *shop) {
		for _, strategy := range []string{"lua", "optimistic"} {
			at := map[order.Late]lifeShop{
				order.Revive: s.openLife(t, settings{strategy: strategy}),
				order.Refuse: s.openLife(t, settings{strategy: strategy, late: order.Refuse}),
			}
			for _, test := range []struct {
				late    order.Late
				events  string
				history []order.Status
				held    int64
			}{
				{order.Revive, "pay-1 pay-2", []order.Status{pending, paid}, 2},
				{order.Revive, "cancel pay-1 refund", []order.Status{pending, cancelled}, 0},
				{order.Revive, "pay-1 cancel refund pay-1 pay-2 refund-kept", []order.Status{pending, paid, refunded}, 0},
				{order.Revive, "pay-1 pay-2 refund-kept refund", []order.Status{pending, paid, refunded}, 2},
				{order.Revive, "due pay-1 pay-2", []order.Status{pending, expired, paid}, 2},
				{order.Revive, "due cancel expire", []order.Status{pending, cancelled}, 0},
				{order.Revive, "expire pay-1 due expire refund", []order.Status{pending, expired, paid, refunded}, 0},
				{order.Revive, "expire cancel refund pay-2", []order.Status{pending, expired, paid}, 2},
				{order.Refuse, "due pay-1 pay-2", []order.Status{pending, expired}, 0},
				{order.Refuse, "expire pay-1 cancel", []order.Status{pending, expired}, 0},
			} {
				t.Run(fmt.Sprintf("%s/%s/%s", strategy, test.late, test.events), func(t *testing.T) {
					at[test.late].live(t, test.events, test.history, test.held)
				})
			}
			for _, l := range at {
				l.Close()
			}
		}
	})
}

// live lets the events happen to a new order of two lines, and checks the order's history and how
// many of the two units of its first line it holds.
func (s lifeShop) live(t *testing.T, happens string, history []order.Status, held int64) {
	t.Helper()
	if err := s.ledger.RenewJob(t.Context(), s.job); err != nil {
		t.Fatal(err)
	}
	sku, coupon := newSKU("lifecycle"), newSKU("coupon")
	addStock(t, s.instance, sku, 10)
	addStock(t, s.instance, coupon, 10)
	id := mustPlace(t, s.instance, request(stock.Line{SKU: sku, Quantity: 2}, stock.Line{SKU: coupon, Quantity: 1})).ID
	s.waitSettled(t, s.instance, sku)
	let := func(event string) (order.Order, error) {
		err := events[event](t, s, id)
		s.checkLifecycle(t, s.instance, sku, id)
		s.checkLifecycle(t, s.instance, coupon, id)
		o, found := s.Order(t.Context(), id)
		if found != nil {
			t.Fatal(found)
		}
		return o, err
	}
	var last order.Order
	for event := range strings.FieldsSeq(happens) {
		before, first := let(event)
		after, again := let(event)
		if fmt.Sprint(first) != fmt.Sprint(again) {
			t.Errorf("answered %v, then %v", first, again)
		}
		if after.Status != before.Status || len(after.History) != len(before.History) {
			t.Errorf("repeated, the order was %s and is %s: %+v", before.Status, after.Status, after.History)
		}
		if last = after; t.Failed() {
			t.Fatalf("after %s", event)
		}
	}
	var statuses []order.Status
	for _, step := range last.History {
		statuses = append(statuses, step.Status)
	}
	if got := s.held(t, sku); got != held || !slices.Equal(statuses, history) {
		t.Errorf("history %v with %d units held, want %v with %d", statuses, got, history, held)
	}
}

// TestLatePaymentBeforeTheSettle pays an order late whose instance was killed between its commit
// and its settle. The order has expired, and its units have been returned. So the payment must wait
// until recovery has settled the first take, wherever its records are. Otherwise recovery could
// return the units a second time.
func TestLatePaymentBeforeTheSettle(t *testing.T) {
	t.Parallel()
	const segments, total, quantity = 3, 9, 4 // a first take needs two segments, and a second take finds enough in the third
	eachDatabase(t, withServer(1), func(t *testing.T, s *shop) {
		for _, strategy := range []string{"lua", "segment", "segment-lock"} {
			t.Run(strategy, func(t *testing.T) {
				i := s.open(t, settings{strategy: strategy, segments: segments, noGuard: true, takeDeadline: immediateDeadline})
				defer i.Close()
				sku := newSKU("late")
				addStock(t, i, sku, total)
				d := stock.Deduction{OrderID: uuid.New(), TakeID: uuid.New(), Buyer: "b", Lines: []stock.Line{{SKU: sku, Quantity: quantity}}}
				binary.BigEndian.PutUint32(d.OrderID[12:], segments-1) // selects the last segment first
				first, err := i.gate.Take(t.Context(), d)
				if err != nil {
					t.Fatal(err)
				}
				if err := record(t, i, first); err != nil {
					t.Fatal(err)
				}
				s.expiresIn(t, d.OrderID, -time.Second)
				if _, err := i.Pay(t.Context(), d.OrderID, "p-"+string(sku)); !errors.Is(err, stock.ErrBusy) || !errors.Is(err, stock.ErrInFlight) {
					t.Errorf("a payment before the first take was settled was answered %v, want %q", err, stock.ErrInFlight)
				}
				sweep(t, i)
				if _, err := i.Pay(t.Context(), d.OrderID, "p-"+string(sku)); err != nil {
					t.Errorf("a payment after the first take was settled: %v", err)
				}
				s.checkLifecycle(t, i, sku, d.OrderID)
			})
		}
	})
}

// TestLatePayment_Undelivered pays an expired order late. Its units have returned to the ledger,
// but not to the gate, because the instance that expired the order was killed after its commit. In
// some rounds another instance was killed before that, during a refill.
func TestLatePayment_Undelivered(t *testing.T) {
	t.Parallel()
	eachDatabase(t, outside, func(t *testing.T, s *shop) {
		i := s.openLife(t, settings{strategy: "lua"})
		for _, refilling := range []bool{false, true} {
			lines := []stock.Line{{SKU: newSKU("a"), Quantity: 1}, {SKU: newSKU("b"), Quantity: 1}}
			for _, line := range lines {
				addStock(t, i.instance, line.SKU, 1)
			}
			o := mustPlace(t, i.instance, request(lines...))
			for _, line := range lines {
				s.waitSettled(t, i.instance, line.SKU)
				if refilling {
					s.beginRefill(t, i.instance, line.SKU)
				}
			}
			s.expiresIn(t, o.ID, -time.Second)
			if err := i.ledger.RenewJob(t.Context(), i.job); err != nil {
				t.Fatal(err)
			}
			if done, err := i.ledger.Expire(t.Context(), i.job, new(ledger.ExpiryRound), 1); err != nil || done.Expired != 1 {
				t.Fatal(done, err)
			}
			if _, err := i.Pay(t.Context(), o.ID, o.ID.String()); err != nil {
				t.Errorf("during a refill %v: a late payment was answered %v, although the units are back", refilling, err)
			}
			for _, line := range lines {
				s.checkLifecycle(t, i.instance, line.SKU, o.ID)
			}
		}
	})
}

// TestLatePayment_NoStockRow pays an order late whose stock row was deleted by hand, whether the gate
// still has its count or not. The payment must be recorded as due back.
func TestLatePayment_NoStockRow(t *testing.T) {
	t.Parallel()
	eachDatabase(t, outside, func(t *testing.T, s *shop) {
		for _, strategy := range []string{"lua", "merged"} {
			i := s.open(t, settings{strategy: strategy})
			for _, counted := range []bool{true, false} {
				sku := newSKU("deleted")
				addStock(t, i, sku, 2)
				o := mustPlace(t, i, oneUnit(sku))
				s.waitSettled(t, i, sku)
				s.expiresIn(t, o.ID, -time.Second)
				s.exec(t, "DELETE FROM stock WHERE sku = ?", string(sku))
				if !counted {
					s.emptyGate(t)
				}
				if _, err := i.Pay(t.Context(), o.ID, o.ID.String()); !errors.As(err, new(*order.RefundDue)) {
					t.Errorf("%s, counted %v: answered %v, want refund due", strategy, counted, err)
				}
			}
			i.Close()
		}
	})
}

// TestRaces lets two payments, a cancellation and expiry coincide at the deadline on two instances,
// whose clocks are an hour apart. In a third of the rounds late payments are refused, and in
// another third a second buyer wants the unit. Each order must end in one state, its units must add
// up, and no payment may be lost.
func TestRaces(t *testing.T) {
	t.Parallel()
	rounds := *races
	if rounds == 0 {
		rounds = 40
		if testenv.Thorough() {
			rounds = 400
		}
	}
	among := oneOf(databases, 0)
	if *races > 0 {
		among = databases
	}
	eachDatabase(t, among, func(t *testing.T, s *shop) {
		open := func(late order.Late) (among []*instance) {
			for _, wrong := range []time.Duration{-30 * time.Minute, 30 * time.Minute} {
				among = append(among, s.open(t, settings{strategy: "lua", clock: off(wrong), late: late}))
			}
			return among
		}
		reviving := open(order.Revive)
		kinds := []raceKind{
			{among: reviving, sku: newSKU("revived"), revives: true},
			{among: open(order.Refuse), sku: newSKU("refused")},
			{among: reviving, sku: newSKU("wanted"), wanted: true},
		}
		for _, kind := range kinds {
			addStock(t, reviving[0], kind.sku, 1)
		}
		job, err := reviving[1].ledger.ClaimJob(t.Context(), "expiry", "races")
		if err != nil {
			t.Fatal(err)
		}
		ended := make(map[string]int)
		for round := range rounds {
			if err := reviving[1].ledger.RenewJob(t.Context(), job); err != nil {
				t.Fatal(err)
			}
			ended[s.race(t, kinds[round%len(kinds)], job, round)]++
			if t.Failed() {
				return
			}
		}
		t.Logf("the orders ended as %v", ended)
		for _, end := range []string{"paid", "revived", "cancelled", "expired"} {
			if ended[end] == 0 {
				t.Errorf("no order ended %s", end)
			}
		}
	})
}

// raceKind describes a race.
type raceKind struct {
	among  []*instance
	sku    stock.SKU // SKU with one unit
	wanted bool      // a second buyer orders the unit
	// revives says that a late payment revives the order, because nobody else wants the unit.
	revives bool
}

// race places one order, lets payments, a cancellation and expiry coincide at its deadline, and
// returns the end of the order. The unit is in stock again then.
func (s *shop) race(t *testing.T, kind raceKind, job ledger.Job, round int) (end string) {
	t.Helper()
	among := kind.among
	o := mustPlace(t, among[0], oneUnit(kind.sku))
	deadline, cancelFirst := raceTimes(round)
	s.expiresIn(t, o.ID, deadline)
	cancelled := make(chan struct{}) // closed when payments may begin
	if !cancelFirst {
		close(cancelled)
	}
	payments := []string{fmt.Sprintf("first-%d", round), fmt.Sprintf("second-%d", round)}
	answers := make([]error, len(payments))
	var racing, wanting sync.WaitGroup
	for n, payment := range payments {
		racing.Go(func() {
			<-cancelled
			testenv.Dither()
			answers[n] = payUntilAnswered(t, among[n], o.ID, payment)
		})
	}
	if round%2 == 0 {
		racing.Go(func() {
			testenv.Dither()
			if _, err := among[1].Cancel(t.Context(), o.ID, ""); err != nil && !errors.As(err, new(*order.WrongStatus)) {
				t.Errorf("cancelling: %v", err)
			}
			if cancelFirst {
				close(cancelled)
			}
		})
	}
	racing.Go(func() {
		testenv.Dither()
		done, err := among[1].ledger.Expire(t.Context(), job, new(ledger.ExpiryRound), 10)
		if err != nil && !errors.Is(err, stock.ErrBusy) {
			t.Errorf("expiring: %v", err)
		}
		among[1].BringToGate(t.Context(), done.Returned...)
	})
	over, second := make(chan struct{}), uuid.Nil
	if kind.wanted {
		wanting.Go(func() { second = buyFreed(t, over, among[0], kind.sku) })
	}
	racing.Wait()
	close(over)
	wanting.Wait()
	s.checkLifecycle(t, among[0], kind.sku, o.ID)
	s.checkPayments(t, among, o.ID, payments, answers)
	after, err := among[0].Order(t.Context(), o.ID)
	if err != nil {
		t.Fatal(err)
	}
	if kind.revives && after.Status == order.Expired {
		t.Errorf("order %s has expired, although it was paid late and its unit is free", o.ID)
	}
	if second != uuid.Nil {
		if after.Status == order.Paid {
			t.Errorf("both buyers have the unit: %s, %s", o.ID, second)
		}
		_, err = among[1].Cancel(t.Context(), second, "")
	} else if after.Status == order.Paid {
		_, err = among[1].Refund(t.Context(), o.ID, true)
	}
	if err != nil {
		t.Fatal(err)
	}
	if after.Status == order.Paid && len(after.History) == 3 {
		return "revived"
	}
	return string(after.Status)
}

// raceTimes returns when the order of a round expires, from now, and whether the payments wait for
// the cancellation. The first rounds have one winner each, so that every end occurs.
func raceTimes(round int) (deadline time.Duration, cancelFirst bool) {
	switch round {
	case 1, 3: // no cancellation; late payments are refused, or revive the order
		return -time.Second, false
	case 4: // the cancellation comes first
		return time.Minute, true
	case 5: // no cancellation
		return time.Minute, false
	}
	return rand.N(3 * time.Millisecond), false
}

// payUntilAnswered pays the order like a provider that repeats its callback.
func payUntilAnswered(t *testing.T, i *instance, id uuid.UUID, payment string) error {
	return untilAnswered(func() error {
		_, err := i.Pay(t.Context(), id, payment)
		return err
	})
}

// buyFreed tries to buy a unit until it has one or the race is over. It returns the
// order, or uuid.Nil.
func buyFreed(t *testing.T, over <-chan struct{}, i *instance, sku stock.SKU) uuid.UUID {
	ticker := time.NewTicker(2 * time.Millisecond)
	defer ticker.Stop()
	for {
		o, _, err := i.Place(t.Context(), oneUnit(sku))
		switch {
		case err == nil:
			return o.ID
		case !errors.Is(err, stock.ErrSoldOut) && !errors.Is(err, stock.ErrBusy):
			t.Errorf("the second buyer: %v", err)
			return uuid.Nil
		}
		select {
		case <-over:
			return uuid.Nil
		case <-ticker.C:
		}
	}
}

// checkPayments checks that each payment is recorded as it was answered, and gets the same answer
// again.
func (s *shop) checkPayments(t *testing.T, among []*instance, id uuid.UUID, payments []string, answers []error) {
	t.Helper()
	for n, payment := range payments {
		var status order.PaymentStatus
		err := s.sql.Ledger().QueryRow(t.Context(), []any{&status}, "SELECT status FROM payments WHERE id = ?", payment)
		if err != nil {
			t.Fatalf("%s, which was answered %v: %v", payment, answers[n], err)
		}
		due := errors.As(answers[n], new(*order.RefundDue))
		if answers[n] != nil && !due || due != (status == order.PaymentRefundDue) {
			t.Errorf("%s was answered %v and is %s", payment, answers[n], status)
		}
		if _, again := among[1-n].Pay(t.Context(), id, payment); fmt.Sprint(again) != fmt.Sprint(answers[n]) && !due {
			t.Errorf("%s was answered %v, then %v", payment, answers[n], again)
		}
	}
}
