package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/golang-migrate/migrate/v4/database"
	"github.com/golang-migrate/migrate/v4/source"
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
// migrations down that lose data, and on MySQL it completes a killed migration.
type stepDriver struct {
	migrationDriver
	sql     *SQL
	source  source.Driver // the migrations
	latest  int           // the newest migration
	version int           // the version that was read or written last
	reverts int           // the migration that Run reverts; 0: none
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
	if err == nil && (version > 1 || version == 1 && !dirty) { // otherwise the table may not exist
		err = d.refuseForeignVersion(version)
	}
	return version, dirty, err
}

// refuseForeignVersion returns an error if schema_migrations, which the library names, has the
// versions of another program.
func (d *stepDriver) refuseForeignVersion(version int) error {
	exists, err := d.sql.hasTable(context.Background(), "ledger")
	if err != nil || exists {
		return err
	}
	return fmt.Errorf("schema_migrations has version %d, but there is no table ledger; nothing was migrated. "+
		"If the versions are those of another program, use a database of your own", version)
}

func (d *stepDriver) SetVersion(version int, dirty bool) error {
	if dirty && version < d.version {
		if err := refuseLosses(context.Background(), d.sql.pool, d.version); err != nil {
			return err
		}
		d.reverts = d.version
	}
	d.version = version
	return d.migrationDriver.SetVersion(version, dirty)
}

func (d *stepDriver) Run(text io.Reader) error {
	content, err := io.ReadAll(text)
	if err != nil {
		return err
	}
	all := statements(string(content))
	if number := d.reverts; number > 0 {
		if err := d.holdUnused(context.Background(), number, all); err != nil {
			// Nothing was reverted.
			return errors.Join(err, d.SetVersion(number, false))
		}
	}
	for _, one := range all {
		if err := d.migrationDriver.Run(strings.NewReader(one)); err != nil {
			return err
		}
	}
	return nil
}

// reverted finds the table that a statement of a migration down drops or changes.
var reverted = regexp.MustCompile(`^(?:DROP|ALTER) TABLE (\w+)`)

// holdUnused refuses to revert a migration if its statements down would lose data, including data
// that an instance has written since the first check. It keeps other sessions from writing more.
func (d *stepDriver) holdUnused(ctx context.Context, number int, down []string) error {
	if len(losses[number]) == 0 {
		return nil
	}
	var tables []string
	for _, one := range down {
		if table := reverted.FindStringSubmatch(one); table != nil {
			tables = append(tables, table[1])
		}
	}
	slices.Sort(tables)
	held, err := d.hold(ctx, slices.Compact(tables))
	if err != nil {
		return fmt.Errorf("keeping others from writing while a migration is reverted: %w", err)
	}
	return refuseLosses(ctx, held, number)
}

// statements splits the text of a migration. A statement ends with a semicolon at the end of a
// line. Comments are on separate lines.
func statements(text string) (all []string) {
	var one strings.Builder
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "--") || strings.TrimSpace(line) == "" {
			continue
		}
		one.WriteString(line)
		if strings.HasSuffix(strings.TrimSpace(line), ";") {
			all = append(all, one.String())
			one.Reset()
		}
	}
	if one.Len() > 0 {
		all = append(all, one.String())
	}
	return all
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
