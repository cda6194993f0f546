package sqltx_test

import (
	"context"
	"database/sql"
	"os"
	"testing"

	"github.com/holdfast-stock/holdfast/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// forEachSQL runs the test on every kind of database. Each run has an empty
// database of its own.
func forEachSQL(t *testing.T, test func(t *testing.T, dbURL string)) {
	t.Helper()
	runOn(t, testenv.AllVersions(testenv.Databases()), test)
}

// forEachServer is forEachSQL without SQLite.
func forEachServer(t *testing.T, test func(t *testing.T, dbURL string)) {
	t.Helper()
	runOn(t, testenv.AllVersions(testenv.NetworkDatabases()), test)
}

func runOn(t *testing.T, databases []testenv.Database, test func(t *testing.T, dbURL string)) {
	t.Helper()
	for _, d := range databases {
		t.Run(d.Name, func(t *testing.T) {
			t.Parallel()
			test(t, d.URL(t))
		})
	}
}

// noneInUse checks that every connection has returned to the pool.
func noneInUse(t testing.TB, pool *sql.DB, after string) {
	t.Helper()
	if inUse := pool.Stats().InUse; inUse != 0 {
		t.Errorf("%d connections are in use after %s", inUse, after)
	}
}

// session is a *sqltx.DB or a *sqltx.Tx.
type session interface {
	Exec(ctx context.Context, sql string, args ...any) (affected int64, err error)
	QueryRow(ctx context.Context, dest []any, sql string, args ...any) error
}

// run runs a statement, which must succeed.
func run(t testing.TB, s session, statement string, args ...any) {
	t.Helper()
	if _, err := s.Exec(t.Context(), statement, args...); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

// one returns the one value that the query returns.
func one[T any](t testing.TB, s session, query string, args ...any) (value T) {
	t.Helper()
	if err := s.QueryRow(t.Context(), []any{&value}, query, args...); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return value
}

// insertStock inserts a stock row with 10 units.
func insertStock(t testing.TB, s session, sku string) {
	t.Helper()
	run(t, s, "INSERT INTO stock (sku, kind, total, available) VALUES (?, 'product', 10, 10)", sku)
}
