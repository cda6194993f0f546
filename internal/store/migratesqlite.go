package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"sync/atomic"

	"github.com/glebarez/sqlite"
	"github.com/golang-migrate/migrate/v4/database"
)

// sqliteDriver runs migrations on SQLite. The library's own drivers need cgo, or
// register a second driver under the name of ours. One transaction under
// SQLite's write lock holds all migrations of a run and the versions: other
// processes wait for it, and a failed run changes nothing.
type sqliteDriver struct {
	pool   *sql.DB
	conn   *sql.Conn
	locked atomic.Bool
	failed bool // Unlock must roll back
}

var _ database.Driver = (*sqliteDriver)(nil)

func sqliteMigrations(dsn string) (database.Driver, error) {
	pool, err := sql.Open(sqlite.DriverName, dsn)
	if err != nil {
		return nil, err
	}
	conn, err := pool.Conn(context.Background())
	if err != nil {
		pool.Close()
		return nil, err
	}
	return &sqliteDriver{pool: pool, conn: conn}, nil
}

// Open is part of database.Driver. It always fails: sqliteMigrations creates the
// driver.
func (d *sqliteDriver) Open(string) (database.Driver, error) {
	return nil, errors.New("the SQLite migration driver cannot be opened by URL")
}

func (d *sqliteDriver) Close() error { return errors.Join(d.conn.Close(), d.pool.Close()) }

// Lock begins the transaction. It waits for other writers up to the connection's
// busy timeout.
func (d *sqliteDriver) Lock() error {
	return database.CasRestoreOnErr(&d.locked, false, true, database.ErrLocked, func() error {
		d.failed = false
		return d.exec("BEGIN IMMEDIATE")
	})
}

// Unlock commits the transaction, or rolls it back if a migration failed.
func (d *sqliteDriver) Unlock() error {
	return database.CasRestoreOnErr(&d.locked, true, false, database.ErrNotLocked, func() error {
		if !d.failed {
			err := d.exec("COMMIT")
			if err == nil {
				return nil
			}
			return errors.Join(err, d.exec("ROLLBACK"))
		}
		return d.exec("ROLLBACK")
	})
}

func (d *sqliteDriver) Run(migration io.Reader) error {
	text, err := io.ReadAll(migration)
	if err == nil {
		err = d.exec(string(text))
	}
	if err != nil {
		d.failed = true
		return fmt.Errorf("running a migration: %w", err)
	}
	return nil
}

func (d *sqliteDriver) SetVersion(version int, dirty bool) error {
	err := d.exec(`CREATE TABLE IF NOT EXISTS schema_migrations (version INTEGER NOT NULL PRIMARY KEY, dirty BOOLEAN NOT NULL);
		DELETE FROM schema_migrations`)
	if err == nil && (version >= 0 || dirty) {
		_, err = d.conn.ExecContext(context.Background(), "INSERT INTO schema_migrations (version, dirty) VALUES (?, ?)", version, dirty)
	}
	if err != nil {
		d.failed = true
		return fmt.Errorf("writing the schema version: %w", err)
	}
	return nil
}

func (d *sqliteDriver) Version() (version int, dirty bool, err error) {
	ctx := context.Background()
	var tables int
	err = d.conn.QueryRowContext(ctx, "SELECT COUNT(*) FROM sqlite_master WHERE type = 'table' AND name = 'schema_migrations'").Scan(&tables)
	if err != nil || tables == 0 {
		return database.NilVersion, false, err
	}
	err = d.conn.QueryRowContext(ctx, "SELECT version, dirty FROM schema_migrations").Scan(&version, &dirty)
	if errors.Is(err, sql.ErrNoRows) {
		return database.NilVersion, false, nil
	}
	return version, dirty, err
}

// Drop is part of database.Driver. It always fails: nothing calls it.
func (d *sqliteDriver) Drop() error { return errors.New("the SQLite migration driver cannot drop") }

func (d *sqliteDriver) exec(statements string) error {
	_, err := d.conn.ExecContext(context.Background(), statements)
	return err
}
