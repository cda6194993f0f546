package protocol

import (
	"errors"
	"fmt"
	"testing"

	"github.com/holdfast-stock/holdfast/internal/ledger"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// TestRestoredLedger restores the database from a backup, with the epochs that the gate has or with
// earlier ones. The instance must detect this and drop the gate's counts.
func TestRestoredLedger(t *testing.T) {
	t.Parallel()
	eachDatabase(t, outside, func(t *testing.T, s *shop) {
		for _, beforeRefill := range []bool{false, true} {
			t.Run(fmt.Sprint("backup before a refill ", beforeRefill), func(t *testing.T) {
				i := s.open(t, settings{strategy: "lua", noGuard: true})
				sku := newSKU("restored")
				addStock(t, i, sku, 5)
				backup := s.backUp(t, sku)
				if beforeRefill {
					i.StoreChanged()
				}
				mustPlace(t, i, request(stock.Line{SKU: sku, Quantity: 3}))
				s.waitSettled(t, i, sku)
				addStock(t, i, sku, 7)
				addStock(t, i, sku, 8)
				if err := ready(t, i); err != nil {
					t.Fatal(err)
				}

				s.restore(t, sku, backup)
				if err := ready(t, i); err != nil {
					t.Fatal(err)
				}
				addStock(t, i, sku, 6) // an addition with a number that the gate has had before
				mustPlace(t, i, request(stock.Line{SKU: sku, Quantity: 6}))
				mustRefuse(t, i, oneUnit(sku), stock.ErrSoldOut)
				s.checkSettled(t, i, sku, 6)
				i.Close()
			})
		}
	})
}

// TestRestoredToAnotherLayout restores the ledger from a backup in which another layout owns the
// stock. The instances must continue as before the restore.
func TestRestoredToAnotherLayout(t *testing.T) {
	t.Parallel()
	eachDatabase(t, outside, func(t *testing.T, s *shop) {
		for _, pair := range [][2]string{{"merged", "lua"}, {"lua", "merged"}, {"lua", "segment"}} {
			t.Run(pair[0]+" to "+pair[1], func(t *testing.T) {
				old := s.open(t, settings{strategy: pair[0]})
				row, err := old.ledger.Owner(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				sku := newSKU("restored")
				addStock(t, old, sku, 5)
				i := s.open(t, settings{strategy: pair[1]})
				if err := ready(t, old); !errors.Is(err, stock.ErrSuperseded) {
					t.Fatal(err)
				}
				s.exec(t, "UPDATE ledger SET generation = ?, layout = ?, beat = ?", row.Generation, row.Layout, row.Beat)
				for range 3 {
					_, _ = i.Ready(t.Context()), old.Ready(t.Context())
				}
				if err := ready(t, i); err != nil {
					t.Errorf("the owner before the restore: %v, want ready", err)
				}
				if err := ready(t, old); !errors.Is(err, stock.ErrSuperseded) {
					t.Errorf("the superseded instance: %v", err)
				}
				mustPlace(t, i, oneUnit(sku))
				s.checkSettled(t, i, sku, 1)
				old.Close()
				i.Close()
			})
		}
	})
}

// TestRowOfALaterGeneration checks a stock row or a count with a later generation than the ledger,
// as after a restore from a backup. Its units must still be sold.
func TestRowOfALaterGeneration(t *testing.T) {
	t.Parallel()
	eachDatabase(t, outside, func(t *testing.T, s *shop) {
		for _, name := range []string{"merged", "lua", "segment"} {
			t.Run(name, func(t *testing.T) {
				var last *instance
				for range 3 {
					last = s.open(t, settings{strategy: name, noGuard: true, segments: 2})
					last.StoreChanged() // raises the generation
				}
				sku := newSKU("later")
				addStock(t, last, sku, 3)
				mustPlace(t, last, oneUnit(sku))
				s.waitSettled(t, last, sku)
				generation := last.ledger.Generation()
				last.Close()
				// Restore an earlier generation. The instance that sold is closed already, so it
				// cannot detect this.
				s.exec(t, "UPDATE ledger SET generation = ?", generation-2)
				if err := s.redis.Del(t.Context(), s.key("generation")).Err(); err != nil {
					t.Fatal(err)
				}
				next := s.open(t, settings{strategy: name, noGuard: true, segments: 2})
				for n := range 2 {
					if _, _, err := next.Place(t.Context(), oneUnit(sku)); err != nil {
						t.Errorf("order %d: %v", n+1, err)
					}
				}
				mustRefuse(t, next, oneUnit(sku), stock.ErrSoldOut)
				s.checkSettled(t, next, sku, 3)
			})
		}
	})
}

// backup is an earlier state of a ledger with one SKU.
type backup struct {
	row   ledger.StockRow
	owner ledger.Owner
}

// backUp reads the state of the ledger.
func (s *shop) backUp(t *testing.T, sku stock.SKU) (b backup) {
	t.Helper()
	db := s.sql.DB()
	if err := db.Raw("SELECT * FROM stock WHERE sku = ?", string(sku)).Scan(&b.row).Error; err != nil {
		t.Fatal(err)
	}
	if err := db.Raw("SELECT generation, layout, beat FROM ledger").Scan(&b.owner).Error; err != nil {
		t.Fatal(err)
	}
	return b
}

// restore restores the backup, and deletes the lines and changes of the SKU.
func (s *shop) restore(t *testing.T, sku stock.SKU, b backup) {
	t.Helper()
	s.exec(t, "UPDATE stock SET total = ?, available = ?, epoch = ?, version = ?, changes = ? WHERE sku = ?",
		b.row.Total, b.row.Available, b.row.Epoch, b.row.Version, b.row.Changes, string(sku))
	s.exec(t, "DELETE FROM order_lines WHERE sku = ?", string(sku))
	s.exec(t, "DELETE FROM outbox WHERE sku = ?", string(sku))
	s.exec(t, "UPDATE ledger SET generation = ?, layout = ?, beat = ?", b.owner.Generation, b.owner.Layout, b.owner.Beat)
}
