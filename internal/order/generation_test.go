package order

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"gorm.io/gorm"

	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/store"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// heldViewer stops between what the cutter sees and the transaction.
type heldViewer struct {
	stock.Cutter
	seen *hook
}

func (c heldViewer) View(db *gorm.DB, g stock.Generation, ds []stock.Deduction) (stock.Cutter, error) {
	cutter, err := c.Cutter.(stock.Viewer).View(db, g, ds)
	c.seen.pass()
	return cutter, err
}

// openSeen starts an instance of optimistic, which may be stopped after it has
// seen the stock row.
func (s *shop) openSeen(t *testing.T) (*instance, *hook) {
	t.Helper()
	seen := new(hook)
	return s.open(t, settings{strategy: "optimistic", change: func(built *stock.Strategy) {
		built.Cutter = heldViewer{built.Cutter, seen}
	}}), seen
}

// TestAdoptionWhileCutting: a cutter that has seen a stock row does not cut it
// after another strategy has adopted it and sold its unit.
func TestAdoptionWhileCutting(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases, func(t *testing.T, s *shop) {
		slow, seen := s.openSeen(t)
		sku := fresh("adopted")
		lay(t, slow, sku, 1)
		reached, proceed := seen.arm()
		defer proceed()
		heard := place(t.Context(), slow, ask(sku))
		wait(t, "the row was seen", reached)
		next := s.open(t, settings{strategy: "conditional"})
		mustPlace(t, next, ask(sku))
		proceed()
		if r := wait(t, "the answer", heard); !errors.Is(r.err, ErrSuperseded) {
			t.Errorf("heard %+v", r)
		}
		s.atRest(t, nil, sku, 1)
	})
}

// TestAdoption: an adoption raises the epoch into its generation, and the
// version, so that neither a take nor a version seen before it counts.
func TestAdoption(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases, func(t *testing.T, s *shop) {
		old := s.open(t, settings{strategy: "lua"})
		sku := fresh("adoption")
		lay(t, old, sku, 5)
		before, err := old.ledger.Row(t.Context(), sku)
		if err != nil {
			t.Fatal(err)
		}
		next := s.open(t, settings{strategy: "merged"})
		mustPlace(t, next, ask(sku))
		after, err := next.ledger.Row(t.Context(), sku)
		if err != nil {
			t.Fatal(err)
		}
		if g := next.generations.current(); !g.Holds(after.Epoch) || g.Holds(before.Epoch) || after.Version <= before.Version {
			t.Errorf("generation %d: epoch %d and version %d became %d and %d",
				g, before.Epoch, before.Version, after.Epoch, after.Version)
		}
	})
}

// TestRollover: while one strategy takes over from another, and both serve, what
// they sell together is what there is. Two rush at the same time, without guard.
func TestRollover(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases, func(t *testing.T, s *shop) {
		for _, pair := range [][2]string{
			{"lock", "lua"}, {"lua", "lock"}, {"lua", "merged"}, {"optimistic", "lua"}, {"segment", "lua"},
			{"for-update", "optimistic"}, {"conditional", "segment-lock"},
		} {
			t.Run(pair[0]+" to "+pair[1], func(t *testing.T) {
				const units = 300
				old := s.open(t, settings{strategy: pair[0], noGuard: true})
				defer old.Close()
				sku := fresh("rollover")
				lay(t, old, sku, units)
				var sellers sync.WaitGroup
				defer sellers.Wait()
				half := make(chan struct{})
				var halfOnce sync.Once
				sell := func(i *instance) {
					for n := 0; ; n++ {
						_, _, err := i.Place(t.Context(), ask(sku))
						switch {
						case errors.Is(err, stock.ErrSoldOut), errors.Is(err, ErrSuperseded):
							halfOnce.Do(func() { close(half) })
							return
						case err != nil && !errors.Is(err, ErrBusy):
							t.Errorf("a client heard %v", err)
						}
						if n == units/20 {
							halfOnce.Do(func() { close(half) })
						}
					}
				}
				for range 8 {
					sellers.Go(func() { sell(old) })
				}
				wait(t, "the old instance sells", half)
				next := s.open(t, settings{strategy: pair[1], noGuard: true})
				defer next.Close()
				for range 8 {
					sellers.Go(func() { sell(next) })
				}
				sellers.Wait()
				s.settled(t, next.gate, sku)
				s.atRest(t, next.gate, sku, units)
			})
		}
	})
}

// TestCreatedByTheOldLayout: a SKU that an instance of the old layout creates
// after the stock was taken over is adopted like any other.
func TestCreatedByTheOldLayout(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases, func(t *testing.T, s *shop) {
		old := s.open(t, settings{strategy: "merged"})
		next := s.open(t, settings{strategy: "lua"})
		sku, changed := fresh("created"), fresh("changed")
		lay(t, old, changed, 5)
		if _, _, err := next.ledger.Set(t.Context(), Setting{SKU: changed, Kind: stock.Product, Total: 6}); !errors.Is(err, stock.ErrNotAdopted) {
			t.Errorf("changing a row that is not adopted: %v", err)
		}
		lay(t, next, changed, 6)
		if row, err := next.ledger.Row(t.Context(), changed); err != nil || !next.generations.current().Holds(row.Epoch) {
			t.Errorf("changed before it was adopted: %+v, %v", row, err)
		}
		lay(t, old, sku, 5)
		if _, err := next.Stock(t.Context(), sku); err != nil {
			t.Error(err)
		}
		if page, _, err := next.ListStock(t.Context(), "", 100); err != nil || len(page) == 0 {
			t.Errorf("%+v, %v", page, err)
		}
		if err := next.Ready(t.Context()); err != nil {
			t.Error(err)
		}
		lay(t, next, sku, 6)
		mustPlace(t, next, asking(stock.Line{SKU: sku, Quantity: 6}))
		s.settled(t, next.gate, sku)
		s.atRest(t, next.gate, sku, 6)
	})
}

// TestSegmentsThereAndBack: an instance that lays the stock out in fewer segments,
// and then in as many as before, loses none of it.
func TestSegmentsThereAndBack(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases, func(t *testing.T, s *shop) {
		sku := fresh("segments")
		first := s.open(t, settings{strategy: "segment", segments: 8})
		lay(t, first, sku, 16)
		for _, segments := range []int{8, 4, 8} {
			i := s.open(t, settings{strategy: "segment", segments: segments, noGuard: true})
			mustPlace(t, i, asking(stock.Line{SKU: sku, Quantity: 2}))
		}
		if err := first.Ready(t.Context()); err != nil { // follows
			t.Fatal(err)
		}
		mustPlace(t, first, asking(stock.Line{SKU: sku, Quantity: 10}))
		mustRefuse(t, first, ask(sku), stock.ErrSoldOut)
		s.settled(t, first.gate, sku)
		s.atRest(t, first.gate, sku, 16)
	})
}

// TestStaleRedis: a Redis that restarts from a snapshot does not sell what was
// sold since, without guard: not to instances that run on, and not to one that
// starts after it.
func TestStaleRedis(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"lua", "lock", "segment", "segment-lock"} {
		for _, restarted := range []bool{false, true} {
			t.Run(fmt.Sprint(name, "/service restarted ", restarted), func(t *testing.T) {
				t.Parallel()
				redis := testenv.OwnRedis(t)
				s := newShopOn(t, testenv.SQLite(t), "redis://"+redis.Addr())
				i := s.open(t, settings{strategy: name, noGuard: true})
				sku := fresh("stale")
				lay(t, i, sku, 10)
				mustPlace(t, i, asking(stock.Line{SKU: sku, Quantity: 2}))
				s.settled(t, i.gate, sku)
				if err := s.redis.Save(t.Context()).Err(); err != nil {
					t.Fatal(err)
				}
				mustPlace(t, i, asking(stock.Line{SKU: sku, Quantity: 5}))
				s.settled(t, i.gate, sku)
				redis.Restart()
				if restarted {
					i.Close()
					i = s.open(t, settings{strategy: name, noGuard: true})
				}
				placed := 0
				eventually(t, "what is left is sold", func() bool {
					_, _, err := i.Place(t.Context(), ask(sku))
					switch {
					case err == nil:
						placed++
					case !errors.Is(err, stock.ErrSoldOut) && !errors.Is(err, ErrBusy):
						t.Errorf("heard %v", err)
					}
					return errors.Is(err, stock.ErrSoldOut)
				})
				if placed != 3 {
					t.Errorf("sold %d of the 3 units left", placed)
				}
				s.settled(t, i.gate, sku)
				s.atRest(t, i.gate, sku, 10)
			})
		}
	}
}

// TestStoreChanged: every count is filled anew, under one new generation.
func TestStoreChanged(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases, func(t *testing.T, s *shop) {
		i := s.open(t, settings{strategy: "lua", noGuard: true})
		sku := fresh("suspect")
		lay(t, i, sku, 3)
		generation := i.generations.current()
		i.StoreChanged()
		mustPlace(t, i, ask(sku))
		if now := i.generations.current(); now != generation+1 {
			t.Errorf("generation %d became %d", generation, now)
		}
		mustPlace(t, i, ask(sku))
		if now := i.generations.current(); now != generation+1 {
			t.Errorf("raised again, to %d", now)
		}
		s.settled(t, i.gate, sku)
		s.atRest(t, i.gate, sku, 2)
	})
}

// TestLoadFails: a generation whose scripts could not be loaded is not loaded
// again; another is raised.
func TestLoadFails(t *testing.T) {
	t.Parallel()
	s := newShop(t, testenv.SQLite(t))
	var gate *countingLoads
	i := s.open(t, settings{strategy: "lua", change: func(built *stock.Strategy) {
		gate = &countingLoads{Gate: built.Gate, loads: make(map[stock.Generation]int)}
		built.Gate = gate
	}})
	sku := fresh("load")
	lay(t, i, sku, 3)
	gate.fail = 2
	i.StoreChanged()
	eventually(t, "an order is placed", func() bool {
		_, _, err := i.Place(t.Context(), ask(sku))
		return err == nil
	})
	for g, n := range gate.loads {
		if n != 1 {
			t.Errorf("generation %d was loaded %d times", g, n)
		}
	}
	if len(gate.loads) != 4 || gate.fail != 0 {
		t.Errorf("loads: %v", gate.loads)
	}
}

// countingLoads fails some loads.
type countingLoads struct {
	stock.Gate
	fail  int
	loads map[stock.Generation]int
}

func (g *countingLoads) Load(ctx context.Context, to stock.Generation) error {
	g.loads[to]++
	if g.fail > 0 {
		g.fail--
		return errors.New("the load failed")
	}
	return g.Gate.Load(ctx, to)
}

// TestFlightWithoutRecords: units in flight that no record accounts for come back
// once the counts rest, and those that a record accounts for stay in flight.
func TestFlightWithoutRecords(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases, func(t *testing.T, s *shop) {
		for _, name := range []string{"lua", "none", "segment"} {
			i := s.open(t, settings{strategy: name})
			lost, kept := fresh("lost"), fresh("kept")
			lay(t, i, lost, 5)
			lay(t, i, kept, 5)
			taken(t, i, lost)
			taken(t, i, kept)
			flight := "holdfast:{" + s.ledgerID.String() + "}:flight"
			fields, err := s.redis.HKeys(t.Context(), flight).Result()
			if err != nil {
				t.Fatal(err)
			}
			for _, field := range fields {
				if len(field) > len(lost) && field[:len(lost)] == string(lost) {
					if err := s.redis.HDel(t.Context(), flight, field).Err(); err != nil {
						t.Fatal(err)
					}
				}
			}
			for range 3 {
				sweep(t, i)
			}
			levels, err := i.gate.Level(t.Context(), lost, kept)
			if err != nil || levels[0].InFlight != 0 || levels[0].Available != 5 || levels[1].InFlight != 1 {
				t.Errorf("%s: %+v, %v", name, levels, err)
			}
			i.Close()
		}
	})
}

// TestOneBadSKU: what fails for one SKU keeps no sweep from the others.
func TestOneBadSKU(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases, func(t *testing.T, s *shop) {
		var gate *choosyGate
		i := s.open(t, settings{strategy: "lua", takeDeadline: deadline, change: func(built *stock.Strategy) {
			gate = &choosyGate{Gate: built.Gate}
			built.Gate = gate
		}})
		bad, good := stock.SKU("a-"+uuid.NewString()[:8]), stock.SKU("b-"+uuid.NewString()[:8])
		lay(t, i, bad, 5)
		lay(t, i, good, 5)
		taken(t, i, good)
		gate.bad, gate.all = bad, true
		for _, sku := range []stock.SKU{bad, good} { // additions that do not reach the gate
			if _, _, err := i.ledger.Set(t.Context(), Setting{SKU: sku, Kind: stock.Product, Total: 6}); err != nil {
				t.Fatal(err)
			}
		}
		gate.all = false
		if err := i.Sweep(t.Context()); !errors.Is(err, errBad) {
			t.Errorf("the sweep said %v", err)
		}
		s.atRest(t, i.gate, good, 0)
	})
}

var errBad = errors.New("this SKU's server is away")

// choosyGate fails for one SKU.
type choosyGate struct {
	stock.Gate
	bad stock.SKU
	all bool
}

func (g *choosyGate) Adjust(ctx context.Context, c stock.Change) error {
	if g.all || c.SKU == g.bad {
		return errBad
	}
	return g.Gate.Adjust(ctx, c)
}

func (g *choosyGate) Level(ctx context.Context, skus ...stock.SKU) ([]stock.Level, error) {
	levels, err := g.Gate.Level(ctx, skus...)
	for i := range levels {
		if levels[i].SKU == g.bad {
			levels[i], err = stock.Level{SKU: g.bad, Err: errBad}, errBad
		}
	}
	return levels, err
}

// TestUnreadableCount: a count that makes no sense is filled anew.
func TestUnreadableCount(t *testing.T) {
	t.Parallel()
	s := newShop(t, testenv.SQLite(t))
	for _, name := range []string{"lua", "lock"} {
		i := s.open(t, settings{strategy: name})
		sku := fresh("unreadable")
		lay(t, i, sku, 2)
		if err := s.redis.HSet(t.Context(), "holdfast:{"+s.ledgerID.String()+"}:count", string(sku), "nonsense").Err(); err != nil {
			t.Fatal(err)
		}
		mustPlace(t, i, ask(sku))
		s.settled(t, i.gate, sku)
		s.atRest(t, i.gate, sku, 1)
	}
}

// TestManyVoids: a key outlives any number of void orders.
func TestManyVoids(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases, func(t *testing.T, s *shop) {
		i := s.open(t, settings{strategy: "lua"})
		sku := fresh("voids")
		lay(t, i, sku, 3)
		r := ask(sku).keyed("k")
		for generation := range 25 {
			d := stock.Deduction{OrderID: i.orderID(r, generation), TakeID: uuid.New(), Buyer: r.Buyer, Lines: r.Lines}
			if o := i.ledger.Resolve(t.Context(), d); o.kind != refused {
				t.Fatal(o)
			}
		}
		first := mustPlace(t, i, r)
		if o, replayed, err := i.Place(t.Context(), r); err != nil || !replayed || o.ID != first.ID {
			t.Errorf("replayed %v: %+v, %v", replayed, o, err)
		}
		s.settled(t, i.gate, sku)
		s.atRest(t, i.gate, sku, 1)
	})
}

// TestOpenTakesAreEnded: a take that could not be given back at once comes back
// as soon as the gate answers, long before its deadline.
func TestOpenTakesAreEnded(t *testing.T) {
	t.Parallel()
	s := newShop(t, testenv.SQLite(t))
	i := s.openHooked(t, settings{strategy: "lua"})
	sku := fresh("open")
	lay(t, i.instance, sku, 1)
	i.gate.lose = 1
	i.gate.set(&i.gate.noGive, true)
	mustRefuse(t, i.instance, ask(sku), ErrUnavailable)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() { i.Run(ctx) })
	i.gate.set(&i.gate.noGive, false)
	start := time.Now()
	eventually(t, "the unit is back", func() bool {
		levels, err := i.gate.Level(t.Context(), sku)
		return err == nil && levels[0].Available == 1 && levels[0].InFlight == 0
	})
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("it took %v", took)
	}
}

// TestShrinkIsSeen: an optimistic cutter that has seen the stock row of before a
// shrink does not cut it.
func TestShrinkIsSeen(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases, func(t *testing.T, s *shop) {
		slow, seen := s.openSeen(t)
		sku := fresh("shrunk")
		lay(t, slow, sku, 1)
		reached, proceed := seen.arm()
		defer proceed()
		heard := place(t.Context(), slow, ask(sku))
		wait(t, "the row was seen", reached)
		lay(t, slow, sku, 0)
		proceed()
		if r := wait(t, "the answer", heard); !errors.Is(r.err, stock.ErrSoldOut) {
			t.Errorf("heard %+v", r)
		}
		s.atRest(t, nil, sku, 0)
	})
}

// TestShrinkOutlivesRefill: a shrink taken at the gate before a refill does not
// commit after it, as the refill did not count it.
func TestShrinkOutlivesRefill(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases, func(t *testing.T, s *shop) {
		i := s.openHooked(t, settings{strategy: "lua", noGuard: true})
		sku := fresh("shrink")
		lay(t, i.instance, sku, 3)
		reached, proceed := i.gate.taken.arm()
		defer proceed()
		set := make(chan error, 1)
		go func() {
			_, _, err := i.SetStock(t.Context(), Setting{SKU: sku, Kind: stock.Product, Total: 1})
			set <- err
		}()
		wait(t, "the administrator's take", reached)
		s.forget(t)
		mustPlace(t, i.instance, ask(sku)) // refills
		proceed()
		if err := wait(t, "the administrator's answer", set); err != nil {
			t.Error(err)
		}
		mustRefuse(t, i.instance, ask(sku), stock.ErrSoldOut)
		s.settled(t, i.gate, sku)
		s.atRest(t, i.gate, sku, 1)
	})
}

// TestReadyNeedsWrites: a ledger that takes no writes is not ready.
func TestReadyNeedsWrites(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases[1:2], func(t *testing.T, s *shop) { // PostgreSQL makes one database read only
		i := s.open(t, settings{strategy: "merged"})
		if err := i.Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
		sku := fresh("read-only")
		lay(t, i, sku, 3)
		db := s.sql.DB()
		var name string
		if err := db.Raw("SELECT current_database()").Row().Scan(&name); err != nil {
			t.Fatal(err)
		}
		set := func(to string) {
			t.Helper()
			err := db.Transaction(func(tx *gorm.DB) error {
				return errors.Join(tx.Exec("SET TRANSACTION READ WRITE").Error,
					tx.Exec(fmt.Sprintf("ALTER DATABASE %q SET default_transaction_read_only = %s", name, to)).Error)
			})
			if err != nil {
				t.Fatal(err)
			}
			// New sessions have it. This one is the last to end, and so gives an error.
			_ = db.Exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() ORDER BY pid = pg_backend_pid()").Error
		}
		set("on")
		eventually(t, "it is not ready", func() bool { return store.IsReadOnly(i.Ready(t.Context())) })
		mustRefuse(t, i, ask(sku), ErrBusy)
		mustRefuse(t, i, ask(sku).keyed("k"), ErrBusy)
		set("off")
		eventually(t, "it is ready", func() bool { return i.Ready(t.Context()) == nil })
		mustPlace(t, i, ask(sku).keyed("k"))
		s.atRest(t, nil, sku, 1)
	})
}
