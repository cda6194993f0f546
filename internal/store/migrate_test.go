package store

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golang-migrate/migrate/v4"
	"github.com/golang-migrate/migrate/v4/database"
	"github.com/golang-migrate/migrate/v4/source/iofs"
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

// TestMigrate_UpDownUp checks the tables after each migration. A ledger keeps its ID until its
// tables are dropped and created again.
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
		first, again := ledgerID(t, s), ledgerID(t, s)
		if first != again || first == uuid.Nil {
			t.Errorf("the ledger's ID is %v, and then %v", first, again)
		}
		migrateDownTo(t, s, 0)
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
		if id := ledgerID(t, s); id == first {
			t.Errorf("the new ledger has the ID of the first, %v", id)
		}
	})
}

func ledgerID(t *testing.T, s *SQL) uuid.UUID {
	t.Helper()
	id, err := s.LedgerID(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// versionOf returns the version of the schema.
func versionOf(t *testing.T, s *SQL) uint {
	t.Helper()
	version, _, err := s.SchemaVersion(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return version
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

// TestMigrateDown_Dirty checks that a schema that is marked as dirty is not reverted, and that the
// error tells the operator what to do. On PostgreSQL and SQLite no killed migration leaves such a
// mark, so there the schema must not be migrated up either, and nothing may advise it.
func TestMigrateDown_Dirty(t *testing.T) {
	t.Parallel()
	forEachSQL(t, func(t *testing.T, dbURL string) {
		s := migrated(t, dbURL)
		refusing := map[string]func(context.Context) error{"MigrateDown": s.MigrateDown, "MigrateUp": s.MigrateUp}
		says := "migrations/" + string(s.dialect)
		if s.dialect == sqltx.MySQL {
			delete(refusing, "MigrateUp")
			says = "Run api migrate up first, which completes it, and then api migrate down"
		}
		if up := strings.Contains(s.FixSchema(ErrSchemaDirty), "migrate up"); up != (s.dialect == sqltx.MySQL) {
			t.Errorf("the advice is: %s", s.FixSchema(ErrSchemaDirty))
		}
		before := shape(t, s)
		for _, version := range []int{3, database.NilVersion, int(versionOf(t, s))} {
			run(t, s.DB(), "UPDATE schema_migrations SET version = ?, dirty = ?", version, true)
			for name, migrate := range refusing {
				if err := migrate(t.Context()); !errors.Is(err, ErrSchemaDirty) || !strings.Contains(err.Error(), says) {
					t.Errorf("version %d: %s: error %v, want ErrSchemaDirty with %q", version, name, err, says)
				}
			}
			if got, dirty, err := s.SchemaVersion(t.Context()); int(got) != max(version, 0) || !dirty || err != nil {
				t.Errorf("version %d, dirty %v, error %v; want the dirty version %d", got, dirty, err, version)
			}
			if err := s.CheckSchema(t.Context()); !errors.Is(err, ErrSchemaDirty) {
				t.Errorf("version %d: CheckSchema: %v", version, err)
			}
			if !slices.Equal(shape(t, s), before) {
				t.Errorf("version %d: the schema was changed", version)
			}
		}
	})
}

// TestMigrateUp_ForeignTable checks that a table of another program is neither changed nor taken
// for one of the ledger's, and that nothing was migrated then.
func TestMigrateUp_ForeignTable(t *testing.T) {
	t.Parallel()
	forEachSQL(t, func(t *testing.T, dbURL string) {
		s := opened(t, dbURL)
		late := "stock_parts"
		if s.dialect != sqltx.SQLite {
			late = "fencing_tokens" // a sequence
		}
		for _, foreign := range []string{"stock", late} {
			run(t, s.DB(), "CREATE TABLE "+foreign+" (a INTEGER)")
			for range 2 { // the second MigrateUp must not adopt it either
				if err := s.MigrateUp(t.Context()); err == nil || !strings.Contains(err.Error(), foreign) {
					t.Errorf("error %v, want one with the name of the table", err)
				}
				checkVersion(t, s, 0)
				if got := tables(t, s); !slices.Equal(got, []string{foreign}) {
					t.Errorf("tables %q, want only %s", got, foreign)
				}
			}
			run(t, s.DB(), "DROP TABLE "+foreign)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if err := stepsOf(t, s).refuseForeign(ended, 1); !errors.Is(err, context.Canceled) {
			t.Errorf("error %v of a database that does not say which tables it has, want context.Canceled", err)
		}
		if err := s.MigrateUp(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestMigrate_ForeignVersion checks that the versions of another program, which uses the same
// library, are refused and stay as they are.
func TestMigrate_ForeignVersion(t *testing.T) {
	t.Parallel()
	forEachSQL(t, func(t *testing.T, dbURL string) {
		s := opened(t, dbURL)
		run(t, s.DB(), "CREATE TABLE schema_migrations (version BIGINT NOT NULL PRIMARY KEY, dirty BOOLEAN NOT NULL)")
		run(t, s.DB(), "INSERT INTO schema_migrations (version, dirty) VALUES (1, FALSE)")
		latest, err := migrations.Latest(string(s.dialect))
		if err != nil {
			t.Fatal(err)
		}
		for _, foreign := range []struct {
			version uint
			dirty   bool
		}{{1, false}, {2, true}, {latest - 1, false}, {latest, false}} {
			run(t, s.DB(), "UPDATE schema_migrations SET version = ?, dirty = ?", foreign.version, foreign.dirty)
			for name, migrate := range map[string]func(context.Context) error{"MigrateUp": s.MigrateUp, "MigrateDown": s.MigrateDown} {
				if err := migrate(t.Context()); err == nil || !strings.Contains(err.Error(), "another program") {
					t.Errorf("%s at %+v: error %v, want one that names the cause", name, foreign, err)
				}
				if version, dirty, err := s.SchemaVersion(t.Context()); version != foreign.version || dirty != foreign.dirty || err != nil {
					t.Errorf("%s at %+v: now version %d, dirty %v, %v", name, foreign, version, dirty, err)
				}
			}
		}
		if got := tables(t, s); len(got) != 0 {
			t.Errorf("tables %q were created", got)
		}
	})
}

// TestMigrate_CountedClaims migrates a buyer limit whose claims are being counted. The limit must
// be kept, and its claims must still be marked as being counted, even if the migration was killed
// before it converted the rows.
func TestMigrate_CountedClaims(t *testing.T) {
	t.Parallel()
	forEachSQL(t, func(t *testing.T, dbURL string) {
		s := migrated(t, dbURL)
		const number = 6 // the migration that added the column
		for _, kills := range []bool{false, true} {
			if kills && s.dialect != sqltx.MySQL {
				continue
			}
			migrateDownTo(t, s, number-1)
			for sku, limit := range map[string]int{"counting": -3, "limited": 2, "free": 0} {
				run(t, s.DB(), "INSERT INTO stock (sku, kind, total, available, buyer_limit) VALUES (?, 'k', 1, 1, ?)", sku, limit)
			}
			if kills {
				run(t, s.DB(), upStatements(t, s, number)[0])
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
	for versionOf(t, s) > version {
		if err := s.MigrateDown(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// stepsOf returns a driver that knows the migrations of the database, but cannot run them.
func stepsOf(t *testing.T, s *SQL) *stepDriver {
	t.Helper()
	files, err := migrations.Files(string(s.dialect))
	if err != nil {
		t.Fatal(err)
	}
	source, err := iofs.New(files, ".")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = source.Close() })
	return &stepDriver{sql: s, source: source, latest: 1}
}

// upStatements returns the statements of a migration up.
func upStatements(t *testing.T, s *SQL, number int) []string {
	t.Helper()
	all, err := stepsOf(t, s).up(number)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestMigrateDown_RefusesLosses checks that a migration is not reverted while its tables and
// columns have data.
func TestMigrateDown_RefusesLosses(t *testing.T) {
	t.Parallel()
	forEachSQL(t, func(t *testing.T, dbURL string) {
		s := migrated(t, dbURL)
		latest := versionOf(t, s)
		sound, begun := s.migrations, false
		s.migrations = func(ctx context.Context) (migrationDriver, error) {
			driver, err := sound(ctx)
			return hookedDriver{driver, func(change string) { begun = begun || change == "dirty" }, func() {}}, err
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
				if begun || !slices.Equal(shape(t, s), before) { // an instance that serves must not notice
					t.Errorf("after %q: the schema was changed, or the migration was begun: %v", test.use, begun)
				}
				run(t, s.DB(), test.clean)
			}
			if err := s.MigrateDown(t.Context()); err != nil {
				t.Fatal(err)
			}
			begun = false
			checkVersion(t, s, version-1)
		}
	})
}

// TestMigrateDown_WhileServing makes an instance report a payment while a migration is reverted
// that was unused at the first check. Either the payment is refused to the instance, or the
// migration is not reverted.
func TestMigrateDown_WhileServing(t *testing.T) {
	t.Parallel()
	id := map[sqltx.Dialect]string{sqltx.Postgres: "01234567-89ab-cdef-0123-456789abcdef"}
	for when, at := range map[string]string{"before the version is dirty": "dirty", "before the first statement": "run"} {
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
				sound := s.migrations
				s.migrations = func(ctx context.Context) (migrationDriver, error) {
					driver, err := sound(ctx)
					return hookedDriver{driver, func(change string) {
						if change == at {
							write()
						}
					}, func() {}}, err
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

// TestLockPatiently checks that the wait for another migration does not end with a single try, that
// it is bounded, and that its end is explained.
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
	synctest.Test(t, func(t *testing.T) {
		tries := 0
		err := lockPatiently(func() error {
			if tries++; tries > 9 {
				return nil
			}
			time.Sleep(migrationLockWait / 3)
			return database.ErrLocked
		})
		if !errors.Is(err, database.ErrLocked) {
			t.Errorf("after %d tries: error %v, want ErrLocked", tries, err)
		}
	})
	if err := new(SQL).migrationError(database.ErrLocked, 1); !errors.Is(err, database.ErrLocked) || !strings.Contains(err.Error(), "another migration has not ended") {
		t.Errorf("the other migration does not end: %v", err)
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
		if exists, err := s.hasTable(t.Context(), "schema_migrations"); err != nil || exists {
			t.Errorf("it has begun: %v, %v", exists, err)
		}
		ctx, cancel = context.WithCancel(t.Context())
		err := s.migrate(ctx, false, func(_ context.Context, _ *stepDriver, m *migrate.Migrate) error {
			if m.LockTimeout <= migrationLockWait {
				t.Errorf("the library waits for another migration for %v", m.LockTimeout)
			}
			cancel()
			testenv.Await(t, "the library is stopped", func() bool { return len(m.GracefulStop) > 0 })
			return nil // the library starts no further migration, and reports success
		})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("ended meanwhile: %v, want context.Canceled", err)
		}
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
		ledgerID(t, s)
	})
}

// TestHoldUnused_Fails checks that a migration is not reverted if its tables cannot be locked, or
// cannot be read.
func TestHoldUnused_Fails(t *testing.T) {
	t.Parallel()
	for _, d := range testenv.NetworkDatabases() {
		t.Run(d.Name, func(t *testing.T) {
			t.Parallel()
			s := opened(t, d.URL(t))
			if err := refuseLosses(t.Context(), s.pool, 1); err == nil {
				t.Error("tables that do not exist have no rows")
			}
			if err := s.MigrateUp(t.Context()); err != nil {
				t.Fatal(err)
			}
			driver, err := s.migrations(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer driver.Close()
			steps := stepDriver{migrationDriver: driver, sql: s}
			if err := steps.holdUnused(t.Context(), 1, []string{"DROP TABLE nowhere"}); err == nil {
				t.Error("a table that does not exist was locked")
			}
		})
	}
}

// TestWholeDriver_ClosesPool checks that the driver, and the one for MySQL, close their pool. A
// driver that cannot be opened must close it too.
func TestWholeDriver_ClosesPool(t *testing.T) {
	t.Parallel()
	mustBeClosed := func(pool *sql.DB) {
		t.Helper()
		if err := pool.PingContext(t.Context()); err == nil || !strings.Contains(err.Error(), "database is closed") {
			t.Errorf("the pool is open: %v", err)
		}
	}
	pool := opened(t, testenv.SQLite(t)).Pool()
	driver, err := newWholeDriver(pool, "", "")
	if err != nil {
		t.Fatal(err)
	}
	if err := driver.Close(); err != nil {
		t.Error(err)
	}
	mustBeClosed(pool)

	unreachable, err := sql.Open("mysql", "user@tcp(127.0.0.1:1)/name")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := newWholeDriver(unreachable, "", ""); err == nil {
		t.Error("opened without a server")
	}
	mustBeClosed(unreachable)

	migrations, err := opened(t, testenv.MariaDB(t)).migrations(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := migrations.Close(); err != nil {
		t.Error(err)
	}
	mustBeClosed(migrations.(*mysqlDriver).pool)
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
			version := versionOf(t, s)
			must := func(err error) {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
			}
			for what, fails := range map[string]func(migrationDriver) error{
				"a migration": func(driver migrationDriver) error {
					return driver.Run(strings.NewReader("CREATE TABLE half (a INTEGER); CREATE TABLE half (a INTEGER)"))
				},
				"a version": func(driver migrationDriver) error {
					must(driver.Run(strings.NewReader("CREATE TABLE half (a INTEGER); DROP TABLE schema_migrations; CREATE VIEW schema_migrations AS SELECT 1 AS version, TRUE AS dirty")))
					return driver.SetVersion(int(version)+1, false)
				},
			} {
				driver, err := s.migrations(t.Context())
				must(err)
				var wait string // for another process's migration
				query := map[sqltx.Dialect]string{sqltx.Postgres: "SHOW lock_timeout", sqltx.SQLite: "PRAGMA busy_timeout"}[s.dialect]
				must(driver.(*wholeDriver).conn.QueryRowContext(t.Context(), query).Scan(&wait))
				if wait != "30s" && wait != milliseconds(migrationLockWait) {
					t.Errorf("it waits for another migration for %s", wait)
				}
				must(driver.Lock())
				must(driver.SetVersion(int(version)+1, true))
				if err := fails(driver); err == nil {
					t.Errorf("%s that is refused gives no error", what)
				}
				must(driver.Unlock())
				must(driver.Close())
				checkVersion(t, s, version)
				if slices.Contains(tables(t, s), "half") {
					t.Errorf("after %s that was refused, a table of its run exists", what)
				}
			}
			run(t, s.DB(), "DELETE FROM ledger") // fails if the database is still locked
		})
	}
}
