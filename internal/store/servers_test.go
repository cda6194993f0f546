package store

import (
	"log/slog"
	"os"
	"testing"

	"github.com/holdfast-stock/holdfast/internal/testenv"
)

func TestMain(m *testing.M) {
	LogRedis(slog.New(slog.DiscardHandler)) // tests stop servers, and the client would log each lost connection
	os.Exit(testenv.Main(m))
}

// forEachSQL runs the test on every kind of database. Each run has its own empty database.
func forEachSQL(t *testing.T, test func(t *testing.T, dbURL string)) {
	t.Helper()
	for _, d := range testenv.AllVersions(testenv.Databases()) {
		t.Run(d.Name, func(t *testing.T) {
			t.Parallel()
			test(t, d.URL(t))
		})
	}
}

// migrated opens the database and creates its tables.
func migrated(t testing.TB, dbURL string) *SQL {
	t.Helper()
	s := opened(t, dbURL)
	if err := s.MigrateUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s
}

// opened opens the database and closes it when the test ends.
func opened(t testing.TB, dbURL string) *SQL {
	t.Helper()
	s, err := OpenSQL(t.Context(), dbURL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}
