package cutter_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-stock/holdfast/internal/ledger/cutter"
	"github.com/holdfast-stock/holdfast/internal/ledger/cutter/cuttertest"
	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/store/storetest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

func migrated(t *testing.T, url string) *sqltx.DB {
	t.Helper()
	sql := storetest.Migrated(t, testenv.Patient(t, url))
	return sql.Ledger()
}

// leftOut has the cutters that TestConformance leaves out on each database unless the run is
// thorough. Each of them runs on another database. TestEngines of package ledger covers those that
// lock rows on PostgreSQL.
var leftOut = map[string][]string{
	"SQLite":     {"slots", "one slot"},
	"MariaDB":    {"conditional", "one slot", "count"},
	"PostgreSQL": {"for-update", "optimistic", "slots", "count"},
}

func TestConformance(t *testing.T) {
	t.Parallel()
	for _, d := range testenv.AllVersions(testenv.Databases()) {
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
				{"slots", func() cutter.Cutter { return cutter.Slots(3) }, false},
				{"one slot", func() cutter.Cutter { return cutter.Slots(1) }, false},
				{"unit-rows", cutter.UnitRows, false},
				{"count", cutter.Count, true},
			} {
				if c.name == "unit-rows" && !db.SkipsLocked() || !testenv.Thorough() && slices.Contains(leftOut[d.Name], c.name) {
					continue
				}
				t.Run(c.name, func(t *testing.T) {
					cuttertest.Run(t, cuttertest.Suite{DB: db, New: c.new, Counts: c.counts})
				})
			}
		})
	}
}

// TestReadWriteLosesUpdates checks that the suite finds the lost updates of ReadWrite, and that
// ReadWrite keeps every other promise. By default it uses one database.
func TestReadWriteLosesUpdates(t *testing.T) {
	t.Parallel()
	for n, d := range testenv.Databases() {
		if n > 0 && !testenv.Thorough() {
			break
		}
		t.Run(d.Name, func(t *testing.T) {
			t.Parallel()
			suite := cuttertest.Suite{DB: migrated(t, d.URL(t)), New: func() cutter.Cutter { return slowReader{cutter.ReadWrite()} }}
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

// slowReader pauses after it has read, so that other transactions read the same counts.
type slowReader struct{ cutter.Cutter }

func (r slowReader) Plan(ctx context.Context, db *sqltx.DB, g stock.Generation, takes []stock.Take) (cutter.Plan, error) {
	plan, err := r.Cutter.Plan(ctx, db, g, takes)
	testenv.Dither()
	return plan, err
}

// cutters returns every cutter by its name.
func cutters() map[string]func() cutter.Cutter {
	return map[string]func() cutter.Cutter{
		"conditional": cutter.Conditional, "for-update": cutter.ForUpdate, "merged": cutter.Merged,
		"optimistic": cutter.Optimistic, "count": cutter.Count, "readwrite": cutter.ReadWrite,
		"slots": func() cutter.Cutter { return cutter.Slots(3) },
	}
}

// TestHoursByTheDatabasesClock checks opening hours on databases whose clock is an
// hour ahead of this machine's.
func TestHoursByTheDatabasesClock(t *testing.T) {
	t.Parallel()
	ahead := map[string]func(t *testing.T, dbURL string) string{
		"MariaDB": func(_ *testing.T, dbURL string) string {
			return fmt.Sprintf("%s?timestamp=%d", dbURL, time.Now().Add(time.Hour).Unix())
		},
		"PostgreSQL": func(t *testing.T, dbURL string) string {
			_, err := migrated(t, dbURL).Exec(t.Context(), `CREATE FUNCTION public.clock_timestamp() RETURNS timestamptz LANGUAGE sql
				AS 'SELECT pg_catalog.clock_timestamp() + interval ''1 hour'''`)
			if err != nil {
				t.Fatal(err)
			}
			return dbURL + "&search_path=public,pg_catalog"
		},
	}
	for _, d := range testenv.NetworkDatabases() {
		t.Run(d.Name, func(t *testing.T) {
			t.Parallel()
			db := migrated(t, ahead[d.Name](t, d.URL(t)))
			now, err := db.Now(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if lead := time.Until(now); lead < 59*time.Minute {
				t.Fatalf("the database's clock is %v ahead", lead)
			}
			promises := cuttertest.Promises(true)
			hours := promises[slices.IndexFunc(promises, func(p cuttertest.Promise) bool { return p.Name == "OpeningHours" })]
			for name, c := range cutters() {
				if err := hours.Check(t.Context(), cuttertest.Suite{DB: db, New: c}); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
		})
	}
}
