package protocol

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/assembly"
	"github.com/holdfast-stock/holdfast/internal/async"
	"github.com/holdfast-stock/holdfast/internal/faults"
	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	redislock "github.com/holdfast-stock/holdfast/internal/lock/redis"
	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/reconcile"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// hookedJournal is a journal with a hook after an order was queued. It can keep its orders, or claim
// them early.
type hookedJournal struct {
	async.Journal
	queued    hook
	keep      atomic.Bool // finished orders stay in the journal
	claimsAll atomic.Bool // also claims orders that other consumers have just got
	lose      atomic.Bool // loses the answer to an order that was queued
}

func (j *hookedJournal) Claim(ctx context.Context, consumer string, limit int, idle time.Duration) ([]stock.Take, error) {
	if j.claimsAll.Load() {
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

// queues is the strategy that queues orders.
var queues = assembly.Queueing().Name

// queueing is an instance that queues orders, with hooks in its journal and its cutter.
type queueing struct {
	*instance
	journal *hookedJournal
	cutter  *hookedCutter
}

func (s *shop) openQueueing(t *testing.T, set settings) queueing {
	t.Helper()
	var q queueing
	set.strategy, set.idle = queues, true
	set.change = func(built *assembly.Strategy) {
		q.journal = &hookedJournal{Journal: built.Journal}
		built.Journal = q.journal
		q.cutter = new(hookedCutter)
		built.Cutter = q.cutter.over(built.Cutter)
	}
	q.instance = s.open(t, set)
	return q
}

// drain commits all queued orders.
func drain(t *testing.T, i *instance) {
	t.Helper()
	stop := testenv.Background(t, i.consumer.Run)
	waitFinished(t, i)
	stop()
}

// draining gives an instance a layout under which no other instance sells.
func draining(built *assembly.Strategy) { built.Layout += ", draining" }

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
	testenv.Await(t, "the order is "+string(want), func() bool {
		o, err := i.Order(t.Context(), id)
		return err == nil && o.Status == want
	})
}

// waitFinished waits until the journal is empty.
func waitFinished(t *testing.T, i *instance) {
	t.Helper()
	testenv.Await(t, "the journal is empty", func() bool {
		length, _, err := i.journal.Backlog(t.Context())
		return err == nil && length == 0
	})
}

// TestQueuedOrder checks that an order is answered before its commit, and that every instance knows
// its state. Recovery must not touch it, and it must not be paid or cancelled before it is
// committed.
func TestQueuedOrder(t *testing.T) {
	t.Parallel()
	eachDatabase(t, withServer(0), func(t *testing.T, s *shop) {
		i := s.openQueueing(t, settings{takeDeadline: immediateDeadline, paymentWindow: time.Hour})
		other := s.open(t, settings{idle: true, strategy: queues, takeDeadline: immediateDeadline, paymentWindow: time.Hour})
		sku := newSKU("queued")
		addStock(t, other, sku, 5)
		reached, proceed := i.cutter.before.arm()
		defer proceed()
		testenv.Background(t, i.consumer.Run)
		first := mustQueue(t, i.instance, withKey(oneUnit(sku), "k"))
		testenv.Receive(t, "the consumer", reached)

		for _, at := range []*instance{i.instance, other} {
			sweep(t, at)
			if levels, err := at.counter.Level(t.Context(), sku); err != nil || levels[0].InFlight != 1 || levels[0].Available != 4 {
				t.Errorf("after a sweep the gate has %+v, %v", levels, err)
			}
			wantStatus(t, at, first.ID, order.Queued)
			if _, err := at.Pay(t.Context(), first.ID, "p-"+string(sku)); !errors.Is(err, order.ErrInProgress) {
				t.Errorf("paid: %v", err)
			}
			if _, err := at.Cancel(t.Context(), first.ID, ""); !errors.Is(err, order.ErrInProgress) {
				t.Errorf("cancelled: %v", err)
			}
		}
		replayed := func() {
			t.Helper()
			if o := mustReplay(t, i.instance, withKey(oneUnit(sku), "k")); !sameOrder(o, first) {
				t.Errorf("answered %+v, then %+v", first, o)
			}
			if _, _, err := i.Place(t.Context(), withKey(request(stock.Line{SKU: sku, Quantity: 2}), "k")); !errors.Is(err, order.ErrKeyReused) {
				t.Errorf("other lines under the key: %v", err)
			}
		}
		replayed()
		elsewhere := newSKU("elsewhere")
		addStock(t, other, elsewhere, 5)
		reused := func() {
			t.Helper()
			if _, _, err := other.Place(t.Context(), withKey(oneUnit(elsewhere), "k")); !errors.Is(err, order.ErrKeyReused) {
				t.Errorf("the key for another SKU: %v", err)
			}
		}
		reused()
		proceed()
		waitFor(t, other, first.ID, order.Pending)
		reused()
		s.checkBalance(t, other.counter, elsewhere, 0)
		replayed()
		waitFinished(t, other)
		replayed()
		waitFinished(t, other)
		o, err := other.Order(t.Context(), first.ID)
		if err != nil || !o.CreatedAt.Equal(first.CreatedAt) || o.ExpiresAt.Sub(o.QueuedUntil) != time.Hour || len(o.History) != 2 || o.History[0].Status != order.Queued {
			t.Errorf("%+v, %v", o, err)
		}
		if o := mustReplay(t, other, withKey(oneUnit(sku), "k")); !sameOrder(o, first) {
			t.Errorf("another instance replays %+v", o)
		}
		s.checkSettled(t, other, sku, 1)
	})
}

// TestQueuedOrderTakesAgain checks that queued orders take their units again under the new epoch
// after a refill. Orders that find no units must be refused, and their keys may be used again.
func TestQueuedOrderTakesAgain(t *testing.T) {
	t.Parallel()
	eachDatabase(t, outside, func(t *testing.T, s *shop) {
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
			// Redis loses the count, and an administrator removes one of the units.
			loseCount("")(t, s, i.instance, sku)
			plain := s.open(t, settings{idle: true, strategy: queues, noGuard: noGuard})
			addStock(t, plain, sku, 2)
			drain(t, i.instance)
			states := make(map[order.Status]int)
			for _, o := range queued {
				found, err := plain.Order(t.Context(), o.ID)
				if err != nil || !slices.Equal(found.Lines, o.Lines) {
					t.Fatalf("%+v, %v", found, err)
				}
				states[found.Status]++
			}
			if states[order.Pending] != 2 || states[order.TurnedDown] != 1 {
				t.Errorf("the orders ended as %v", states)
			}
			s.checkSettled(t, plain, sku, 2)
			s.checkBalance(t, plain.counter, kept, 2)
			addStock(t, plain, sku, 3)
			for n, o := range queued {
				found, err := plain.Order(t.Context(), o.ID)
				if err != nil || found.Status != order.TurnedDown {
					continue
				}
				if again := mustQueue(t, i.instance, withKey(both, string(rune('1'+n))+string(sku))); again.ID == o.ID {
					t.Errorf("the key of the refused order %s leads to it", o.ID)
				}
			}
			drain(t, i.instance)
			s.checkBalance(t, plain.counter, sku, 3)
			s.checkBalance(t, plain.counter, kept, 3)
		}
	})
}

// TestQueuedOrderIsRefused queues an order for a unit that the gate has, but not the ledger. The order
// must end as refused, and the gate must be refilled. The units must be given back only once: a
// second time burns the take, and burned takes make all others slower.
func TestQueuedOrderIsRefused(t *testing.T) {
	t.Parallel()
	eachDatabase(t, outside, func(t *testing.T, s *shop) {
		i := s.openQueueing(t, settings{})
		sku := newSKU("refused")
		addStock(t, i.instance, sku, 1)
		s.exec(t, "UPDATE stock SET total = 0, available = 0 WHERE sku = ?", string(sku))
		o := mustQueue(t, i.instance, oneUnit(sku))
		drain(t, i.instance)
		wantStatus(t, i.instance, o.ID, order.TurnedDown)
		s.checkBalance(t, i.counter, sku, 0)
		if burned, err := s.redis.Exists(t.Context(), s.key("burned")).Result(); err != nil || burned != 0 {
			t.Errorf("takes are burned: %d, %v", burned, err)
		}
	})
}

// TestQueuedOrderTakesAgain_Undelivered checks that a queued order is not refused for lack of units
// that were added, but have not reached the gate.
func TestQueuedOrderTakesAgain_Undelivered(t *testing.T) {
	t.Parallel()
	eachDatabase(t, outside, func(t *testing.T, s *shop) {
		i := s.openQueueing(t, settings{})
		sku := newSKU("again")
		addStock(t, i.instance, sku, 1)
		queued := mustQueue(t, i.instance, oneUnit(sku))
		if err := s.redis.HDel(t.Context(), s.key("count"), string(sku)).Err(); err != nil {
			t.Fatal(err)
		}
		bad := &badSKU{all: true}
		other := s.open(t, settings{idle: true, strategy: queues, around: bad.around})
		addStock(t, other, sku, 0) // refills, and removes the unit
		addStock(t, other, sku, 1) // is not delivered
		drain(t, i.instance)
		if found, err := i.Order(t.Context(), queued.ID); err != nil || found.Status != order.Pending {
			t.Errorf("the order is %s, %v", found.Status, err)
		}
		s.waitSettled(t, i.instance, sku)
		s.checkBalance(t, i.counter, sku, 1)
	})
}

// voided resolves a take with the order's ID. An instance of another strategy may do that before it
// notices that the stock belongs to another layout.
func voided(t *testing.T, i *instance, o order.Order) {
	t.Helper()
	late := stock.Deduction{OrderID: o.ID, TakeID: uuid.New(), Buyer: o.Buyer, Lines: o.Lines}
	if out := i.ledger.Resolve(t.Context(), late); !out.Refused() {
		t.Fatal(out)
	}
}

// TestQueuedOrderIsVoid records a void order under the ID of a queued order. The queued order was
// acknowledged, so requests must still find it until it ends as refused. Its key must then lead to
// another order.
func TestQueuedOrderIsVoid(t *testing.T) {
	t.Parallel()
	eachDatabase(t, outside, func(t *testing.T, s *shop) {
		i := s.openQueueing(t, settings{noGuard: true})
		sku := newSKU("void")
		addStock(t, i.instance, sku, 1)
		keyed := withKey(oneUnit(sku), string(sku))
		o := mustQueue(t, i.instance, keyed)
		voided(t, i.instance, o)
		wantStatus(t, i.instance, o.ID, order.Queued)
		if again := mustReplay(t, i.instance, keyed); again.ID != o.ID || again.Status != order.Queued {
			t.Errorf("the key is answered with %+v, want the queued order %s", again, o.ID)
		}
		drain(t, i.instance)
		wantStatus(t, i.instance, o.ID, order.TurnedDown)
		if found, err := i.Order(t.Context(), o.ID); err != nil || !slices.Equal(found.Lines, o.Lines) || len(found.History) != 2 {
			t.Errorf("the order is %+v, %v", found, err)
		}
		if next := mustQueue(t, i.instance, keyed); next.ID == o.ID {
			t.Errorf("the key leads to the refused order %s", next.ID)
		}
		drain(t, i.instance)
		s.checkSettled(t, i.instance, sku, 1)
	})
}

// TestQueuedBehindAVoidOrder queues a keyed order while its ID has a void order. Another request of
// the key is answered with it before the first one is. The first request must get the key's next
// order. The acknowledged order must end as refused, and not vanish.
func TestQueuedBehindAVoidOrder(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases[2:], func(t *testing.T, s *shop) {
		i := s.openQueueing(t, settings{takeDeadline: immediateDeadline, noGuard: true})
		sku := newSKU("twice")
		addStock(t, i.instance, sku, 1) // the key's next order needs the units of the refused one
		keyed := withKey(oneUnit(sku), string(sku))
		lost := mustQueue(t, i.instance, keyed)
		if err := s.redis.Del(t.Context(), s.key("queued"), s.key("journal")).Err(); err != nil {
			t.Fatal(err)
		}
		sweep(t, i.instance)
		wantStatus(t, i.instance, lost.ID, order.Void)
		first, proceed := haltPlace(t, &i.journal.queued, i.instance, keyed)
		again := mustReplay(t, i.instance, keyed)
		proceed()
		r := testenv.Receive(t, "the answer", first)
		if r.err != nil || r.replayed || r.order.ID == again.ID || again.ID != lost.ID {
			t.Errorf("answered %+v, and meanwhile %+v", r, again)
		}
		drain(t, i.instance)
		wantStatus(t, i.instance, again.ID, order.TurnedDown)
		wantStatus(t, i.instance, r.order.ID, order.Pending)
		s.checkSettled(t, i.instance, sku, 1)
	})
}

// TestQueuedTwinOfALiveOrder uses a key whose first ID is void, and whose live order has the second
// one. Two requests repeat the key at once, and the first of them briefly queues an order under the
// first ID. Both must get the live order.
func TestQueuedTwinOfALiveOrder(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases[2:], func(t *testing.T, s *shop) {
		lua := s.open(t, settings{strategy: "lua", noGuard: true})
		sku := newSKU("live")
		addStock(t, lua, sku, 2)
		keyed := withKey(oneUnit(sku), string(sku))
		probe := mustPlace(t, lua, keyed) // shows the key's first ID
		s.exec(t, "UPDATE orders SET status = 'void' WHERE id = ?", s.sql.Dialect().UUID(probe.ID))
		s.exec(t, "UPDATE stock SET available = available + 1 WHERE sku = ?", string(sku))
		s.waitSettled(t, lua, sku)
		live := mustPlace(t, lua, keyed)
		s.waitSettled(t, lua, sku)
		i := s.openQueueing(t, settings{noGuard: true})
		first, proceed := haltPlace(t, &i.journal.queued, i.instance, keyed)
		if again := mustReplay(t, i.instance, keyed); !sameOrder(again, live) {
			t.Errorf("the key was answered with %+v, then with %+v", live, again)
		}
		proceed()
		if r := testenv.Receive(t, "the answer", first); r.err != nil || !sameOrder(r.order, live) {
			t.Errorf("answered %+v, want %s", r, live.ID)
		}
	})
}

// TestQueueIsLost checks that recovery returns the units of queued orders after Redis has lost
// their hash. The orders are lost.
func TestQueueIsLost(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases[:1], func(t *testing.T, s *shop) {
		i := s.openQueueing(t, settings{takeDeadline: immediateDeadline})
		sku := newSKU("forgotten")
		addStock(t, i.instance, sku, 2)
		o := mustQueue(t, i.instance, oneUnit(sku))
		if err := s.redis.Del(t.Context(), s.key("queued")).Err(); err != nil {
			t.Fatal(err)
		}
		sweep(t, i.instance)
		s.checkBalance(t, i.counter, sku, 0)
		wantStatus(t, i.instance, o.ID, order.Void) // the void order is never shown
		testenv.Background(t, i.consumer.Run)
		waitFinished(t, i.instance)
		s.checkBalance(t, i.counter, sku, 0)
	})
}

// mustReplay repeats the request for an order, which must have been placed before.
func mustReplay(t *testing.T, i *instance, r order.Request) order.Order {
	t.Helper()
	o, replayed, err := i.Place(t.Context(), r)
	if err != nil || !replayed {
		t.Fatalf("placed again: %+v (replayed %v, %v)", o, replayed, err)
	}
	return o
}

// TestQueuedTwinOfACommittedOrder checks that a repeat of an order that has left the journal queues
// nothing, and cuts nothing.
func TestQueuedTwinOfACommittedOrder(t *testing.T) {
	t.Parallel()
	eachDatabase(t, outside, func(t *testing.T, s *shop) {
		plain := s.open(t, settings{strategy: "lua", noGuard: true})
		sku := newSKU("twin")
		addStock(t, plain, sku, 2)
		first := mustPlace(t, plain, withKey(oneUnit(sku), "k"))
		s.waitSettled(t, plain, sku)
		i := s.openQueueing(t, settings{noGuard: true})
		if o := mustReplay(t, i.instance, withKey(oneUnit(sku), "k")); !sameOrder(o, first) {
			t.Errorf("answered %+v, then %+v", first, o)
		}
		waitFinished(t, i.instance) // without a consumer
		s.checkBalance(t, i.counter, sku, 1)
	})
}

// TestFastConsumer lets a consumer commit a keyed order before its request looks the key up in the
// ledger. The request must recognise its own order, and give nothing back.
func TestFastConsumer(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases[:1], func(t *testing.T, s *shop) {
		i := s.openQueueing(t, settings{noGuard: true})
		sku := newSKU("fast")
		addStock(t, i.instance, sku, 2)
		i.journal.keep.Store(true)
		answer, proceed := haltPlace(t, &i.journal.queued, i.instance, withKey(oneUnit(sku), "k"))
		testenv.Background(t, i.consumer.Run)
		testenv.Await(t, "the order is committed", func() bool { return s.ledgerCounts(t, sku).sold == 1 })
		proceed()
		if r := testenv.Receive(t, "the answer", answer); r.err != nil || r.replayed || r.order.Status != order.Queued {
			t.Errorf("answered %+v", r)
		}
		i.journal.keep.Store(false)
		waitFinished(t, i.instance)
		s.checkBalance(t, i.counter, sku, 1)
	})
}

// TestLostQueueAnswer loses the gate's answer to an order. The order must not be acknowledged, and
// its units must not be given back, because a consumer may commit it.
func TestLostQueueAnswer(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases[:1], func(t *testing.T, s *shop) {
		i := s.openQueueing(t, settings{noGuard: true})
		sku := newSKU("lost")
		addStock(t, i.instance, sku, 2)
		i.journal.lose.Store(true)
		mustRefuse(t, i.instance, oneUnit(sku), stock.ErrUnavailable)
		if o := mustReplay(t, i.instance, withKey(oneUnit(sku), "k")); o.Status != order.Queued { // the journal has the order
			t.Errorf("answered %+v", o)
		}
		testenv.Background(t, i.consumer.Run)
		waitFinished(t, i.instance)
		s.checkBalance(t, i.counter, sku, 2)
	})
}

// TestCommittedBeforeARefill lets a consumer commit an order and not finish it. After a refill of
// one of its SKUs, another consumer finds the order's take stale. It must not give back the units
// of the other SKU.
func TestCommittedBeforeARefill(t *testing.T) {
	t.Parallel()
	eachDatabase(t, oneOf(databases, 0), func(t *testing.T, s *shop) {
		i := s.openQueueing(t, settings{noGuard: true})
		refilled, kept := newSKU("refilled"), newSKU("kept")
		addStock(t, i.instance, refilled, 5)
		addStock(t, i.instance, kept, 5)
		i.journal.keep.Store(true)
		stop := testenv.Background(t, i.consumer.Run)
		o := mustQueue(t, i.instance, request(stock.Line{SKU: refilled, Quantity: 1}, stock.Line{SKU: kept, Quantity: 1}))
		testenv.Await(t, "the order is committed", func() bool { return s.ledgerCounts(t, kept).sold == 1 })
		stop()
		loseCount("")(t, s, i.instance, refilled)
		sweep(t, i.instance)
		i.journal.keep.Store(false)
		i.journal.claimsAll.Store(true)
		next := s.open(t, settings{idle: true, strategy: queues, noGuard: true, change: func(built *assembly.Strategy) { built.Journal = i.journal }})
		testenv.Background(t, next.consumer.Run)
		waitFinished(t, next)
		wantStatus(t, next, o.ID, order.Pending)
		s.checkBalance(t, next.counter, refilled, 1)
		s.checkBalance(t, next.counter, kept, 1)
	})
}

// TestNoOtherStrategy checks that no other strategy takes over the stock while orders may be
// queued. That includes strategies without a gate, and the time during a drain. After the drain
// another strategy must take over, and show the orders.
func TestNoOtherStrategy(t *testing.T) {
	t.Parallel()
	eachDatabase(t, outside, func(t *testing.T, s *shop) {
		i := s.openQueueing(t, settings{})
		sku := newSKU("held")
		addStock(t, i.instance, sku, 5)
		keyed := withKey(oneUnit(sku), "k")
		o := mustQueue(t, i.instance, keyed)
		refused := func() {
			t.Helper()
			for _, name := range []string{"lua", "merged"} {
				next, err := s.build(s.sql.Ledger(), s.redis, redislock.Options{}, settings{strategy: name, takeDeadline: time.Minute})
				if err != nil {
					t.Fatal(err)
				}
				if err := patiently(func() error { return next.start(t.Context()) }); !errors.Is(err, reconcile.ErrQueuedOrders) {
					t.Errorf("%s took over the stock: %v", name, err)
				}
				next.Close()
			}
		}
		refused()
		d := s.open(t, settings{idle: true, strategy: queues, change: draining})
		refused()
		drain(t, d)
		refused()
		if err := d.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := d.Release(t.Context()); err != nil {
			t.Errorf("released twice: %v", err)
		}
		for _, name := range []string{"lua", "merged"} {
			next := s.open(t, settings{strategy: name})
			wantStatus(t, next, o.ID, order.Pending)
			if again := mustReplay(t, next, keyed); !sameOrder(again, o) {
				t.Errorf("answered %+v, then %+v by %s", o, again, name)
			}
		}
		if err := d.Release(t.Context()); !errors.Is(err, stock.ErrRowChanged) {
			t.Errorf("released what another strategy has taken over: %v", err)
		}
		s.checkBalance(t, nil, sku, 1)
	})
}

// TestQueueAfterADrain uses an instance that does not know yet that its orders are drained. It must
// not queue anything from then on, even if the gate has its counts, or if it writes its own mark
// again.
func TestQueueAfterADrain(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases[:1], func(t *testing.T, s *shop) {
		i := s.openQueueing(t, settings{})
		sku, untouched := newSKU("late"), newSKU("untouched")
		addStock(t, i.instance, sku, 5)
		addStock(t, i.instance, untouched, 5)
		mustQueue(t, i.instance, oneUnit(untouched)) // fills the gate
		drain(t, i.instance)
		mustQueue(t, i.instance, oneUnit(sku))
		mark, err := i.counter.Mark(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		d := s.open(t, settings{idle: true, strategy: queues, change: draining})
		cannot := func() {
			t.Helper()
			d := stock.Deduction{OrderID: uuid.New(), TakeID: uuid.New(), Buyer: "b", Lines: oneUnit(untouched).Lines}
			if _, err := i.journal.Queue(t.Context(), d, time.Now()); !errors.Is(err, stock.ErrBusy) {
				t.Errorf("queued after the drain had begun: %v", err)
			}
		}
		cannot()
		drain(t, d)
		if err := errors.Join(i.counter.SetMark(t.Context(), mark), d.Release(t.Context())); err != nil {
			t.Fatal(err)
		}
		cannot()
		next := s.open(t, settings{strategy: "merged"})
		cannot()
		waitFinished(t, d)
		mustPlace(t, next, oneUnit(sku))
		s.checkBalance(t, nil, sku, 2)
	})
}

// TestRefusalMeetsAVoidOrder inserts the row of a refused order while its ID belongs to a void row.
// The order was acknowledged, so it must end as refused, and not vanish. The fault stands for a
// void order that is committed after the DELETE that would have removed it.
func TestRefusalMeetsAVoidOrder(t *testing.T) {
	t.Parallel()
	for _, d := range withServer(0) {
		t.Run(d.Name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, d)
			i := r.openQueueing(t, settings{db: func() *sqltx.DB { return r.db }})
			sku := newSKU("duplicate")
			addStock(t, i.instance, sku, 1)
			o := mustQueue(t, i.instance, withKey(oneUnit(sku), string(sku)))
			voided(t, i.instance, o)
			r.sqlFault.Arm(faults.Fault{Kind: faults.Duplicate, Nth: 1, Only: "DELETE FROM orders"})
			drain(t, i.instance)
			if _, injected := r.sqlFault.Disarm(); len(injected) != 1 {
				t.Errorf("injected %q", injected)
			}
			wantStatus(t, i.instance, o.ID, order.TurnedDown)
			r.checkBalance(t, i.counter, sku, 0)
		})
	}
}
