package sqltx_test

import (
	"testing"
	"time"

	"github.com/holdfast-stock/holdfast/internal/store/storetest"
)

// TestNow checks that the database's clock can be read, and that a statement can
// compare it with stored times.
func TestNow(t *testing.T) {
	t.Parallel()
	forEachSQL(t, func(t *testing.T, dbURL string) {
		db := storetest.Migrated(t, dbURL).Ledger()
		before := time.Now().Truncate(time.Millisecond)
		now, err := db.Now(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if after := time.Now(); now.Before(before) || now.After(after) || now.Location() != time.UTC {
			t.Errorf("the database's clock, on this machine, shows %v between %v and %v", now, before, after)
		}
		for number, offset := range []time.Duration{-time.Hour, -10 * time.Second, 10 * time.Second, time.Hour} {
			at := now.Add(offset).Truncate(time.Second) // without a fraction, because SQLite stores times as text
			run(t, db, "INSERT INTO outbox (sku, epoch, number, delta, created_at) VALUES ('a', 1, ?, 1, ?)", number, at)
		}
		for wait, want := range map[time.Duration]int{-time.Minute: 1, -1500 * time.Millisecond: 2, 1500 * time.Millisecond: 2, time.Minute: 3, 2 * time.Hour: 4} {
			query := "SELECT COUNT(*) FROM outbox WHERE created_at <= " + db.Dialect().After(wait)
			if passed := one[int](t, db, query); passed != want {
				t.Errorf("%d of the 4 times will have passed after %v, want %d", passed, wait, want)
			}
		}
		if passed := one[int](t, db, "SELECT COUNT(*) FROM outbox WHERE created_at <= "+db.Dialect().Now()); passed != 2 {
			t.Errorf("%d of the 4 times have passed, want 2", passed)
		}
	})
}
