package ledger

import (
	"slices"
	"testing"
	"time"

	"github.com/holdfast-stock/holdfast/internal/ledger/cutter"
	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// TestLockedRows checks that lockedRows names the locked rows, does not wait for
// them, and leaves nothing locked.
func TestLockedRows(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases, lockedRows)
}

func lockedRows(t *testing.T, d *database) {
	db, l := d.sql.Ledger(), d.open(t, cutter.Merged())
	for _, sku := range []stock.SKU{"a", "b", "c"} {
		lay(t, l, sku, 10)
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
