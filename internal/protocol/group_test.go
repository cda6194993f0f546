package protocol

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/store/storetest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// placeAsGroup places the orders that next returns, so that the ledger records them in one group,
// and returns their replies. If inOrder is set, they are in this order in the group. It stops a
// transaction before its cut until all orders are queued. The ledger starts the next group after
// lanePatience. If the orders are not queued by then, placeAsGroup tries again with orders of new
// SKUs.
func placeAsGroup(t *testing.T, i hooked, inOrder bool, next func() []order.Request) (replies []reply) {
	t.Helper()
	testenv.Await(t, "all orders are queued for one group", func() (grouped bool) {
		replies, grouped = tryGroup(t, i, inOrder, next())
		return grouped
	})
	return replies
}

// lanePatience is how long the ledger waits for a group before it starts the next.
const lanePatience = 250 * time.Millisecond

// tryGroup is one try of placeAsGroup. If grouped is false, an order was not queued in time, and
// the replies must be ignored.
func tryGroup(t *testing.T, i hooked, inOrder bool, rs []order.Request) (replies []reply, grouped bool) {
	t.Helper()
	sku := newSKU("holder")
	addStock(t, i.instance, sku, 1)
	reached, proceed := i.cutter.before.arm()
	defer proceed()
	holder := place(t.Context(), i.instance, oneUnit(sku))
	testenv.Receive(t, "the transaction that holds the others up", reached)
	end := time.Now().Add(lanePatience)
	queued := func(orders int) bool {
		return nil == testenv.Poll(time.Until(end), func() error {
			if n := i.queued(t); n != orders {
				return fmt.Errorf("%d orders are queued", n)
			}
			return nil
		})
	}
	var answers []<-chan reply
	for _, r := range rs {
		answers = append(answers, place(t.Context(), i.instance, r))
		if inOrder && !queued(len(answers)) {
			break
		}
	}
	grouped = queued(len(rs))
	proceed()
	for _, answer := range answers {
		replies = append(replies, testenv.Receive(t, "an answer", answer))
	}
	if r := testenv.Receive(t, "the answer to the holder", holder); r.err != nil && grouped {
		t.Error(r.err)
	}
	return replies, grouped
}

// TestPoisonedGroup checks that an order that the database refuses does not make the other orders
// of its group fail.
func TestPoisonedGroup(t *testing.T) {
	t.Parallel()
	poison := map[string][]string{
		"mysql": {`CREATE TRIGGER poison BEFORE INSERT ON orders FOR EACH ROW
			IF NEW.buyer_id = 'poison' THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'poisoned'; END IF`},
		"postgres": {`CREATE FUNCTION poison() RETURNS trigger LANGUAGE plpgsql AS
			$$ BEGIN IF NEW.buyer_id = 'poison' THEN RAISE EXCEPTION 'poisoned'; END IF; RETURN NEW; END $$`,
			`CREATE TRIGGER poison BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION poison()`},
	}
	eachDatabase(t, oneOf(servers, 0), func(t *testing.T, s *shop) {
		for _, statement := range poison[string(s.sql.Dialect())] {
			if err := s.sql.DB().Exec(statement).Error; err != nil {
				t.Fatal(err)
			}
		}
		for _, name := range []string{"merged", "lua"} {
			t.Run(name, func(t *testing.T) {
				i := s.openHooked(t, settings{strategy: name})
				var sku stock.SKU
				replies := placeAsGroup(t, i, false, func() (rs []order.Request) {
					sku = newSKU("poisoned")
					addStock(t, i.instance, sku, 100)
					for n := range 9 {
						r := oneUnit(sku)
						if n == 4 || n == 7 {
							r.Buyer = "poison"
						}
						rs = append(rs, r)
					}
					return rs
				})
				for n, reply := range replies {
					switch poisoned := n == 4 || n == 7; {
					case poisoned && !errors.Is(reply.err, stock.ErrBusy):
						t.Errorf("the poisoned order %d was answered %v", n, reply.err)
					case !poisoned && reply.err != nil:
						t.Errorf("order %d was answered %v", n, reply.err)
					}
				}
				s.waitSettled(t, i.instance.counter, sku)
				s.checkBalance(t, i.instance.counter, sku, 7)
				i.Close()
			})
		}
	})
}

// TestLockedRow locks one stock row. Meanwhile orders of other SKUs must be placed. Orders of the
// locked SKU must wait, and be placed once the row is free.
func TestLockedRow(t *testing.T) {
	t.Parallel()
	eachDatabase(t, oneOf(servers, 0), func(t *testing.T, s *shop) {
		for _, name := range []string{"merged", "lua", "conditional"} {
			i := s.open(t, settings{strategy: name})
			locked, other := newSKU("locked"), newSKU("other")
			addStock(t, i, locked, 100)
			addStock(t, i, other, 100)
			unlock := storetest.LockRow(t, s.url, locked)
			defer unlock()
			began := time.Now()
			var waiters []<-chan reply
			for range 40 { // more orders than the transactions that run at once
				waiters = append(waiters, place(t.Context(), i, oneUnit(locked)))
			}
			testenv.Await(t, "an order waits for the row", func() bool { return s.waiting(t) > 0 })
			// The first order may still wait for the group of the locked row.
			mustPlace(t, i, oneUnit(other))
			slow := 0
			for range 20 {
				start := time.Now()
				mustPlace(t, i, oneUnit(other))
				if took := time.Since(start); took > rowLockWait {
					if slow++; slow > 2 { // a slow machine is not the cause more than twice
						t.Fatalf("%s: an order of another SKU took %v, like %d before", name, took, slow-1)
					}
				}
				waiters = append(waiters, place(t.Context(), i, oneUnit(locked)))
			}
			unlock()
			held, placed := time.Since(began), int64(0)
			for _, w := range waiters {
				switch r := testenv.Receive(t, "an order of the locked row", w); {
				case r.err == nil:
					placed++
				case held < rowLockWait || !errors.Is(r.err, stock.ErrBusy): // on a slow machine, some orders have waited too long
					t.Errorf("%s: %v", name, r.err)
				}
			}
			s.waitSettled(t, i.counter, locked)
			s.checkBalance(t, i.counter, locked, placed)
			s.waitSettled(t, i.counter, other)
			s.checkBalance(t, i.counter, other, 21)
			i.Close()
		}
	})
}
