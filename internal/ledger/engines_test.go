package ledger

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/holdfast-stock/holdfast/internal/ledger/cutter"
	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/store/storetest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// execAll runs the statements.
func execAll(t *testing.T, url string, statements ...string) {
	t.Helper()
	sql := storetest.SQL(t, url)
	for _, s := range statements {
		if _, err := sql.Pool().ExecContext(t.Context(), s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
}

// asCockroachDB returns a PostgreSQL of the test with the version() of CockroachDB, its isolation
// level, and no function that waits for a standby. It is migrated already, because migrations are
// refused on such an engine.
func asCockroachDB(t testenv.T) string {
	test := t.(*testing.T)
	url := testenv.OwnPostgres(t, "-c", "allow_system_table_mods=on").URL()
	storetest.MigratedURL(t, url)
	execAll(test, url,
		"CREATE FUNCTION version() RETURNS text LANGUAGE sql AS $$ SELECT 'CockroachDB CCL v25.4.1 (x86_64-pc-linux-gnu, built 2026/01/01 00:00:00, go1.25)' $$",
		"ALTER FUNCTION pg_catalog.pg_logical_emit_message(boolean, text, text) RENAME TO emits_nothing",
		"ALTER FUNCTION pg_catalog.pg_logical_emit_message(boolean, text, bytea) RENAME TO emits_nothing",
		"ALTER DATABASE "+strings.Split(strings.SplitN(url, "/", 4)[3], "?")[0]+" SET search_path = public, pg_catalog")
	return url + "&default_transaction_isolation=serializable"
}

// engines are servers that imitate the documented behaviour of engines which cannot be installed
// for the tests.
var engines = []testenv.Database{
	{Name: "as CockroachDB", URL: asCockroachDB},
	{Name: "as TiDB", URL: func(t testenv.T) string { // the driver's settings are those of MariaDB
		return testenv.OwnMariaDB(t, "--version=8.0.11-TiDB-v8.5.3-MariaDB").URL()
	}},
	{Name: "PostgreSQL, serializable", URL: func(t testenv.T) string {
		return testenv.Postgres(t) + "&default_transaction_isolation=serializable"
	}},
	{Name: "MariaDB, serializable", URL: func(t testenv.T) string {
		return testenv.MariaDB(t) + "?tx_isolation=%27SERIALIZABLE%27"
	}},
}

// TestEngines sells out a SKU through several instances of a cutter at once, and then cancels and
// expires the orders at once. Conflicts must be retried within bounds, and every order must be
// counted once.
func TestEngines(t *testing.T) {
	t.Parallel()
	eachDatabase(t, engines, func(t *testing.T, d *database) {
		for name, c := range map[string]cutter.Cutter{
			"merged": cutter.Merged(), "conditional": cutter.Conditional(), "for-update": cutter.ForUpdate(), "optimistic": cutter.Optimistic(),
		} {
			t.Run(name, func(t *testing.T) { d.rush(t, c) })
		}
		if tidb := strings.HasSuffix(t.Name(), "/as_TiDB"); d.sql.Ledger().SkipsLocked() == tidb {
			t.Errorf("SkipsLocked: %v", !tidb)
		}
		err := d.sql.Ledger().Transact(t.Context(), func(tx *sqltx.Tx) error {
			if tx.SkipsLocked() != d.sql.Ledger().SkipsLocked() {
				t.Error("a transaction skips locked rows otherwise")
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
}

// rush runs TestEngines for one cutter.
func (d *database) rush(t *testing.T, c cutter.Cutter) {
	const units = 30
	sku := fresh("sku")
	ledgers := []*Ledger{d.open(t, c), d.open(t, c), d.open(t, c)}
	lay(t, ledgers[0], sku, units)
	var (
		mu     sync.Mutex
		placed []order.Order
		buyers sync.WaitGroup
	)
	for n := range 2 * len(ledgers) {
		buyers.Go(func() {
			for {
				o, out := ledgers[n%len(ledgers)].Record(t.Context(), takeOf(sku))
				switch {
				case out.Committed():
					mu.Lock()
					placed = append(placed, o)
					mu.Unlock()
				case errors.Is(out.Reason(), stock.ErrSoldOut):
					return
				case !errors.Is(out.Reason(), stock.ErrBusy):
					t.Error(out.Reason())
					return
				}
			}
		})
	}
	buyers.Wait()
	if len(placed) != units {
		t.Fatalf("%d orders were committed, want %d", len(placed), units)
	}
	d.atRest(t, sku, units)
	if _, err := ledgers[0].Order(t.Context(), placed[0].ID); err != nil {
		t.Errorf("reading an order: %v", err)
	}

	d.makeDue(t, placed...)
	for _, o := range placed[:units/2] {
		buyers.Go(func() {
			if err := cancelOrder(t.Context(), ledgers[1], o.ID); err != nil && !errors.Is(err, stock.ErrBusy) {
				t.Error(err)
			}
		})
	}
	for n := range 2 {
		j := claim(t, ledgers[0], fmt.Sprint("expiry ", sku, n), "holder")
		buyers.Go(func() {
			for left := 1; left > 0; {
				_, err := ledgers[n].Expire(t.Context(), j, new(ExpiryRound), 7)
				if err == nil {
					left, _, err = ledgers[n].Due(t.Context(), 1)
				}
				// A read outside a transaction is not tried again: the next round reads.
				if err != nil && !errors.Is(err, stock.ErrBusy) && !sqltx.IsRetryable(err) {
					t.Error(err)
					return
				}
			}
		})
	}
	buyers.Wait()
	d.atRest(t, sku, 0)
}

// TestConflictAtCommit checks that a serialization failure at COMMIT has committed nothing and is
// retried within bounds. A deferred trigger causes it.
func TestConflictAtCommit(t *testing.T) {
	t.Parallel()
	for name, conflicts := range map[string]int{"tried again": 3, "too often": 1000} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := testenv.Postgres(t)
			d := &database{url, storetest.Migrated(t, url)}
			l, sku := d.open(t, cutter.Merged()), fresh("sku")
			lay(t, l, sku, 5)
			execAll(t, url, "CREATE SEQUENCE commits",
				fmt.Sprintf(`CREATE FUNCTION conflict() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
					IF nextval('commits') <= %d THEN RAISE EXCEPTION 'restart transaction' USING ERRCODE = '40001'; END IF;
					RETURN NULL; END $$`, conflicts),
				"CREATE CONSTRAINT TRIGGER conflict AFTER INSERT ON orders DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION conflict()")
			_, out := l.Record(t.Context(), takeOf(sku))
			var commits int
			if err := d.sql.Ledger().QueryRow(t.Context(), []any{&commits}, "SELECT last_value FROM commits"); err != nil {
				t.Fatal(err)
			}
			if conflicts == 3 {
				if !out.Committed() || commits != 4 {
					t.Errorf("%v after %d commits", out.Reason(), commits)
				}
				d.atRest(t, sku, 1)
				return
			}
			if !out.Refused() || !errors.Is(out.Reason(), stock.ErrBusy) || commits != maxTries {
				t.Errorf("%v after %d commits", out.Reason(), commits)
			}
			d.atRest(t, sku, 0)
		})
	}
}
