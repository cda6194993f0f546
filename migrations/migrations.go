// Package migrations contains the ledger's schema as numbered pairs of SQL files: one set of files
// for each dialect. A number is the same migration in every dialect. SQLite has no migration 7,
// because it has no locks, and its schema would not change.
//
// A migration that was killed on MySQL is completed by running it, and the next one, again from the
// beginning. Decision 91 says what that requires of each statement.
package migrations

import (
	"embed"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
)

//go:embed mysql/*.sql postgres/*.sql sqlite/*.sql
var files embed.FS

// Files returns the migrations of a dialect: mysql, postgres or sqlite. The files
// are named NNNNNN_name.up.sql and NNNNNN_name.down.sql.
func Files(dialect string) (fs.FS, error) {
	dir, err := fs.Sub(files, dialect)
	if err == nil {
		_, err = fs.Stat(dir, ".")
	}
	if err != nil {
		return nil, fmt.Errorf("finding migrations for %q: %w", dialect, err)
	}
	return dir, nil
}

// Latest returns the number of the dialect's newest migration.
func Latest(dialect string) (uint, error) {
	dir, err := Files(dialect)
	if err != nil {
		return 0, err
	}
	names, err := fs.Glob(dir, "*.up.sql")
	if err != nil {
		return 0, err
	}
	var latest uint64
	for _, name := range names {
		number, _, _ := strings.Cut(name, "_")
		n, err := strconv.ParseUint(number, 10, 32)
		if err != nil {
			return 0, fmt.Errorf("migration %s: its name does not begin with a number: %w", name, err)
		}
		latest = max(latest, n)
	}
	return uint(latest), nil
}
