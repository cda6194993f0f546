package mysql

import (
	"context"
	"database/sql"
	"errors"
	"net/url"
	"strings"
	"testing"

	driver "github.com/go-sql-driver/mysql"

	"github.com/holdfast-stock/holdfast/internal/faults"
	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/lock/locktest"
	"github.com/holdfast-stock/holdfast/internal/store/storetest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// TestFailingStatements makes each statement that opens a session, or takes or frees a lock, fail.
// The tests of session.Locker cover its own statements.
func TestFailingStatements(t *testing.T) {
	t.Parallel()
	u, err := url.Parse(storetest.MigratedURL(t, testenv.MariaDB(t)))
	if err != nil {
		t.Fatal(err)
	}
	refused := &driver.MySQLError{Number: 1105, Message: "the statement has failed"}
	statements := faults.NewDriver(driver.MySQLDriver{}, u.User.String()+"@tcp("+u.Host+")"+u.Path+"?multiStatements=true", map[faults.Kind]error{faults.ReadOnly: refused})
	pool := sql.OpenDB(statements)
	pool.SetMaxIdleConns(-1)
	t.Cleanup(func() { pool.Close() })
	for _, statement := range []string{"SHOW GLOBAL VARIABLES", "SHOW GLOBAL STATUS", "SET SESSION wait_timeout", "ISOLATION LEVEL", "information_schema"} {
		statements.Arm(faults.Fault{Kind: faults.ReadOnly, Nth: 1, Only: statement})
		l, err := New(t.Context(), pool, 0)
		if _, injected := statements.Disarm(); len(injected) != 1 {
			t.Errorf("%d statements with %s have failed", len(injected), statement)
		}
		mustBeRefused(t, statement, err)
		if l != nil {
			l.Close()
		}
	}
	for kind, want := range map[faults.Kind]string{faults.Cut: "the connection broke", faults.Garbled: "Scan error"} {
		statements.Arm(faults.Fault{Kind: kind, Nth: 1, Only: "SHOW GLOBAL VARIABLES"})
		if _, err := New(t.Context(), pool, 0); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the variables are %s: %v, want %q", kind, err, want)
		}
	}
	statements.Disarm()
	l, err := New(t.Context(), pool, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
	defer cancel()
	name := "a"
	for _, statement := range []string{"DO SETVAL", "NEXTVAL(fencing_tokens), "} { // the sequence is new, so it must be raised
		for range 2 { // in an idle session, and in a new one, which the first failure made necessary
			for _, request := range []func(context.Context, string) (lock.Lease, error){l.Lock, l.TryLock} {
				name += "a" // the server may not have noticed yet that the session with the last lock ended
				statements.Arm(faults.Fault{Kind: faults.ReadOnly, Nth: 1, Times: 2, Only: statement})
				_, err := request(ctx, name)
				statements.Disarm()
				mustBeRefused(t, statement, err)
			}
		}
	}
	locktest.MustUnlock(t, locktest.MustLock(t, l, name)) // granted once the server has noticed the end of the session
}

// mustBeRefused checks that the error is the server's error.
func mustBeRefused(t *testing.T, statement string, err error) {
	t.Helper()
	var server *driver.MySQLError
	if !errors.As(err, &server) || errors.Is(err, lock.ErrLost) {
		t.Errorf("%s has failed: %v", strings.ToLower(statement), err)
	}
}
