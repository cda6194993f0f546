package storetest

import (
	"os"
	"testing"

	"github.com/holdfast-stock/holdfast/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// TestLockRow checks that a row is locked until unlock is called or the test ends. A row that does
// not exist cannot be locked.
func TestLockRow(t *testing.T) {
	t.Parallel()
	for _, d := range testenv.NetworkDatabases() {
		t.Run(d.Name, func(t *testing.T) {
			t.Parallel()
			url := d.URL(t)
			db := Migrated(t, url).DB()
			if err := db.Exec("INSERT INTO stock (sku, kind, total, available) VALUES ('a', 'product', 1, 1)").Error; err != nil {
				t.Fatal(err)
			}
			isLocked := func() bool { return db.Exec("SELECT sku FROM stock WHERE sku = 'a' FOR UPDATE NOWAIT").Error != nil }
			unlock := LockRow(t, url, "a")
			if !isLocked() {
				t.Error("the row is not locked")
			}
			unlock()
			unlock()
			if isLocked() {
				t.Error("the row is locked after unlock")
			}
			ended := testenv.Part(func(t testenv.T) error {
				LockRow(t, url, "a")
				return nil
			})
			if ended != nil || isLocked() {
				t.Errorf("the row is locked: %t, after the end of the part that locked it: %v", isLocked(), ended)
			}
			missing := testenv.Part(func(t testenv.T) error {
				LockRow(t, url, "b")
				return nil
			})
			if missing == nil {
				t.Error("a row that does not exist is locked")
			}
		})
	}
}
