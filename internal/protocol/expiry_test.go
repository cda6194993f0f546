package protocol

import (
	"testing"
	"time"

	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// TestExpiry checks that orders expire after the payment window and not earlier, and that their
// units are returned. The clocks of the two instances are wrong by an hour.
func TestExpiry(t *testing.T) {
	t.Parallel()
	eachDatabase(t, oneOf(databases, 2), func(t *testing.T, s *shop) {
		const window = time.Second
		sku := newSKU("expiring")
		var instances []*instance
		for _, wrong := range []time.Duration{time.Hour, -time.Hour} {
			i := s.open(t, settings{strategy: "lua", paymentWindow: window, clock: off(wrong)})
			testenv.Background(t, i.Run)
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
