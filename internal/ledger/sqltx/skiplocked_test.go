package sqltx_test

import (
	"database/sql"
	"errors"
	"testing"

	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/store/storetest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// TestCheckSkipLocked checks that databases with row locks pass, even while another transaction
// holds the row. Databases that ignore the clause, or lock nothing, must fail.
func TestCheckSkipLocked(t *testing.T) {
	t.Parallel()
	const query = "SELECT beat FROM ledger"
	for _, d := range testenv.Databases() {
		t.Run(d.Name, func(t *testing.T) {
			t.Parallel()
			s := storetest.Migrated(t, d.URL(t))
			db := s.Ledger()
			if d.Name == "SQLite" {
				if err := db.CheckSkipLocked(t.Context(), query); !errors.Is(err, sqltx.ErrNoSkipLocked) {
					t.Errorf("answered %v", err)
				}
				return
			}
			holder := begin(t, t.Context(), db)
			defer holder.Rollback()
			if _, err := holder.Exec(t.Context(), "UPDATE ledger SET beat = beat + 1"); err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() { ended <- db.CheckSkipLocked(t.Context(), query) }()
			running := "SELECT COUNT(*) FROM information_schema.processlist WHERE db = DATABASE() AND info LIKE ?"
			if d.Name == "PostgreSQL" {
				running = "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = CURRENT_DATABASE() AND state = 'active' AND query LIKE ?"
			}
			testenv.Await(t, "the check waits for the row", func() bool { return one[int](t, db, running, query+" FOR UPDATE") > 0 })
			holder.Rollback()
			if err := <-ended; err != nil {
				t.Errorf("a row that is free in the end: %v", err)
			}
			if err := db.CheckSkipLockedWith(t.Context(), query, " LIMIT 0"); !errors.Is(err, sql.ErrNoRows) {
				t.Errorf("a row that is always locked: %v", err)
			}
			for _, clause := range []string{" ", " FOR UPDATE"} {
				if err := db.CheckSkipLockedWith(t.Context(), query, clause); !errors.Is(err, sqltx.ErrNoSkipLocked) {
					t.Errorf("with%q in place of it: %v", clause, err)
				}
			}
			if d.Name == "PostgreSQL" {
				for _, test := range []struct {
					query, clause string
					lacks         bool
				}{
					{query, " WHERE pg_try_advisory_xact_lock(1)", true},                                               // leaves out the row, and does not lock it
					{"SELECT max(beat) FROM ledger", " WHERE pg_try_advisory_xact_lock(1) HAVING count(*) > 0", false}, // cannot be locked
				} {
					if err := db.CheckSkipLockedWith(t.Context(), test.query, test.clause); err == nil || errors.Is(err, sqltx.ErrNoSkipLocked) != test.lacks {
						t.Errorf("with%q in place of it: %v", test.clause, err)
					}
				}
			}
			noneInUse(t, s.Pool(), "the end")
		})
	}
}
