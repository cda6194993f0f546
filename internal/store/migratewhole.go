package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"

	"github.com/golang-migrate/migrate/v4/database"

	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
)

// wholeDriver runs migrations on engines whose transactions include changes of tables: PostgreSQL
// and SQLite. One transaction holds all migrations of a run and the version. Other processes wait
// for it, and a run that fails or is killed changes nothing. The library's own drivers commit the
// version separately from the migration. For SQLite, they also need cgo or register a second driver
// under our driver's name.
type wholeDriver struct {
	pool    *sql.DB
	conn    *sql.Conn
	dialect sqltx.Dialect
	begin   []string // begin the transaction, and wait for another process's transaction
	lock    string   // format of the statement that keeps others from tables; empty: the transaction itself does so
	locked  atomic.Bool
	failed  bool // Unlock must roll back
}

var _ migrationDriver = (*wholeDriver)(nil)

// newWholeDriver returns a driver that owns the pool.
func newWholeDriver(pool *sql.DB, dialect sqltx.Dialect, lock string, begin ...string) (*wholeDriver, error) {
	conn, err := pool.Conn(context.Background())
	if err != nil {
		return nil, errors.Join(err, pool.Close())
	}
	return &wholeDriver{pool: pool, conn: conn, dialect: dialect, begin: begin, lock: lock}, nil
}

// Open is part of database.Driver. It always fails: newWholeDriver creates the driver.
func (d *wholeDriver) Open(string) (database.Driver, error) {
	return nil, errors.New("this migration driver cannot be opened by URL")
}

func (d *wholeDriver) Close() error { return errors.Join(d.conn.Close(), d.pool.Close()) }

// Lock begins the transaction. If it or Unlock fails, Close ends what is left of the transaction.
func (d *wholeDriver) Lock() error {
	return database.CasRestoreOnErr(&d.locked, false, true, database.ErrLocked, func() error {
		for _, statement := range d.begin {
			if err := d.exec(statement); err != nil {
				return err
			}
		}
		return nil
	})
}

// Unlock commits the transaction, or rolls it back if a migration failed.
func (d *wholeDriver) Unlock() error {
	return database.CasRestoreOnErr(&d.locked, true, false, database.ErrNotLocked, func() error {
		if d.failed {
			return d.exec("ROLLBACK")
		}
		return d.exec("COMMIT")
	})
}

func (d *wholeDriver) Run(migration io.Reader) error {
	var text strings.Builder
	_, err := io.Copy(&text, migration)
	if err == nil {
		err = d.exec(text.String())
	}
	if err != nil {
		d.failed = true
		return fmt.Errorf("running a migration: %w", err)
	}
	return nil
}

func (d *wholeDriver) SetVersion(version int, dirty bool) error {
	err := d.exec("CREATE TABLE IF NOT EXISTS schema_migrations (version BIGINT NOT NULL PRIMARY KEY, dirty BOOLEAN NOT NULL)")
	if err == nil {
		err = d.exec("DELETE FROM schema_migrations")
	}
	if err == nil && (version >= 0 || dirty) {
		err = d.exec(fmt.Sprintf("INSERT INTO schema_migrations (version, dirty) VALUES (%d, %t)", version, dirty))
	}
	if err != nil {
		d.failed = true
		return fmt.Errorf("writing the schema version: %w", err)
	}
	return nil
}

func (d *wholeDriver) Version() (version int, dirty bool, err error) {
	ctx := context.Background()
	var tables int
	if err := d.conn.QueryRowContext(ctx, countTables[d.dialect], "schema_migrations").Scan(&tables); err != nil || tables == 0 {
		return database.NilVersion, false, err
	}
	err = d.conn.QueryRowContext(ctx, "SELECT version, dirty FROM schema_migrations").Scan(&version, &dirty)
	if errors.Is(err, sql.ErrNoRows) {
		return database.NilVersion, false, nil
	}
	return version, dirty, err
}

func (d *wholeDriver) hold(_ context.Context, tables []string) (rowReader, error) {
	if d.lock == "" {
		return d.conn, nil
	}
	return d.conn, d.exec(fmt.Sprintf(d.lock, strings.Join(tables, ", "))) // an error makes PostgreSQL roll back
}

// Drop is part of database.Driver. It always fails: nothing calls it.
func (d *wholeDriver) Drop() error { return errors.New("this migration driver cannot drop") }

func (d *wholeDriver) exec(statement string) error {
	_, err := d.conn.ExecContext(context.Background(), statement)
	return err
}
