package protocol

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/assembly"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// TestLayouts checks that an instance of an old strategy refuses orders and is not ready once
// another strategy has taken over the stock. Unless the run is thorough, there is one strategy of
// each layout, and each takeover happens on one of the databases.
func TestLayouts(t *testing.T) {
	t.Parallel()
	layouts := []string{"lua", "lock", "segment", "merged", "slots", "unit-rows", "async"}
	eachDatabase(t, databases, func(t *testing.T, s *shop) {
		for n, spec := range assembly.Strategies() {
			next := spec.Name
			if !s.runs(spec, n+1) || !testenv.Thorough() && !slices.Contains(layouts, next) {
				continue
			}
			t.Run("lua to "+next, func(t *testing.T) {
				sku := newSKU("layout")
				old := s.open(t, settings{strategy: "lua"})
				addStock(t, old, sku, 10)
				mustPlace(t, old, oneUnit(sku))
				if err := ready(t, old); err != nil {
					t.Fatal(err)
				}
				current := s.open(t, settings{strategy: next})
				mustPlace(t, current, oneUnit(sku))
				if next != "lua" {
					mustRefuse(t, old, oneUnit(sku), stock.ErrSuperseded)
					if err := ready(t, old); !errors.Is(err, stock.ErrSuperseded) {
						t.Errorf("the old instance: %v, want %v", err, stock.ErrSuperseded)
					}
				}
				if err := ready(t, current); err != nil {
					t.Error(err)
				}
				s.checkSettled(t, current, sku, 2)
				old.Close()
				current.Close()
			})
		}
	})
}

// TestAdoption checks that an adoption raises the epoch into its generation, and raises the
// version. Takes and versions from before the adoption must no longer be valid.
func TestAdoption(t *testing.T) {
	t.Parallel()
	eachDatabase(t, outside, func(t *testing.T, s *shop) {
		old := s.open(t, settings{strategy: "lua"})
		sku := newSKU("adoption")
		addStock(t, old, sku, 5)
		before, err := old.ledger.Row(t.Context(), sku)
		if err != nil {
			t.Fatal(err)
		}
		next := s.open(t, settings{strategy: "merged"})
		mustPlace(t, next, oneUnit(sku))
		after, err := next.ledger.Row(t.Context(), sku)
		if err != nil {
			t.Fatal(err)
		}
		if g := next.ledger.Generation(); stock.GenerationOf(after.Epoch) != g || stock.GenerationOf(before.Epoch) == g || after.Version <= before.Version {
			t.Errorf("generation %d: epoch %d and version %d became %d and %d",
				g, before.Epoch, before.Version, after.Epoch, after.Version)
		}
	})
}

// TestRollover lets two instances of one strategy after another take over two SKUs during a sale
// without a guard. Some strategies lend units to parts, which the next one must take back. Most
// orders are cancelled, or paid and refunded, at an instance that has just taken over. No unit may
// be lost or created. Unless the run is thorough, they sell on one server, with the first of these
// strategies.
func TestRollover(t *testing.T) {
	t.Parallel()
	eachDatabase(t, oneOf(servers, 1), func(t *testing.T, s *shop) {
		const units = 5000 // more than two pools of unit rows
		skus := []stock.SKU{newSKU("parts.a"), newSKU("parts.b")}
		var (
			current atomic.Pointer[instance]
			kept    [2]atomic.Int64
			sellers sync.WaitGroup
			ending  atomic.Bool
		)
		giveBack := func(id uuid.UUID, paid bool) error {
			i := current.Load()
			if !paid {
				_, err := i.Cancel(t.Context(), id, "")
				return err
			}
			if _, err := i.Pay(t.Context(), id, "p-"+id.String()[24:]); err != nil {
				return err
			}
			_, err := i.Refund(t.Context(), id, true)
			return err
		}
		sell := func(i *instance, orders *atomic.Int64) {
			for n := 0; !ending.Load(); n++ {
				lines := []stock.Line{{SKU: skus[n%2], Quantity: int64(1 + n%3)}, {SKU: skus[(n+1)%2], Quantity: 2}}[:1+n/2%2]
				o, err := placeUntilKnown(t, i, current.Load, request(lines...))
				switch {
				case errors.Is(err, stock.ErrSuperseded):
					return
				case errors.Is(err, stock.ErrBusy):
					continue
				case err != nil:
					t.Errorf("a client was answered %v", err)
					return
				}
				orders.Add(1)
				if n%20 > 0 {
					if err := untilAnswered(func() error { return giveBack(o.ID, n%3 == 0) }); err != nil {
						t.Errorf("giving units back: %v", err)
					}
					continue
				}
				for _, line := range lines {
					kept[slices.Index(skus, line.SKU)].Add(line.Quantity)
				}
			}
		}
		defer sellers.Wait()
		defer ending.Store(true)
		sequence := []settings{
			{strategy: "lua"}, {strategy: "slots", slots: 8}, {strategy: "unit-rows"}, {strategy: "slots", slots: 3},
			{strategy: "segment"}, {strategy: "unit-rows"}, {strategy: "merged"},
			{strategy: "lua"}, {strategy: "lock"}, {strategy: "optimistic"}, {strategy: "lua"}, {strategy: "for-update"},
			{strategy: "conditional"}, {strategy: "segment-lock"},
		}
		if !testenv.Thorough() {
			sequence = sequence[:7]
		}
		for n, set := range sequence {
			set.noGuard = true
			orders := new(atomic.Int64)
			for range 2 {
				i := s.open(t, set)
				if n == 0 && current.Load() == nil {
					addStock(t, i, skus[0], units)
					addStock(t, i, skus[1], units)
				}
				current.Store(i)
				for range 4 {
					sellers.Go(func() { sell(i, orders) })
				}
			}
			testenv.Await(t, "orders of "+set.strategy, func() bool { return orders.Load() >= 60 })
		}
		ending.Store(true)
		sellers.Wait()
		last := current.Load()
		for n, sku := range skus {
			s.waitSettled(t, last, sku)
			if err := last.Sweep(t.Context()); err != nil {
				t.Error(err)
			}
			s.checkBalance(t, last.counter, sku, kept[n].Load())
			for left := units - kept[n].Load(); left > 0; left -= stock.MaxQuantity {
				mustPlace(t, last, request(stock.Line{SKU: sku, Quantity: min(left, stock.MaxQuantity)}))
			}
			mustRefuse(t, last, oneUnit(sku), stock.ErrSoldOut)
			s.checkSettled(t, last, sku, units)
		}
	})
}

// TestCreatedByTheOldLayout lets an instance of the old layout create a SKU after a takeover. The
// new owner must adopt it like any other.
func TestCreatedByTheOldLayout(t *testing.T) {
	t.Parallel()
	eachDatabase(t, outside, func(t *testing.T, s *shop) {
		old := s.open(t, settings{strategy: "merged"})
		next := s.open(t, settings{strategy: "lua"})
		sku, changed := newSKU("created"), newSKU("changed")
		addStock(t, old, changed, 5)
		if _, _, err := next.ledger.Set(t.Context(), stock.Setting{SKU: changed, Kind: stock.Product, Total: 6}); !errors.Is(err, stock.ErrNotAdopted) {
			t.Errorf("changing a row that is not adopted: %v, want %v", err, stock.ErrNotAdopted)
		}
		addStock(t, next, changed, 6)
		if row, err := next.ledger.Row(t.Context(), changed); err != nil || stock.GenerationOf(row.Epoch) != next.ledger.Generation() {
			t.Errorf("the row is not adopted: %+v, %v", row, err)
		}
		addStock(t, old, sku, 5)
		if _, err := next.Stock(t.Context(), sku); err != nil {
			t.Error(err)
		}
		if page, _, err := next.ListStock(t.Context(), "", 100); err != nil || len(page) == 0 {
			t.Errorf("%+v, %v", page, err)
		}
		if err := ready(t, next); err != nil {
			t.Error(err)
		}
		addStock(t, next, sku, 6)
		mustPlace(t, next, request(stock.Line{SKU: sku, Quantity: 6}))
		s.checkSettled(t, next, sku, 6)
	})
}

// TestSegmentsThereAndBack divides the stock into fewer segments, and then into as many as before.
// No unit may be lost.
func TestSegmentsThereAndBack(t *testing.T) {
	t.Parallel()
	eachDatabase(t, outside, func(t *testing.T, s *shop) {
		sku := newSKU("segments")
		first := s.open(t, settings{strategy: "segment", segments: 8})
		addStock(t, first, sku, 16)
		for _, segments := range []int{8, 4, 8} {
			i := s.open(t, settings{strategy: "segment", segments: segments, noGuard: true})
			mustPlace(t, i, request(stock.Line{SKU: sku, Quantity: 2}))
		}
		if err := ready(t, first); err != nil { // the layout owns the stock again, and uses the current generation
			t.Fatal(err)
		}
		mustPlace(t, first, request(stock.Line{SKU: sku, Quantity: 10}))
		mustRefuse(t, first, oneUnit(sku), stock.ErrSoldOut)
		s.checkSettled(t, first, sku, 16)
	})
}

// TestStaleRedis restarts Redis from a snapshot. Without a guard, units sold after the snapshot
// must not be sold again, by a running instance or by a new one. Unless the run is thorough, only
// lua is tried with both.
func TestStaleRedis(t *testing.T) {
	t.Parallel()
	for n, name := range []string{"lua", "lock", "segment", "segment-lock"} {
		for _, restarted := range []bool{false, true} {
			if name != "lua" && restarted != (n%2 == 1) && !testenv.Thorough() {
				continue
			}
			t.Run(fmt.Sprint(name, "/service restarted ", restarted), func(t *testing.T) {
				t.Parallel()
				redis := testenv.OwnRedis(t)
				s := newShopOn(t, sqliteURL(t), "redis://"+redis.Addr())
				i := s.open(t, settings{strategy: name, noGuard: true})
				sku := newSKU("stale")
				addStock(t, i, sku, 10)
				mustPlace(t, i, request(stock.Line{SKU: sku, Quantity: 2}))
				s.waitSettled(t, i, sku)
				if err := s.redis.Save(t.Context()).Err(); err != nil {
					t.Fatal(err)
				}
				mustPlace(t, i, request(stock.Line{SKU: sku, Quantity: 5}))
				s.waitSettled(t, i, sku)
				redis.Restart()
				if restarted {
					i.Close()
					i = s.open(t, settings{strategy: name, noGuard: true})
				}
				placed := 0
				testenv.Await(t, "the units left are sold", func() bool {
					_, _, err := i.Place(t.Context(), oneUnit(sku))
					switch {
					case err == nil:
						placed++
					case !errors.Is(err, stock.ErrSoldOut) && !errors.Is(err, stock.ErrBusy):
						t.Errorf("answered %v", err)
					}
					return errors.Is(err, stock.ErrSoldOut)
				})
				if placed != 3 {
					t.Errorf("sold %d units, want the 3 that were left", placed)
				}
				s.checkSettled(t, i, sku, 10)
			})
		}
	}
}
