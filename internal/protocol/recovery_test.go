package protocol

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	redislock "github.com/holdfast-stock/holdfast/internal/lock/redis"
	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/store/storetest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// TestRecovery checks that a sweep resolves the units that a killed instance left in flight, at
// whichever step it was killed.
func TestRecovery(t *testing.T) {
	t.Parallel()
	steps := []struct {
		name string
		die  func(t *testing.T, i *instance, d stock.Take)
		sold int64
	}{
		{"before the ledger", func(*testing.T, *instance, stock.Take) {}, 0},
		{"before the settle", func(t *testing.T, i *instance, d stock.Take) {
			if err := record(t, i, d); err != nil {
				t.Fatal(err)
			}
		}, 1},
		{"between void and give", func(t *testing.T, i *instance, d stock.Take) {
			if o := i.ledger.Resolve(t.Context(), d.Deduction); !o.Refused() {
				t.Fatal(o)
			}
		}, 0},
		{"after another take of the order", func(t *testing.T, i *instance, d stock.Take) {
			// Another take has recorded the order with this ID.
			d.TakeID = uuid.New()
			if err := record(t, i, d); err != nil {
				t.Fatal(err)
			}
		}, 1},
	}
	eachDatabase(t, withServer(1), func(t *testing.T, s *shop) {
		i := s.open(t, settings{strategy: "lua", takeDeadline: immediateDeadline})
		for _, step := range steps {
			t.Run(step.name, func(t *testing.T) {
				sku := newSKU("recovery")
				addStock(t, i, sku, 10)
				d := takeUnit(t, i, sku)
				step.die(t, i, d)
				if step.name == "after another take of the order" {
					// The other take has also cut its units at the gate, and settled.
					other := takeUnit(t, i, sku)
					if err := i.counter.Settle(t.Context(), other); err != nil {
						t.Fatal(err)
					}
				}
				sweep(t, i)
				sweep(t, i) // nothing is given back twice
				s.checkBalance(t, i.counter, sku, step.sold)
			})
		}
	})
}

// TestYoungTakesAreLeft checks that recovery ignores takes before their deadline, because their
// instance may still work on them.
func TestYoungTakesAreLeft(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases[:1], func(t *testing.T, s *shop) {
		i := s.open(t, settings{strategy: "lua"})
		sku := newSKU("young")
		addStock(t, i, sku, 10)
		d := takeUnit(t, i, sku)
		sweep(t, i)
		if err := record(t, i, d); err != nil {
			t.Fatal(err)
		}
		i.FinishTake(t.Context(), d, order.Committed())
		s.checkSettled(t, i, sku, 1)
	})
}

// TestRecoveryBehindALostMaster stops a master of a cluster. Sweeps and the instance's own recovery
// must report that, and recover the takes of the masters after it.
func TestRecoveryBehindALostMaster(t *testing.T) {
	t.Parallel()
	s, cluster := newShop(t, sqliteURL(t)), testenv.OwnRedisCluster(t, 0)
	client := storetest.Redis(t, cluster.URL()).(*redis.ClusterClient)
	err := client.ForEachMaster(t.Context(), func(ctx context.Context, master *redis.Client) error {
		return master.ConfigSet(ctx, "cluster-require-full-coverage", "no").Err()
	})
	if err != nil {
		t.Fatal(err)
	}
	i, err := s.build(s.sql.Ledger(), client, redislock.Options{}, settings{strategy: "lua", takeDeadline: immediateDeadline})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(i.Close)
	if err := i.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	skus := make(map[string]stock.SKU) // one SKU on each master, by the master's address
	for len(skus) < len(cluster.Nodes) {
		sku := newSKU("behind")
		master, err := client.MasterForKey(t.Context(), fmt.Sprintf("{%s:%s}", s.ledgerID, sku))
		if err != nil {
			t.Fatal(err)
		}
		if address := master.Options().Addr; skus[address] == "" {
			skus[address] = sku
			addStock(t, i, sku, 5)
		}
	}
	first := slices.Min(slices.Collect(maps.Keys(skus))) // a scan begins with this master
	for _, node := range cluster.Nodes {
		if node.Addr() == first {
			node.Kill()
		}
	}
	delete(skus, first)
	take := func() {
		for _, sku := range skus {
			testenv.Await(t, "the master of "+string(sku)+" is known", func() bool { _, err := i.counter.Level(t.Context(), sku); return err == nil })
			takeUnit(t, i, sku)
		}
	}
	recovered := func() bool {
		for _, sku := range skus {
			if levels, err := i.counter.Level(t.Context(), sku); err != nil || levels[0].InFlight > 0 {
				return false
			}
		}
		return true
	}

	take()
	testenv.Await(t, "a sweep has recovered the takes", func() bool {
		if err := i.Sweep(t.Context()); err == nil {
			t.Error("a sweep without a master reported nothing")
		}
		return recovered()
	})
	take()
	testenv.Background(t, i.Run)
	testenv.Await(t, "the instance has recovered the takes", recovered)
}

// TestSlowTwin lets an instance pause between the take and the ledger until after the deadline. It
// then finds its order void and takes again. If another buyer has got the returned unit, the
// request must be refused, and the unit must not be sold twice.
func TestSlowTwin(t *testing.T) {
	t.Parallel()
	eachDatabase(t, withServer(0), func(t *testing.T, s *shop) {
		for _, test := range []struct {
			name, key string
			lost      bool // another buyer gets the unit
		}{{"without a key", "", false}, {"with a key", "k", false}, {"the unit is lost", "l", true}} {
			t.Run(test.name, func(t *testing.T) {
				paused := s.openHooked(t, settings{strategy: "lua", noGuard: test.lost})
				other := s.open(t, settings{strategy: "lua", noGuard: test.lost, takeDeadline: immediateDeadline})
				sku := newSKU("slow")
				addStock(t, other, sku, 1)
				answer, proceed := haltPlace(t, &paused.gate.taken, paused.instance, withKey(oneUnit(sku), test.key))
				sweep(t, other) // records a void order and gives the unit back
				if test.lost {
					mustPlace(t, other, oneUnit(sku))
				}
				proceed()
				r := testenv.Receive(t, "the answer", answer)
				switch {
				case test.lost && !errors.Is(r.err, stock.ErrSoldOut):
					t.Errorf("answered %+v, want sold out", r)
				case !test.lost && (r.err != nil || r.replayed):
					t.Errorf("answered %+v, want a new order", r)
				case !test.lost:
					wantStatus(t, other, r.order.ID, order.Pending)
				}
				if test.key != "" && !test.lost {
					if again := mustReplay(t, other, withKey(oneUnit(sku), test.key)); again.ID != r.order.ID {
						t.Errorf("the key leads to %v, want %v", again.ID, r.order.ID)
					}
				}
				s.checkSettled(t, other, sku, 1)
			})
		}
	})
}

// TestOneBadSKU checks that an error of one SKU does not keep a sweep from the others. On a
// cluster, a server may be down.
func TestOneBadSKU(t *testing.T) {
	t.Parallel()
	eachDatabaseOn(t, outside, testenv.RedisCluster, func(t *testing.T, s *shop) {
		var failing badSKU
		i := s.open(t, settings{strategy: "lua", takeDeadline: immediateDeadline, around: failing.around})
		bad, good := stock.SKU("a-"+uuid.NewString()[:8]), stock.SKU("b-"+uuid.NewString()[:8])
		addStock(t, i, bad, 5)
		addStock(t, i, good, 5)
		takeUnit(t, i, good)
		failing.sku, failing.all = bad, true
		for _, sku := range []stock.SKU{bad, good} { // the gate does not get these additions
			if _, _, err := i.ledger.Set(t.Context(), stock.Setting{SKU: sku, Kind: stock.Product, Total: 6}); err != nil {
				t.Fatal(err)
			}
		}
		failing.all = false
		if err := i.Sweep(t.Context()); !errors.Is(err, errSKUUnreachable) {
			t.Errorf("the sweep returned %v, want %v", err, errSKUUnreachable)
		}
		s.checkBalance(t, i.counter, good, 0)
	})
}
