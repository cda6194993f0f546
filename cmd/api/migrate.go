package main

import (
	"context"
	"fmt"
	"io"

	"github.com/holdfast-stock/holdfast/internal/store"
)

// migrate changes the schema of c.db as c.verb says, and prints its version.
func migrate(ctx context.Context, c config, stdout io.Writer) error {
	db, err := store.OpenSQL(ctx, c.db)
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
		state = " (dirty: a migration failed halfway; repair the schema by hand)"
	}
	_, err = fmt.Fprintf(stdout, "schema version %d%s\n", version, state)
	return err
}
