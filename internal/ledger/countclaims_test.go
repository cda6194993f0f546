package ledger

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/ledger/cutter"
	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// claims returns the units of the claims on the SKU, by buyer.
func (d *database) claims(t *testing.T, sku stock.SKU) map[string]int64 {
	t.Helper()
	claims := make(map[string]int64)
	err := d.sql.Ledger().QueryEach(t.Context(), func(rows *sql.Rows) error {
		var (
			buyer string
			units int64
		)
		err := rows.Scan(&buyer, &units)
		if units != 0 {
			claims[buyer] = units
		}
		return err
	}, "SELECT buyer_id, units FROM claims WHERE sku = ?", string(sku))
	if err != nil {
		t.Fatal(err)
	}
	return claims
}

// sale is a SKU with orders that are placed, cancelled, expired, revived and refunded at
// random.
type sale struct {
	*database
	random *rand.Rand
	orders map[uuid.UUID]*order.Order
	events int
}

// next makes one random change to the sale.
func (s *sale) next(t *testing.T, l *Ledger) {
	t.Helper()
	s.events++
	statuses := make(map[order.Status][]uuid.UUID)
	ids := slices.SortedFunc(maps.Keys(s.orders), compareIDs)
	for _, id := range ids {
		statuses[s.orders[id].Status] = append(statuses[s.orders[id].Status], id)
	}
	pick := func(status order.Status) *order.Order {
		among := statuses[status]
		if len(among) == 0 {
			return nil
		}
		return s.orders[among[s.random.IntN(len(among))]]
	}
	change := func(o *order.Order, to order.Status, returns bool) {
		t.Helper()
		changed, _, err := l.Change(t.Context(), o.ID, order.ChangeOptions{Returns: returns}, become(o.Status, to, returns))
		if err != nil || changed.Status != to {
			t.Fatalf("an order that was %s is %s, %v", o.Status, changed.Status, err)
		}
		o.Status, o.Restocked, o.Version, o.TakeID = changed.Status, changed.Restocked, changed.Version, changed.TakeID
	}
	switch event := s.random.IntN(8); {
	case event == 0 && pick(order.Pending) != nil:
		change(pick(order.Pending), order.Cancelled, true)
	case event == 1 && pick(order.Pending) != nil:
		change(pick(order.Pending), order.Expired, true)
	case event == 2 && pick(order.Paid) != nil:
		change(pick(order.Paid), order.Refunded, s.random.IntN(2) == 0)
	case event == 3 && pick(order.Pending) != nil:
		change(pick(order.Pending), order.Paid, false)
	case event == 4 && pick(order.Expired) != nil:
		expired := pick(order.Expired)
		again := stock.Take{Deduction: stock.Deduction{OrderID: expired.ID, TakeID: uuid.New(), Buyer: expired.Buyer, Lines: expired.Lines}}
		revived, out := l.Revive(t.Context(), *expired, again, fmt.Sprint("payment-", s.events))
		if !out.Committed() {
			t.Fatal(out.Reason())
		}
		*expired = revived
	default:
		take := takeOf("hot", "other") // the order's ID is random, so the count may have passed it
		take.Buyer = fmt.Sprint("buyer-", s.random.IntN(3))
		take.Lines[0].Quantity = 1 + s.random.Int64N(3)
		o := mustRecord(t, l, take)
		s.orders[o.ID] = &o
	}
}

// held adds up the units that buyers hold in the orders that the count has passed.
func (s *sale) held(has func(uuid.UUID) bool) map[string]int64 {
	held := make(map[string]int64)
	for id, o := range s.orders {
		if has(id) && (o.Status == order.Pending || o.Status == order.Paid || o.Status == order.Refunded && !o.Restocked) {
			held[o.Buyer] += o.Lines[0].Quantity
		}
	}
	return held
}

// limit sets the buyer limit without counting.
func (s *sale) limit(t *testing.T, l *Ledger, units int64) StockRow {
	t.Helper()
	row, _, err := l.Set(t.Context(), stock.Setting{SKU: "hot", Kind: stock.Product, Total: 1_000_000, BuyerLimit: &units})
	if err != nil {
		t.Fatal(err)
	}
	return row
}

// mustAddUp checks that the claims are those of the orders that the count has passed.
func (s *sale) mustAddUp(t *testing.T, l *Ledger, when string) {
	t.Helper()
	row, err := l.Row(t.Context(), "hot")
	if err != nil {
		t.Fatal(err)
	}
	has := row.CountedTo.Has
	switch {
	case row.LimitHolds():
		has = func(uuid.UUID) bool { return true }
	case row.CountedTo.UUID == uuid.Nil: // claims of an earlier limit may still exist
		return
	}
	if claims, want := s.claims(t, "hot"), s.held(has); !maps.Equal(claims, want) {
		t.Fatalf("%s: claims %v, want %v; row %+v", when, claims, want, row)
	}
}

// TestCountClaims checks that claims are right after each step of their count. Between the steps,
// orders are placed and changed, the limit is changed, removed and set again, and another process
// continues the count. Unless the run is thorough, each server has one of the cutters.
func TestCountClaims(t *testing.T) {
	t.Parallel()
	slots := func() cutter.Cutter { return cutter.Slots(2) }
	cutters := []func() cutter.Cutter{cutter.Merged, cutter.Conditional, cutter.Optimistic, cutter.ForUpdate, cutter.ReadWrite, slots, cutter.UnitRows}
	for seed, newCutter := range cutters {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			names := []string{"SQLite"}
			if server := seed - 1; server >= 0 && server < len(servers) {
				names = append(names, servers[server].Name)
			}
			eachDatabase(t, testenv.Chosen(databases, names...), func(t *testing.T, d *database) {
				open := func() *Ledger { // opens the ledger like a new process
					l := d.open(t, newCutter())
					l.claimsAtOnce = 2
					return l
				}
				l := open()
				s := &sale{database: d, random: rand.New(rand.NewPCG(uint64(seed), 0)), orders: make(map[uuid.UUID]*order.Order)}
				lay(t, l, "hot", 1_000_000)
				lay(t, l, "other", 1_000_000)
				for range 30 {
					s.next(t, l)
				}
				step := func(when string) (done bool) {
					t.Helper()
					before, done, err := l.stepClaims(t.Context(), "hot")
					if err != nil {
						t.Fatal(err)
					}
					if row, err := l.Row(t.Context(), "hot"); err != nil || !done && row.Version == before.Version {
						t.Fatalf("%s: the step did not change the row: %+v, %v", when, row, err)
					}
					s.mustAddUp(t, l, when)
					for range s.random.IntN(4) {
						s.next(t, l)
						s.mustAddUp(t, l, when+", and then an order")
					}
					return done
				}
				if row := s.limit(t, l, 1000); row.BuyerLimit != 1000 || row.LimitHolds() {
					t.Fatalf("a limit on a SKU with orders holds at once: %+v", row)
				}
				for range 5 {
					step("the first count")
				}
				s.limit(t, l, 2000)
				l = open()
				for range 2 {
					step("another limit")
				}
				if row := s.limit(t, l, 0); row.CountedTo.Valid {
					t.Errorf("claims are counted without a limit: %+v", row)
				}
				for range 10 {
					s.next(t, l)
				}
				s.limit(t, l, 2500) // claims of the earlier count are left, with its progress
				for range 8 {
					step("a limit after another")
				}
				s.limit(t, l, 0)
				for range 2 {
					step("no limit")
				}
				s.limit(t, l, 3000)
				steps := 0
				for ; !step("the second count"); steps++ {
					if steps%5 == 4 {
						l = open()
					}
				}
				if row, err := l.Row(t.Context(), "hot"); err != nil || row.BuyerLimit != 3000 || !row.LimitHolds() || steps < 8 {
					t.Errorf("after %d steps: %+v, %v", steps, row, err)
				}
				for range 20 {
					s.next(t, l)
					s.mustAddUp(t, l, "under the limit")
				}
				if wrong, err := l.WrongClaims(t.Context(), []stock.SKU{"hot"}, 10); err != nil || len(wrong) > 0 {
					t.Errorf("wrong claims: %v, %v", wrong, err)
				}

				buyer, most := "", int64(0)
				for b, units := range s.held(func(uuid.UUID) bool { return true }) {
					if units > most {
						buyer, most = b, units
					}
				}
				s.limit(t, l, most)
				take := takeOf("hot")
				take.Buyer = buyer
				if _, out := l.Record(t.Context(), take); !errors.Is(out.Reason(), stock.ErrBuyerLimit) {
					t.Errorf("an order above the limit: %+v", out)
				}
				s.limit(t, l, 0)
				if row, err := l.CountClaims(t.Context(), "hot"); err != nil || row.BuyerLimit != 0 {
					t.Errorf("without a limit: %+v, %v", row, err)
				}
				if claims := d.claims(t, "hot"); len(claims) > 0 {
					t.Errorf("claims without a limit: %v", claims)
				}
			})
		})
	}
}

// TestCountClaims_DuringASale lets several processes count claims while the SKU is sold and orders
// are cancelled. Afterwards the claims must add up, and the limit must be kept.
func TestCountClaims_DuringASale(t *testing.T) {
	t.Parallel()
	eachDatabase(t, testenv.Chosen(databases, "SQLite", "MariaDB"), func(t *testing.T, d *database) {
		var ledgers []*Ledger
		for range 2 {
			l := d.open(t, cutter.Merged())
			l.claimsAtOnce = 10 // more orders than are placed between two steps
			ledgers = append(ledgers, l)
		}
		lay(t, ledgers[0], "hot", 1_000_000)
		for range 100 {
			place(t, ledgers[0], "hot")
		}
		s := &sale{database: d}
		s.limit(t, ledgers[0], 10_000)
		var crowd, counts sync.WaitGroup
		counted := make(chan struct{})
		for n := range 4 {
			crowd.Go(func() {
				l := ledgers[n%2]
				var last uuid.UUID
				for sold := 0; ; sold++ {
					select {
					case <-counted:
						return
					default:
					}
					take := takeOf("hot")
					take.Buyer = fmt.Sprint("buyer-", n)
					if _, out := l.Record(t.Context(), take); !out.Committed() && !errors.Is(out.Reason(), stock.ErrBusy) {
						t.Errorf("an order: %v", out.Reason())
						return
					}
					if sold%2 == 1 {
						err := cancelOrder(t.Context(), l, last)
						if err != nil && !errors.Is(err, stock.ErrBusy) && !errors.Is(err, order.ErrUnknownOrder) {
							t.Errorf("a cancellation: %v", err)
							return
						}
					}
					last = take.OrderID
				}
			})
		}
		for _, l := range ledgers {
			counts.Go(func() {
				for {
					row, err := l.CountClaims(t.Context(), "hot")
					if err == nil && row.LimitHolds() {
						return
					}
					if !errors.Is(err, stock.ErrBusy) {
						t.Errorf("counting: %+v, %v", row, err)
						return
					}
				}
			})
		}
		counts.Wait()
		close(counted)
		crowd.Wait()
		if wrong, err := ledgers[0].WrongClaims(t.Context(), []stock.SKU{"hot"}, 10); err != nil || len(wrong) > 0 {
			t.Errorf("wrong claims: %+v, %v", wrong, err)
		}
	})
}

// TestCountClaims_GoesOn checks that a count ends when its caller gives up, and that the next call
// continues it.
func TestCountClaims_GoesOn(t *testing.T) {
	t.Parallel()
	eachDatabase(t, testenv.Chosen(databases, "SQLite", "PostgreSQL"), func(t *testing.T, d *database) {
		l := d.open(t, cutter.Merged())
		l.claimsAtOnce = 1
		lay(t, l, "hot", 1_000_000)
		for range 5 {
			place(t, l, "hot")
		}
		(&sale{database: d}).limit(t, l, 10)
		for range 2 {
			if _, done, err := l.stepClaims(t.Context(), "hot"); done || err != nil {
				t.Fatal(done, err)
			}
		}
		begun, err := l.Row(t.Context(), "hot")
		if err != nil {
			t.Fatal(err)
		}
		end, err := l.turns.take(t.Context(), "hot")
		if err != nil {
			t.Fatal(err)
		}
		ctx, giveUp := context.WithCancel(t.Context())
		counted := make(chan error, 1)
		go func() {
			_, err := l.CountClaims(ctx, "hot")
			counted <- err
		}()
		testenv.Await(t, "the count waits for its turn", func() bool { return l.turns.waiting() == 2 })
		giveUp()
		if err := testenv.Receive(t, "the caller", counted); !errors.Is(err, context.Canceled) {
			t.Errorf("a caller that has given up: %v", err)
		}
		end()
		if row, err := l.Row(t.Context(), "hot"); err != nil || row.CountedTo != begun.CountedTo || !row.CountedTo.Valid {
			t.Errorf("after the caller has given up: %+v, %v; want %+v", row, err, begun)
		}
		if row, err := l.CountClaims(t.Context(), "hot"); err != nil || !row.LimitHolds() {
			t.Errorf("the next call: %+v, %v", row, err)
		}
	})
}

// TestCountClaims_OtherLimit checks that a count continues when the limit changes. If it began
// again, frequent changes of the limit would keep it from ending.
func TestCountClaims_OtherLimit(t *testing.T) {
	t.Parallel()
	eachDatabase(t, testenv.Chosen(databases, "SQLite"), func(t *testing.T, d *database) {
		l := d.open(t, cutter.Merged())
		l.claimsAtOnce = 1
		lay(t, l, "hot", 1_000_000)
		for range 3 {
			place(t, l, "hot")
		}
		s := &sale{database: d}
		before := s.limit(t, l, 10)
		if _, done, err := l.stepClaims(t.Context(), "hot"); err != nil || done {
			t.Fatalf("the first step: done: %t, %v", done, err)
		}
		stepped, err := l.Row(t.Context(), "hot")
		if err != nil || stepped.CountedTo == before.CountedTo {
			t.Fatalf("the first step counted nothing: %+v, %v", stepped, err)
		}
		if now := s.limit(t, l, 5); now.CountedTo != stepped.CountedTo {
			t.Errorf("with another limit, claims are counted to %v, want %v", now.CountedTo, stepped.CountedTo)
		}
	})
}

// TestCountClaims_SameLimitAgain removes a limit and sets the same limit again. The cutter has seen
// the earlier limit, and must notice that the claims of the new one are still being counted.
func TestCountClaims_SameLimitAgain(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases, func(t *testing.T, d *database) {
		l := d.open(t, cutter.Merged())
		l.claimsAtOnce = 1
		lay(t, l, "hot", 1_000_000)
		s := &sale{database: d}
		s.limit(t, l, 10)
		if row, err := l.CountClaims(t.Context(), "hot"); err != nil || !row.LimitHolds() {
			t.Fatalf("counting: %+v, %v", row, err)
		}
		for range 2 { // for the first take, the cutter locks the row
			place(t, l, "hot")
		}
		s.limit(t, l, 0)
		row := s.limit(t, l, 10)
		for row.CountedTo.UUID == uuid.Nil {
			var err error
			if _, _, err = l.stepClaims(t.Context(), "hot"); err != nil {
				t.Fatal(err)
			}
			if row, err = l.Row(t.Context(), "hot"); err != nil || row.LimitHolds() {
				t.Fatalf("the first order is not counted alone: %+v, %v", row, err)
			}
		}
		take := takeOf("hot")
		take.OrderID = uuid.Max // the count reaches this ID last
		mustRecord(t, l, take)
		if row, err := l.CountClaims(t.Context(), "hot"); err != nil || !row.LimitHolds() {
			t.Fatalf("counting again: %+v, %v", row, err)
		}
		if wrong, err := l.WrongClaims(t.Context(), []stock.SKU{"hot"}, 10); err != nil || len(wrong) > 0 {
			t.Errorf("wrong claims: %+v, %v", wrong, err)
		}
	})
}

// TestCountClaims_LateStep lets a step come late: meanwhile claims have been counted, and the limit
// was removed and set again. The step must count no unit twice.
func TestCountClaims_LateStep(t *testing.T) {
	t.Parallel()
	eachDatabase(t, testenv.Chosen(databases, "SQLite", "MariaDB"), func(t *testing.T, d *database) {
		late, fast := d.open(t, cutter.Merged()), d.open(t, cutter.Merged())
		lay(t, fast, "hot", 1_000_000)
		for range 3 {
			place(t, fast, "hot")
		}
		s := &sale{database: d}
		s.limit(t, fast, 10)
		end, err := late.turns.take(t.Context(), "hot")
		if err != nil {
			t.Fatal(err)
		}
		stepped := make(chan error, 1)
		go func() { // this step finds no claims of an earlier limit
			_, _, err := late.stepClaims(t.Context(), "hot")
			stepped <- err
		}()
		testenv.Await(t, "the late step waits for its turn", func() bool { return late.turns.waiting() == 2 })
		if row, err := fast.CountClaims(t.Context(), "hot"); err != nil || !row.LimitHolds() {
			t.Fatalf("counting: %+v, %v", row, err)
		}
		s.limit(t, fast, 0)
		s.limit(t, fast, 10)
		end()
		if err := testenv.Receive(t, "the late step", stepped); err != nil {
			t.Fatal(err)
		}
		if row, err := fast.CountClaims(t.Context(), "hot"); err != nil || !row.LimitHolds() {
			t.Fatalf("counting again: %+v, %v", row, err)
		}
		if wrong, err := fast.WrongClaims(t.Context(), []stock.SKU{"hot"}, 10); err != nil || len(wrong) > 0 {
			t.Errorf("wrong claims: %+v, %v", wrong, err)
		}
	})
}

// TestCountClaims_UnreadClaims checks that a step counts nothing if it cannot read whether claims
// have been counted meanwhile.
func TestCountClaims_UnreadClaims(t *testing.T) {
	t.Parallel()
	eachDatabase(t, testenv.Chosen(databases, "SQLite"), func(t *testing.T, d *database) {
		lay(t, d.open(t, cutter.Merged()), "hot", 1_000_000)
		errRead := errors.New("not read")
		l := d.openHooked(t, "FROM claims WHERE sku = ? LIMIT 1", func() error { return errRead })
		place(t, l, "hot")
		before := (&sale{database: d}).limit(t, l, 10)
		if _, _, err := l.stepClaims(t.Context(), "hot"); !errors.Is(err, errRead) {
			t.Errorf("the step: %v", err)
		}
		if row, err := l.Row(t.Context(), "hot"); err != nil || row != before {
			t.Errorf("the row is %+v, %v; it was %+v", row, err, before)
		}
	})
}

// TestRecord_BuyerLimit checks that claims are kept in both ways of cutting a group: the first
// order under the row's lock, the others in one statement. A limit that changes meanwhile must be
// kept.
func TestRecord_BuyerLimit(t *testing.T) {
	t.Parallel()
	eachDatabase(t, testenv.Chosen(databases, "SQLite", "PostgreSQL"), func(t *testing.T, d *database) {
		l := d.open(t, cutter.Merged())
		sku, other := fresh("limited"), fresh("other")
		lay(t, l, sku, 10)
		lay(t, l, other, 10)
		limit := func(units int64) {
			t.Helper()
			if _, _, err := l.Set(t.Context(), stock.Setting{SKU: sku, Kind: stock.Product, Total: 10, BuyerLimit: &units}); err != nil {
				t.Fatal(err)
			}
			if row, err := l.CountClaims(t.Context(), sku); err != nil || row.BuyerLimit != units || !row.LimitHolds() {
				t.Fatalf("want a limit of %d: %+v, %v", units, row, err)
			}
		}
		for n, step := range []struct {
			limit int64 // set before the order, unless 0
			want  error
		}{{3, nil}, {0, nil}, {0, nil}, {0, stock.ErrBuyerLimit}, {4, nil}, {3, stock.ErrBuyerLimit}, {5, nil}, {0, stock.ErrBuyerLimit}} {
			if step.limit > 0 {
				limit(step.limit)
			}
			if _, out := l.Record(t.Context(), takeOf(sku, other)); !errors.Is(out.Reason(), step.want) || out.Committed() != (step.want == nil) {
				t.Errorf("order %d: %+v, want %v", n+1, out, step.want)
			}
		}
		d.atRest(t, sku, 5)
		d.atRest(t, other, 5)
	})
}

// TestRecord_LimitedSKUSoldOut checks that an order is refused if its SKU is sold out, although its
// buyer has not reached the limit. The cut is sent together with a new claim.
func TestRecord_LimitedSKUSoldOut(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases, func(t *testing.T, d *database) {
		l := d.open(t, cutter.Merged())
		sku, limit := fresh("limited"), int64(1)
		if _, _, err := l.Set(t.Context(), stock.Setting{SKU: sku, Kind: stock.Product, Total: 2, BuyerLimit: &limit}); err != nil {
			t.Fatal(err)
		}
		for n, want := range []error{nil, nil, stock.ErrSoldOut} { // the first order is decided under the row's lock
			take := takeOf(sku)
			take.Buyer = fmt.Sprintf("buyer-%d", n)
			if _, out := l.Record(t.Context(), take); !errors.Is(out.Reason(), want) || out.Committed() != (want == nil) {
				t.Errorf("order %d: %s, %v, want %v", n+1, out.Kind(), out.Reason(), want)
			}
		}
		d.atRest(t, sku, 2)
	})
}
