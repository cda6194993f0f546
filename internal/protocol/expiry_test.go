package protocol

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// run runs the instance's reconciler until stop is called.
func run(t *testing.T, i *instance) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var running sync.WaitGroup
	running.Go(func() { i.Run(ctx) })
	stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
	})
	t.Cleanup(stop)
	return stop
}

// TestExpiry checks that orders expire after the payment window and not earlier, and that their
// units are returned. The clocks of the two instances are wrong by an hour.
func TestExpiry(t *testing.T) {
	t.Parallel()
	eachDatabase(t, oneOf(databases, 2), func(t *testing.T, s *shop) {
		const window = time.Second
		sku := newSKU("expiring")
		var instances []*instance
		for _, wrong := range []time.Duration{time.Hour, -time.Hour} {
			i := s.open(t, settings{
				strategy: "lua", paymentWindow: window,
				clock: func() time.Time { return time.Now().Add(wrong) },
			})
			run(t, i)
			instances = append(instances, i)
		}
		forever := s.open(t, settings{strategy: "lua"})
		addStock(t, forever, sku, 10)
		kept := mustPlace(t, forever, oneUnit(sku))
		var placed []order.Order
		for n := range 6 {
			placed = append(placed, mustPlace(t, instances[n%2], oneUnit(sku)))
		}
		testenv.Await(t, "the orders have expired", func() bool { return s.ledgerCounts(t, sku).sold == 1 })
		testenv.Await(t, "the units are at the gate", func() bool { return s.imbalance(t, forever.counter, sku) == "" })
		for _, o := range placed {
			found, err := instances[0].Order(t.Context(), o.ID)
			if err != nil || found.Status != order.Expired || len(found.History) != 2 {
				t.Fatalf("%+v, %v", found, err)
			}
			if at := found.History[1].At; at.Before(o.ExpiresAt.Truncate(time.Millisecond)) { // the unit of SQLite's clock
				t.Errorf("an order that expires at %v expired at %v", o.ExpiresAt, at)
			}
		}
		if found, err := forever.Order(t.Context(), kept.ID); err != nil || found.Status != order.Pending || !found.ExpiresAt.IsZero() {
			t.Errorf("without a payment window: %+v, %v", found, err)
		}
	})
}

// TestExpiryBacklog checks that a backlog is processed while orders are placed, and that none of
// the new orders expires.
func TestExpiryBacklog(t *testing.T) {
	t.Parallel()
	backlog := 400
	if testenv.Thorough() {
		backlog = 2_000
	}
	eachDatabase(t, withServer(1), func(t *testing.T, s *shop) {
		const buyers = 8
		sku := newSKU("expiring")
		i := s.open(t, settings{strategy: "lua", paymentWindow: time.Hour})
		addStock(t, i, sku, 1_000_000)
		stop := run(t, i)
		buy := func(ctx context.Context, orders int) (placed int) {
			var (
				mu  sync.Mutex
				all sync.WaitGroup
			)
			for range buyers {
				all.Go(func() {
					for range orders / buyers {
						_, _, err := i.Place(context.WithoutCancel(ctx), oneUnit(sku))
						if errors.Is(err, stock.ErrBusy) { // the machine is slow
							continue
						}
						if err != nil {
							t.Error(err)
							return
						}
						mu.Lock()
						placed++
						mu.Unlock()
						if ctx.Err() != nil {
							return
						}
					}
				})
			}
			all.Wait()
			return placed
		}
		due := buy(t.Context(), backlog)
		db := s.sql.Ledger()
		if _, err := db.Exec(t.Context(), "UPDATE orders SET expires_at = "+db.Dialect().After(-time.Hour)); err != nil {
			t.Fatal(err)
		}
		ctx, enough := context.WithCancel(t.Context())
		kept := make(chan int, 1)
		go func() { kept <- buy(ctx, 100_000) }()
		expired := func() (n int) {
			if err := db.QueryRow(t.Context(), []any{&n}, "SELECT COUNT(*) FROM orders WHERE status = 'expired'"); err != nil {
				t.Fatal(err)
			}
			return n
		}
		for n := 0; n < due; n = min(n+100, due) {
			testenv.Await(t, "more orders expire", func() bool { return expired() >= min(n+100, due) })
		}
		enough()
		sold := <-kept
		testenv.Await(t, "all counts agree", func() bool { return s.imbalance(t, i.counter, sku) == "" })
		stop()
		s.checkBalance(t, i.counter, sku, int64(sold))
		if n := expired(); n != due {
			t.Errorf("%d orders have expired, %d were due", n, due)
		}
		for name, want := range map[string]float64{"holdfast_expired_orders_total": float64(due), "holdfast_expiry_backlog_orders": 0} {
			if got := i.metric(t, name); got != want {
				t.Errorf("%s is %v, want %v", name, got, want)
			}
		}
	})
}
