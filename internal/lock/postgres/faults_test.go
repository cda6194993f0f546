package postgres

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-stock/holdfast/internal/faults"
	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/lock/locktest"
	"github.com/holdfast-stock/holdfast/internal/store/storetest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// TestFailingStatements makes each statement that opens a session fail, and the one that mints a
// token. The tests of session.Locker cover its own statements.
func TestFailingStatements(t *testing.T) {
	t.Parallel()
	dbURL := testenv.Postgres(t)
	if _, err := New(t.Context(), storetest.Sessions(t, dbURL+"&search_path=none"), 0); !errors.Is(err, lock.ErrNotMigrated) {
		t.Errorf("New in no schema: %v, want %v", err, lock.ErrNotMigrated)
	}
	storetest.MigratedURL(t, dbURL)
	wire, wired := faults.NewWire(t, dbURL)
	mustBeRefused := func(statement string, err error) {
		t.Helper()
		var server *pgconn.PgError
		if _, injected := wire.Disarm(); !errors.As(err, &server) || len(injected) == 0 {
			t.Errorf("%d statements with %s have failed: %v", len(injected), statement, err)
		}
	}
	for _, statement := range []string{"set_config", "to_regclass"} {
		wire.Arm(faults.Fault{Kind: faults.Deadlock, Nth: 1, Only: statement})
		l, err := New(t.Context(), storetest.Sessions(t, wired), 0)
		mustBeRefused(statement, err)
		if l != nil {
			l.Close()
		}
	}
	l, err := New(t.Context(), storetest.Sessions(t, wired), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	name := "a"
	for statement, request := range map[string]func(context.Context, string) (lock.Lease, error){"pg_advisory_lock": l.Lock, "pg_try_advisory_lock": l.TryLock} {
		for _, statement := range []string{"setval", statement, "nextval"} {
			// The server may not have noticed yet that a session ended. So each lock has a new name,
			// and the second session of TryLock may find the lock of the first.
			name += "a"
			wire.Arm(faults.Fault{Kind: faults.Deadlock, Nth: 1, Times: 2, Only: statement})
			lease, err := request(t.Context(), name)
			if err == nil {
				_ = lease.Unlock(t.Context())
			}
			if errors.Is(err, lock.ErrHeld) {
				wire.Disarm()
				continue
			}
			mustBeRefused(statement, err)
		}
	}
	locktest.MustUnlock(t, locktest.MustLock(t, l, name)) // granted once the server has noticed the end of the session
}

// TestOldServer hides the setting that PostgreSQL 13 lacks.
func TestOldServer(t *testing.T) {
	t.Parallel()
	dbURL := storetest.MigratedURL(t, testenv.Postgres(t))
	if _, err := storetest.Sessions(t, dbURL).ExecContext(t.Context(), `CREATE SCHEMA old;
		CREATE VIEW old.pg_settings AS SELECT * FROM pg_catalog.pg_settings WHERE name <> 'idle_session_timeout'`); err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(dbURL)
	if err != nil {
		t.Fatal(err)
	}
	query := u.Query()
	query.Set("search_path", "old,pg_catalog,public")
	u.RawQuery = query.Encode()
	if _, err := New(t.Context(), storetest.Sessions(t, u.String()), 0); err == nil || !strings.Contains(err.Error(), "PostgreSQL 14") {
		t.Errorf("New on a server without idle_session_timeout: %v", err)
	}
}
