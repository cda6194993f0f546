package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/holdfast-stock/holdfast/internal/store"
)

// migrate changes the schema of c.DB as c.verb says, and prints its version. Only migrate
// up creates a missing SQLite file.
func migrate(ctx context.Context, c config, stdout io.Writer) error {
	if err := checkFile(c); err != nil {
		return err
	}
	db, err := store.OpenSQL(ctx, c.DB)
	if err != nil {
		return named("--db", err)
	}
	defer db.Close()
	switch c.verb {
	case verbMigrateUp:
		err = db.MigrateUp(ctx)
	case verbMigrateDown:
		err = db.MigrateDown(ctx)
	}
	if err != nil {
		return err
	}
	version, dirty, err := db.SchemaVersion(ctx)
	if err != nil {
		return err
	}
	state := ""
	if dirty {
		state = " (dirty: a migration to it was interrupted, or runs now; " + mendDirty + ")"
	}
	_, err = fmt.Fprintf(stdout, "schema version %d%s\n", version, state)
	return err
}

// mendDirty is what to do about a dirty schema.
const mendDirty = "run api migrate up to complete it, or api migrate down to revert it"

// checkFile returns an error if --db is a SQLite file that does not exist, unless the
// command migrates.
func checkFile(c config) error {
	if c.verb == verbMigrateUp || c.verb == verbServe && c.Migrate {
		return nil
	}
	err := store.CheckFile(c.DB)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("--db: %w; api migrate up with the same --db creates it", err)
	case err != nil:
		return named("--db", err)
	}
	return nil
}
