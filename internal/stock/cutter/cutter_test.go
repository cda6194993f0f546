package cutter_test

import (
	"os"
	"testing"

	"gorm.io/gorm"

	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/stock/cutter"
	"github.com/holdfast-stock/holdfast/internal/stock/stocktest"
	"github.com/holdfast-stock/holdfast/internal/store"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// databases are all kinds of database that a ledger may have.
var databases = []struct {
	name string
	url  func(testenv.T) string
}{
	{"MariaDB", testenv.MariaDB},
	{"PostgreSQL", testenv.Postgres},
	{"SQLite", testenv.SQLite},
}

func migrated(t *testing.T, url string) *gorm.DB {
	t.Helper()
	sql, err := store.OpenSQL(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sql.Close() })
	if err := sql.MigrateUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	return sql.DB()
}

func TestConformance(t *testing.T) {
	t.Parallel()
	for _, database := range databases {
		t.Run(database.name, func(t *testing.T) {
			t.Parallel()
			db := migrated(t, database.url(t))
			for _, c := range []struct {
				name   string
				new    func() stock.Cutter
				counts bool
			}{
				{"conditional", cutter.Conditional, false},
				{"for-update", cutter.ForUpdate, false},
				{"merged", cutter.Merged, false},
				{"optimistic", cutter.Optimistic, false},
				{"count", cutter.Count, true},
			} {
				t.Run(c.name, func(t *testing.T) {
					stocktest.RunCutter(t, stocktest.Cutters{DB: db, New: c.new, Counts: c.counts, Retryable: store.IsRetryable})
				})
			}
		})
	}
}

// TestReadWriteConvicted: the suite that acquits the others finds the lost
// updates of the cutter that reads, checks and writes, and nothing else wrong
// with it.
func TestReadWriteConvicted(t *testing.T) {
	t.Parallel()
	for _, database := range databases {
		t.Run(database.name, func(t *testing.T) {
			t.Parallel()
			cutters := stocktest.Cutters{DB: migrated(t, database.url(t)), New: cutter.ReadWrite, Retryable: store.IsRetryable}
			guilty := map[string]bool{"CutsAddUp": true, "CutsOfSeveralLinesAddUp": true, "NeverBelowZero": true}
			for _, p := range stocktest.CutterPromises(false) {
				err := p.Convict(t.Context(), cutters)
				switch {
				case guilty[p.Name] && err == nil:
					t.Errorf("%s does not convict it", p.Name)
				case guilty[p.Name]:
					t.Logf("%s: %v", p.Name, err)
				case err != nil:
					t.Errorf("%s: %v", p.Name, err)
				}
			}
		})
	}
}
