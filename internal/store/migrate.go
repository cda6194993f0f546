package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/golang-migrate/migrate/v4"
	"github.com/golang-migrate/migrate/v4/database"
	"github.com/golang-migrate/migrate/v4/source/iofs"

	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/migrations"
)

// Errors about the schema. The errors that wrap them name the versions.
var (
	// ErrSchemaOld means that migrations of this program are not applied yet.
	ErrSchemaOld = errors.New("the database schema is old")
	// ErrSchemaNew means that a newer program has migrated the schema.
	ErrSchemaNew = errors.New("the database schema is newer than this program")
	// ErrSchemaDirty means that a migration was interrupted. On MySQL, MigrateUp completes it.
	ErrSchemaDirty = errors.New("the database schema is dirty")
	// ErrSchemaUsed means that reverting a migration would lose data.
	ErrSchemaUsed = errors.New("the database schema is in use")
)

// Bounds of a migration. Its statements have none, because they may take long on large
// tables.
const (
	migrationLockWait = 30 * time.Second
	migrationSilence  = 30 * time.Second // silence of the server on other connections
)

// CheckSchema returns nil if the schema has the version that this program needs. It changes
// nothing. For a newer schema, the migration may still be running.
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
	case version > latest:
		return s.failed("checking", fmt.Errorf("%w: version %d, this program knows %d", ErrSchemaNew, version, latest))
	case dirty:
		return s.failed("checking", fmt.Errorf("%w: a migration to version %d was interrupted, or runs now", ErrSchemaDirty, version))
	case version < latest:
		return s.failed("checking", fmt.Errorf("%w: version %d, this program needs %d", ErrSchemaOld, version, latest))
	}
	return nil
}

// FixSchema tells the operator what to do about an error of CheckSchema. Only on MySQL does MigrateUp
// repair a dirty schema.
func (s *SQL) FixSchema(err error) string {
	switch {
	case errors.Is(err, ErrSchemaOld):
		return "run api migrate up with the same --db, or serve with --migrate"
	case errors.Is(err, ErrSchemaNew):
		return "use the newer program"
	case s.commitsDDL:
		return "run api migrate up with the same --db to complete it"
	}
	return fmt.Sprintf("find the version of the tables (migrations/%s), write it into schema_migrations, and set dirty to FALSE", s.dialect)
}

// SchemaVersion returns the number of the last applied migration, or 0 if there is none. dirty
// reports that a migration to that version, up or down, was interrupted or is running.
// SchemaVersion changes nothing.
func (s *SQL) SchemaVersion(ctx context.Context) (version uint, dirty bool, err error) {
	exists, err := s.hasTable(ctx, "schema_migrations")
	if err != nil || !exists {
		return 0, false, err
	}
	err = s.Ledger().QueryEach(ctx, func(rows *sql.Rows) error {
		var number int64
		err := rows.Scan(&number, &dirty)
		version = uint(max(number, 0)) // -1 means no migration
		return err
	}, "SELECT version, dirty FROM schema_migrations")
	if err != nil {
		return 0, false, s.failed("reading the schema version of", err)
	}
	return version, dirty, nil
}

// countTables counts the tables of a name.
var countTables = map[sqltx.Dialect]string{
	sqltx.MySQL:    "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = ?",
	sqltx.Postgres: "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = CURRENT_SCHEMA() AND table_name = $1",
	sqltx.SQLite:   "SELECT COUNT(*) FROM sqlite_master WHERE type = 'table' AND name = ?",
}

func (s *SQL) hasTable(ctx context.Context, name string) (bool, error) {
	var n int
	if err := s.pool.QueryRowContext(ctx, countTables[s.dialect], name).Scan(&n); err != nil {
		return false, s.failed("looking for table "+name+" in", err)
	}
	return n > 0, nil
}

// MigrateUp applies every missing migration, if any. Several processes may call it at once. One
// migrates, and the others wait for it, up to 30 s, and then have nothing to do. When ctx ends,
// MigrateUp stops after the running migration. A migration may take as long as it needs while the
// server answers other connections. After 30 s without an answer MigrateUp gives up.
//
// A process that migrates may be killed at any time. PostgreSQL and SQLite then keep the schema as
// it was before. On MySQL, whose statements commit one by one, the next MigrateUp completes a
// migration that was killed, up or down. A schema of PostgreSQL or SQLite is dirty only if
// something else has marked it. MigrateUp refuses it, because it does not know what has run.
//
// MigrateUp refuses a table or sequence of another program whose name a missing migration needs,
// and another program's versions. A statement that the server refuses leaves MySQL's schema dirty,
// and every other one as it was.
//
// Errors: ErrSchemaNew, ErrSchemaDirty, ErrNoLocks (unless there is nothing to do).
func (s *SQL) MigrateUp(ctx context.Context) error {
	return s.migrate(ctx, false, func(ctx context.Context, steps *stepDriver, m *migrate.Migrate) error {
		if err := steps.prepare(ctx); err != nil {
			return err
		}
		return m.Up()
	})
}

// MigrateDown reverts the last migration. It refuses if data would be lost, if a migration was
// interrupted, or if the versions are another program's. Without an applied migration it does
// nothing.
//
// Errors: ErrSchemaNew, ErrSchemaDirty, ErrSchemaUsed, ErrNoLocks.
func (s *SQL) MigrateDown(ctx context.Context) error {
	return s.migrate(ctx, true, func(_ context.Context, steps *stepDriver, m *migrate.Migrate) error {
		err := m.Steps(-1)
		if errors.Is(err, os.ErrNotExist) && steps.version == database.NilVersion {
			return nil // no migration is applied
		}
		return err
	})
}

// migrate opens what run needs to migrate, and closes it. The context of run does not end with ctx.
func (s *SQL) migrate(ctx context.Context, down bool, run func(context.Context, *stepDriver, *migrate.Migrate) error) error {
	if s.engine.locks == missing { // without locks, two migrations could run at once
		err := s.CheckSchema(ctx)
		if down || errors.Is(err, ErrSchemaOld) {
			err = s.failed("migrating", fmt.Errorf("it is %s: %w; run the statements of the files in migrations/%s yourself", s.engine.name, ErrNoLocks, s.dialect))
		}
		return err
	}
	files, err := migrations.Files(string(s.dialect))
	if err != nil {
		return err
	}
	latest, err := migrations.Latest(string(s.dialect))
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
	// Do not use ctx: when it ends, the running migration must finish.
	err = s.WhileAnswering(context.WithoutCancel(ctx), s.silence, func(answering context.Context) error {
		driver, err := s.migrations(answering)
		if err != nil {
			return errors.Join(s.migrationError(err, latest), source.Close())
		}
		steps := &stepDriver{migrationDriver: driver, sql: s, source: source, latest: int(latest)}
		m, err := migrate.NewWithInstance("embedded", source, string(s.dialect), steps)
		if err != nil {
			return errors.Join(err, source.Close(), driver.Close())
		}
		m.LockTimeout = 2 * migrationLockWait // the driver has its own bound
		release := context.AfterFunc(ctx, func() { m.GracefulStop <- true })
		err = s.migrationError(run(answering, steps, m), latest)
		if !release() { // ctx has ended, so some migrations may not have run
			err = errors.Join(err, ctx.Err())
		}
		fromSource, fromDatabase := m.Close()
		return errors.Join(err, fromSource, fromDatabase)
	})
	if err != nil {
		return s.failed("migrating", err)
	}
	return nil
}

// closingWith returns a dialler whose connections are closed when ctx ends, for drivers
// that would otherwise wait for an answer forever.
func closingWith(ctx context.Context, dial dialFunc) dialFunc {
	return reporting(dial, func(_ context.Context, conn net.Conn) {
		context.AfterFunc(ctx, func() { _ = conn.Close() })
	})
}

// migrationError translates the library's errors into errors of this package.
func (s *SQL) migrationError(err error, latest uint) error {
	var dirty migrate.ErrDirty
	switch {
	case err == nil || errors.Is(err, migrate.ErrNoChange):
		return nil
	case errors.As(err, &dirty) && dirty.Version > int(latest):
		return fmt.Errorf("%w: version %d, this program knows %d", ErrSchemaNew, dirty.Version, latest)
	case errors.As(err, &dirty) && s.commitsDDL:
		return fmt.Errorf("%w: a migration to version %d was interrupted. Run api migrate up first, which completes it, and then api migrate down",
			ErrSchemaDirty, max(dirty.Version, 0))
	case errors.As(err, &dirty):
		return fmt.Errorf("%w: version %d is marked as interrupted, but this program's migrations either run as a whole or change nothing here. "+
			"To repair it, %s", ErrSchemaDirty, max(dirty.Version, 0), s.FixSchema(ErrSchemaDirty))
	case errors.Is(err, database.ErrLocked):
		return fmt.Errorf("another migration has not ended within %v; if its process was killed, the server completes its last statement first: %w", migrationLockWait, err)
	case errors.Is(err, os.ErrNotExist):
		return errors.Join(ErrSchemaNew, err)
	}
	return err
}
