package store

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/golang-migrate/migrate/v4"
	"github.com/golang-migrate/migrate/v4/source/iofs"

	"github.com/holdfast-stock/holdfast/migrations"
)

// Errors about the schema. Their texts name the versions.
var (
	// ErrSchemaOld: migrations of this program have not been applied.
	ErrSchemaOld = errors.New("the database schema is old")
	// ErrSchemaNew: the schema was made by a later program.
	ErrSchemaNew = errors.New("the database schema is newer than this program")
	// ErrSchemaDirty: a migration failed halfway and needs someone's hand.
	ErrSchemaDirty = errors.New("the database schema is dirty")
)

// CheckSchema reports whether the schema is the one this program was built
// for. It changes nothing.
//
// Errors: ErrSchemaOld, ErrSchemaNew, ErrSchemaDirty.
func (s *SQL) CheckSchema(ctx context.Context) error {
	latest, err := migrations.Latest(string(s.dialect))
	if err != nil {
		return err
	}
	version, dirty, err := s.SchemaVersion(ctx)
	switch {
	case err != nil:
		return err
	case dirty:
		return s.failed("checking", fmt.Errorf("%w: migration %d failed halfway", ErrSchemaDirty, version))
	case version < latest:
		return s.failed("checking", fmt.Errorf("%w: version %d, this program needs %d", ErrSchemaOld, version, latest))
	case version > latest:
		return s.failed("checking", fmt.Errorf("%w: version %d, this program knows %d", ErrSchemaNew, version, latest))
	}
	return nil
}

// SchemaVersion returns the number of the last migration applied, 0 if there
// is none, and whether it failed halfway. It changes nothing.
func (s *SQL) SchemaVersion(ctx context.Context) (version uint, dirty bool, err error) {
	exists, err := s.hasTable(ctx, "schema_migrations")
	if err != nil || !exists {
		return 0, false, err
	}
	rows, err := s.pool.QueryContext(ctx, "SELECT version, dirty FROM schema_migrations")
	if err != nil {
		return 0, false, s.failed("reading the schema version of", err)
	}
	defer rows.Close()
	for rows.Next() {
		var number int64
		if err := rows.Scan(&number, &dirty); err != nil {
			return 0, false, s.failed("reading the schema version of", err)
		}
		version = uint(max(number, 0)) // -1 stands for none
	}
	if err := rows.Err(); err != nil {
		return 0, false, s.failed("reading the schema version of", err)
	}
	return version, dirty, nil
}

func (s *SQL) hasTable(ctx context.Context, name string) (bool, error) {
	query := map[Dialect]string{
		MySQL:    "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = ?",
		Postgres: "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = CURRENT_SCHEMA() AND table_name = $1",
		SQLite:   "SELECT COUNT(*) FROM sqlite_master WHERE type = 'table' AND name = ?",
	}[s.dialect]
	var n int
	if err := s.pool.QueryRowContext(ctx, query, name).Scan(&n); err != nil {
		return false, s.failed("looking for table "+name+" in", err)
	}
	return n > 0, nil
}

// MigrateUp applies every migration that is missing; there may be none. It is
// safe to call from several processes at once: one migrates, the others wait
// up to half a minute and find it done. When ctx ends it stops after the
// migration that is running.
//
// Errors: ErrSchemaNew, ErrSchemaDirty.
func (s *SQL) MigrateUp(ctx context.Context) error {
	return s.migrate(ctx, (*migrate.Migrate).Up)
}

// MigrateDown takes back the last migration, one only, with everything that
// was stored in what it had made. Without one there is nothing to do.
//
// Errors: ErrSchemaNew, ErrSchemaDirty.
func (s *SQL) MigrateDown(ctx context.Context) error {
	return s.migrate(ctx, func(m *migrate.Migrate) error {
		if _, _, err := m.Version(); errors.Is(err, migrate.ErrNilVersion) {
			return nil
		}
		return m.Steps(-1)
	})
}

func (s *SQL) migrate(ctx context.Context, run func(*migrate.Migrate) error) error {
	files, err := migrations.Files(string(s.dialect))
	if err != nil {
		return err
	}
	source, err := iofs.New(files, ".")
	if err != nil {
		return fmt.Errorf("reading the embedded migrations: %w", err)
	}
	if err := ctx.Err(); err != nil {
		return s.failed("migrating", err)
	}
	driver, err := s.migrations()
	if err != nil {
		source.Close()
		return s.failed("migrating", err)
	}
	m, err := migrate.NewWithInstance("embedded", source, string(s.dialect), driver)
	if err != nil {
		return s.failed("migrating", errors.Join(err, source.Close(), driver.Close()))
	}
	m.LockTimeout = migrationLockWait
	release := context.AfterFunc(ctx, func() { m.GracefulStop <- true })
	err = migrationError(run(m))
	if !release() { // ctx ended, and what was left may not have run
		err = errors.Join(err, ctx.Err())
	}
	fromSource, fromDatabase := m.Close()
	if err = errors.Join(err, fromSource, fromDatabase); err != nil {
		return s.failed("migrating", err)
	}
	return nil
}

// migrationError gives the library's errors our names.
func migrationError(err error) error {
	var dirty migrate.ErrDirty
	switch {
	case err == nil || errors.Is(err, migrate.ErrNoChange):
		return nil
	case errors.As(err, &dirty):
		return fmt.Errorf("%w: migration %d failed halfway", ErrSchemaDirty, dirty.Version)
	case errors.Is(err, os.ErrNotExist):
		return errors.Join(ErrSchemaNew, err)
	}
	return err
}
