package store

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/go-sql-driver/mysql"
	"github.com/golang-migrate/migrate/v4/database"
)

// mend ends a killed migration: it completes the migration, or reverts it if down is true. The
// schema shows which of the migration's statements have run. mend runs the others, and repeats
// those that convert data. It reports whether there was a killed migration.
//
// Errors: ErrSchemaDirty (the schema is not that of a killed migration); ErrSchemaNew;
// ErrSchemaUsed.
func (d *stepDriver) mend(ctx context.Context, down bool) (mended bool, err error) {
	if err := d.Lock(); err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, d.Unlock()) }()
	version, dirty, err := d.Version()
	latest := len(d.history) - 1
	switch {
	case err != nil || !dirty:
		return false, err
	case version > latest:
		return false, fmt.Errorf("%w: version %d, this program knows %d", ErrSchemaNew, version, latest)
	}
	version = max(version, 0) // -1 means no migration
	found, err := d.sql.schema(ctx)
	if err == nil {
		err = d.dropEmptySequence(ctx, found)
	}
	if err != nil {
		return false, err
	}
	if d.history.is(version, found) {
		if err := d.runRest(d.history[version].up, found); err != nil {
			return false, err
		}
		return true, d.SetVersion(asLibrary(version), false)
	}
	number, ok := d.history.killed(version, found)
	if !ok {
		return false, d.sql.cannotMend(d.history, version, max(version, 1), found)
	}
	rest, target := d.history[number].up, number
	if down {
		if err := d.holdUnused(ctx, number); err != nil {
			return false, err
		}
		rest, target = d.history[number].down, number-1
	}
	if err := d.runRest(rest, found); err != nil {
		return false, err
	}
	return true, d.SetVersion(asLibrary(target), false)
}

// runRest runs the statements that have not run, according to the schema found, and those that
// convert data.
func (d *stepDriver) runRest(all []statement, found schema) error {
	for _, st := range all {
		if st.converts || st.remains(found) > 0 {
			if err := d.migrationDriver.Run(strings.NewReader(st.text)); err != nil {
				return err
			}
		}
	}
	return nil
}

// asLibrary returns a version in the library's form.
func asLibrary(version int) int {
	if version == 0 {
		return database.NilVersion
	}
	return version
}

// cannotMend returns an error that says how the schema differs from that of a killed migration, and
// what to do.
func (s *SQL) cannotMend(h history, version, number int, found schema) error {
	for other := range h {
		if h.is(other, found) {
			return fmt.Errorf("%w: it is marked as half migrated to version %d, but its tables are those of version %d. If no other program migrates it, run: %s",
				ErrSchemaDirty, version, other, markAs(other))
		}
	}
	reasons := h.contradictions(number, found)
	more := ""
	if len(reasons) > 5 {
		reasons, more = reasons[:5], ", and more"
	}
	return fmt.Errorf("%w: it is marked as half migrated to version %d, but no migration that was killed leaves its tables like this: %s%s. "+
		"Restore a backup, or make the tables those of version %d by hand (migrations/%s) and run: %s",
		ErrSchemaDirty, version, strings.Join(reasons, ", "), more, version, s.dialect, markAs(version))
}

// markAs returns the statements that mark the schema as migrated to the version.
func markAs(version int) string {
	if version == 0 {
		return "DELETE FROM schema_migrations"
	}
	return fmt.Sprintf("UPDATE schema_migrations SET version = %d, dirty = FALSE", version)
}

// dropEmptySequence drops the sequence of tokens, also from found, if it has no row, because then
// every use of it fails. A MariaDB that crashes soon after it has created a sequence keeps the
// sequence and loses the row, unless it has committed something else since.
func (d *stepDriver) dropEmptySequence(ctx context.Context, found schema) error {
	const sequence = "fencing_tokens"
	if !found[sequence] {
		return nil
	}
	var missing *mysql.MySQLError
	_, err := anyRow(ctx, d.sql.pool, sequence, "")
	if !errors.As(err, &missing) || missing.Number != 1032 { // error 1032: can't find record
		return err
	}
	delete(found, sequence)
	return d.migrationDriver.Run(strings.NewReader("DROP TABLE " + sequence))
}
