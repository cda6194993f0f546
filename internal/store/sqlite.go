package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"github.com/glebarez/sqlite"
	"gorm.io/gorm"

	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
)

const (
	sqliteConnections = 4 // one connection can write at a time; the others read
	sqliteBusy        = 5 * time.Second
	// sqliteLock makes a transaction take the one write lock when it begins.
	// SQLite has no row locks, and a transaction that asks for the write lock
	// later may fail instead of waiting for it.
	sqliteLock = "immediate"
)

func openSQLiteURL(ctx context.Context, u *url.URL) (*SQL, error) {
	query, err := sqliteQuery(u)
	if err != nil {
		return nil, err
	}
	return openSQLite(ctx, u.Path, "FULL", query)
}

// sqliteQuery checks the URL and returns its query.
func sqliteQuery(u *url.URL) (url.Values, error) {
	if u.Host != "" || u.Path == "" || u.Path == "/" {
		return nil, fmt.Errorf("%w: sqlite takes an absolute path: sqlite:///path/to/file", ErrBadURL)
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return nil, fmt.Errorf("%w: its query cannot be parsed", ErrBadURL)
	}
	return query, nil
}

// weakSync matches pragmas with which a commit may not survive a power loss.
var weakSync = regexp.MustCompile(`(?i)^\s*synchronous\s*(\(|=)\s*'?(off|normal|0|1)\b`)

// inspectedSQLite opens the file read-only. It reads only the parameters of the URL's query that
// matter for durability.
func inspectedSQLite(ctx context.Context, u *url.URL) (*SQL, error) {
	query, err := sqliteQuery(u)
	if err != nil {
		return nil, err
	}
	s := &SQL{dialect: sqltx.SQLite, engine: recogniseSQL(sqltx.SQLite, ""), target: "SQLite file " + u.Path, unsynced: slices.ContainsFunc(query["_pragma"], weakSync.MatchString)}
	file, err := os.Open(u.Path) // SQLite's own error does not name the cause
	if err != nil {
		return nil, s.failed("opening", fileProblem(u.Path, err))
	}
	if err := file.Close(); err != nil {
		return nil, s.failed("opening", err)
	}
	dsn := "file:" + (&url.URL{Path: u.Path}).EscapedPath() + "?" + url.Values{
		"mode":    {"ro"},
		"_pragma": {fmt.Sprintf("busy_timeout(%d)", sqliteBusy.Milliseconds()), "query_only(1)"},
	}.Encode()
	if s.pool, err = sql.Open(sqlite.DriverName, dsn); err != nil {
		return nil, s.failed("opening", err)
	}
	return s.open(ctx, sqliteConnections, &sqlite.Dialector{Conn: sqltx.SQLitePool(s.pool, sqliteLock)})
}

// fileProblem returns why the file cannot be opened, without its path. A missing folder is not
// fs.ErrNotExist, because OpenSQL creates a missing file but not a missing folder.
func fileProblem(path string, err error) error {
	if _, missing := os.Stat(filepath.Dir(path)); errors.Is(missing, fs.ErrNotExist) {
		return errors.New("its folder does not exist")
	}
	return errors.Unwrap(err)
}

// openSQLite opens the file. With synchronous FULL, a commit survives a power loss;
// with NORMAL, only a crash of the process.
func openSQLite(ctx context.Context, path, synchronous string, query url.Values) (*SQL, error) {
	s := &SQL{dialect: sqltx.SQLite, engine: recogniseSQL(sqltx.SQLite, ""), target: "SQLite file " + path}
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, s.failed("opening", fileProblem(path, err))
	}
	if err := file.Close(); err != nil {
		return nil, s.failed("opening", err)
	}
	s.migrations = func(context.Context) (migrationDriver, error) {
		pool, err := sql.Open(sqlite.DriverName, sqliteDSN(path, synchronous, migrationLockWait, query))
		if err != nil {
			return nil, err
		}
		return newWholeDriver(pool, sqltx.SQLite, "", "BEGIN IMMEDIATE")
	}
	if s.pool, err = sql.Open(sqlite.DriverName, sqliteDSN(path, synchronous, sqliteBusy, query)); err != nil {
		return nil, s.failed("opening", err)
	}
	return s.open(ctx, sqliteConnections, &sqlite.Dialector{Conn: sqltx.SQLitePool(s.pool, sqliteLock)})
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
	parameters.Del("_time_format") // the driver would ignore _txlock
	return "file:" + (&url.URL{Path: path}).EscapedPath() + "?" + parameters.Encode()
}

// OverSQLite returns db, which must be a SQLite file, on other connections to that file. Tests
// inject faults into the driver of these connections.
func OverSQLite(db *gorm.DB, connections *sql.DB) *gorm.DB {
	over := db.Session(&gorm.Session{NewDB: true})
	over.Config.ConnPool = sqltx.SQLitePool(connections, sqliteLock)
	over.Statement.ConnPool = over.Config.ConnPool
	return over
}
