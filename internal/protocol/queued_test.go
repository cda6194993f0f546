package protocol

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/faults"
	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/stock/strategy"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// hookedJournal is a journal with a hook after an order was queued. Its orders may stay
// in it, and may be claimed early or not at all.
type hookedJournal struct {
	stock.Journal
	queued     hook
	keep       atomic.Bool // orders are not finished
	claimsNone atomic.Bool
	claimsAll  atomic.Bool // also orders that other consumers have just got
	lose       atomic.Bool // the answer to an order that was queued
}

func (j *hookedJournal) Claim(ctx context.Context, consumer string, limit int, idle time.Duration) ([]stock.Take, error) {
	switch {
	case j.claimsNone.Load():
		return nil, nil
	case j.claimsAll.Load():
		idle = 0
	}
	return j.Journal.Claim(ctx, consumer, limit, idle)
}

func (j *hookedJournal) Queue(ctx context.Context, d stock.Deduction, at time.Time) (stock.Take, error) {
	t, err := j.Journal.Queue(ctx, d, at)
	if err == nil {
		j.queued.reach()
	}
	if j.lose.Load() {
		return stock.Take{}, errors.Join(errLostAnswer, err)
	}
	return t, err
}

func (j *hookedJournal) Finish(ctx context.Context, takes ...stock.Take) error {
	if j.keep.Load() {
		return errLostAnswer
	}
	return j.Journal.Finish(ctx, takes...)
}

// queueing is an instance that queues orders, with hooks in its journal and its cutter.
type queueing struct {
	*instance
	journal *hookedJournal
	cutter  *hookedCutter
}

func (s *shop) openQueueing(t *testing.T, set settings) queueing {
	t.Helper()
	var q queueing
	set.strategy, set.queue = "lua", true
	set.change = func(built *strategy.Strategy) {
		q.journal = &hookedJournal{Journal: built.Journal}
		built.Journal = q.journal
		q.cutter = new(hookedCutter)
		built.Cutter = q.cutter.over(built.Cutter)
	}
	q.instance = s.open(t, set)
	return q
}

// consume commits queued orders until stop is called.
func consume(t *testing.T, i *instance) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var running sync.WaitGroup
	running.Go(func() { i.consumer.Run(ctx) })
	stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
	})
	t.Cleanup(stop)
	return stop
}

// drain commits all queued orders.
func drain(t *testing.T, i *instance) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if left, err := i.consumer.Drain(ctx); left != 0 || err != nil {
		t.Errorf("%d orders are left (%v)", left, err)
	}
}

// mustQueue places an order, which must be queued.
func mustQueue(t *testing.T, i *instance, r order.Request) order.Order {
	t.Helper()
	o := mustPlace(t, i, r)
	if o.Status != order.Queued || o.CreatedAt.IsZero() || !o.ExpiresAt.IsZero() {
		t.Fatalf("placed %+v, want it queued", o)
	}
	return o
}

// wantStatus checks the status of an order.
func wantStatus(t *testing.T, i *instance, id uuid.UUID, want order.Status) {
	t.Helper()
	if o, err := i.Order(t.Context(), id); err != nil || o.Status != want {
		t.Errorf("order %s is %s (%v), want %s", id, o.Status, err, want)
	}
}

// waitFor waits until the order has the status.
func waitFor(t *testing.T, i *instance, id uuid.UUID, want order.Status) {
	t.Helper()
	eventually(t, "the order is "+string(want), func() bool {
		o, err := i.Order(t.Context(), id)
		return err == nil && o.Status == want
	})
}

// waitFinished waits until the journal is empty.
func waitFinished(t *testing.T, i *instance) {
	t.Helper()
	eventually(t, "the journal is empty", func() bool {
		length, _, err := i.journal.Backlog(t.Context())
		return err == nil && length == 0
	})
}

// TestQueuedOrder: an order is answered before its commit, and every instance says what
// has become of it. Recovery leaves it alone, and it cannot be paid or cancelled before
// it is committed.
func TestQueuedOrder(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases, func(t *testing.T, s *shop) {
		i := s.openQueueing(t, settings{takeDeadline: immediateDeadline, paymentWindow: time.Hour})
		other := s.open(t, settings{strategy: "lua", takeDeadline: immediateDeadline})
		sku := newSKU("queued")
		addStock(t, other, sku, 5)
		reached, proceed := i.cutter.before.arm()
		defer proceed()
		consume(t, i.instance)
		first := mustQueue(t, i.instance, withKey(oneUnit(sku), "k"))
		wait(t, "the consumer", reached)

		for _, at := range []*instance{i.instance, other} {
			sweep(t, at)
			if levels, err := at.gate.Level(t.Context(), sku); err != nil || levels[0].InFlight != 1 || levels[0].Available != 4 {
				t.Errorf("after a sweep the gate has %+v, %v", levels, err)
			}
			wantStatus(t, at, first.ID, order.Queued)
			if _, err := at.Pay(t.Context(), first.ID, "p-"+string(sku)); !errors.Is(err, order.ErrInProgress) {
				t.Errorf("paid: %v", err)
			}
			if _, err := at.Cancel(t.Context(), first.ID); !errors.Is(err, order.ErrInProgress) {
				t.Errorf("cancelled: %v", err)
			}
		}
		replayed := func() {
			t.Helper()
			o, replayed, err := i.Place(t.Context(), withKey(oneUnit(sku), "k"))
			if err != nil || !replayed || !sameOrder(o, first) {
				t.Errorf("answered %+v, then %+v (replayed %v, %v)", first, o, replayed, err)
			}
			if _, _, err := i.Place(t.Context(), withKey(request(stock.Line{SKU: sku, Quantity: 2}), "k")); !errors.Is(err, order.ErrKeyReused) {
				t.Errorf("other lines under the key: %v", err)
			}
		}
		replayed()
		elsewhere := newSKU("elsewhere")
		addStock(t, other, elsewhere, 5)
		for _, sku := range []stock.SKU{sku, elsewhere} {
			if _, _, err := other.Place(t.Context(), withKey(oneUnit(sku), "k")); !errors.Is(err, order.ErrInProgress) {
				t.Errorf("the key at an instance that does not queue, for %s: %v", sku, err)
			}
		}
		proceed()
		waitFor(t, other, first.ID, order.Pending)
		if _, _, err := other.Place(t.Context(), withKey(oneUnit(elsewhere), "k")); !errors.Is(err, order.ErrKeyReused) {
			t.Errorf("the key for another SKU: %v", err)
		}
		s.checkBalance(t, other.gate, elsewhere, 0)
		replayed()
		waitFinished(t, other)
		replayed()
		waitFinished(t, other)
		o, err := other.Order(t.Context(), first.ID)
		if err != nil || !o.CreatedAt.Equal(first.CreatedAt) || o.ExpiresAt.Sub(o.QueuedUntil) != time.Hour || len(o.History) != 2 || o.History[0].Status != order.Queued {
			t.Errorf("%+v, %v", o, err)
		}
		if o, replayed, err := other.Place(t.Context(), withKey(oneUnit(sku), "k")); err != nil || !replayed || !sameOrder(o, first) {
			t.Errorf("an instance that does not queue replays %+v (%v, %v)", o, replayed, err)
		}
		s.waitSettled(t, other.gate, sku)
		s.checkBalance(t, other.gate, sku, 1)
	})
}

// TestQueuedOrderTakesAgain: after a refill, queued orders take their units again under
// the new epoch. Those that find none are refused, and their keys may be used again.
func TestQueuedOrderTakesAgain(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases, func(t *testing.T, s *shop) {
		for _, noGuard := range []bool{false, true} {
			i := s.openQueueing(t, settings{noGuard: noGuard})
			sku, kept := newSKU("again"), newSKU("kept")
			addStock(t, i.instance, sku, 3)
			addStock(t, i.instance, kept, 5)
			both := request(stock.Line{SKU: sku, Quantity: 1}, stock.Line{SKU: kept, Quantity: 1})
			var queued []order.Order
			for _, key := range []string{"1", "2", "3"} {
				queued = append(queued, mustQueue(t, i.instance, withKey(both, key+string(sku))))
			}
			// Redis loses the count, and a committed order takes one of the units.
			if err := s.redis.HDel(t.Context(), "holdfast:{"+s.ledgerID.String()+"}:count", string(sku)).Err(); err != nil {
				t.Fatal(err)
			}
			plain := s.open(t, settings{strategy: "lua", noGuard: noGuard})
			mustPlace(t, plain, oneUnit(sku))
			stop := consume(t, i.instance)
			waitFinished(t, i.instance)
			stop()
			states := make(map[order.Status]int)
			for _, o := range queued {
				found, err := plain.Order(t.Context(), o.ID)
				if err != nil || !sameLines(found.Lines, o.Lines) {
					t.Fatalf("%+v, %v", found, err)
				}
				states[found.Status]++
			}
			if states[order.Pending] != 2 || states[order.TurnedDown] != 1 {
				t.Errorf("the orders ended as %v", states)
			}
			s.waitSettled(t, plain.gate, sku)
			s.checkBalance(t, plain.gate, sku, 3)
			s.checkBalance(t, plain.gate, kept, 2)
			addStock(t, plain, sku, 4)
			for n, o := range queued {
				found, err := plain.Order(t.Context(), o.ID)
				if err != nil || found.Status != order.TurnedDown {
					continue
				}
				if again := mustQueue(t, i.instance, withKey(both, string(rune('1'+n))+string(sku))); again.ID == o.ID {
					t.Errorf("the key of the refused order %s leads to it", o.ID)
				}
			}
			stop = consume(t, i.instance)
			waitFinished(t, i.instance)
			stop()
			s.checkBalance(t, plain.gate, sku, 4)
			s.checkBalance(t, plain.gate, kept, 3)
		}
	})
}

// TestQueuedOrderIsVoid: a queued order's ID has a void order, which resolved the take of
// another request of the key: the gate cut its units before the order was queued, or the
// stock was another strategy's meanwhile. The order was acknowledged, so it is still found.
// It takes the void order's place, unless its key has moved on: then it ends as refused.
func TestQueuedOrderIsVoid(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases, func(t *testing.T, s *shop) {
		for _, test := range []struct{ refilled, passed bool }{{true, false}, {true, true}, {false, false}} {
			i := s.openQueueing(t, settings{noGuard: true})
			plain := s.open(t, settings{strategy: "lua", noGuard: true})
			sku := newSKU("void")
			addStock(t, plain, sku, 1)
			keyed := withKey(oneUnit(sku), string(sku))
			o := mustQueue(t, i.instance, keyed)
			twin := stock.Take{Deduction: stock.Deduction{OrderID: o.ID, TakeID: uuid.New(), Buyer: o.Buyer, Lines: o.Lines, Queued: uuid.New()}}
			if test.refilled { // the gate no longer counts the queued order's take
				if err := s.redis.HDel(t.Context(), "holdfast:{"+s.ledgerID.String()+"}:count", string(sku)).Err(); err != nil {
					t.Fatal(err)
				}
				sweep(t, plain)
				var err error
				if twin, err = plain.gate.Take(t.Context(), twin.Deduction); err != nil {
					t.Fatal(err)
				}
			}
			if out := plain.End(t.Context(), twin, order.Unknown(errLostAnswer)); !out.Refused() {
				t.Fatalf("the twin's outcome is %+v", out)
			}
			wantStatus(t, plain, o.ID, order.Queued)
			if again := mustReplay(t, i.instance, keyed); again.ID != o.ID || again.Status != order.Queued {
				t.Errorf("the key is answered with %+v, want the queued order %s", again, o.ID)
			}
			want := order.Pending
			if test.passed {
				want = order.TurnedDown
				if err := plain.ledger.Pass(t.Context(), o.ID); err != nil {
					t.Fatal(err)
				}
			}
			if _, _, err := plain.Place(t.Context(), keyed); !errors.Is(err, order.ErrInProgress) {
				t.Errorf("the key at an instance that does not queue: %v", err)
			}
			stop := consume(t, i.instance)
			waitFinished(t, plain)
			stop()
			wantStatus(t, plain, o.ID, want)
			if found, err := plain.Order(t.Context(), o.ID); err != nil || !sameLines(found.Lines, o.Lines) || len(found.History) != 2 {
				t.Errorf("the order is %+v, %v", found, err)
			}
			if test.passed {
				mustPlace(t, plain, keyed)
			} else if again := mustReplay(t, plain, keyed); again.ID != o.ID {
				t.Errorf("the key leads to %+v", again)
			}
			s.waitSettled(t, plain.gate, sku)
			s.checkBalance(t, plain.gate, sku, 1)
		}
	})
}

// TestQueuedInPlaceOfAVoidOrder: a keyed order is queued while its ID has a void order,
// and another request of the key is answered with it before the first one is. Both get
// the same order, unless the key has passed the void order meanwhile: then the order that
// was acknowledged ends as refused, and does not vanish.
func TestQueuedInPlaceOfAVoidOrder(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases[2:], func(t *testing.T, s *shop) {
		for _, passed := range []bool{false, true} {
			i := s.openQueueing(t, settings{takeDeadline: immediateDeadline, noGuard: true})
			sku := newSKU("twice")
			addStock(t, i.instance, sku, 1) // the key's next order needs what the refused one had
			keyed := withKey(oneUnit(sku), string(sku))
			voided := mustQueue(t, i.instance, keyed)
			if err := s.redis.Del(t.Context(), "holdfast:{"+s.ledgerID.String()+"}:queued", "holdfast:{"+s.ledgerID.String()+"}:journal").Err(); err != nil {
				t.Fatal(err)
			}
			sweep(t, i.instance)
			wantStatus(t, i.instance, voided.ID, order.Void)
			reached, proceed := i.journal.queued.arm()
			defer proceed()
			first := place(t.Context(), i.instance, keyed)
			wait(t, "the journal", reached)
			again := mustReplay(t, i.instance, keyed)
			want := order.Pending
			if passed {
				want = order.TurnedDown
				if err := i.ledger.Pass(t.Context(), voided.ID); err != nil {
					t.Fatal(err)
				}
			}
			proceed()
			r := wait(t, "the answer", first)
			if r.err != nil || (r.order.ID == again.ID) == passed || again.ID != voided.ID {
				t.Errorf("passed %v: answered %+v, and meanwhile %+v", passed, r, again)
			}
			drain(t, i.instance)
			wantStatus(t, i.instance, again.ID, want)
			wantStatus(t, i.instance, r.order.ID, order.Pending)
			s.waitSettled(t, i.gate, sku)
			s.checkBalance(t, i.gate, sku, 1)
			i.Close()
		}
	})
}

// TestQueueIsLost: Redis loses the hash of queued orders. The orders are gone, and
// recovery gives their units back.
func TestQueueIsLost(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases[:1], func(t *testing.T, s *shop) {
		i := s.openQueueing(t, settings{takeDeadline: immediateDeadline})
		sku := newSKU("forgotten")
		addStock(t, i.instance, sku, 2)
		o := mustQueue(t, i.instance, oneUnit(sku))
		if err := s.redis.Del(t.Context(), "holdfast:{"+s.ledgerID.String()+"}:queued").Err(); err != nil {
			t.Fatal(err)
		}
		sweep(t, i.instance)
		s.checkBalance(t, i.gate, sku, 0)
		wantStatus(t, i.instance, o.ID, order.Void) // which is never shown
		consume(t, i.instance)
		waitFinished(t, i.instance)
		s.checkBalance(t, i.gate, sku, 0)
	})
}

// mustReplay places an order again, which must have been placed before.
func mustReplay(t *testing.T, i *instance, r order.Request) order.Order {
	t.Helper()
	o, replayed, err := i.Place(t.Context(), r)
	if err != nil || !replayed {
		t.Fatalf("placed again: %+v (replayed %v, %v)", o, replayed, err)
	}
	return o
}

// TestQueuedTwinOfACommittedOrder: the key of an order that has left the journal queues
// nothing, and cuts nothing.
func TestQueuedTwinOfACommittedOrder(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases, func(t *testing.T, s *shop) {
		i := s.openQueueing(t, settings{noGuard: true})
		plain := s.open(t, settings{strategy: "lua", noGuard: true})
		sku := newSKU("twin")
		addStock(t, plain, sku, 2)
		first := mustPlace(t, plain, withKey(oneUnit(sku), "k"))
		s.waitSettled(t, plain.gate, sku)
		o, replayed, err := i.Place(t.Context(), withKey(oneUnit(sku), "k"))
		if err != nil || !replayed || !sameOrder(o, first) {
			t.Errorf("answered %+v, then %+v (replayed %v, %v)", first, o, replayed, err)
		}
		waitFinished(t, plain) // without a consumer
		s.checkBalance(t, plain.gate, sku, 1)
	})
}

// TestFastConsumer: a consumer commits a keyed order before its request looks the key up
// in the ledger. The request's own order is no twin: nothing is given back.
func TestFastConsumer(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases[:1], func(t *testing.T, s *shop) {
		i := s.openQueueing(t, settings{noGuard: true})
		sku := newSKU("fast")
		addStock(t, i.instance, sku, 2)
		reached, proceed := i.journal.queued.arm()
		defer proceed()
		i.journal.keep.Store(true)
		answer := place(t.Context(), i.instance, withKey(oneUnit(sku), "k"))
		wait(t, "the journal", reached)
		consume(t, i.instance)
		eventually(t, "the order is committed", func() bool { return s.ledgerCounts(t, sku).sold == 1 })
		proceed()
		if r := wait(t, "the answer", answer); r.err != nil || r.replayed || r.order.Status != order.Queued {
			t.Errorf("answered %+v", r)
		}
		i.journal.keep.Store(false)
		waitFinished(t, i.instance)
		s.checkBalance(t, i.gate, sku, 1)
	})
}

// TestLostQueueAnswer: the gate's answer to an order is lost. The order is not
// acknowledged, and its units are not given back: a consumer may commit it.
func TestLostQueueAnswer(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases[:1], func(t *testing.T, s *shop) {
		i := s.openQueueing(t, settings{noGuard: true})
		sku := newSKU("lost")
		addStock(t, i.instance, sku, 2)
		i.journal.lose.Store(true)
		mustRefuse(t, i.instance, oneUnit(sku), stock.ErrUnavailable)
		o, replayed, err := i.Place(t.Context(), withKey(oneUnit(sku), "k"))
		if err != nil || !replayed || o.Status != order.Queued { // the journal has it
			t.Errorf("answered %+v (replayed %v, %v)", o, replayed, err)
		}
		consume(t, i.instance)
		waitFinished(t, i.instance)
		s.checkBalance(t, i.gate, sku, 2)
	})
}

// TestCommittedBeforeARefill: a consumer commits an order and does not finish it. After
// a refill of one of its SKUs, another consumer finds the order's take stale. It does
// not give the units of the other SKU back.
func TestCommittedBeforeARefill(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases, func(t *testing.T, s *shop) {
		i := s.openQueueing(t, settings{noGuard: true})
		refilled, kept := newSKU("refilled"), newSKU("kept")
		addStock(t, i.instance, refilled, 5)
		addStock(t, i.instance, kept, 5)
		i.journal.keep.Store(true)
		stop := consume(t, i.instance)
		o := mustQueue(t, i.instance, request(stock.Line{SKU: refilled, Quantity: 1}, stock.Line{SKU: kept, Quantity: 1}))
		eventually(t, "the order is committed", func() bool { return s.ledgerCounts(t, kept).sold == 1 })
		stop()
		if err := s.redis.HDel(t.Context(), "holdfast:{"+s.ledgerID.String()+"}:count", string(refilled)).Err(); err != nil {
			t.Fatal(err)
		}
		sweep(t, i.instance)
		i.journal.keep.Store(false)
		i.journal.claimsAll.Store(true)
		next := s.open(t, settings{strategy: "lua", noGuard: true, change: func(built *strategy.Strategy) { built.Journal = i.journal }})
		consume(t, next)
		waitFinished(t, next)
		wantStatus(t, next, o.ID, order.Pending)
		s.checkBalance(t, next.gate, refilled, 1)
		s.checkBalance(t, next.gate, kept, 1)
	})
}

// TestSlowConsumer: a consumer pauses inside its transaction, or before it, and another
// one claims its order. The order is committed once, also if the stock was refilled
// meanwhile.
func TestSlowConsumer(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases[:2], func(t *testing.T, s *shop) {
		for _, refilled := range []bool{false, true} {
			slow := s.openQueueing(t, settings{noGuard: true})
			quick := s.openQueueing(t, settings{noGuard: true})
			sku := newSKU("slow")
			addStock(t, quick.instance, sku, 2)
			o := mustQueue(t, quick.instance, oneUnit(sku))
			reached, proceed := slow.cutter.before.arm()
			defer proceed()
			slow.journal.claimsNone.Store(true)
			quick.journal.claimsAll.Store(true)
			stopSlow := consume(t, slow.instance)
			wait(t, "the slow consumer", reached)
			if refilled {
				if err := s.redis.HDel(t.Context(), "holdfast:{"+s.ledgerID.String()+"}:count", string(sku)).Err(); err != nil {
					t.Fatal(err)
				}
			}
			stopQuick := consume(t, quick.instance)
			waitFor(t, quick.instance, o.ID, order.Pending)
			proceed()
			waitFinished(t, quick.instance)
			stopSlow()
			mustQueue(t, quick.instance, oneUnit(sku))
			waitFinished(t, quick.instance)
			stopQuick()
			mustRefuse(t, quick.instance, oneUnit(sku), stock.ErrSoldOut)
			s.checkBalance(t, quick.gate, sku, 2)
		}
	})
}

// TestQueuedLockedRow: another transaction holds a stock row. The queued orders of the SKU,
// many batches of them, delay no queued orders of other SKUs: those are committed while the
// row is locked. The others are committed once it is free.
func TestQueuedLockedRow(t *testing.T) {
	t.Parallel()
	eachDatabase(t, servers, func(t *testing.T, s *shop) {
		const before, others = 4000, 20
		i := s.openQueueing(t, settings{})
		locked, free := newSKU("locked"), newSKU("free")
		addStock(t, i.instance, locked, 2*before)
		addStock(t, i.instance, free, 2*before)
		var clients sync.WaitGroup
		for range 40 {
			clients.Go(func() {
				for range before / 40 {
					if _, _, err := i.Place(t.Context(), oneUnit(locked)); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		clients.Wait()
		mustQueue(t, i.instance, request(stock.Line{SKU: free, Quantity: 1}, stock.Line{SKU: locked, Quantity: 1}))
		for range others {
			mustQueue(t, i.instance, oneUnit(free))
		}
		unlock := s.lockStockRow(t, locked)
		defer unlock()
		consume(t, i.instance)
		eventually(t, "the orders of another SKU are committed", func() bool { return s.ledgerCounts(t, free).sold == others })
		if sold := s.ledgerCounts(t, locked).sold; sold != 0 {
			t.Errorf("%d units of the locked row are sold", sold)
		}
		unlock()
		waitFinished(t, i.instance)
		s.checkBalance(t, i.gate, locked, before+1)
		s.checkBalance(t, i.gate, free, others+1)
	})
}

// TestQueuedCommitInLimbo: the connection of a consumer breaks during its COMMIT. The
// order stays in the journal until the outcome is known, and is committed once.
func TestQueuedCommitInLimbo(t *testing.T) {
	t.Parallel()
	for _, d := range servers {
		t.Run(d.Name, func(t *testing.T) {
			t.Parallel()
			dbURL := testenv.Patient(t, d.URL(t))
			s := newShop(t, dbURL)
			w, wireURL := newWire(t, dbURL)
			i := s.openQueueing(t, settings{noGuard: true, db: openSQL(t, wireURL).Ledger})
			sku := newSKU("limbo")
			addStock(t, i.instance, sku, 1)
			fault := w.holdCommit()
			consume(t, i.instance)
			o := mustQueue(t, i.instance, oneUnit(sku))
			wait(t, "the COMMIT", fault.arrived)
			if levels, err := i.gate.Level(t.Context(), sku); err != nil || levels[0].Available != 0 {
				t.Errorf("%+v, %v", levels, err)
			}
			fault.deliver <- true
			wait(t, "the server", fault.done)
			waitFor(t, i.instance, o.ID, order.Pending)
			waitFinished(t, i.instance)
			mustRefuse(t, i.instance, oneUnit(sku), stock.ErrSoldOut)
			s.checkBalance(t, i.gate, sku, 1)
		})
	}
}

// TestStreamIsLost: Redis loses the stream of queued orders while a consumer works on one
// of them, and keeps the hash. The orders are delivered again, and each is committed once.
func TestStreamIsLost(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases[:2], func(t *testing.T, s *shop) {
		i := s.openQueueing(t, settings{noGuard: true})
		sku := newSKU("stream")
		addStock(t, i.instance, sku, 5)
		reached, proceed := i.cutter.before.arm()
		defer proceed()
		consume(t, i.instance)
		queued := []order.Order{mustQueue(t, i.instance, withKey(oneUnit(sku), "k"))}
		wait(t, "the consumer", reached)
		for range 2 {
			queued = append(queued, mustQueue(t, i.instance, oneUnit(sku)))
		}
		if err := s.redis.Del(t.Context(), "holdfast:{"+s.ledgerID.String()+"}:journal").Err(); err != nil {
			t.Fatal(err)
		}
		wantStatus(t, i.instance, queued[0].ID, order.Queued)
		proceed()
		for _, o := range queued {
			waitFor(t, i.instance, o.ID, order.Pending)
		}
		waitFinished(t, i.instance)
		if again := mustReplay(t, i.instance, withKey(oneUnit(sku), "k")); again.ID != queued[0].ID {
			t.Errorf("the key leads to %s, not to %s", again.ID, queued[0].ID)
		}
		waitFinished(t, i.instance)
		s.checkBalance(t, i.gate, sku, 3)
	})
}

// foreign are strategies of each kind that do not queue: without a gate, and with gates
// that have other keys, locks or a queue of their own.
var foreign = []string{"merged", "segment", "lock", "queue"}

// TestQueuedByAnotherStrategy: instances of another strategy show queued orders, and
// commit them without taking the stock from each other.
func TestQueuedByAnotherStrategy(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases, func(t *testing.T, s *shop) {
		for n, name := range foreign {
			if n > 0 && s.sql.Dialect() != "sqlite" && !testenv.Thorough() {
				break
			}
			i := s.openQueueing(t, settings{})
			sku := newSKU("other")
			addStock(t, i.instance, sku, 3)
			var queued []order.Order
			for _, key := range []string{"1", "2", "3"} {
				queued = append(queued, mustQueue(t, i.instance, withKey(oneUnit(sku), key+string(sku))))
			}
			next, peer := s.open(t, settings{strategy: name}), s.open(t, settings{strategy: name})
			for _, at := range []*instance{i.instance, next, peer} {
				o, err := at.Order(t.Context(), queued[0].ID)
				if err != nil || o.Status != order.Queued || o.Strategy != queued[0].Strategy {
					t.Errorf("%s shows %+v (%v)", at.strategy, o, err)
				}
				if _, err := at.Cancel(t.Context(), queued[0].ID); !errors.Is(err, order.ErrInProgress) {
					t.Errorf("cancelled at %s: %v", at.strategy, err)
				}
			}
			if again := mustReplay(t, peer, withKey(oneUnit(sku), "1"+string(sku))); !sameOrder(again, queued[0]) {
				t.Errorf("answered %+v, then %+v by %s", queued[0], again, peer.strategy)
			}
			if _, _, err := peer.Place(t.Context(), withKey(request(stock.Line{SKU: sku, Quantity: 2}), "1"+string(sku))); !errors.Is(err, order.ErrKeyReused) {
				t.Errorf("other lines under the key: %v", err)
			}
			mustPlace(t, peer, oneUnit(sku)) // before the queued orders take their units again
			before := peer.ledger.Generation()
			drain(t, next)
			states := make(map[order.Status]int)
			for n, o := range queued {
				found, err := peer.Order(t.Context(), o.ID)
				if err != nil || !sameLines(found.Lines, o.Lines) {
					t.Fatalf("%+v, %v", found, err)
				}
				states[found.Status]++
				if found.Status != order.Pending {
					continue
				}
				if again := mustReplay(t, peer, withKey(oneUnit(sku), string(rune('1'+n))+string(sku))); !sameOrder(again, o) || again.Strategy != o.Strategy {
					t.Errorf("answered %+v, then %+v", o, again)
				}
			}
			if states[order.Pending] != 2 || states[order.TurnedDown] != 1 {
				t.Errorf("%s: the orders ended as %v", name, states)
			}
			if owner, err := peer.ledger.Owner(t.Context()); err != nil || owner.Generation != before || peer.Usable(t.Context()) != nil {
				t.Errorf("%s: the stock changed hands: %+v, %v", name, owner, err)
			}
			s.waitSettled(t, peer.gate, sku)
			s.checkBalance(t, peer.gate, sku, 3)
			for _, instance := range []*instance{i.instance, next, peer} {
				instance.Close()
			}
		}
	})
}

// TestCommittedBeforeAChange: an order is committed by a consumer of the strategy that
// queued it, and finished by one of another strategy: the first did not finish it, or was
// in its transaction when the stock changed hands.
func TestCommittedBeforeAChange(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases[:2], func(t *testing.T, s *shop) {
		for _, inside := range []bool{false, true} {
			i := s.openQueueing(t, settings{noGuard: true})
			sku, kept := newSKU("both"), newSKU("kept")
			addStock(t, i.instance, sku, 2)
			addStock(t, i.instance, kept, 2)
			i.journal.keep.Store(true)
			reached, proceed := i.cutter.after.arm()
			if !inside {
				proceed()
			}
			stop := consume(t, i.instance)
			o := mustQueue(t, i.instance, request(stock.Line{SKU: sku, Quantity: 1}, stock.Line{SKU: kept, Quantity: 1}))
			if inside {
				wait(t, "the consumer", reached)
			} else {
				waitFor(t, i.instance, o.ID, order.Pending)
				stop()
			}
			next := s.open(t, settings{strategy: "segment", noGuard: true, change: func(built *strategy.Strategy) {
				built.Queued = &impatient{QueuedOrders: built.Queued}
			}})
			stopNext := consume(t, next)
			if inside {
				proceed()
			}
			waitFinished(t, i.instance)
			stop()
			stopNext()
			wantStatus(t, next, o.ID, order.Pending)
			for _, sku := range []stock.SKU{sku, kept} {
				mustPlace(t, next, oneUnit(sku))
				mustRefuse(t, next, oneUnit(sku), stock.ErrSoldOut)
				s.waitSettled(t, next.gate, sku)
				s.checkBalance(t, next.gate, sku, 2)
			}
			i.Close()
			next.Close()
		}
	})
}

// impatient claims orders that other consumers have had for the time idle. If it is 0,
// they have just got them.
type impatient struct {
	stock.QueuedOrders
	idle time.Duration
}

func (q *impatient) Claim(ctx context.Context, consumer string, limit int, _ time.Duration) ([]stock.Take, error) {
	return q.QueuedOrders.Claim(ctx, consumer, limit, q.idle)
}

// TestForeignConsumerDies: an instance of another strategy dies after it has taken the
// units of a queued order again. Recovery gives them back, and the order is placed.
func TestForeignConsumerDies(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases[:2], func(t *testing.T, s *shop) {
		i := s.openQueueing(t, settings{})
		sku := newSKU("dies")
		addStock(t, i.instance, sku, 2)
		o := mustQueue(t, i.instance, oneUnit(sku))
		next := s.open(t, settings{strategy: "segment", takeDeadline: immediateDeadline})
		addStock(t, next, sku, 3) // fills the gate
		if _, err := next.gate.Take(t.Context(), stock.Deduction{OrderID: o.ID, TakeID: uuid.New(), Buyer: o.Buyer, Lines: o.Lines, Queued: o.TakeID}); err != nil {
			t.Fatal(err)
		}
		if out := next.PlaceQueued(t.Context(), stock.Take{Deduction: stock.Deduction{OrderID: o.ID, TakeID: o.TakeID, Buyer: o.Buyer, Lines: o.Lines}, QueuedAt: o.CreatedAt}); !out.Refused() {
			t.Errorf("placed while another consumer has its units: %+v", out)
		}
		sweep(t, next)
		wantStatus(t, next, o.ID, order.Queued) // although its row is void
		drain(t, next)
		wantStatus(t, next, o.ID, order.Pending)
		s.waitSettled(t, next.gate, sku)
		s.checkBalance(t, next.gate, sku, 1)
	})
}

// frail is a journal that may stop answering.
type frail struct {
	stock.QueuedOrders
	away  atomic.Bool
	looks atomic.Int64 // calls of Backlog that were answered
}

func (q *frail) Backlog(ctx context.Context) (int64, time.Duration, error) {
	if q.away.Load() {
		return 0, 0, errLostAnswer
	}
	defer q.looks.Add(1)
	return q.QueuedOrders.Backlog(ctx)
}

func (q *frail) Queued(ctx context.Context, id uuid.UUID) (stock.Take, error) {
	if q.away.Load() {
		return stock.Take{}, errLostAnswer
	}
	return q.QueuedOrders.Queued(ctx, id)
}

// TestJournalAway: the Redis of a strategy without a gate stops answering. Orders with a
// key are placed without it once the instance knows that none is queued.
func TestJournalAway(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases[:1], func(t *testing.T, s *shop) {
		i := s.openQueueing(t, settings{})
		sku := newSKU("away")
		addStock(t, i.instance, sku, 2)
		o := mustQueue(t, i.instance, oneUnit(sku))
		var journal *frail
		next := s.open(t, settings{strategy: "merged", change: func(built *strategy.Strategy) {
			journal = &frail{QueuedOrders: built.Queued}
			built.Queued = journal
		}})
		keyed := withKey(oneUnit(sku), string(sku))
		journal.away.Store(true)
		mustRefuse(t, next, keyed, stock.ErrUnavailable)
		journal.away.Store(false)
		drain(t, next)
		wantStatus(t, next, o.ID, order.Pending)
		before := journal.looks.Load()
		consume(t, next)
		eventually(t, "the consumer sees the journal", func() bool { return journal.looks.Load() > before })
		journal.away.Store(true)
		eventually(t, "the key is placed", func() bool {
			_, replayed, err := next.Place(t.Context(), keyed)
			return err == nil && !replayed
		})
		s.checkBalance(t, nil, sku, 2)
	})
}

// TestKeyPassesAQueuedOrder: a queued order is void, and a retry of its key reaches an
// instance that cannot see the journal. The key moves on to another order, and the queued
// order ends as refused: a key has one live order.
func TestKeyPassesAQueuedOrder(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases[:2], func(t *testing.T, s *shop) {
		i := s.openQueueing(t, settings{})
		sku := newSKU("passes")
		addStock(t, i.instance, sku, 3)
		keyed := withKey(oneUnit(sku), string(sku))
		o := mustQueue(t, i.instance, keyed)
		next := s.open(t, settings{strategy: "merged"})
		blind := s.open(t, settings{strategy: "merged", change: func(built *strategy.Strategy) { built.Queued = nil }})
		lost := stock.Deduction{OrderID: o.ID, TakeID: uuid.New(), Buyer: o.Buyer, Lines: o.Lines}
		if out := blind.ledger.Resolve(t.Context(), lost); !out.Refused() {
			t.Fatal(out)
		}
		first := mustPlace(t, blind, keyed)
		for _, drained := range []bool{false, true} {
			if drained {
				drain(t, next)
				wantStatus(t, next, o.ID, order.TurnedDown)
			}
			for _, at := range []*instance{next, blind} {
				if again := mustReplay(t, at, keyed); !sameOrder(again, first) {
					t.Errorf("drained %v: answered %+v, then %+v", drained, first, again)
				}
			}
		}
		s.checkBalance(t, nil, sku, 1)
	})
}

// TestTwoForeignConsumers: two instances of another strategy place the same order. One
// pauses inside its transaction, or before it. The order is committed once.
func TestTwoForeignConsumers(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases[1:2], func(t *testing.T, s *shop) {
		for _, name := range []string{"merged", "optimistic"} {
			i := s.openQueueing(t, settings{})
			sku := newSKU("twice")
			addStock(t, i.instance, sku, 3)
			o := mustQueue(t, i.instance, oneUnit(sku))
			hooked := new(hookedCutter)
			slow := s.open(t, settings{strategy: name, change: func(built *strategy.Strategy) { built.Cutter = hooked.over(built.Cutter) }})
			quick := s.open(t, settings{strategy: name, change: func(built *strategy.Strategy) { built.Queued = &impatient{QueuedOrders: built.Queued} }})
			reached, proceed := hooked.before.arm()
			defer proceed()
			stopSlow := consume(t, slow)
			wait(t, "the slow consumer", reached)
			stopQuick := consume(t, quick)
			waitFor(t, quick, o.ID, order.Pending)
			proceed()
			waitFinished(t, i.instance)
			stopSlow()
			stopQuick()
			s.checkBalance(t, nil, sku, 1)
			for _, instance := range []*instance{i.instance, slow, quick} {
				instance.Close()
			}
		}
	})
}

// TestRejectedQueuedOrder: the database refuses the lines of a queued order for what they
// are. The order ends as refused, under its own strategy and under another one, and its
// units are for sale again.
func TestRejectedQueuedOrder(t *testing.T) {
	t.Parallel()
	for _, d := range servers {
		t.Run(d.Name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, d)
			through := func() *sqltx.DB { return r.db }
			for _, other := range []string{"", "merged", "segment"} {
				i := r.openQueueing(t, settings{db: through})
				sku := newSKU("rejected")
				addStock(t, i.instance, sku, 1)
				o := mustQueue(t, i.instance, withKey(oneUnit(sku), string(sku)))
				consumer := i.instance
				if other != "" {
					consumer = r.open(t, settings{strategy: other, db: through})
				}
				r.sqlFault.Arm(faults.Fault{Kind: faults.BadValue, Nth: 1, Times: 1000, Only: "INSERT INTO order_lines"})
				drain(t, consumer)
				if _, injected := r.sqlFault.Disarm(); len(injected) == 0 {
					t.Error("the database refused nothing")
				}
				wantStatus(t, consumer, o.ID, order.TurnedDown)
				mustPlace(t, consumer, oneUnit(sku))
				i.Close()
				if other != "" {
					consumer.Close()
				}
			}
		})
	}
}

// TestRefusalMeetsAVoidOrder: the row of a refused order is inserted, the ID is a
// duplicate, and the row that has it is void. The order was acknowledged: it ends as
// refused, and does not vanish. The fault stands for a void order that is committed after
// the DELETE that would have removed it.
func TestRefusalMeetsAVoidOrder(t *testing.T) {
	t.Parallel()
	for _, d := range databases {
		t.Run(d.Name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, d)
			i := r.openQueueing(t, settings{db: func() *sqltx.DB { return r.db }})
			sku := newSKU("duplicate")
			addStock(t, i.instance, sku, 1)
			o := mustQueue(t, i.instance, withKey(oneUnit(sku), string(sku)))
			twin := stock.Deduction{OrderID: o.ID, TakeID: uuid.New(), Buyer: o.Buyer, Lines: o.Lines}
			if out := i.ledger.Resolve(t.Context(), twin); !out.Refused() {
				t.Fatal(out)
			}
			if err := i.ledger.Pass(t.Context(), o.ID); err != nil {
				t.Fatal(err)
			}
			r.sqlFault.Arm(faults.Fault{Kind: faults.Duplicate, Nth: 1, Only: "DELETE FROM orders"})
			drain(t, i.instance)
			if _, injected := r.sqlFault.Disarm(); len(injected) != 1 {
				t.Errorf("injected %q", injected)
			}
			wantStatus(t, i.instance, o.ID, order.TurnedDown)
			r.checkBalance(t, i.gate, sku, 0)
		})
	}
}
