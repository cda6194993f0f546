package protocol

import (
	"errors"
	"fmt"
	"testing"

	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// TestTakeOutlivesRefill checks that a take that was cut before Redis lost its data cannot commit
// after the refill, because the refill has put the take's units for sale again. The request must
// take again. A Redis with another run ID must be refilled even if no count is missing.
func TestTakeOutlivesRefill(t *testing.T) {
	t.Parallel()
	eachDatabase(t, withServer(1), func(t *testing.T, s *shop) {
		for _, test := range []struct {
			left  int64 // units for two buyers
			empty bool
		}{{1, true}, {2, true}, {1, false}} {
			left := test.left
			paused := s.openHooked(t, settings{strategy: "lua", noGuard: true})
			other := s.open(t, settings{strategy: "lua", noGuard: true})
			sku := newSKU("outlives")
			addStock(t, other, sku, left)
			answer, proceed := haltPlace(t, &paused.gate.taken, paused.instance, oneUnit(sku))
			if test.empty {
				s.emptyGate(t)
			} else {
				other.StoreChanged()
			}
			mustPlace(t, other, oneUnit(sku)) // refills
			proceed()
			r := testenv.Receive(t, "the answer", answer)
			switch {
			case left == 1 && !errors.Is(r.err, stock.ErrSoldOut):
				t.Errorf("answered %+v, want sold out: the other request has the only unit", r)
			case left == 2 && r.err != nil:
				t.Errorf("answered %v, but a unit was left", r.err)
			}
			s.checkSettled(t, other, sku, left)
		}
	})
}

// TestCommitBeforeRefill checks that the refill waits for a transaction that has locked the stock
// row, and counts the units it cut.
func TestCommitBeforeRefill(t *testing.T) {
	t.Parallel()
	eachDatabase(t, oneOf(servers, 0), func(t *testing.T, s *shop) {
		paused := s.openHooked(t, settings{strategy: "lua", noGuard: true})
		other := s.open(t, settings{strategy: "lua", noGuard: true})
		sku := newSKU("before")
		addStock(t, other, sku, 2)
		first, proceed := haltPlace(t, &paused.cutter.after, paused.instance, oneUnit(sku))
		s.emptyGate(t)
		second := place(t.Context(), other, oneUnit(sku))
		testenv.Await(t, "the refill waits for the row", func() bool { return s.waiting(t) > 0 })
		proceed()
		for _, answer := range []<-chan reply{first, second} {
			if r := testenv.Receive(t, "an answer", answer); r.err != nil {
				t.Error(r.err)
			}
		}
		mustRefuse(t, other, oneUnit(sku), stock.ErrSoldOut)
		s.checkSettled(t, other, sku, 2)
	})
}

// TestFlightWithoutRecords checks that units in flight without a readable record return to the gate
// once the counts have not changed between sweeps. Units with a record must stay in flight.
func TestFlightWithoutRecords(t *testing.T) {
	t.Parallel()
	eachDatabase(t, outside, func(t *testing.T, s *shop) {
		for _, name := range []string{"lua", "none", "segment"} {
			i := s.open(t, settings{strategy: name})
			lost, spoilt, kept := newSKU("lost"), newSKU("spoilt"), newSKU("kept")
			for _, sku := range []stock.SKU{lost, spoilt, kept} {
				addStock(t, i, sku, 5)
			}
			loseRecord(t, s, i, lost)
			spoilRecord(t, s, i, spoilt)
			takeUnit(t, i, kept)
			for range 3 {
				sweep(t, i)
			}
			levels, err := i.counter.Level(t.Context(), lost, spoilt, kept)
			if err != nil {
				t.Fatal(err)
			}
			for _, level := range levels {
				if level.Available+level.InFlight != 5 || level.InFlight == 0 != (level.SKU != kept) {
					t.Errorf("%s: %+v", name, level)
				}
			}
			i.Close()
		}
	})
}

// TestUnreadableCount checks that a count that is not a number is refilled.
func TestUnreadableCount(t *testing.T) {
	t.Parallel()
	s := newShop(t, sqliteURL(t))
	for _, name := range []string{"lua", "lock"} {
		i := s.open(t, settings{strategy: name})
		sku := newSKU("unreadable")
		addStock(t, i, sku, 2)
		if err := s.redis.HSet(t.Context(), s.key("count"), string(sku), "nonsense").Err(); err != nil {
			t.Fatal(err)
		}
		mustPlace(t, i, oneUnit(sku))
		s.checkSettled(t, i, sku, 1)
	}
}

// TestManyLinesAfterAFlush checks that an order of the maximum number of SKUs is placed although
// Redis has lost all counts, or another strategy has just taken over the stock.
func TestManyLinesAfterAFlush(t *testing.T) {
	t.Parallel()
	s := newShop(t, sqliteURL(t))
	i := s.open(t, settings{strategy: "lua"})
	var lines []stock.Line
	for n := range stock.MaxLines {
		sku := newSKU(fmt.Sprintf("line-%02d", n))
		addStock(t, i, sku, 5)
		lines = append(lines, stock.Line{SKU: sku, Quantity: 1})
	}
	s.emptyGate(t)
	mustPlace(t, i, request(lines...))
	mustPlace(t, s.open(t, settings{strategy: "merged"}), request(lines...))
	mustPlace(t, s.open(t, settings{strategy: "segment"}), request(lines...))
}
