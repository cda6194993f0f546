package store

import (
	"slices"
	"testing"
	"time"
)

func TestLockedRows(t *testing.T) {
	forEachSQL(t, func(t *testing.T, dbURL string) {
		s := migrated(t, dbURL)
		if s.Dialect() == SQLite {
			if locked, err := LockedRows(t.Context(), s.DB(), "a"); err != nil || locked != nil {
				t.Errorf("locked %q, %v", locked, err)
			}
			return
		}
		for _, sku := range []string{"a", "b", "c"} {
			insertStock(t, s.DB(), sku)
		}
		holder := s.DB().Begin()
		run(t, holder, "UPDATE stock SET available = 1 WHERE sku = 'b'")
		begin := time.Now()
		locked, err := LockedRows(t.Context(), s.DB(), "a", "b", "missing")
		if err != nil || !slices.Equal(locked, []string{"b"}) {
			t.Errorf("locked %q, %v, want b", locked, err)
		}
		if waited := time.Since(begin); waited > lockWait/2 {
			t.Errorf("it waited %v for the lock", waited)
		}
		holder.Rollback()
		if locked, err := LockedRows(t.Context(), s.DB(), "a", "b"); err != nil || len(locked) > 0 {
			t.Errorf("locked %q, %v, want none", locked, err)
		}
		run(t, s.DB(), "UPDATE stock SET available = 1 WHERE sku IN ('a', 'b')") // nothing is left locked
	})
}
