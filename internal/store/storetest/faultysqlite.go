package storetest

import (
	"context"
	"database/sql"
	"net/url"

	"github.com/holdfast-stock/holdfast/internal/faults"
	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/store"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// FaultySQLite opens the SQLite file of the URL with a driver that injects faults. parameters are
// those of the driver's data source name. errs has the errors that the database returns, for
// example [SQLiteErrors].
func FaultySQLite(t testenv.T, dbURL, parameters string, errs map[faults.Kind]error) (*sqltx.DB, *sql.DB, *faults.Injector) {
	t.Helper()
	u, err := url.Parse(dbURL)
	check(t, err)
	s := SQL(t, dbURL)
	d := faults.NewDriver(s.Pool().Driver(), "file:"+u.Path+"?"+parameters, errs)
	pool := sql.OpenDB(d)
	t.Cleanup(func() { _ = pool.Close() })
	return sqltx.New(store.OverSQLite(s.DB(), pool), sqltx.SQLite), pool, d.Injector
}

// SQLiteErrors causes SQLite's own errors and returns them.
func SQLiteErrors(t testenv.T) map[faults.Kind]error {
	t.Helper()
	u, err := url.Parse(testenv.SQLite(t))
	check(t, err)
	open := func(parameters string) *sql.DB {
		db, err := sql.Open("sqlite", "file:"+u.Path+"?"+parameters)
		check(t, err)
		db.SetMaxOpenConns(1)
		t.Cleanup(func() { _ = db.Close() })
		return db
	}
	db := open("_pragma=journal_mode(WAL)")
	must := func(query string) {
		_, err := db.ExecContext(context.Background(), query)
		check(t, err)
	}
	refused := func(db *sql.DB, query string) error {
		_, err := db.ExecContext(context.Background(), query)
		if err == nil {
			t.Fatalf("%s succeeded, want an error", query)
		}
		return err
	}
	must("CREATE TABLE t (id INTEGER PRIMARY KEY, n INTEGER CHECK (n >= 0))")
	must("INSERT INTO t VALUES (1, 1)")
	errs := map[faults.Kind]error{
		faults.Duplicate: refused(db, "INSERT INTO t VALUES (1, 1)"),
		faults.BadValue:  refused(db, "INSERT INTO t VALUES (2, -1)"),
		faults.ReadOnly:  refused(open("_pragma=query_only(1)"), "INSERT INTO t VALUES (3, 1)"),
	}
	must("BEGIN IMMEDIATE")
	errs[faults.LockTimeout] = refused(open("_pragma=busy_timeout(0)"), "BEGIN IMMEDIATE")
	must("ROLLBACK")
	must("PRAGMA max_page_count = 2")
	errs[faults.DiskFull] = refused(db, "CREATE TABLE u AS WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM r LIMIT 9999) SELECT x FROM r")
	return errs
}
