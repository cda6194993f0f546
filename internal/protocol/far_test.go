package protocol

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	redislock "github.com/holdfast-stock/holdfast/internal/lock/redis"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/store/storetest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// TestFarRedis runs several instances with a Redis that is four tenths of a second away. They start
// together, and later Redis loses its scripts. They must raise the generation only a few times
// until all of them sell.
func TestFarRedis(t *testing.T) {
	t.Parallel()
	const (
		instances, buyers = 4, 4
		orders            = 3 // orders of each buyer
		oneWay            = 200 * time.Millisecond
		maxRaised         = 6 // TestSlowLoad of package reconcile has exact bounds
	)
	redis := testenv.OwnRedis(t)
	s := newShopOn(t, sqliteURL(t), redis.URL())
	before := s.open(t, settings{strategy: "merged"}) // first, the stock belongs to another layout
	raised := func() func() stock.Generation {
		t.Helper()
		generation := func() stock.Generation {
			owner, err := before.ledger.Owner(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return owner.Generation
		}
		first := generation()
		return func() stock.Generation { return generation() - first }
	}
	wire := testenv.NewWire(t, redis.Addr())
	wire.Delay(oneWay)
	var all []*instance
	for range instances {
		client := storetest.Redis(t, "redis://"+wire.Addr())
		i, err := s.build(s.sql.Ledger(), client, redislock.Options{}, settings{strategy: "lua", takeDeadline: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(i.Close)
		all = append(all, i)
	}
	together := func(do func(i *instance)) {
		var calls sync.WaitGroup
		for _, i := range all {
			calls.Go(func() { do(i) })
		}
		calls.Wait()
	}

	byStarts := raised()
	together(func(i *instance) {
		if err := i.Start(t.Context()); err != nil {
			t.Error(err)
		}
	})
	n := byStarts()
	t.Logf("starts raised the generation %d times", n)
	if n > maxRaised {
		t.Errorf("%d starts raised the generation %d times", instances, n)
	}

	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	for _, i := range all {
		running.Go(func() { i.Run(ctx) })
	}
	sku := newSKU("far")
	addStock(t, all[0], sku, 10_000)
	sell := func(i *instance) {
		var sales sync.WaitGroup
		for range buyers {
			sales.Go(func() {
				sold := 0
				testenv.Await(t, "every buyer has all orders", func() bool {
					_, _, err := i.Place(t.Context(), oneUnit(sku))
					switch {
					case err == nil:
						sold++
					case !errors.Is(err, stock.ErrBusy) && !errors.Is(err, stock.ErrUnavailable):
						t.Errorf("answered %v", err)
					}
					return sold == orders
				})
			})
		}
		sales.Wait()
	}
	together(sell)

	byFlush := raised()
	if err := s.redis.ScriptFlush(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	together(sell)
	n = byFlush()
	t.Logf("after the flush, it was raised %d times", n)
	if n < 1 || n > maxRaised {
		t.Errorf("the generation was raised %d times, want 1 to %d", n, maxRaised)
	}
}
