package protocol

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/assembly"
	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// TestPlace checks that every strategy gives a single client the right answers.
func TestPlace(t *testing.T) {
	t.Parallel()
	eachStrategy(t, func(t *testing.T, s *shop, i *instance) {
		a, b := newSKU("a"), newSKU("b")
		addStock(t, i, a, 5)
		addStock(t, i, b, 2)

		o := mustPlace(t, i, request(stock.Line{SKU: b, Quantity: 1}, stock.Line{SKU: a, Quantity: 2}))
		want := []stock.Line{{SKU: a, Quantity: 2}, {SKU: b, Quantity: 1}}
		first := order.Pending
		if i.consumer != nil {
			first = order.Queued
		}
		if o.Status != first || o.Buyer != "buyer-1" || o.Strategy != i.strategy || !slices.Equal(o.Lines, want) {
			t.Errorf("placed %+v", o)
		}
		if o.CreatedAt.Location() != time.UTC || o.CreatedAt.Nanosecond()%1000 != 0 {
			t.Errorf("created at %v: not UTC, or not whole microseconds", o.CreatedAt)
		}
		found, err := i.Order(t.Context(), o.ID)
		// A queued order changes later.
		if found.ExpiresAt, found.Status = o.ExpiresAt, first; err != nil || !sameOrder(found, o) {
			t.Errorf("found %+v, %v; placed %+v", found, err, o)
		}
		if _, err := i.Order(t.Context(), uuid.New()); !errors.Is(err, order.ErrUnknownOrder) {
			t.Errorf("an order ID that does not exist: %v, want %v", err, order.ErrUnknownOrder)
		}

		// All lines or none: b has one unit left.
		two := request(stock.Line{SKU: a, Quantity: 1}, stock.Line{SKU: b, Quantity: 2})
		mustRefuse(t, i, two, stock.ErrSoldOut)
		if sku := skuOf(errorOf(i.Place(t.Context(), two))); sku != b {
			t.Errorf("%q is reported sold out, want %q", sku, b)
		}
		nowhere := newSKU("nowhere")
		mustRefuse(t, i, request(stock.Line{SKU: a, Quantity: 1}, stock.Line{SKU: nowhere, Quantity: 1}), stock.ErrUnknownSKU)

		// All units can be sold, and no more.
		mustPlace(t, i, request(stock.Line{SKU: a, Quantity: 3}))
		mustRefuse(t, i, oneUnit(a), stock.ErrSoldOut)
		mustPlace(t, i, oneUnit(b))
		mustRefuse(t, i, oneUnit(b), stock.ErrSoldOut)

		s.checkSettled(t, i, a, 5)
		s.checkSettled(t, i, b, 2)
	})
}

// skuOf returns the SKU of a refusal.
func skuOf(err error) stock.SKU {
	var refusal *stock.Refusal
	if errors.As(err, &refusal) {
		return refusal.SKU
	}
	return ""
}

// errorOf returns the error of Place.
func errorOf(_ order.Order, _ bool, err error) error { return err }

// TestKeys checks that a request with a known key gets the first order, even if the stock or the
// order has changed since.
func TestKeys(t *testing.T) {
	t.Parallel()
	eachStrategy(t, func(t *testing.T, s *shop, i *instance) {
		a, b := newSKU("a"), newSKU("b")
		addStock(t, i, a, 3)
		addStock(t, i, b, 3)
		k1, k2 := string(newSKU("k-1")), string(newSKU("k-2"))
		both := func() order.Request {
			return withKey(request(stock.Line{SKU: a, Quantity: 1}, stock.Line{SKU: b, Quantity: 2}), k1)
		}
		first := mustPlace(t, i, both())

		replay := func(r order.Request) {
			t.Helper()
			o, replayed, err := i.Place(t.Context(), r)
			if err != nil || !replayed || !sameOrder(o, first) {
				t.Errorf("replayed %v: %+v, %v; want %+v", replayed, o, err, first)
			}
		}
		replay(both())
		turned := both()
		slices.Reverse(turned.Lines)
		replay(turned)

		other := both()
		other.Lines[1].Quantity = 1
		mustRefuse(t, i, other, order.ErrKeyReused)
		mustRefuse(t, i, withKey(oneUnit(a), k1), order.ErrKeyReused)

		// The same key of another buyer is another key.
		theirs := both()
		theirs.Buyer = "buyer-2"
		theirs.Lines = []stock.Line{{SKU: a, Quantity: 1}}
		if o := mustPlace(t, i, theirs); o.ID == first.ID {
			t.Error("two buyers share an order")
		}

		// A refusal is not stored: the key can be used again after a restock.
		mustRefuse(t, i, withKey(request(stock.Line{SKU: a, Quantity: 2}), k2), stock.ErrSoldOut)
		mustPlace(t, i, oneUnit(a)) // sold out now
		replay(both())
		mustRefuse(t, i, withKey(oneUnit(a), k2), stock.ErrSoldOut)
		addStock(t, i, a, 5)
		mustPlace(t, i, withKey(request(stock.Line{SKU: a, Quantity: 2}), k2))

		// A replay shows the order as pending even after it was paid.
		s.exec(t, "UPDATE orders SET status = 'paid' WHERE id = ?", s.sql.Dialect().UUID(first.ID))
		replay(both())

		s.checkSettled(t, i, a, 5)
		s.checkSettled(t, i, b, 2)
	})
}

// TestTwins checks that concurrent requests with one key create one order.
func TestTwins(t *testing.T) {
	t.Parallel()
	eachStrategy(t, func(t *testing.T, s *shop, i *instance) {
		sku := newSKU("twins")
		addStock(t, i, sku, 100)
		const twins = 12
		var answers [twins]<-chan reply
		for n := range answers {
			answers[n] = place(t.Context(), i, withKey(oneUnit(sku), string(sku)))
		}
		ids := make(map[uuid.UUID]bool)
		var fresh int
		for n := range answers {
			a := testenv.Receive(t, "a twin's answer", answers[n])
			switch {
			case a.err == nil:
				ids[a.order.ID] = true
				if !a.replayed {
					fresh++
				}
			case !errors.Is(a.err, order.ErrInProgress) && !errors.Is(a.err, stock.ErrBusy):
				t.Errorf("a twin was answered %v", a.err)
			}
		}
		if len(ids) != 1 || fresh != 1 {
			t.Errorf("%d orders and %d new ones; want one of each", len(ids), fresh)
		}
		counter := i.counter
		if spec, _ := assembly.FindStrategy(i.strategy); spec.Sound {
			s.waitSettled(t, i, sku)
		} else {
			counter = nil // without soundness, the gate may miscount concurrent requests
		}
		s.checkBalance(t, counter, sku, 1)
	})
}

// TestNoAnswerBeforeCommit checks that no request is answered as accepted if the transaction fails,
// and that the gate has its units back.
func TestNoAnswerBeforeCommit(t *testing.T) {
	t.Parallel()
	eachDatabase(t, outside, func(t *testing.T, s *shop) {
		for _, name := range []string{"lua", "merged", "conditional"} {
			t.Run(name, func(t *testing.T) {
				i := s.open(t, settings{strategy: name, change: func(built *assembly.Strategy) {
					built.Cutter = failingAfterCut(built.Cutter, errors.New("the database is unreachable"))
				}})
				sku := newSKU("uncommitted")
				addStock(t, i, sku, 3)
				mustRefuse(t, i, oneUnit(sku), stock.ErrBusy)
				mustRefuse(t, i, withKey(oneUnit(sku), string(sku)), stock.ErrBusy)
				s.checkBalance(t, i.counter, sku, 0)
				i.Close()
			})
		}
	})
}

// TestCompensationOutlivesTheRequest checks that units are given back at once if a request is
// cancelled between the gate and the ledger, or the answer to its take is lost.
func TestCompensationOutlivesTheRequest(t *testing.T) {
	t.Parallel()
	eachDatabase(t, outside, func(t *testing.T, s *shop) {
		i := s.openHooked(t, settings{strategy: "lua"})
		sku := newSKU("leak")
		addStock(t, i.instance, sku, 3)
		for range 3 {
			ctx, cancel := context.WithCancel(t.Context())
			reached, proceed := i.gate.taken.arm()
			answer := place(ctx, i.instance, oneUnit(sku))
			testenv.Receive(t, "the take", reached)
			cancel()
			i.gate.loseTake.Store(true) // the answer to the take is lost too
			proceed()
			if r := testenv.Receive(t, "the answer", answer); !errors.Is(r.err, stock.ErrBusy) {
				t.Errorf("answered %+v, want busy", r)
			}
		}
		i.gate.loseTake.Store(true)
		mustRefuse(t, i.instance, withKey(oneUnit(sku), "k"), stock.ErrBusy)
		s.checkBalance(t, i.counter, sku, 0)
		mustPlace(t, i.instance, withKey(oneUnit(sku), "k"))
	})
}
