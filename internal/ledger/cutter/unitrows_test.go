package cutter_test

import (
	"context"
	"errors"
	"testing"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/ledger/cutter"
	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// TestUnitRows_HeldUnits holds two of the last three units in one sale and requests two in another.
// The second sale must wait for them, and be refused only when they are sold, not when the wait
// fails.
func TestUnitRows_HeldUnits(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, s *unitSale) {
		for _, end := range []string{"sold", "returned", "wait failed"} {
			s.lay(t, 4)
			s.mustSell(t, cutter.UnitRows(), 1) // the pool has the other three
			holder := s.begin(t)
			s.mustCut(t, holder, cutter.UnitRows(), 2)
			answered := make(chan error, 1)
			asking, other := s.begin(t), cutter.UnitRows()
			if _, err := s.cut(t.Context(), asking, other, 2); !errors.Is(err, cutter.ErrConflict) {
				t.Fatalf("one unit is free: %v, want %v", err, cutter.ErrConflict)
			}
			asking.Rollback()
			asking = s.begin(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			go func() {
				d, err := s.cut(ctx, asking, other, 2)
				if err == nil && d.Taken {
					err = asking.Commit()
				} else if err == nil {
					asking.Rollback()
					err = d.Reason()
				}
				answered <- err
			}()
			testenv.Await(t, "the second sale waits for the units", func() bool { return s.someoneLocks(t, "stock_parts") })
			select {
			case err := <-answered:
				t.Fatalf("answered %v while the units are held", err)
			default:
			}
			switch end {
			case "wait failed":
				cancel()
				if err := <-answered; !errors.Is(err, context.Canceled) {
					t.Errorf("the wait failed: %v", err)
				}
				holder.Rollback()
				continue
			case "sold":
				if err := holder.Commit(); err != nil {
					t.Fatal(err)
				}
				if err := <-answered; !errors.Is(err, stock.ErrSoldOut) {
					t.Errorf("the units are sold: %v", err)
				}
				s.left(t, 1)
				continue
			}
			holder.Rollback()
			if err := <-answered; err != nil {
				t.Errorf("the units came back: %v", err)
			}
			s.left(t, 1)
		}
	})
}

// TestUnitRows_Refill lets sales of one unit empty a pool while a sale holds one of its rows.
// Refills must not wait, must not create a unit twice, and must leave at most 1,000 rows.
func TestUnitRows_Refill(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, s *unitSale) {
		const total = 2500
		s.lay(t, total)
		s.mustSell(t, cutter.UnitRows(), 1)
		s.rows(t, 1000)
		holder := s.begin(t)
		s.mustCut(t, holder, cutter.UnitRows(), 1)
		s.mustSell(t, cutter.UnitRows(), 999)
		s.rows(t, 1)
		s.mustSell(t, cutter.UnitRows(), 1) // refills while another sale holds a row
		s.rows(t, 1000)
		holder.Rollback()
		s.left(t, total-1001)
		s.mustSell(t, cutter.UnitRows(), 1000)
		s.mustSell(t, cutter.UnitRows(), 499)
		s.left(t, 0)
		s.rows(t, 0)
	})
}

// TestUnitRows_TwoRefills lets two sales refill one pool. The second must wait for the stock row,
// and count only the units that the first has left.
func TestUnitRows_TwoRefills(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, s *unitSale) {
		s.lay(t, 10)
		first, second := s.refilling(t), s.refilling(t)
		holder, other := s.begin(t), s.begin(t)
		s.mustCut(t, holder, first, 1)
		answered := s.cutLater(t, other, second, 1)
		testenv.Await(t, "the second refill waits for the stock row", func() bool { return s.someoneLocks(t, "stock") })
		if err := holder.Commit(); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(<-answered, other.Commit()); err != nil {
			t.Fatal(err)
		}
		s.left(t, 8)
	})
}

// TestUnitRows_RefilledByAnother lets a sale find a pool that was too small and has been refilled
// since. The next sale must not wait for the stock row.
func TestUnitRows_RefilledByAnother(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, s *unitSale) {
		s.lay(t, 3)
		c := s.refilling(t)                 // there is no pool yet
		s.mustSell(t, cutter.UnitRows(), 1) // creates the pool, and the stock row has no unit left
		s.mustSell(t, c, 1)
		holder := s.begin(t)
		var n int64
		if err := holder.QueryRow(t.Context(), []any{&n}, "SELECT available FROM stock WHERE sku = ?"+s.db.Dialect().RowLock(), string(s.sku)); err != nil {
			t.Fatal(err)
		}
		sale := s.begin(t)
		s.mustCut(t, sale, c, 1)
		if err := sale.Commit(); err != nil {
			t.Fatal(err)
		}
		s.left(t, 0)
	})
}

// TestUnitRows_PartsOfAnotherLayout orders a SKU of this generation and one of another generation
// in one group. The parts of the second are slots, which must keep their units.
func TestUnitRows_PartsOfAnotherLayout(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, s *unitSale) {
		s.lay(t, 100)
		slotted := s.sku
		if err := s.sellGroup(t, 0, cutter.Slots(4), taking(stock.Line{SKU: slotted, Quantity: 1}))[0].Reason(); err != nil {
			t.Fatal(err)
		}
		s.lay(t, 100)
		first, _ := stock.Generation(1).Epochs()
		if _, err := s.db.Exec(t.Context(), "UPDATE stock SET epoch = ? WHERE sku = ?", first, string(s.sku)); err != nil {
			t.Fatal(err)
		}
		both := append(taking(stock.Line{SKU: slotted, Quantity: 1}), taking(stock.Line{SKU: s.sku, Quantity: 1})...)
		d := s.sellGroup(t, 1, cutter.UnitRows(), both)
		if !errors.Is(d[0].Reason(), stock.ErrNotAdopted) || !d[1].Taken {
			t.Errorf("decided %v", d)
		}
		s.left(t, 99)
		s.sku = slotted
		s.left(t, 99)
		if d := s.sellGroup(t, 1, cutter.UnitRows(), taking(stock.Line{SKU: slotted, Quantity: 1})); !errors.Is(d[0].Reason(), stock.ErrNotAdopted) {
			t.Errorf("decided %v", d)
		}
		s.left(t, 99)
	})
}

// refilling returns a cutter that has found too few free units, and so locks the stock row
// next.
func (s *unitSale) refilling(t *testing.T) cutter.Cutter {
	t.Helper()
	c, tx := cutter.UnitRows(), s.begin(t)
	defer tx.Rollback()
	if _, err := s.cut(t.Context(), tx, c, 1); !errors.Is(err, cutter.ErrConflict) {
		t.Fatalf("without a pool: %v, want %v", err, cutter.ErrConflict)
	}
	return c
}

// sellGroup sells a group in generation g, and returns the decisions.
func (s *unitSale) sellGroup(t *testing.T, g stock.Generation, c cutter.Cutter, takes []stock.Take) (decisions []cutter.Decision) {
	t.Helper()
	err := cutter.ErrConflict
	for errors.Is(err, cutter.ErrConflict) {
		var plan cutter.Plan
		if plan, err = c.Plan(t.Context(), s.db, g, takes); err != nil {
			break
		}
		err = s.db.Transact(t.Context(), func(tx *sqltx.Tx) error {
			decisions, err = plan.Cut(t.Context(), tx)
			return err
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	return decisions
}

// someoneLocks reports whether a session of the database waits for a row of the table, or is about
// to: it runs a SELECT … FOR UPDATE. MariaDB's table of transactions cannot show this, because it
// is not refreshed when it is read more often than every 0.1 s.
func (s *unitSale) someoneLocks(t *testing.T, table string) bool {
	t.Helper()
	query := "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = CURRENT_DATABASE() AND wait_event_type = 'Lock' AND query LIKE ?"
	if !s.db.Dialect().Arrays() {
		query = "SELECT COUNT(*) FROM information_schema.processlist WHERE db = DATABASE() AND info LIKE ?"
	}
	var n int64
	if err := s.db.QueryRow(t.Context(), []any{&n}, query, "%FROM "+table+" %FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	return n > 0
}

// unitSale sells one SKU by unit rows.
type unitSale struct {
	db  *sqltx.DB
	sku stock.SKU
}

func onServers(t *testing.T, test func(t *testing.T, s *unitSale)) {
	t.Helper()
	for _, d := range testenv.NetworkDatabases() {
		t.Run(d.Name, func(t *testing.T) {
			t.Parallel()
			test(t, &unitSale{db: migrated(t, d.URL(t))})
		})
	}
}

func (s *unitSale) lay(t *testing.T, units int64) {
	t.Helper()
	s.sku = stock.SKU("unit." + uuid.NewString()[:8])
	if _, err := s.db.Exec(t.Context(), "INSERT INTO stock (sku, kind, total, available, epoch) VALUES (?, 'product', ?, ?, 1)", string(s.sku), units, units); err != nil {
		t.Fatal(err)
	}
}

func (s *unitSale) begin(t *testing.T) *sqltx.Tx {
	t.Helper()
	tx, err := s.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tx.Rollback)
	return tx
}

func (s *unitSale) cut(ctx context.Context, tx *sqltx.Tx, c cutter.Cutter, units int64) (cutter.Decision, error) {
	plan, err := c.Plan(ctx, s.db, 0, taking(stock.Line{SKU: s.sku, Quantity: units}))
	if err != nil {
		return cutter.Decision{}, err
	}
	decisions, err := plan.Cut(ctx, tx)
	if err != nil {
		return cutter.Decision{}, err
	}
	return decisions[0], nil
}

// mustCut is cut for units that must be taken.
func (s *unitSale) mustCut(t *testing.T, tx *sqltx.Tx, c cutter.Cutter, units int64) {
	t.Helper()
	if d, err := s.cut(t.Context(), tx, c, units); err != nil || !d.Taken {
		t.Fatalf("taking %d units: %v, %v", units, d.Reason(), err)
	}
}

// cutLater is cut in a goroutine. The channel receives why the units are not taken, or nil.
func (s *unitSale) cutLater(t *testing.T, tx *sqltx.Tx, c cutter.Cutter, units int64) <-chan error {
	answered := make(chan error, 1)
	go func() {
		d, err := s.cut(t.Context(), tx, c, units)
		answered <- errors.Join(err, d.Reason())
	}()
	return answered
}

// mustSell sells units in one order.
func (s *unitSale) mustSell(t *testing.T, c cutter.Cutter, units int64) {
	t.Helper()
	if d := s.sellGroup(t, 0, c, taking(stock.Line{SKU: s.sku, Quantity: units})); !d[0].Taken {
		t.Fatalf("selling %d units: %v", units, d[0].Reason())
	}
}

func (s *unitSale) number(t *testing.T, query string) (n int64) {
	t.Helper()
	if err := s.db.QueryRow(t.Context(), []any{&n}, query, string(s.sku)); err != nil {
		t.Fatal(err)
	}
	return n
}

func (s *unitSale) rows(t *testing.T, want int64) {
	t.Helper()
	if n := s.number(t, "SELECT COUNT(*) FROM stock_parts WHERE sku = ?"); n != want {
		t.Errorf("the pool has %d rows, want %d", n, want)
	}
}

func (s *unitSale) left(t *testing.T, want int64) {
	t.Helper()
	if n := s.number(t, "SELECT available + "+cutter.InParts(s.db.Dialect())+" FROM stock WHERE sku = ?"); n != want {
		t.Errorf("%d units are left, want %d", n, want)
	}
}
