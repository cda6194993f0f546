package order

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/store"
)

// gather places orders so that they wait together for the next group: the one
// that runs is held before its cut until all are queued.
func gather(t *testing.T, i hooked, rs []Request) []reply {
	t.Helper()
	sku := fresh("holder")
	lay(t, i.instance, sku, 1)
	reached, proceed := i.cutter.before.arm()
	defer proceed()
	holder := place(t.Context(), i.instance, ask(sku))
	wait(t, "a transaction that holds the others up", reached)
	heard := make([]<-chan reply, len(rs))
	for n, r := range rs {
		heard[n] = place(t.Context(), i.instance, r)
		eventually(t, "the order is queued", func() bool { return i.ledger.records.Waiting() == n+1 })
	}
	proceed()
	replies := make([]reply, len(rs))
	for n := range heard {
		replies[n] = wait(t, "an answer", heard[n])
	}
	if r := wait(t, "the holder's answer", holder); r.err != nil {
		t.Error(r.err)
	}
	return replies
}

// TestGroup: of a group every order that still fits whole is cut, in the order
// of arrival, and each caller hears of his own.
func TestGroup(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases, func(t *testing.T, s *shop) {
		i := s.openHooked(t, settings{strategy: "merged"})
		scarce, other := fresh("scarce"), fresh("other")
		lay(t, i.instance, scarce, 3)
		lay(t, i.instance, other, 5)
		units := func(n int64) Request { return asking(stock.Line{SKU: scarce, Quantity: n}) }
		replies := gather(t, i, []Request{
			units(5), units(1), ask(fresh("nowhere")), units(1).keyed("a"), units(1).keyed("a"),
			asking(stock.Line{SKU: scarce, Quantity: 1}, stock.Line{SKU: other, Quantity: 1}), units(1), ask(other),
		})
		for n, want := range []error{stock.ErrSoldOut, nil, stock.ErrUnknownSKU, nil, nil, nil, stock.ErrSoldOut, nil} {
			if !errors.Is(replies[n].err, want) {
				t.Errorf("order %d heard %v, want %v", n+1, replies[n].err, want)
			}
		}
		if a, b := replies[3], replies[4]; a.order.ID != b.order.ID || a.replayed == b.replayed {
			t.Errorf("twins in one group: %+v and %+v", a, b)
		}
		s.atRest(t, nil, scarce, 3)
		s.atRest(t, nil, other, 2)
	})
}

// TestPlannedGroup: of a cut that was planned for several SKUs nothing is
// committed unless all of it was taken, and then the orders are decided one by
// one.
func TestPlannedGroup(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases, func(t *testing.T, s *shop) {
		i := s.open(t, settings{strategy: "merged"})
		scarce, plenty := fresh("scarce"), fresh("plenty")
		lay(t, i, scarce, 1)
		lay(t, i, plenty, 5)
		var rs []*recording
		for _, sku := range []stock.SKU{scarce, scarce, plenty} {
			d := stock.Deduction{OrderID: uuid.New(), TakeID: uuid.New(), Buyer: "buyer-1", Lines: ask(sku).Lines}
			rs = append(rs, newRecording(entry{takeID: d.TakeID, Order: Order{
				ID: d.OrderID, Buyer: d.Buyer, Status: Pending, Lines: d.Lines, Strategy: "merged", CreatedAt: now(),
			}}, d))
		}
		i.ledger.record(slices.Clone(rs), new(lane))
		for n, want := range []error{nil, stock.ErrSoldOut, nil} {
			if o := rs[n].outcome; !errors.Is(o.err, want) || (o.kind == committed) != (want == nil) {
				t.Errorf("order %d: outcome %+v, want %v", n+1, o, want)
			}
		}
		s.atRest(t, nil, scarce, 1)
		s.atRest(t, nil, plenty, 1)
	})
}

// TestExpiryIsKept: of orders written together some expire and some do not.
func TestExpiryIsKept(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases, func(t *testing.T, s *shop) {
		written := make([]entry, 3)
		ids := make([]uuid.UUID, len(written))
		for n := range written {
			ids[n] = uuid.New()
			written[n] = entry{takeID: uuid.New(), Order: Order{
				ID: ids[n], Buyer: "buyer-1", Status: Pending, Lines: ask(fresh("expiring")).Lines, Strategy: "lua", CreatedAt: now(),
			}}
		}
		written[1].ExpiresAt = now().Add(15 * time.Minute)
		if err := insert(t.Context(), s.sql.DB(), written); err != nil {
			t.Fatal(err)
		}
		found, err := entries(s.sql.DB(), ids)
		if err != nil {
			t.Fatal(err)
		}
		for n, want := range written {
			if got := found[ids[n]]; got == nil || got.takeID != want.takeID || !sameOrder(got.Order, want.Order) {
				t.Errorf("wrote %+v, found %+v", want, got)
			}
		}
	})
}

// TestPoisonedGroup: an order that the database refuses for a reason of its
// own does not fail its neighbours.
func TestPoisonedGroup(t *testing.T) {
	t.Parallel()
	poison := map[string][]string{
		"mysql": {`CREATE TRIGGER poison BEFORE INSERT ON orders FOR EACH ROW
			IF NEW.buyer_id = 'poison' THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'poisoned'; END IF`},
		"postgres": {`CREATE FUNCTION poison() RETURNS trigger LANGUAGE plpgsql AS
			$$ BEGIN IF NEW.buyer_id = 'poison' THEN RAISE EXCEPTION 'poisoned'; END IF; RETURN NEW; END $$`,
			`CREATE TRIGGER poison BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION poison()`},
	}
	eachDatabase(t, servers, func(t *testing.T, s *shop) {
		for _, statement := range poison[string(s.sql.Dialect())] {
			if err := s.sql.DB().Exec(statement).Error; err != nil {
				t.Fatal(err)
			}
		}
		for _, name := range []string{"merged", "lua"} {
			t.Run(name, func(t *testing.T) {
				i := s.openHooked(t, settings{strategy: name})
				sku := fresh("poisoned")
				lay(t, i.instance, sku, 100)
				var rs []Request
				for n := range 9 {
					r := ask(sku)
					if n == 4 || n == 7 {
						r.Buyer = "poison"
					}
					rs = append(rs, r)
				}
				for n, reply := range gather(t, i, rs) {
					switch poisoned := rs[n].Buyer == "poison"; {
					case poisoned && !errors.Is(reply.err, ErrBusy):
						t.Errorf("the poisoned order %d heard %v", n, reply.err)
					case !poisoned && reply.err != nil:
						t.Errorf("order %d heard %v", n, reply.err)
					}
				}
				s.settled(t, i.Service.gate, sku)
				s.atRest(t, i.Service.gate, sku, 7)
				i.Close()
			})
		}
	})
}

// TestQueueFull: what does not fit the ledger's queue is refused at once, and
// its units are back.
func TestQueueFull(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases[:1], func(t *testing.T, s *shop) {
		i := s.openHooked(t, settings{strategy: "lua"})
		sku := fresh("queue")
		const asked = 2*queueLength + 1000 // the queue, the lane of the SKU, and more
		lay(t, i.instance, sku, asked+1)
		reached, proceed := i.cutter.before.arm()
		defer proceed()
		first := place(t.Context(), i.instance, ask(sku))
		wait(t, "a transaction that holds the others up", reached)
		pending := make([]<-chan reply, asked)
		for n := range pending {
			pending[n] = place(t.Context(), i.instance, ask(sku))
		}
		refused := 0
		eventually(t, "those who do not fit are told", func() bool {
			pending = slices.DeleteFunc(pending, func(c <-chan reply) bool {
				select {
				case r := <-c:
					if !errors.Is(r.err, ErrBusy) {
						t.Errorf("refused with %v", r.err)
					}
					refused++
					return true
				default:
					return false
				}
			})
			return refused >= 200
		})
		proceed()
		var sold int64
		for _, c := range append(pending, first) {
			switch r := wait(t, "an answer", c); {
			case r.err == nil:
				sold++
			case !errors.Is(r.err, ErrBusy):
				t.Error(r.err)
			}
		}
		if sold < queueLength/2 {
			t.Errorf("only %d of %d orders were accepted", sold, asked)
		}
		s.settled(t, i.Service.gate, sku)
		s.atRest(t, i.Service.gate, sku, sold)
	})
}

// TestResolve: the void order bars the way of whoever comes later, and nothing
// else does.
func TestResolve(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases, func(t *testing.T, s *shop) {
		i := s.open(t, settings{strategy: "merged"})
		sku := fresh("resolve")
		lay(t, i, sku, 10)
		d := stock.Deduction{OrderID: uuid.New(), TakeID: uuid.New(), Buyer: "b", Lines: []stock.Line{{SKU: sku, Quantity: 1}}}
		resolve := func(d stock.Deduction, want outcomeKind) {
			t.Helper()
			if o := i.ledger.Resolve(t.Context(), d); o.kind != want {
				t.Errorf("resolved as %+v; want %v", o, want)
			}
		}
		resolve(d, refused)
		resolve(d, refused)
		e := entry{Order: Order{ID: d.OrderID, Buyer: d.Buyer, Status: Pending, Lines: d.Lines, CreatedAt: now()}, takeID: d.TakeID}
		if o := i.ledger.Record(t.Context(), e, d); o.kind != duplicate || o.found.Status != Void {
			t.Errorf("recording a void order: %+v", o)
		}
		if o, err := i.Order(t.Context(), d.OrderID); err != nil || o.Status != Void {
			t.Errorf("the void order is %+v, %v", o, err)
		}

		d.OrderID, d.TakeID = uuid.New(), uuid.New()
		e.ID, e.takeID = d.OrderID, d.TakeID
		if o := i.ledger.Record(t.Context(), e, d); o.kind != committed {
			t.Fatal(o)
		}
		resolve(d, committed)
		another := d
		another.TakeID = uuid.New()
		resolve(another, refused)
		s.atRest(t, nil, sku, 1)
	})
}

// TestRetries: what the database asks to be tried again is, a bounded number
// of times.
func TestRetries(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases, func(t *testing.T, s *shop) {
		for _, test := range []struct {
			conflicts int
			want      error
		}{{transactionTries - 1, nil}, {transactionTries, ErrBusy}} {
			t.Run(fmt.Sprint(test.conflicts), func(t *testing.T) {
				conflicts := &conflicting{left: test.conflicts}
				i := s.open(t, settings{strategy: "conditional", change: func(built *stock.Strategy) {
					conflicts.Cutter = built.Cutter
					built.Cutter = conflicts
				}})
				sku := fresh("retries")
				lay(t, i, sku, 10)
				_, _, err := i.Place(t.Context(), ask(sku))
				if !errors.Is(err, test.want) {
					t.Errorf("heard %v, want %v", err, test.want)
				}
				sold := int64(0)
				if test.want == nil {
					sold = 1
				}
				s.atRest(t, nil, sku, sold)
			})
		}
	})
}

// TestKnownErrors: the classes that the ledger tells apart do not overlap
// where it would matter.
func TestKnownErrors(t *testing.T) {
	if store.IsRetryable(stock.ErrConflict) || store.IsDuplicate(errRowChanged) {
		t.Error("an error of ours is taken for the database's")
	}
}
