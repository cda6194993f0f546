package sqltx_test

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"testing"

	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/store/storetest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// TestQueryEach checks that QueryEach scans every row in order, on the database
// and in a transaction, and that it returns every kind of error.
func TestQueryEach(t *testing.T) {
	forEachSQL(t, func(t *testing.T, dbURL string) {
		s := storetest.Migrated(t, dbURL)
		db := s.Ledger()
		for _, sku := range []string{"b", "a", "c"} {
			insertStock(t, db, sku)
		}
		tx := begin(t, t.Context(), db)
		defer tx.Rollback()
		for name, query := range map[string]func(context.Context, func(*sql.Rows) error, string, ...any) error{
			"DB": db.QueryEach, "Tx": tx.QueryEach,
		} {
			var skus []string
			err := query(t.Context(), func(rows *sql.Rows) error {
				var sku string
				err := rows.Scan(&sku)
				skus = append(skus, sku)
				return err
			}, "SELECT sku FROM stock WHERE sku IN ? ORDER BY sku", []string{"a", "b", "none"})
			if want := []string{"a", "b"}; err != nil || !slices.Equal(skus, want) {
				t.Errorf("%s: read %q, %v, want %q", name, skus, err, want)
			}
		}
		tx.Rollback()

		const all = "SELECT sku FROM stock"
		if err := db.QueryEach(t.Context(), nil, "SELECT nothing FROM stock"); err == nil {
			t.Error("a statement that fails returned no error")
		}
		calls, refused := 0, errors.New("refused")
		err := db.QueryEach(t.Context(), func(*sql.Rows) error { calls++; return refused }, all)
		if !errors.Is(err, refused) || !errors.Is(err, sqltx.ErrScan) || calls != 1 {
			t.Errorf("%d calls of a scan that fails, %v, want one call, and its error with ErrScan", calls, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		err = db.QueryEach(ctx, func(rows *sql.Rows) error {
			cancel()
			testenv.Await(t, "the end of the context reaches the rows", func() bool { return rows.Err() != nil })
			return nil
		}, all)
		if !errors.Is(err, context.Canceled) {
			t.Errorf("a context that ends between two rows: %v, want %v", err, context.Canceled)
		}
		noneInUse(t, s.Pool(), "all statements")
	})
}
