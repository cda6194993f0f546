package cutter_test

import (
	"os"
	"testing"

	"github.com/holdfast-stock/holdfast/internal/ledger/cutter"
	"github.com/holdfast-stock/holdfast/internal/ledger/cutter/cuttertest"
	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/store"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

func migrated(t *testing.T, url string) *sqltx.DB {
	t.Helper()
	sql, err := store.OpenSQL(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sql.Close() })
	if err := sql.MigrateUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	return sql.Ledger()
}

func TestConformance(t *testing.T) {
	t.Parallel()
	for _, d := range testenv.Databases() {
		t.Run(d.Name, func(t *testing.T) {
			t.Parallel()
			db := migrated(t, d.URL(t))
			for _, c := range []struct {
				name   string
				new    func() cutter.Cutter
				counts bool
			}{
				{"conditional", cutter.Conditional, false},
				{"for-update", cutter.ForUpdate, false},
				{"merged", cutter.Merged, false},
				{"optimistic", cutter.Optimistic, false},
				{"count", cutter.Count, true},
			} {
				t.Run(c.name, func(t *testing.T) {
					cuttertest.Run(t, cuttertest.Suite{DB: db, New: c.new, Counts: c.counts})
				})
			}
		})
	}
}

// TestReadWriteLosesUpdates checks that the suite finds the lost updates of
// ReadWrite, and that ReadWrite keeps every other promise.
func TestReadWriteLosesUpdates(t *testing.T) {
	t.Parallel()
	for _, d := range testenv.Databases() {
		t.Run(d.Name, func(t *testing.T) {
			t.Parallel()
			suite := cuttertest.Suite{DB: migrated(t, d.URL(t)), New: cutter.ReadWrite}
			broken := map[string]bool{"CutsAddUp": true, "CutsOfSeveralLinesAddUp": true, "NeverBelowZero": true}
			for _, p := range cuttertest.Promises(false) {
				err := p.Check(t.Context(), suite)
				switch {
				case broken[p.Name] && err == nil:
					t.Errorf("%s does not find the lost updates", p.Name)
				case broken[p.Name]:
					t.Logf("%s: %v", p.Name, err)
				case err != nil:
					t.Errorf("%s: %v", p.Name, err)
				}
			}
		})
	}
}
