package cutter_test

import (
	"errors"
	"testing"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/ledger/cutter"
	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// taking returns a group of one take.
func taking(lines ...stock.Line) []stock.Take {
	return []stock.Take{{Deduction: stock.Deduction{OrderID: uuid.New(), TakeID: uuid.New(), Buyer: "b", Lines: lines}}}
}

// slotsOf returns the units of the SKU's stock row and slots.
func slotsOf(t *testing.T, db *sqltx.DB, sku string) (reserve, units, parts int64) {
	t.Helper()
	err := db.QueryRow(t.Context(), []any{&reserve, &units, &parts}, "SELECT available, "+cutter.InParts(db.Dialect())+
		", (SELECT COUNT(*) FROM stock_parts WHERE stock_parts.sku = stock.sku) FROM stock WHERE sku = ?", sku)
	if err != nil {
		t.Fatal(err)
	}
	return reserve, units, parts
}

// TestSlots checks how the units of a SKU move from the stock row into slots and between slots. A
// take from one slot must not wait for another slot.
func TestSlots(t *testing.T) {
	t.Parallel()
	for _, d := range testenv.Databases() {
		t.Run(d.Name, func(t *testing.T) {
			t.Parallel()
			db := migrated(t, d.URL(t))
			lay := func(sku string, units int) {
				t.Helper()
				first, _ := stock.Generation(1).Epochs()
				if _, err := db.Exec(t.Context(), "INSERT INTO stock (sku, kind, total, available, epoch) VALUES (?, 'product', ?, ?, ?)", sku, units, units, first); err != nil {
					t.Fatal(err)
				}
			}
			plan := func(c cutter.Cutter, takes []stock.Take) cutter.Plan {
				t.Helper()
				p, err := c.Plan(t.Context(), db, 1, takes)
				if err != nil || p.GroupCut == nil {
					t.Fatalf("%+v, %v", p, err)
				}
				return p
			}
			cut := func(c cutter.Cutter, takes []stock.Take) error {
				t.Helper()
				return (&unitSale{db: db}).sellGroup(t, 1, c, takes)[0].Reason()
			}
			whole := func(tx *sqltx.Tx, p cutter.Plan) {
				t.Helper()
				if updated, err := tx.ExecAll(t.Context(), p.GroupCut.Statement); err != nil || updated[0] != p.GroupCut.Rows {
					t.Fatalf("%d rows updated, %v", updated, err)
				}
			}

			t.Run("lends and divides", func(t *testing.T) {
				lay("divided", 10)
				if err := cut(cutter.Slots(4), taking(stock.Line{SKU: "divided", Quantity: 2})); err != nil {
					t.Fatal(err)
				}
				if reserve, units, parts := slotsOf(t, db, "divided"); reserve != 0 || units != 8 || parts != 4 {
					t.Errorf("the stock row has %d units, %d slots have %d; want 0, 4 and 8", reserve, parts, units)
				}
				// More units than a slot has.
				if err := cut(cutter.Slots(4), taking(stock.Line{SKU: "divided", Quantity: 7})); err != nil {
					t.Error(err)
				}
				if reserve, units, _ := slotsOf(t, db, "divided"); reserve != 0 || units != 1 {
					t.Errorf("the stock row has %d units, the slots %d; want 0 and 1", reserve, units)
				}
			})
			t.Run("finds units that return", func(t *testing.T) {
				lay("returned", 4)
				c := cutter.Slots(4)
				if err := cut(c, taking(stock.Line{SKU: "returned", Quantity: 4})); err != nil {
					t.Fatal(err)
				}
				if _, err := db.Exec(t.Context(), "UPDATE stock SET available = available + 1 WHERE sku = 'returned'"); err != nil {
					t.Fatal(err)
				}
				if err := cut(c, taking(stock.Line{SKU: "returned", Quantity: 1})); err != nil {
					t.Error(err)
				}
			})
			t.Run("learns buyer limits", func(t *testing.T) {
				lay("limited", 10)
				if _, err := db.Exec(t.Context(), "UPDATE stock SET limit_per_buyer = 3 WHERE sku = 'limited'"); err != nil {
					t.Fatal(err)
				}
				c := cutter.Slots(4)
				if err := cut(c, taking(stock.Line{SKU: "limited", Quantity: 1})); err != nil {
					t.Fatal(err)
				}
				if p := plan(c, taking(stock.Line{SKU: "limited", Quantity: 1})); len(p.GroupCut.Claims) == 0 {
					t.Errorf("the next sale is sent with %+v", p.GroupCut)
				}
			})
			if db.Dialect().RowLock() == "" {
				return // one transaction at a time
			}
			t.Run("waits for no other slot", func(t *testing.T) {
				lay("a", 10)
				lay("b", 10)
				c := cutter.Slots(2)
				both := func() []stock.Take {
					return taking(stock.Line{SKU: "a", Quantity: 1}, stock.Line{SKU: "b", Quantity: 1})
				}
				if err := cut(c, both()); err != nil {
					t.Fatal(err)
				}
				holder, err := db.Begin(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				defer holder.Rollback()
				whole(holder, plan(c, both()))
				// The transaction would wait until the database ends the wait.
				err = db.Transact(t.Context(), func(tx *sqltx.Tx) error {
					whole(tx, plan(c, both()))
					return nil
				})
				if err != nil {
					t.Error(err)
				}
				_ = plan(c, both()) // passes over the held slot
				// The same with a sold-out SKU, whose other SKU is taken from a single slot.
				lay("sold out", 1)
				lay("c", 10)
				if err := cut(c, taking(stock.Line{SKU: "c", Quantity: 1}, stock.Line{SKU: "sold out", Quantity: 1})); err != nil {
					t.Fatal(err)
				}
				whole(holder, plan(c, taking(stock.Line{SKU: "c", Quantity: 1})))
				mixed := append(taking(stock.Line{SKU: "sold out", Quantity: 1}), taking(stock.Line{SKU: "c", Quantity: 1})...)
				p := plan(c, mixed)
				err = db.Transact(t.Context(), func(tx *sqltx.Tx) error {
					decisions, err := p.Cut(t.Context(), tx)
					if err == nil && (decisions[0].Taken || !decisions[1].Taken) {
						t.Errorf("decided %v", decisions)
					}
					return err
				})
				if err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestSlots_ChangedMeanwhile lets a sale read a slot with one unit while another transaction sells
// that unit, or takes the slot back. The stock row has another unit, so the sale must request
// another try instead of refusing.
func TestSlots_ChangedMeanwhile(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, s *unitSale) {
		c := cutter.Slots(1)
		for name, change := range map[string]func(*sqltx.Tx) error{
			"sold": func(tx *sqltx.Tx) error {
				d, err := s.cut(t.Context(), tx, c, 1)
				return errors.Join(err, d.Reason())
			},
			"taken back": func(tx *sqltx.Tx) error {
				_, err := tx.Exec(t.Context(), "UPDATE stock SET version = version + 1 WHERE sku = ?", string(s.sku))
				if err == nil {
					_, err = cutter.Collect(t.Context(), tx, s.sku)
				}
				return err
			},
		} {
			s.lay(t, 2)
			holder, asking := s.begin(t), s.begin(t)
			s.mustSell(t, c, 1)
			if _, err := s.db.Exec(t.Context(), "UPDATE stock SET available = 1 WHERE sku = ?", string(s.sku)); err != nil {
				t.Fatal(err)
			}
			if err := change(holder); err != nil {
				t.Fatal(err)
			}
			answered := s.cutLater(t, asking, c, 1)
			testenv.Await(t, "the sale waits for the slot", func() bool { return s.someoneLocks(t, "stock_parts") })
			if err := holder.Commit(); err != nil {
				t.Fatal(err)
			}
			if err := <-answered; !errors.Is(err, cutter.ErrConflict) {
				t.Errorf("the slot is %s: %v, want %v", name, err, cutter.ErrConflict)
			}
			asking.Rollback()
		}
	})
}

// TestSlots_DividedMeanwhile lets two sales divide the units of one stock row at once. The second
// must divide what the first has left.
func TestSlots_DividedMeanwhile(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, s *unitSale) {
		c := cutter.Slots(2)
		s.lay(t, 10)
		first, second := s.begin(t), s.begin(t)
		s.mustCut(t, first, c, 1)
		sold := s.cutLater(t, second, c, 1)
		testenv.Await(t, "the second sale waits for the first", func() bool { return s.someoneLocks(t, "stock") || s.someoneLocks(t, "stock_parts") })
		if err := first.Commit(); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(testenv.Receive(t, "the second sale is decided", sold), second.Commit()); err != nil {
			t.Fatal(err)
		}
		s.left(t, 8)
	})
}
