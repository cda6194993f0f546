package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/migrations"

	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// tables returns the tables of the database, without that of the migrations.
func tables(t testing.TB, s *SQL) []string {
	t.Helper()
	query := map[sqltx.Dialect]string{
		sqltx.MySQL:    "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE()",
		sqltx.Postgres: "SELECT table_name FROM information_schema.tables WHERE table_schema = CURRENT_SCHEMA()",
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
	forEachSQL(t, func(t *testing.T, dbURL string) {
		s := opened(t, dbURL)
		ctx := t.Context()
		want := []string{"claims", "jobs", "ledger", "order_history", "order_lines", "orders", "outbox", "payments", "stock"}
		if s.Dialect() != sqltx.SQLite { // it holds no locks
			want = slices.Insert(want, slices.Index(want, "order_history"), "lock_tokens")
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
	forEachSQL(t, func(t *testing.T, dbURL string) {
		s := migrated(t, dbURL)
		ctx := t.Context()
		run(t, s.DB(), "UPDATE schema_migrations SET version = 900")
		for name, err := range map[string]error{"CheckSchema": s.CheckSchema(ctx), "MigrateUp": s.MigrateUp(ctx), "MigrateDown": s.MigrateDown(ctx)} {
			if !errors.Is(err, ErrSchemaNew) || !strings.Contains(err.Error(), "900") {
				t.Errorf("%s of a newer schema: error %v, want ErrSchemaNew with the version", name, err)
			}
		}
		run(t, s.DB(), "UPDATE schema_migrations SET version = 1, dirty = ?", true)
		if version, dirty, err := s.SchemaVersion(ctx); version != 1 || !dirty || err != nil {
			t.Errorf("version %d, dirty %v, error %v; want a dirty version 1", version, dirty, err)
		}
		for name, err := range map[string]error{"CheckSchema": s.CheckSchema(ctx), "MigrateUp": s.MigrateUp(ctx), "MigrateDown": s.MigrateDown(ctx)} {
			if !errors.Is(err, ErrSchemaDirty) || !strings.Contains(err.Error(), "migration 1 ") {
				t.Errorf("%s of a dirty schema: error %v, want ErrSchemaDirty with the version", name, err)
			}
		}
	})
}

func TestMigrate_ContextEnded(t *testing.T) {
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
	forEachSQL(t, func(t *testing.T, dbURL string) {
		var (
			all sync.WaitGroup
			mu  sync.Mutex
			ids = make(map[uuid.UUID]bool)
		)
		for range 6 {
			s := opened(t, dbURL)
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

// TestSQLiteDriver_FailureChangesNothing checks that a failed migration leaves
// the schema unchanged and not dirty: on SQLite a run is one transaction.
func TestSQLiteDriver_FailureChangesNothing(t *testing.T) {
	dbURL := testenv.SQLite(t)
	s := migrated(t, dbURL)
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
}
