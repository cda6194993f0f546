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

// TestUnitRows_HeldUnits holds the last units in one sale and asks for one in another. It
// must wait for them, and be refused only when they are sold.
func TestUnitRows_HeldUnits(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, s *unitSale) {
		for _, sold := range []bool{true, false} {
			s.lay(t, 3)
			s.mustSell(t, 1) // the pool has the other two
			holder := s.begin(t)
			if d, err := s.cut(t.Context(), holder, cutter.UnitRows(), 2); err != nil || !d.Taken() {
				t.Fatalf("holding two units: %v, %v", d, err)
			}
			answered := make(chan error, 1)
			asking, other := s.begin(t), cutter.UnitRows()
			if _, err := s.cut(t.Context(), asking, other, 1); !errors.Is(err, cutter.ErrConflict) {
				t.Fatalf("no unit is free: %v, want %v", err, cutter.ErrConflict)
			}
			asking.Rollback()
			asking = s.begin(t)
			go func() {
				d, err := s.cut(t.Context(), asking, other, 1)
				if err == nil && d.Taken() {
					err = asking.Commit()
				} else if err == nil {
					asking.Rollback()
					err = d.Reason()
				}
				answered <- err
			}()
			testenv.Await(t, "the second sale has the stock row, and waits for the units", func() bool { return s.rowIsLocked(t) })
			select {
			case err := <-answered:
				t.Fatalf("answered %v while the units are held", err)
			default:
			}
			if sold {
				if err := holder.Commit(); err != nil {
					t.Fatal(err)
				}
				if err := <-answered; !errors.Is(err, stock.ErrSoldOut) {
					t.Errorf("the units are sold: %v", err)
				}
				s.left(t, 0)
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

// TestUnitRows_Refill lets sales of one unit empty a pool while a sale holds one of its
// rows: refills must wait for nobody, mint no unit twice, and leave at most 1,000 rows.
func TestUnitRows_Refill(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, s *unitSale) {
		const total = 2500
		s.lay(t, total)
		s.mustSell(t, 1)
		s.rows(t, 1000)
		holder := s.begin(t)
		if d, err := s.cut(t.Context(), holder, cutter.UnitRows(), 1); err != nil || !d.Taken() {
			t.Fatalf("holding a unit: %v, %v", d, err)
		}
		s.mustSell(t, 999)
		s.rows(t, 1)
		s.mustSell(t, 1) // refills beside the row that is held
		s.rows(t, 1000)
		holder.Rollback()
		s.left(t, total-1001)
		s.mustSell(t, 1000)
		s.mustSell(t, 499)
		s.left(t, 0)
		s.rows(t, 0)
	})
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
	take := stock.Take{Deduction: stock.Deduction{OrderID: uuid.New(), TakeID: uuid.New(), Buyer: "b", Lines: []stock.Line{{SKU: s.sku, Quantity: units}}}}
	plan, err := c.Plan(ctx, s.db, 0, []stock.Take{take})
	if err != nil {
		return cutter.Decision{}, err
	}
	decisions, err := plan.Cut(ctx, tx)
	if err != nil {
		return cutter.Decision{}, err
	}
	return decisions[0], nil
}

// mustSell sells units in one order.
func (s *unitSale) mustSell(t *testing.T, units int64) {
	t.Helper()
	c := cutter.UnitRows()
	for {
		tx := s.begin(t)
		d, err := s.cut(t.Context(), tx, c, units)
		if errors.Is(err, cutter.ErrConflict) {
			tx.Rollback()
			continue
		}
		if err != nil || !d.Taken() {
			t.Fatalf("selling %d units: %v, %v", units, d.Reason(), err)
		}
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		return
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

// rowIsLocked reports whether a transaction holds the stock row.
func (s *unitSale) rowIsLocked(t *testing.T) bool {
	t.Helper()
	tx := s.begin(t)
	defer tx.Rollback()
	var n int64
	err := tx.QueryRow(t.Context(), []any{&n}, "SELECT available FROM stock WHERE sku = ?"+tx.SkipLocked(), string(s.sku))
	return err != nil
}
