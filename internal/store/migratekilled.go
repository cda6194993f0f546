package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"

	"github.com/go-sql-driver/mysql"
	"github.com/golang-migrate/migrate/v4/database"
)

// created finds the table or sequence that a statement creates.
var created = regexp.MustCompile(`^CREATE (?:/\*M! )?(TABLE|SEQUENCE) (\w+)`)

// prepare makes MySQL, which commits each statement of a migration, ready for migrations up. It
// completes a killed migration, and refuses tables of other programs whose names it needs.
func (d *stepDriver) prepare(ctx context.Context) (err error) {
	if !d.sql.commitsDDL {
		return nil
	}
	if err := d.Lock(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Unlock()) }()
	version, dirty, err := d.Version()
	if err != nil || version > d.latest { // the library refuses a newer schema
		return err
	}
	version = max(version, 0) // -1 means no migration
	if dirty {
		if version, err = d.complete(ctx, version); err != nil {
			return err
		}
	}
	return d.refuseForeign(ctx, version+1)
}

// complete ends a migration that was killed, either up to the dirty version or down to it from the
// next version. In both cases, complete runs the migrations up to both versions from their
// beginnings, which leads to the next version. It passes over statements that the server refuses
// because they have already run. All other statements must be safe to run again. It returns the
// version reached.
func (d *stepDriver) complete(ctx context.Context, version int) (int, error) {
	next := min(version+1, d.latest)
	for number := max(version, 1); number <= next; number++ {
		all, err := d.up(number)
		if err != nil {
			return 0, err
		}
		for _, one := range all {
			if err := d.runAgain(ctx, one); err != nil {
				return 0, err
			}
		}
	}
	return next, d.SetVersion(next, false)
}

// runAgain runs a statement unless it has already run.
//
// A MariaDB that crashes soon after it has created a sequence keeps the sequence and loses its row,
// unless it has committed something else since. Then every use of the sequence fails, so runAgain
// creates it again.
func (d *stepDriver) runAgain(ctx context.Context, one string) error {
	err := d.migrationDriver.Run(strings.NewReader(one))
	if err == nil || !hasRun(one, err) {
		return err
	}
	sequence := created.FindStringSubmatch(one)
	if sequence == nil || sequence[1] != "SEQUENCE" {
		return nil
	}
	_, err = anyRow(ctx, d.sql.pool, sequence[2], "")
	if mysqlError(err) != 1032 { // error 1032: can't find record
		return err
	}
	if err := d.migrationDriver.Run(strings.NewReader("DROP TABLE " + sequence[2])); err != nil {
		return err
	}
	return d.migrationDriver.Run(strings.NewReader(one))
}

// hasRun reports whether MySQL's error means that the statement has already run. MySQL runs a
// statement of several clauses as a whole or not at all.
func hasRun(statement string, err error) bool {
	switch mysqlError(err) {
	case 1050: // the table or sequence exists
		return strings.HasPrefix(statement, "CREATE ")
	case 1051: // the table or sequence does not exist
		return strings.HasPrefix(statement, "DROP ")
	case 1060, 1091: // the column exists; the column or index does not exist
		return strings.HasPrefix(statement, "ALTER ")
	case 1054: // the column does not exist
		return strings.HasPrefix(statement, "ALTER ") && strings.Contains(statement, "RENAME COLUMN")
	}
	return false
}

// mysqlError returns the number of MySQL's error in err, or 0.
func mysqlError(err error) uint16 {
	var failed database.Error
	if errors.As(err, &failed) { // it does not unwrap
		err = failed.OrigErr
	}
	var refused *mysql.MySQLError
	if errors.As(err, &refused) {
		return refused.Number
	}
	return 0
}

// refuseForeign returns an error if a table exists that a migration from this number on creates.
// Otherwise a killed migration would take it for its own.
func (d *stepDriver) refuseForeign(ctx context.Context, number int) error {
	for ; number <= d.latest; number++ {
		all, err := d.up(number)
		if err != nil {
			return err
		}
		for _, one := range all {
			table := created.FindStringSubmatch(one)
			if table == nil {
				continue
			}
			exists, err := d.sql.hasTable(ctx, table[2])
			if err != nil {
				return err
			}
			if exists {
				return fmt.Errorf("there is a table %s already, which migration %d creates; nothing was migrated. If another program owns the table, use a database of your own", table[2], number)
			}
		}
	}
	return nil
}

// up returns the statements of a migration up.
func (d *stepDriver) up(number int) ([]string, error) {
	file, _, err := d.source.ReadUp(uint(number))
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(file)
	return statements(string(text)), errors.Join(err, file.Close())
}
