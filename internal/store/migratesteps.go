package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/golang-migrate/migrate/v4/database"

	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
)

// migrationDriver is a driver of the library that can also keep other sessions away from
// tables.
type migrationDriver interface {
	database.Driver
	// hold keeps other sessions from writing to the tables until Unlock or the next SetVersion. It
	// waits for sessions that have written and not committed yet. Only the returned connection is
	// sure to be able to read the tables meanwhile.
	hold(ctx context.Context, tables []string) (rowReader, error)
}

// rowReader is a connection, or a pool of them.
type rowReader interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// stepDriver makes the driver of a database run migrations statement by statement. It refuses
// migrations down that lose data, and repairs a schema after a killed migration.
type stepDriver struct {
	migrationDriver
	sql     *SQL
	history history
	version int // the version that was read or written last
	reverts int // the migration that Run reverts; 0: none
}

// Lock waits for the migration of another process up to migrationLockWait.
func (d *stepDriver) Lock() error { return lockPatiently(d.migrationDriver.Lock) }

// lockPatiently calls lock until it succeeds or migrationLockWait has passed. The library's driver
// for MySQL does not wait as long.
func lockPatiently(lock func() error) error {
	for since := time.Now(); ; {
		err := lock()
		if !errors.Is(err, database.ErrLocked) || time.Since(since) >= migrationLockWait {
			return err
		}
	}
}

func (d *stepDriver) Version() (version int, dirty bool, err error) {
	version, dirty, err = d.migrationDriver.Version()
	d.version = version
	return version, dirty, err
}

func (d *stepDriver) SetVersion(version int, dirty bool) error {
	d.reverts = 0
	if dirty && version < d.version {
		found, err := d.sql.schema(context.Background())
		if err == nil {
			err = refuseLosses(context.Background(), d.sql.pool, d.version, found)
		}
		if err != nil {
			return err
		}
		d.reverts = d.version
	}
	err := d.migrationDriver.SetVersion(version, dirty)
	if err == nil {
		d.version = version
	}
	return err
}

func (d *stepDriver) Run(text io.Reader) error {
	all, err := io.ReadAll(text)
	if err != nil {
		return err
	}
	if number := d.reverts; number > 0 {
		if err := d.holdUnused(context.Background(), number); err != nil {
			// Nothing was reverted.
			return errors.Join(err, d.SetVersion(number, false))
		}
	}
	for _, one := range statements(string(all)) {
		if err := d.migrationDriver.Run(strings.NewReader(one)); err != nil {
			return err
		}
	}
	return nil
}

// holdUnused refuses to revert a migration that would lose data, including data that an instance
// has written since the first check. It keeps other sessions from writing more.
func (d *stepDriver) holdUnused(ctx context.Context, number int) error {
	if len(losses[number]) == 0 {
		return nil
	}
	found, err := d.sql.schema(ctx)
	if err != nil {
		return err
	}
	var tables []string
	for o := range d.history[number].after {
		if table := o.table(); found[object(table)] && !slices.Contains(tables, table) {
			tables = append(tables, table)
		}
	}
	if len(tables) == 0 {
		return nil
	}
	slices.Sort(tables)
	held, err := d.hold(ctx, tables)
	if err != nil {
		return fmt.Errorf("keeping others from writing while a migration is reverted: %w", err)
	}
	return refuseLosses(ctx, held, number, found)
}

// schema reads the existing tables, columns, sequences and indexes, and whether the ledger has its
// row. It leaves out MySQL's indexes, which are part of their tables' statements. It also leaves
// out the columns of fencing_tokens, which is a sequence on MariaDB and a table on MySQL.
func (s *SQL) schema(ctx context.Context) (schema, error) {
	queries := map[sqltx.Dialect][]string{
		sqltx.MySQL: {
			"SELECT table_name, CONCAT('.', column_name) FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name <> 'fencing_tokens'",
			"SELECT table_name, '' FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = 'fencing_tokens'",
		},
		sqltx.Postgres: {
			"SELECT table_name, '.' || column_name FROM information_schema.columns WHERE table_schema = CURRENT_SCHEMA()",
			"SELECT tablename, '#' || indexname FROM pg_indexes WHERE schemaname = CURRENT_SCHEMA()",
			"SELECT sequencename, '' FROM pg_sequences WHERE schemaname = CURRENT_SCHEMA()",
		},
		sqltx.SQLite: {
			"SELECT m.name, '.' || p.name FROM sqlite_master AS m, pragma_table_info(m.name) AS p WHERE m.type = 'table'",
			"SELECT tbl_name, '#' || name FROM sqlite_master WHERE type = 'index'",
		},
	}[s.dialect]
	found := make(schema)
	for _, query := range queries {
		parts, err := s.pairs(ctx, query)
		if err != nil {
			return nil, s.failed("reading the tables of", err)
		}
		for _, part := range parts {
			found[object(part[0])], found[object(part[0]+part[1])] = true, true
		}
	}
	if found["ledger"] {
		some, err := anyRow(ctx, s.pool, "ledger", "")
		if err != nil {
			return nil, s.failed("reading the tables of", err)
		}
		if some {
			found["ledger()"] = true
		}
	}
	return found, nil
}

// anyRow reports whether a row of the table meets the condition.
func anyRow(ctx context.Context, from rowReader, table, condition string) (bool, error) {
	if condition != "" {
		condition = " WHERE " + condition
	}
	var n int
	err := from.QueryRowContext(ctx, "SELECT COUNT(*) FROM (SELECT 1 FROM "+table+condition+" LIMIT 1) AS some_row").Scan(&n)
	if err != nil {
		return false, fmt.Errorf("looking for rows of %s: %w", table, err)
	}
	return n > 0, nil
}
