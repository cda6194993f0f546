package protocol

import (
	"fmt"
	"strings"
	"testing"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

// TestManySKUs uses several pages of stock rows. An instance that has just taken over the stock, or
// whose gate was emptied, must sell any SKU at once, and a sweep must fill all the others. A row
// that another session has locked must stop only its own SKU.
func TestManySKUs(t *testing.T) {
	t.Parallel()
	const rows = 1200
	name := func(n int) stock.SKU { return stock.SKU(fmt.Sprintf("many-%05d", n)) }
	eachDatabase(t, withServer(0), func(t *testing.T, s *shop) {
		var values []string
		for n := range rows {
			values = append(values, fmt.Sprintf("('%s', 'product', 10, 10)", name(n)))
		}
		insert := "INSERT INTO stock (sku, kind, total, available) VALUES " + strings.Join(values, ", ")
		if _, err := s.sql.Ledger().Exec(t.Context(), insert); err != nil {
			t.Fatal(err)
		}
		i := s.open(t, settings{strategy: "lua"})
		count := "holdfast:{" + s.ledgerID.String() + "}:count"
		filled := func(want int64) {
			t.Helper()
			if n, err := s.redis.HLen(t.Context(), count).Result(); err != nil || n != want {
				t.Errorf("%d counts are filled, %v; want %d", n, err, want)
			}
		}
		mustPlace(t, i, oneUnit(name(700)))
		filled(1)
		sweep(t, i)
		filled(rows)

		s.emptyGate(t)
		mustPlace(t, i, oneUnit(name(1100)))
		filled(1)
		if db := s.sql.Ledger(); db.SkipsLocked() {
			holder, err := s.sql.Ledger().Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer holder.Rollback()
			if _, err := holder.Exec(t.Context(), "UPDATE stock SET total = total WHERE sku = ?", string(name(3))); err != nil {
				t.Fatal(err)
			}
			sweep(t, i)
			filled(rows - 1)
			holder.Rollback()
		}
		sweep(t, i)
		filled(rows)
		s.waitSettled(t, i.counter, name(700))
		s.checkBalance(t, i.counter, name(700), 1)
		s.waitSettled(t, i.counter, name(1100))
		s.checkBalance(t, i.counter, name(1100), 1)
		s.checkBalance(t, i.counter, name(3), 0)
	})
}
