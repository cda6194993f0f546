package protocol

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/faults"
	"github.com/holdfast-stock/holdfast/internal/ledger"
	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/store/storetest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// TestRoundTrips counts the round trips to the database of each change of an order of one SKU,
// until the outbox is empty. BEGIN and COMMIT count as statements, unless they share a round trip
// with others. The smallest count of some rounds is used, because the first round prepares
// statements, and a busy machine causes retries.
func TestRoundTrips(t *testing.T) {
	for _, d := range servers {
		for _, strategy := range []string{"lua", "merged"} { // with a gate, and without
			t.Run(d.Name+"/"+strategy, func(t *testing.T) {
				t.Parallel()
				s := newShop(t, testenv.Patient(t, d.URL(t)))
				wire, wireURL := faults.NewWire(t, s.url)
				i := s.open(t, settings{strategy: strategy, paymentWindow: time.Hour, db: storetest.SQL(t, wireURL).Ledger})
				addStock(t, i, "a", 100)
				job, err := i.ledger.ClaimJob(t.Context(), "trips", "test")
				if err != nil {
					t.Fatal(err)
				}
				var o order.Order
				least := make(map[string]int)
				count := func(what string, do func() error) {
					t.Helper()
					wire.Arm()
					err := do()
					s.cleared(t, "a")
					trips, _ := wire.Disarm()
					if err != nil {
						t.Fatalf("%s: %v", what, err)
					}
					if n, counted := least[what]; !counted || trips < n {
						least[what] = trips
					}
				}
				place := func() (err error) { o, _, err = i.Place(t.Context(), oneUnit("a")); return err }
				pay := func() error { _, err := i.Pay(t.Context(), o.ID, uuid.NewString()); return err }
				cancel := func() error { _, err := i.Cancel(t.Context(), o.ID, o.Buyer); return err }
				refund := func() error { _, err := i.Refund(t.Context(), o.ID, true); return err }
				expire := func() error {
					s.expiresIn(t, o.ID, -time.Second)
					done, err := i.ledger.Expire(t.Context(), job, new(ledger.ExpiryRound), 100)
					i.BringToGate(t.Context(), done.Returned...)
					return err
				}
				most := map[string]int{"placing": 5, "paying": 5, "refunding": 5, "cancelling": 5, "expiring": 8}
				for round, within := 1, false; !within && round <= 6; round++ {
					if err := i.ledger.RenewJob(t.Context(), job); err != nil {
						t.Fatal(err)
					}
					count("placing", place)
					count("paying", pay)
					count("refunding", refund)
					count("placing", place)
					count("cancelling", cancel)
					count("placing", place)
					count("expiring", expire)
					within = true
					for what, trips := range least {
						within = within && trips <= most[what]
					}
				}
				for what, trips := range least {
					if trips > most[what] {
						t.Errorf("%s takes %d round trips, want at most %d", what, trips, most[what])
					}
				}
			})
		}
	}
}

// cleared waits until the outbox has no entry of the SKU.
func (s *shop) cleared(t *testing.T, sku stock.SKU) {
	t.Helper()
	for left := int64(1); left > 0; {
		if err := s.sql.DB().WithContext(t.Context()).Table("outbox").Where("sku = ?", string(sku)).Count(&left).Error; err != nil {
			t.Fatal(err)
		}
	}
}
