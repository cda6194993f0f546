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

	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
)

const (
	sqliteConnections = 4 // there is one writer at a time; the others read
	sqliteBusy        = 5 * time.Second
	// sqliteLock makes a transaction take the one write lock when it begins.
	// SQLite has no row locks, and a transaction that asks for the write lock
	// later may fail instead of waiting for it.
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

// openSQLite opens the file. With synchronous FULL, a commit survives a power loss;
// with NORMAL, only a crash of the process.
func openSQLite(ctx context.Context, path, synchronous string, query url.Values) (*SQL, error) {
	s := &SQL{dialect: sqltx.SQLite, target: "SQLite file " + path}
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
	return s.open(ctx, sqliteConnections, &sqlite.Dialector{Conn: sqltx.SQLitePool(s.pool, cmp.Or(query.Get("_txlock"), sqliteLock))})
}

// sqliteDSN joins our settings and the URL's. The URL's come later and override
// ours.
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

// OverSQLite returns db, which is a SQLite file, over other connections to that
// file. Tests inject faults into their driver.
func OverSQLite(db *gorm.DB, connections *sql.DB) *gorm.DB {
	over := db.Session(&gorm.Session{NewDB: true})
	over.Config.ConnPool = sqltx.SQLitePool(connections, sqliteLock)
	over.Statement.ConnPool = over.Config.ConnPool
	return over
}
