package sqltx_test

import (
	"database/sql"
	"testing"

	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/store/storetest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// TestBeginFails checks that the first statement of a transaction returns the
// database's error if BEGIN fails, whichever method runs it.
func TestBeginFails(t *testing.T) {
	t.Parallel()
	db := storetest.Migrated(t, testenv.SQLite(t)+"?_pragma=busy_timeout(1)").Ledger()
	writer := begin(t, t.Context(), db)
	defer writer.Rollback()
	insertStock(t, writer, "a") // no other transaction can begin while this one writes

	const query = "SELECT available FROM stock WHERE sku = 'a'"
	for name, first := range map[string]func(*sqltx.Tx) error{
		"Exec": func(tx *sqltx.Tx) error {
			_, err := tx.Exec(t.Context(), "UPDATE stock SET available = 0")
			return err
		},
		"ExecAll": func(tx *sqltx.Tx) error {
			_, err := tx.ExecAll(t.Context(), sqltx.Statement{SQL: "UPDATE stock SET available = 0"})
			return err
		},
		"QueryEach": func(tx *sqltx.Tx) error {
			return tx.QueryEach(t.Context(), func(*sql.Rows) error { return nil }, query)
		},
		"QueryRow": func(tx *sqltx.Tx) error {
			var available int64
			return tx.QueryRow(t.Context(), []any{&available}, query)
		},
	} {
		tx := begin(t, t.Context(), db)
		if err := first(tx); !sqltx.IsRetryable(err) {
			t.Errorf("%s: %v is %q", name, err, classes(err))
		}
		tx.Rollback()
	}
}
