package ledger

import (
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/store"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// TestLockedRows checks that lockedRows names the locked rows, does not wait for
// them, and leaves nothing locked.
func TestLockedRows(t *testing.T) {
	t.Parallel()
	for _, database := range []struct {
		name string
		url  func(testenv.T) string
	}{
		{"MariaDB", testenv.MariaDB},
		{"PostgreSQL", testenv.Postgres},
		{"SQLite", testenv.SQLite},
	} {
		t.Run(database.name, func(t *testing.T) {
			t.Parallel()
			lockedRows(t, database.url(t))
		})
	}
}

func lockedRows(t *testing.T, dbURL string) {
	s, err := store.OpenSQL(t.Context(), dbURL)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.MigrateUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	db := s.Ledger()
	l := New(db, Options{Group: 1, Parallel: 1, Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry()})
	defer l.Close()
	for _, sku := range []string{"a", "b", "c"} {
		if _, err := db.Exec(t.Context(), "INSERT INTO stock (sku, kind, total, available) VALUES (?, 'product', 10, 10)", sku); err != nil {
			t.Fatal(err)
		}
	}
	if db.Dialect() == sqltx.SQLite {
		if locked, err := l.lockedRows(t.Context(), []stock.SKU{"a"}); err != nil || locked != nil {
			t.Errorf("locked %q, %v", locked, err)
		}
		return
	}
	holder, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Rollback()
	if _, err := holder.Exec(t.Context(), "UPDATE stock SET available = 1 WHERE sku = 'b'"); err != nil {
		t.Fatal(err)
	}
	const lockWait = 3 * time.Second // of the sessions that store.OpenSQL opens
	begin := time.Now()
	locked, err := l.lockedRows(t.Context(), []stock.SKU{"a", "b", "missing"})
	if err != nil || !slices.Equal(locked, []stock.SKU{"b"}) {
		t.Errorf("locked %q, %v, want b", locked, err)
	}
	if waited := time.Since(begin); waited > lockWait/2 {
		t.Errorf("it waited %v for the lock", waited)
	}
	holder.Rollback()
	if locked, err := l.lockedRows(t.Context(), []stock.SKU{"a", "b"}); err != nil || len(locked) > 0 {
		t.Errorf("locked %q, %v, want none", locked, err)
	}
	if _, err := db.Exec(t.Context(), "UPDATE stock SET available = 1 WHERE sku IN ('a', 'b')"); err != nil {
		t.Errorf("a row is still locked: %v", err)
	}
}
