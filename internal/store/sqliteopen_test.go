package store

import (
	"database/sql"
	"net/url"
	"testing"
	"time"

	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// TestOpenSQL_SQLiteFileIsBusy checks that OpenSQL waits if another process has locked a new SQLite
// file, instead of returning BUSY. Opening switches the file to a write-ahead log, and SQLite does
// not wait for that.
func TestOpenSQL_SQLiteFileIsBusy(t *testing.T) {
	t.Parallel()
	dbURL := testenv.SQLite(t)
	u, err := url.Parse(dbURL)
	if err != nil {
		t.Fatal(err)
	}
	other, err := sql.Open("sqlite", "file:"+u.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	other.SetMaxOpenConns(1)
	for _, statement := range []string{"BEGIN IMMEDIATE", "CREATE TABLE t (id INTEGER)"} {
		if _, err := other.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	released := make(chan error, 1)
	time.AfterFunc(100*time.Millisecond, func() {
		_, err := other.Exec("COMMIT")
		released <- err
	})
	s, err := OpenSQL(t.Context(), dbURL)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := <-released; err != nil {
		t.Error(err)
	}
}
