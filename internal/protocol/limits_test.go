package protocol

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// sell sets the total and the rules of a product.
func sell(t *testing.T, i *instance, set stock.Setting) {
	t.Helper()
	set.Kind = stock.Product
	if _, _, err := i.SetStock(t.Context(), set); err != nil {
		t.Fatal(err)
	}
}

func ptr[T any](v T) *T { return &v }

// claimed returns how many units of the SKU the buyers hold.
func (s *shop) claimed(t *testing.T, sku stock.SKU) (units int64) {
	t.Helper()
	if err := s.sql.DB().Raw("SELECT COALESCE(SUM(units), 0) FROM claims WHERE sku = ?", string(sku)).Row().Scan(&units); err != nil {
		t.Fatal(err)
	}
	return units
}

// crowdOf sends n requests for one unit at once, to the instances in turn, and returns the orders
// that were accepted. The others must be refused for the reason. Requests answered "busy" are sent
// again.
func crowdOf(t *testing.T, instances []*instance, n int, r order.Request, reason error) (accepted []uuid.UUID) {
	t.Helper()
	var (
		mu  sync.Mutex
		all sync.WaitGroup
	)
	for n := range n {
		all.Go(func() {
			mine := r
			for {
				mine.Lines = append([]stock.Line(nil), r.Lines...)
				o, _, err := instances[n%len(instances)].Place(t.Context(), mine)
				switch {
				case err == nil:
					mu.Lock()
					accepted = append(accepted, o.ID)
					mu.Unlock()
					return
				case errors.Is(err, reason):
					return
				case !errors.Is(err, stock.ErrBusy):
					t.Errorf("a request was answered %v", err)
					return
				}
			}
		})
	}
	all.Wait()
	return accepted
}

// TestBuyerLimit sends many requests of one buyer at once, over two instances. They must get
// exactly the limit. A returned unit can be claimed again, once. Unless the run is thorough, each
// strategy sells on one of the databases.
func TestBuyerLimit(t *testing.T) {
	t.Parallel()
	const requests = 100
	for n, test := range []struct {
		strategy string
		noGuard  bool
	}{{"lua", false}, {"lua", true}, {"merged", false}, {"conditional", false}, {"optimistic", false}} {
		name := test.strategy
		if test.noGuard {
			name += " without guard"
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachDatabase(t, oneOf(databases, n), func(t *testing.T, s *shop) {
				set := settings{strategy: test.strategy, noGuard: test.noGuard}
				instances := []*instance{s.open(t, set), s.open(t, set)}
				coupon, product := newSKU("coupon"), newSKU("product")
				sell(t, instances[0], stock.Setting{SKU: coupon, Total: 1000, BuyerLimit: ptr(int64(1))})
				sell(t, instances[0], stock.Setting{SKU: product, Total: 1000})
				r := request(stock.Line{SKU: coupon, Quantity: 1}, stock.Line{SKU: product, Quantity: 2})
				for turn := range 2 {
					accepted := crowdOf(t, instances, requests, r, stock.ErrBuyerLimit)
					if len(accepted) != 1 {
						t.Fatalf("turn %d: %d orders, want 1", turn, len(accepted))
					}
					if got := s.claimed(t, coupon); got != 1 {
						t.Errorf("turn %d: %d units claimed", turn, got)
					}
					if turn == 0 {
						if _, err := instances[1].Cancel(t.Context(), accepted[0], ""); err != nil {
							t.Fatal(err)
						}
					}
				}
				for _, i := range instances {
					s.waitSettled(t, i.counter, coupon)
				}
				s.checkBalance(t, instances[0].counter, coupon, 1)
				s.checkBalance(t, instances[0].counter, product, 2)
			})
		})
	}
}

// TestLimitOnASoldSKU checks that units that were sold before the limit was set count towards it,
// except returned ones. An administrator must still be able to remove stock.
func TestLimitOnASoldSKU(t *testing.T) {
	t.Parallel()
	eachDatabase(t, withServer(1), func(t *testing.T, s *shop) {
		i := s.open(t, settings{strategy: "lua"})
		sku, other := newSKU("limited"), newSKU("other")
		sell(t, i, stock.Setting{SKU: sku, Total: 20})
		sell(t, i, stock.Setting{SKU: other, Total: 20})
		buy := func(units int64) order.Order {
			t.Helper()
			return mustPlace(t, i, request(stock.Line{SKU: other, Quantity: 3}, stock.Line{SKU: sku, Quantity: units}))
		}
		buy(1) // stays pending
		paid, kept, restocked, cancelled := buy(1), buy(1), buy(2), buy(2)
		for _, o := range []order.Order{paid, kept, restocked} {
			if _, err := i.Pay(t.Context(), o.ID, o.ID.String()); err != nil {
				t.Fatal(err)
			}
		}
		for _, refund := range []struct {
			id      uuid.UUID
			restock bool
		}{{kept.ID, false}, {restocked.ID, true}} {
			if _, err := i.Refund(t.Context(), refund.id, refund.restock); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := i.Cancel(t.Context(), cancelled.ID, ""); err != nil {
			t.Fatal(err)
		}
		sell(t, i, stock.Setting{SKU: sku, Total: 20, BuyerLimit: ptr(int64(4))})
		if got := s.claimed(t, sku); got != 3 {
			t.Errorf("%d units are claimed, want 3", got)
		}
		mustRefuse(t, i, request(stock.Line{SKU: sku, Quantity: 2}), stock.ErrBuyerLimit)
		last := mustPlace(t, i, oneUnit(sku))
		mustRefuse(t, i, oneUnit(sku), stock.ErrBuyerLimit)

		sell(t, i, stock.Setting{SKU: sku, Total: 9, OpensAt: ptr(time.Now().Add(time.Hour))}) // does not change the limit
		if _, _, err := i.SetStock(t.Context(), stock.Setting{SKU: sku, Kind: stock.Product, Total: 3, BuyerLimit: ptr(int64(0))}); !errors.Is(err, stock.ErrBelowSold) {
			t.Errorf("a total below what is sold: %v", err)
		}
		if st, err := i.Stock(t.Context(), sku); err != nil || st.Total != 9 || st.BuyerLimit != 4 || st.OpensAt.IsZero() || !st.ClosesAt.IsZero() {
			t.Errorf("the stock is %+v, %v", st, err)
		}
		if _, _, err := i.SetStock(t.Context(), stock.Setting{SKU: sku, Kind: stock.Product, Total: 9, ClosesAt: ptr(time.Now())}); !errors.Is(err, stock.ErrHours) {
			t.Errorf("a SKU that closes before it opens: %v", err)
		}
		if _, err := i.Cancel(t.Context(), last.ID, ""); err != nil {
			t.Fatal(err)
		}
		if got := s.claimed(t, sku); got != 3 {
			t.Errorf("%d units are claimed after an order was cancelled, want 3", got)
		}
		sell(t, i, stock.Setting{SKU: sku, Total: 9, BuyerLimit: ptr(int64(0)), OpensAt: new(time.Time)})
		if got := s.claimed(t, sku); got != 0 {
			t.Errorf("%d units are claimed without a limit", got)
		}
		mustPlace(t, i, request(stock.Line{SKU: sku, Quantity: 6}))
	})
}

// TestRulesInMidSale lets two instances sell from parts of a stock row while its buyer limit, its
// hours and its total change. Each rule must apply on both once the change is answered, and no unit
// may be lost or created. Unless the run is thorough, each strategy sells on one server.
func TestRulesInMidSale(t *testing.T) {
	t.Parallel()
	for n, strategy := range []string{"unit-rows", "slots"} {
		t.Run(strategy, func(t *testing.T) {
			t.Parallel()
			eachDatabase(t, oneOf(servers, n), func(t *testing.T, s *shop) {
				set := settings{strategy: strategy}
				instances := []*instance{s.open(t, set), s.open(t, set)}
				sku := newSKU("rules")
				change := func(set stock.Setting) {
					t.Helper()
					set.SKU, set.Kind = sku, stock.Product
					for err := stock.ErrBusy; err != nil; {
						if _, _, err = instances[0].SetStock(t.Context(), set); err != nil && !errors.Is(err, stock.ErrBusy) {
							t.Fatalf("setting %+v: %v", set, err)
						}
					}
				}
				change(stock.Setting{Total: 50_000})
				var (
					sold    atomic.Int64
					ending  atomic.Bool
					sellers sync.WaitGroup
				)
				defer sellers.Wait()
				defer ending.Store(true)
				for n := range 8 {
					r := order.Request{Buyer: fmt.Sprintf("buyer-%d", n), Lines: []stock.Line{{SKU: sku, Quantity: 1}}}
					sellers.Go(func() {
						for !ending.Load() {
							_, _, err := instances[n%2].Place(t.Context(), r)
							switch {
							case err == nil:
								sold.Add(1)
							case errors.Is(err, stock.ErrBuyerLimit), errors.Is(err, stock.ErrClosed), errors.Is(err, stock.ErrBusy):
								testenv.Dither()
							default:
								t.Errorf("a client was answered %v", err)
								return
							}
						}
					})
				}
				sells := func() {
					t.Helper()
					before := sold.Load()
					testenv.Await(t, "40 orders are accepted", func() bool { return sold.Load() >= before+40 })
				}
				sells()
				change(stock.Setting{Total: 40_000, BuyerLimit: ptr(int64(3))})
				fresh := order.Request{Buyer: "fresh", Lines: []stock.Line{{SKU: sku, Quantity: 1}}}
				if n := len(crowdOf(t, instances, 20, fresh, stock.ErrBuyerLimit)); n != 3 {
					t.Errorf("a buyer got %d units, the limit is 3", n)
				}
				if wrong, err := instances[1].ledger.WrongClaims(t.Context(), []stock.SKU{sku}, 10); err != nil || len(wrong) > 0 {
					t.Errorf("wrong claims: %+v, %v", wrong, err)
				}
				change(stock.Setting{Total: 40_000, BuyerLimit: ptr(int64(0))})
				sells()
				change(stock.Setting{Total: 40_000, ClosesAt: ptr(time.Now().Add(-time.Hour))})
				if n := len(crowdOf(t, instances, 20, fresh, stock.ErrClosed)); n != 0 {
					t.Errorf("%d orders were accepted after the sale had closed", n)
				}
				change(stock.Setting{Total: 30_000, ClosesAt: new(time.Time)})
				sells()
				ending.Store(true)
				sellers.Wait()
				s.checkBalance(t, nil, sku, sold.Load()+3)
				if b := s.ledgerCounts(t, sku); b.total != 30_000 {
					t.Errorf("the total is %d", b.total)
				}
			})
		})
	}
}

// TestHoursCleared checks that an instance through which opens_at or closes_at is cleared sells at
// once, although it has just refused an order.
func TestHoursCleared(t *testing.T) {
	t.Parallel()
	eachDatabase(t, oneOf(databases, 1), func(t *testing.T, s *shop) {
		i, sku := s.open(t, settings{strategy: "lua"}), newSKU("cleared")
		sell(t, i, stock.Setting{SKU: sku, Total: 9, OpensAt: ptr(time.Now().Add(time.Hour))})
		mustRefuse(t, i, oneUnit(sku), stock.ErrNotOpen)
		sell(t, i, stock.Setting{SKU: sku, Total: 9, OpensAt: new(time.Time)})
		mustPlace(t, i, oneUnit(sku))
		sell(t, i, stock.Setting{SKU: sku, Total: 9, ClosesAt: ptr(time.Now().Add(-time.Hour))})
		mustRefuse(t, i, oneUnit(sku), stock.ErrClosed)
		sell(t, i, stock.Setting{SKU: sku, Total: 9, ClosesAt: new(time.Time)})
		mustPlace(t, i, oneUnit(sku))
	})
}

// TestOpeningHours checks that orders are accepted from the opening to the closing by the
// database's clock, and refused before and after. Keys must be replayed at any time. Unless the run
// is thorough, each strategy sells on one of the databases.
func TestOpeningHours(t *testing.T) {
	t.Parallel()
	for n, strategy := range []string{"lua", "merged", "conditional"} {
		t.Run(strategy, func(t *testing.T) {
			t.Parallel()
			eachDatabase(t, oneOf(databases, n), func(t *testing.T, s *shop) {
				i := s.open(t, settings{strategy: strategy})
				now := func() time.Time {
					t.Helper()
					now, err := s.sql.Ledger().Now(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					return now
				}
				var (
					sku           stock.SKU
					first         order.Order
					refused, sold int64
					before        time.Time
					err           error
					buy           order.Request
				)
				for lead := 700 * time.Millisecond; refused == 0; lead *= 2 { // on a busy machine, the order may come too late
					sku = newSKU("hours")
					buy = withKey(oneUnit(sku), string(sku))
					opens := now().Add(lead)
					sell(t, i, stock.Setting{SKU: sku, Total: 100_000, OpensAt: &opens})
					for {
						before = now()
						first, _, err = i.Place(t.Context(), buy)
						if err == nil {
							break
						}
						var notOpen *stock.NotOpen
						if !errors.As(err, &notOpen) || !notOpen.OpensAt.Equal(opens) {
							t.Fatalf("before the opening: %v", err)
						}
						if !before.Before(opens) {
							t.Fatalf("refused at %v, after the opening at %v", before, opens)
						}
						refused++
					}
					if after := now(); after.Before(opens) {
						t.Fatalf("sold at %v, before the opening at %v", after, opens)
					}
				}

				closes := now().Add(300 * time.Millisecond)
				sell(t, i, stock.Setting{SKU: sku, Total: 100_000, ClosesAt: &closes})
				for sold = 1; ; sold++ {
					before = now()
					if _, _, err := i.Place(t.Context(), oneUnit(sku)); errors.Is(err, stock.ErrClosed) {
						break
					} else if err != nil {
						t.Fatal(err)
					}
					if !before.Before(closes) {
						t.Fatalf("sold at %v, after the closing at %v", before, closes)
					}
				}
				if after := now(); after.Before(closes) {
					t.Errorf("refused at %v, before the closing at %v", after, closes)
				}
				if o, replayed, err := i.Place(t.Context(), buy); err != nil || !replayed || o.ID != first.ID {
					t.Errorf("the key after the closing: %v, replayed %v, %v", o.ID, replayed, err)
				}
				s.waitSettled(t, i.counter, sku)
				s.checkBalance(t, i.counter, sku, sold)
			})
		})
	}
}
