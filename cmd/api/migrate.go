package main

import (
	"context"
	"fmt"
	"io"

	"github.com/holdfast-stock/holdfast/internal/assembly"
	"github.com/holdfast-stock/holdfast/internal/store"
)

// migrate changes the schema of c.DB as c.verb says, and prints its version, and what it
// was if c.verb may change it. Only migrate up creates a missing SQLite file.
func migrate(ctx context.Context, c config, stdout io.Writer) error {
	if c.verb != verbMigrateUp {
		if err := assembly.CheckFile(c.DB); err != nil {
			return err
		}
	}
	db, err := store.OpenSQL(ctx, c.DB)
	if err != nil {
		return fmt.Errorf("--db: %w", err)
	}
	defer db.Close()
	before, wasDirty, err := db.SchemaVersion(ctx)
	if err != nil {
		return err
	}
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
	switch {
	case dirty:
		state = " (dirty: a migration to it was interrupted, or runs now; " + db.FixSchema(db.CheckSchema(ctx)) + ")"
	case c.verb == verbMigrateVersion:
	case version == before && !wasDirty:
		state = "; nothing was changed"
	default:
		state = fmt.Sprintf("; it was %d", before)
	}
	_, err = fmt.Fprintf(stdout, "schema version %d%s\n", version, state)
	return err
}
