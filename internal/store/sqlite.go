package store

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"time"

	"github.com/glebarez/sqlite"
	"github.com/golang-migrate/migrate/v4/database"
	"gorm.io/gorm"
)

const (
	sqliteConnections = 4 // there is one writer at a time; the others read
	sqliteBusy        = 5 * time.Second
	// sqliteLock has a transaction take the one write lock when it begins.
	sqliteLock = "immediate"
)

func openSQLiteURL(ctx context.Context, u *url.URL) (*SQL, error) {
	if u.Host != "" || u.Path == "" || u.Path == "/" {
		return nil, fmt.Errorf("%w: sqlite takes an absolute path: sqlite:///path/to/file", ErrBadURL)
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return nil, fmt.Errorf("%w: its query cannot be parsed", ErrBadURL)
	}
	return openSQLite(ctx, u.Path, "FULL", query)
}

// openSQLite opens the file. Synchronous FULL keeps a commit through a loss of
// power, NORMAL through a crash of the process alone.
func openSQLite(ctx context.Context, path, synchronous string, query url.Values) (*SQL, error) {
	s := &SQL{dialect: SQLite, target: "SQLite file " + path}
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, s.failed("opening", errors.Unwrap(err))
	}
	if err := file.Close(); err != nil {
		return nil, s.failed("opening", err)
	}
	s.migrations = func() (database.Driver, error) {
		return sqliteMigrations(sqliteDSN(path, synchronous, migrationLockWait, query))
	}
	if s.pool, err = sql.Open(sqlite.DriverName, sqliteDSN(path, synchronous, sqliteBusy, query)); err != nil {
		return nil, s.failed("opening", err)
	}
	// A COMMIT that is answered BUSY leaves the transaction open, and package sql
	// would put its connection back into the pool. Ours discards it.
	return s.open(ctx, sqliteConnections, &sqlite.Dialector{Conn: sqlitePool(s.pool, cmp.Or(query.Get("_txlock"), sqliteLock))})
}

// sqliteDSN joins our settings and the URL's, which come later and so win.
// SQLite has no row locks: a transaction takes the one write lock when it
// begins, or it would find out too late that it cannot have it.
func sqliteDSN(path, synchronous string, busy time.Duration, query url.Values) string {
	parameters := make(url.Values, len(query)+2)
	for name, values := range query {
		parameters[name] = values
	}
	parameters["_pragma"] = append([]string{
		fmt.Sprintf("busy_timeout(%d)", busy.Milliseconds()),
		"journal_mode(WAL)",
		"synchronous(" + synchronous + ")",
	}, query["_pragma"]...)
	if !parameters.Has("_txlock") {
		parameters.Set("_txlock", sqliteLock)
	}
	parameters.Del("_time_format") // the driver would pass over _txlock
	return "file:" + (&url.URL{Path: path}).EscapedPath() + "?" + parameters.Encode()
}

func sqlitePool(connections *sql.DB, lock string) pool {
	return pool{DB: connections, exec: execSQLite, begin: "BEGIN " + lock}
}

// OverSQLite returns db, which is a SQLite file, over other connections to that
// file. Tests strike their driver with faults.
func OverSQLite(db *gorm.DB, connections *sql.DB) *gorm.DB {
	over := db.Session(&gorm.Session{NewDB: true})
	over.Config.ConnPool = sqlitePool(connections, sqliteLock)
	over.Statement.ConnPool = over.Config.ConnPool
	return over
}

func execSQLite(ctx context.Context, conn *sql.Conn, statements []Statement) ([]int64, error) {
	return execApart(ctx, conn, statements)
}
