package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golang-migrate/migrate/v4/database"
	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/testenv"
	"github.com/holdfast-stock/holdfast/migrations"
)

// tables returns the tables and sequences of the database, without the table of the
// migrations.
func tables(t testing.TB, s *SQL) []string {
	t.Helper()
	query := map[sqltx.Dialect]string{
		sqltx.MySQL:    "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE()",
		sqltx.Postgres: "SELECT table_name FROM information_schema.tables WHERE table_schema = CURRENT_SCHEMA() UNION SELECT sequencename FROM pg_sequences WHERE schemaname = CURRENT_SCHEMA()",
		sqltx.SQLite:   "SELECT name FROM sqlite_master WHERE type = 'table'",
	}[s.Dialect()]
	var names []string
	if err := s.DB().Raw(query).Scan(&names).Error; err != nil {
		t.Fatal(err)
	}
	slices.Sort(names)
	return slices.DeleteFunc(names, func(name string) bool { return name == "schema_migrations" })
}

func TestMigrate_UpDownUp(t *testing.T) {
	t.Parallel()
	forEachSQL(t, func(t *testing.T, dbURL string) {
		s := opened(t, dbURL)
		ctx := t.Context()
		want := []string{"claims", "jobs", "ledger", "order_history", "order_lines", "orders", "outbox", "payments", "stock", "stock_parts"}
		if s.Dialect() != sqltx.SQLite { // SQLite has no locks
			want = slices.Insert(want, slices.Index(want, "jobs"), "fencing_tokens")
		}
		latest, err := migrations.Latest(string(s.Dialect()))
		if err != nil {
			t.Fatal(err)
		}

		checkVersion(t, s, 0)
		if err := s.CheckSchema(ctx); !errors.Is(err, ErrSchemaOld) || !strings.Contains(err.Error(), fmt.Sprintf("version 0, this program needs %d", latest)) {
			t.Errorf("empty database: error %v, want ErrSchemaOld with both versions", err)
		}
		if got := tables(t, s); len(got) != 0 {
			t.Errorf("CheckSchema created tables %q", got)
		}
		for range 2 { // the second MigrateUp has nothing to do
			if err := s.MigrateUp(ctx); err != nil {
				t.Fatal(err)
			}
			checkVersion(t, s, latest)
		}
		if err := s.CheckSchema(ctx); err != nil {
			t.Error(err)
		}
		if got := tables(t, s); !slices.Equal(got, want) {
			t.Errorf("tables %q, want %q", got, want)
		}
		for range latest {
			before, _, err := s.SchemaVersion(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if err := s.MigrateDown(ctx); err != nil {
				t.Fatal(err)
			}
			checkVersion(t, s, before-1)
		}
		if err := s.MigrateDown(ctx); err != nil {
			t.Errorf("MigrateDown of an empty database: %v", err)
		}
		if got := tables(t, s); len(got) != 0 {
			t.Errorf("tables %q after the last MigrateDown", got)
		}
		if err := s.MigrateUp(ctx); err != nil {
			t.Fatal(err)
		}
		checkVersion(t, s, latest)
		checkRoundTrip(t, s)
	})
}

func checkVersion(t testing.TB, s *SQL, want uint) {
	t.Helper()
	if version, dirty, err := s.SchemaVersion(t.Context()); err != nil || dirty || version != want {
		t.Errorf("version %d, dirty %v, error %v; want version %d", version, dirty, err, want)
	}
}

func TestMigrate_AnotherVersion(t *testing.T) {
	t.Parallel()
	forEachSQL(t, func(t *testing.T, dbURL string) {
		s := migrated(t, dbURL)
		ctx := t.Context()
		for _, dirty := range []bool{false, true} { // dirty: the newer program is migrating now
			run(t, s.DB(), "UPDATE schema_migrations SET version = 900, dirty = ?", dirty)
			for name, err := range map[string]error{"CheckSchema": s.CheckSchema(ctx), "MigrateUp": s.MigrateUp(ctx), "MigrateDown": s.MigrateDown(ctx)} {
				if !errors.Is(err, ErrSchemaNew) || !strings.Contains(err.Error(), "900") {
					t.Errorf("%s of a newer schema, dirty %v: error %v, want ErrSchemaNew with the version", name, dirty, err)
				}
			}
		}
	})
}

// TestMigrate_CannotMend checks that a schema that is not that of a killed migration is not
// changed, and that the error tells the operator what to do.
func TestMigrate_CannotMend(t *testing.T) {
	t.Parallel()
	forEachSQL(t, func(t *testing.T, dbURL string) {
		s := migrated(t, dbURL)
		latest, _, err := s.SchemaVersion(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		markAsIs := fmt.Sprintf("UPDATE schema_migrations SET version = %d, dirty = FALSE", latest)
		for _, test := range []struct {
			change, undo string
			version      int
			says         []string
		}{
			{"", "", 1, []string{"to version 1", fmt.Sprintf("are those of version %d", latest), markAsIs}},
			{"ALTER TABLE orders ADD COLUMN gift INTEGER", "ALTER TABLE orders DROP COLUMN gift", int(latest), []string{"there is column orders.gift", "migrations/" + string(s.dialect), markAsIs}},
			{"ALTER TABLE stock DROP COLUMN kind", "ALTER TABLE stock ADD COLUMN kind VARCHAR(16) NOT NULL DEFAULT ''", int(latest), []string{"column stock.kind is missing", markAsIs}},
			{"DELETE FROM ledger", "", int(latest), []string{"the row of ledger is missing"}},
		} {
			if test.change != "" {
				run(t, s.DB(), test.change)
			}
			run(t, s.DB(), "UPDATE schema_migrations SET version = ?, dirty = ?", test.version, true)
			before := shape(t, s)
			for name, migrate := range map[string]func(context.Context) error{"MigrateUp": s.MigrateUp, "MigrateDown": s.MigrateDown} {
				err := migrate(t.Context())
				if !errors.Is(err, ErrSchemaDirty) {
					t.Errorf("after %q: %s: error %v, want ErrSchemaDirty", test.change, name, err)
					continue
				}
				for _, word := range test.says {
					if !strings.Contains(err.Error(), word) {
						t.Errorf("after %q: %s does not say %q: %v", test.change, name, word, err)
					}
				}
			}
			if version, dirty, err := s.SchemaVersion(t.Context()); int(version) != test.version || !dirty || err != nil {
				t.Errorf("after %q: version %d, dirty %v, error %v", test.change, version, dirty, err)
			}
			if err := s.CheckSchema(t.Context()); !errors.Is(err, ErrSchemaDirty) {
				t.Errorf("after %q: CheckSchema: %v", test.change, err)
			}
			if !slices.Equal(shape(t, s), before) {
				t.Errorf("after %q: the schema was changed", test.change)
			}
			if test.undo != "" {
				run(t, s.DB(), test.undo)
			}
			run(t, s.DB(), markAsIs) // the statement from the error
		}
	})
}

// TestMigrate_CountedClaims checks that a buyer limit whose claims are being counted remains one,
// even if the migration was killed before it converted the rows.
func TestMigrate_CountedClaims(t *testing.T) {
	t.Parallel()
	forEachSQL(t, func(t *testing.T, dbURL string) {
		s := migrated(t, dbURL)
		const number = 6 // the migration that added the column
		for _, kills := range []bool{false, true} {
			migrateDownTo(t, s, number-1)
			for sku, limit := range map[string]int{"counting": -3, "limited": 2, "free": 0} {
				run(t, s.DB(), "INSERT INTO stock (sku, kind, total, available, buyer_limit) VALUES (?, 'k', 1, 1, ?)", sku, limit)
			}
			if kills {
				history, err := readHistory(string(s.dialect))
				if err != nil {
					t.Fatal(err)
				}
				for _, st := range history[number].up {
					if !st.converts {
						run(t, s.DB(), st.text)
					}
				}
				run(t, s.DB(), "UPDATE schema_migrations SET version = ?, dirty = ?", number, true)
			}
			if err := s.MigrateUp(t.Context()); err != nil {
				t.Fatal(err)
			}
			for _, where := range []string{
				"sku = 'counting' AND limit_per_buyer = 3 AND claims_counted_to IS NOT NULL",
				"sku = 'limited' AND limit_per_buyer = 2 AND claims_counted_to IS NULL",
				"sku = 'free' AND limit_per_buyer = 0 AND claims_counted_to IS NULL",
			} {
				if found, err := anyRow(t.Context(), s.pool, "stock", where); err != nil || !found {
					t.Errorf("killed %v: no row with %s, %v", kills, where, err)
				}
			}
			run(t, s.DB(), "DELETE FROM stock")
		}
	})
}

// migrateDownTo reverts the migrations after the version.
func migrateDownTo(t *testing.T, s *SQL, version uint) {
	t.Helper()
	for {
		if now, _, err := s.SchemaVersion(t.Context()); err != nil {
			t.Fatal(err)
		} else if now <= version {
			return
		}
		if err := s.MigrateDown(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestMigrate_HalfAStatement checks that a statement which was partly done by hand is not run
// again, because it would fail.
func TestMigrate_HalfAStatement(t *testing.T) {
	t.Parallel()
	for _, d := range testenv.NetworkDatabases() {
		t.Run(d.Name, func(t *testing.T) {
			t.Parallel()
			s := migrated(t, d.URL(t))
			migrateDownTo(t, s, 3) // the version that added the column
			run(t, s.DB(), "ALTER TABLE stock DROP COLUMN closes_at")
			run(t, s.DB(), "UPDATE schema_migrations SET dirty = ?", true)
			if err := s.MigrateUp(t.Context()); !errors.Is(err, ErrSchemaDirty) || !strings.Contains(err.Error(), "ALTER TABLE stock") {
				t.Errorf("error %v, want ErrSchemaDirty with the statement", err)
			}
		})
	}
}

// TestMigrate_MendsOlderPrograms marks the version as older programs do: before a migration, which
// PostgreSQL then applies as a whole or not at all.
func TestMigrate_MendsOlderPrograms(t *testing.T) {
	t.Parallel()
	forEachSQL(t, func(t *testing.T, dbURL string) {
		s := migrated(t, dbURL)
		latest, _, err := s.SchemaVersion(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for at := latest; ; at-- { // the version of the tables
			checkVersion(t, s, at)
			want := shape(t, s)
			for _, marked := range []uint{at - 1, at, at + 1} {
				if marked > latest { // the version may also be below 0
					continue
				}
				run(t, s.DB(), "DELETE FROM schema_migrations")
				run(t, s.DB(), "INSERT INTO schema_migrations (version, dirty) VALUES (?, ?)", asLibrary(int(marked)), true)
				steps := mending(t, s)
				mended, err := steps.mend(t.Context(), marked > at) // back to the previous version, in both directions
				if err := errors.Join(err, steps.Close()); err != nil || !mended {
					t.Errorf("the tables of version %d, marked as %d: mended %v, error %v", at, marked, mended, err)
				}
				checkVersion(t, s, at)
				if !slices.Equal(shape(t, s), want) {
					t.Errorf("the tables of version %d, marked as %d, were changed", at, marked)
				}
			}
			if at == 0 {
				return
			}
			if err := s.MigrateDown(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// mending opens a driver that can repair a schema.
func mending(t *testing.T, s *SQL) *stepDriver {
	t.Helper()
	history, err := readHistory(string(s.dialect))
	if err != nil {
		t.Fatal(err)
	}
	driver, err := s.migrations(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return &stepDriver{migrationDriver: driver, sql: s, history: history}
}

// TestMigrateDown_RefusesLosses checks that a migration is not reverted while its tables and
// columns have data.
func TestMigrateDown_RefusesLosses(t *testing.T) {
	t.Parallel()
	forEachSQL(t, func(t *testing.T, dbURL string) {
		s := migrated(t, dbURL)
		latest, _, err := s.SchemaVersion(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		id := "'0123456789abcdef'"
		if s.dialect == sqltx.Postgres {
			id = "'01234567-89ab-cdef-0123-456789abcdef'"
		}
		const now = "'2026-01-02 03:04:05'"
		order := func(column, value string) string {
			return "INSERT INTO orders (id, take_id, buyer_id, status, strategy, created_at, " + column + ") VALUES (" + id + ", " + id + ", 'b', 'x', 's', " + now + ", " + value + ")"
		}
		stock := "INSERT INTO stock (sku, kind, total, available, %s) VALUES ('a', 'k', 1, 1, %s)"
		for version := latest; version > 0; version-- {
			for _, test := range map[uint][]struct{ use, clean, says string }{
				6: {{fmt.Sprintf(stock, "claims_counted_to", id), "DELETE FROM stock", "claims are being counted"}},
				5: {{"INSERT INTO stock_parts (sku, part, available, epoch) VALUES ('a', 0, 1, 1)", "UPDATE stock_parts SET available = 0", "units that stock rows have lent"}},
				4: {{"UPDATE ledger SET queues = TRUE", "UPDATE ledger SET queues = FALSE", "run api drain"}},
				3: {
					{"INSERT INTO payments (id, order_id, status, created_at, changed_at) VALUES ('p', " + id + ", 'paid', " + now + ", " + now + ")", "DELETE FROM payments", "payments"},
					{"INSERT INTO order_history (order_id, version, status, at) VALUES (" + id + ", 1, 'paid', " + now + ")", "DELETE FROM order_history", "history of orders"},
					{order("version", "1"), "DELETE FROM orders", "when orders changed"},
					{order("restocked", "TRUE"), "DELETE FROM orders", "which refunds returned units"},
					{order("queued_until", now), "DELETE FROM orders", "queued"},
					{"INSERT INTO claims (sku, buyer_id, units) VALUES ('a', 'b', 1)", "DELETE FROM claims", "units held by buyers"},
					{fmt.Sprintf(stock, "opens_at", now), "DELETE FROM stock", "opening hours"},
					{fmt.Sprintf(stock, "closes_at", now), "DELETE FROM stock", "opening hours"},
				},
				2: {
					{"UPDATE ledger SET generation = 2", "UPDATE ledger SET generation = 1", "generation"},
					{"UPDATE ledger SET beat = 1", "UPDATE ledger SET beat = 0", "generation"},
				},
				1: {
					{order("expires_at", "NULL"), "DELETE FROM orders", "orders"},
					{fmt.Sprintf(stock, "layout", "''"), "DELETE FROM stock", "stock"},
				},
			}[version] {
				run(t, s.DB(), test.use)
				before := shape(t, s)
				err := s.MigrateDown(t.Context())
				if !errors.Is(err, ErrSchemaUsed) || !strings.Contains(err.Error(), test.says) || !strings.Contains(err.Error(), fmt.Sprintf("before migration %d", version)) {
					t.Errorf("after %q: error %v, want ErrSchemaUsed with %q", test.use, err, test.says)
				}
				checkVersion(t, s, version)
				if !slices.Equal(shape(t, s), before) {
					t.Errorf("after %q: the schema was changed", test.use)
				}
				// A migration that was killed before its first statement is not reverted either.
				run(t, s.DB(), "UPDATE schema_migrations SET dirty = ?", true)
				if version > 1 {
					run(t, s.DB(), "UPDATE schema_migrations SET version = ?", version-1)
					if err := s.MigrateDown(t.Context()); !errors.Is(err, ErrSchemaUsed) {
						t.Errorf("after %q and a killed migration: error %v, want ErrSchemaUsed", test.use, err)
					}
				}
				run(t, s.DB(), "UPDATE schema_migrations SET version = ?, dirty = ?", version, false)
				run(t, s.DB(), test.clean)
			}
			if err := s.MigrateDown(t.Context()); err != nil {
				t.Fatal(err)
			}
			checkVersion(t, s, version-1)
		}
	})
}

// writingDriver writes once, before it marks the schema as dirty or before the first
// statement of a migration.
type writingDriver struct {
	migrationDriver
	beforeDirty, beforeStatement func()
}

func (d *writingDriver) SetVersion(version int, dirty bool) error {
	if dirty {
		d.beforeDirty()
	}
	return d.migrationDriver.SetVersion(version, dirty)
}

func (d *writingDriver) Run(migration io.Reader) error {
	d.beforeStatement()
	return d.migrationDriver.Run(migration)
}

// TestMigrateDown_WhileServing makes an instance report a payment while a migration is reverted
// that was unused at the first check. Either the payment is refused to the instance, or the
// migration is not reverted.
func TestMigrateDown_WhileServing(t *testing.T) {
	t.Parallel()
	id := map[sqltx.Dialect]string{sqltx.Postgres: "01234567-89ab-cdef-0123-456789abcdef"}
	for _, when := range []string{"before the version is dirty", "before the first statement"} {
		t.Run(when, func(t *testing.T) {
			forEachSQL(t, func(t *testing.T, dbURL string) {
				s := migrated(t, dbURL)
				const latest = 3 // the version that added payments
				migrateDownTo(t, s, latest)
				payment := "INSERT INTO payments (id, order_id, status, created_at, changed_at) VALUES ('p', '" +
					cmp.Or(id[s.dialect], "0123456789abcdef") + "', 'paid', '2026-01-02 03:04:05', '2026-01-02 03:04:05')"
				var paid error
				write := sync.OnceFunc(func() {
					ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second) // the write may wait for the migration
					defer cancel()
					_, paid = s.pool.ExecContext(ctx, payment)
				})
				before, sound := write, s.migrations
				during := func() {}
				if when != "before the version is dirty" {
					before, during = during, before
				}
				s.migrations = func(ctx context.Context) (migrationDriver, error) {
					driver, err := sound(ctx)
					return &writingDriver{driver, before, during}, err
				}
				err := s.MigrateDown(t.Context())
				if paid != nil { // the instance got a success
					if err != nil {
						t.Errorf("the payment failed (%v), and so did MigrateDown: %v", paid, err)
					}
					checkVersion(t, s, latest-1)
					return
				}
				if !errors.Is(err, ErrSchemaUsed) {
					t.Errorf("a payment was committed, and MigrateDown returned %v, want ErrSchemaUsed", err)
				}
				checkVersion(t, s, latest)
				if found, err := anyRow(t.Context(), s.pool, "payments", "id = 'p'"); err != nil || !found {
					t.Errorf("the committed payment is lost: %v", err)
				}
			})
		})
	}
}

// TestHistory checks that the parsed text of each migration matches the schema in the database
// after it, and that no version is mistaken for another.
func TestHistory(t *testing.T) {
	t.Parallel()
	forEachSQL(t, func(t *testing.T, dbURL string) {
		s := migrated(t, dbURL)
		history, err := readHistory(string(s.dialect))
		if err != nil {
			t.Fatal(err)
		}
		for version := len(history) - 1; ; version-- {
			found, err := s.schema(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for of := range history {
				if is := history.is(of, found); is != (of == version) {
					t.Errorf("version %d is taken for %d: %v", version, of, is)
				}
			}
			for o := range history[version].after {
				if !found[o] {
					t.Errorf("version %d: %s is not found", version, o)
				}
			}
			if version == 0 {
				return
			}
			if err := s.MigrateDown(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func TestHistory_UnknownStatement(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"DELETE FROM stock;", "ALTER TABLE stock RENAME TO shelf;", "CREATE VIEW a AS SELECT 1;"} {
		if _, err := parseStatement(text, nil); err == nil || !strings.Contains(err.Error(), text[:10]) {
			t.Errorf("%s: error %v", text, err)
		}
	}
}

// TestLockPatiently checks that the wait for another migration does not end with a single try.
func TestLockPatiently(t *testing.T) {
	t.Parallel()
	for n, err := range []error{nil, io.EOF} {
		answers := []error{database.ErrLocked, database.ErrLocked, err}
		got := lockPatiently(func() error {
			answer := answers[0]
			answers = answers[1:]
			return answer
		})
		if !errors.Is(got, err) || len(answers) > 0 {
			t.Errorf("%d: error %v, not asked for %v", n, got, answers)
		}
	}
}

func TestMigrate_ContextEnded(t *testing.T) {
	t.Parallel()
	forEachSQL(t, func(t *testing.T, dbURL string) {
		s := opened(t, dbURL)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := s.MigrateUp(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("error %v, want context.Canceled", err)
		}
		checkVersion(t, s, 0)
	})
}

func TestMigrate_GoroutinesAtOnce(t *testing.T) {
	t.Parallel()
	forEachSQL(t, func(t *testing.T, dbURL string) {
		var (
			all sync.WaitGroup
			mu  sync.Mutex
			ids = make(map[uuid.UUID]bool)
		)
		var stores [8]*SQL
		for i := range stores {
			stores[i] = opened(t, dbURL)
		}
		for _, s := range stores {
			all.Go(func() {
				if err := s.MigrateUp(t.Context()); err != nil {
					t.Error(err)
				}
				id, err := s.LedgerID(t.Context())
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				ids[id] = true
			})
		}
		all.Wait()
		if len(ids) != 1 {
			t.Errorf("ledger IDs %v, want a single one", ids)
		}
	})
}

// migrateURL is the environment variable with the URL of the database that a
// child process migrates.
const migrateURL = "HOLDFAST_TEST_MIGRATE_URL"

func TestMigrate_ProcessesAtOnce(t *testing.T) {
	t.Parallel()
	if dbURL := os.Getenv(migrateURL); dbURL != "" { // this is a child process
		migrated(t, dbURL)
		return
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	forEachSQL(t, func(t *testing.T, dbURL string) {
		var children sync.WaitGroup
		for range 3 {
			children.Go(func() {
				child := exec.CommandContext(t.Context(), program, "-test.run=^TestMigrate_ProcessesAtOnce$", "-test.count=1")
				child.Env = append(os.Environ(), migrateURL+"="+dbURL)
				if out, err := child.CombinedOutput(); err != nil {
					t.Errorf("%v: %s", err, out)
				}
			})
		}
		children.Wait()
		s := opened(t, dbURL)
		if err := s.CheckSchema(t.Context()); err != nil {
			t.Error(err)
		}
		if _, err := s.LedgerID(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestWholeDriver_FailureChangesNothing checks that a failed migration leaves the schema unchanged
// and not dirty if a run is one transaction.
func TestWholeDriver_FailureChangesNothing(t *testing.T) {
	t.Parallel()
	for name, url := range map[string]func(testing.TB) string{
		"PostgreSQL": func(t testing.TB) string { return testenv.Postgres(t) },
		"SQLite":     func(t testing.TB) string { return testenv.SQLite(t) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := migrated(t, url(t))
			version, _, err := s.SchemaVersion(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			driver, err := s.migrations(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer driver.Close()
			if err := driver.Lock(); err != nil {
				t.Fatal(err)
			}
			if err := driver.SetVersion(int(version)+1, true); err != nil {
				t.Fatal(err)
			}
			if err := driver.Run(strings.NewReader("CREATE TABLE half (a INTEGER); CREATE TABLE half (a INTEGER)")); err == nil {
				t.Error("creating the same table twice gives no error")
			}
			if err := driver.Unlock(); err != nil {
				t.Fatal(err)
			}
			checkVersion(t, s, version)
			if slices.Contains(tables(t, s), "half") {
				t.Error("a table of the failed migration exists")
			}
			run(t, s.DB(), "DELETE FROM ledger") // fails if the database is still locked
		})
	}
}
