package store

import (
	"strings"
	"testing"

	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// TestSession_StatesWhatItReliesOn checks that global variables of the server do not change the
// meaning of the ledger's statements.
func TestSession_StatesWhatItReliesOn(t *testing.T) {
	t.Parallel()
	t.Run("MariaDB", func(t *testing.T) {
		t.Parallel()
		server := testenv.OwnMariaDB(t)
		admin := opened(t, server.URL())
		for _, global := range []string{
			"autocommit = 0", "completion_type = 'CHAIN'", "sql_mode = 'ORACLE,EMPTY_STRING_IS_NULL'", "sql_select_limit = 1", "sql_safe_updates = 1",
			"foreign_key_checks = 0", "unique_checks = 0", "check_constraint_checks = 0", "tx_isolation = 'SERIALIZABLE'",
		} {
			run(t, admin.DB(), "SET GLOBAL "+global)
		}
		for _, query := range []string{"", "?interpolateParams=false", "?autocommit=0&completion_type=%27CHAIN%27"} {
			t.Run(query, func(t *testing.T) { checkSession(t, server.NewDatabase()+query) })
		}
		// The sql_mode of the URL is kept, and transactions work in it.
		dbURL := server.NewDatabase()
		insertStock(t, migrated(t, dbURL).DB(), "a")
		for _, query := range []string{"?", "?interpolateParams=false&"} {
			oracle := opened(t, dbURL+query+"sql_mode=%27ORACLE%27")
			if mode := one[string](t, oracle.DB(), "SELECT @@sql_mode"); !strings.Contains(mode, "ORACLE") {
				t.Errorf("sql_mode is %q, the URL's is ORACLE", mode)
			}
			tx, err := oracle.Ledger().Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tx.Exec(t.Context(), "UPDATE stock SET available = 1 WHERE sku = 'a'"); err != nil {
				t.Error(err)
			}
			tx.Rollback()
			if left := one[int](t, oracle.DB(), "SELECT available FROM stock WHERE sku = 'a'"); left != 10 {
				t.Errorf("%d left after a ROLLBACK, want 10", left)
			}
		}
	})
	t.Run("PostgreSQL", func(t *testing.T) {
		t.Parallel()
		server := testenv.OwnPostgres(t,
			"-c", "standard_conforming_strings=off", "-c", "client_min_messages=error", "-c", "default_transaction_isolation=serializable",
			"-c", "default_transaction_deferrable=on", "-c", "DateStyle=German, DMY", "-c", "TimeZone=Asia/Tokyo", "-c", "bytea_output=escape")
		checkSession(t, server.URL())
	})
}

// checkSession checks every session setting on which the ledger relies.
func checkSession(t *testing.T, dbURL string) {
	t.Helper()
	s := migrated(t, dbURL)
	other := opened(t, dbURL)
	insertStock(t, s.DB(), "a")
	insertStock(t, s.DB(), "b")
	if n := one[int](t, other.DB(), "SELECT COUNT(*) FROM stock"); n != 2 {
		t.Fatalf("another session sees %d rows of 2: the statement did not commit by itself", n)
	}
	var skus []string
	if err := s.DB().Raw("SELECT sku FROM stock").Scan(&skus).Error; err != nil || len(skus) != 2 {
		t.Errorf("read %q, %v, want both rows", skus, err)
	}
	for _, sku := range []string{"c", "d"} {
		tx, err := s.Ledger().Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		checked := tx.Expect(1, sqltx.Statement{SQL: "UPDATE stock SET available = available - 1 WHERE sku = 'a'"}, "'"+sku+"'")
		tx.AtCommit(sqltx.Statement{SQL: "INSERT INTO stock (sku, kind, total, available) VALUES (" + checked + ", 'product', 1, 1)"})
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Ledger().Transact(t.Context(), func(tx *sqltx.Tx) error {
		_, err := tx.Exec(t.Context(), "UPDATE stock SET available = available - 1 WHERE sku = 'a'")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	// No row is left locked or uncommitted.
	run(t, other.DB(), "UPDATE stock SET total = total WHERE sku = 'a'")
	if left := one[int](t, other.DB(), "SELECT available FROM stock WHERE sku = 'a'"); left != 7 {
		t.Errorf("%d left, want 7", left)
	}
	insertStock(t, s.DB(), "") // an empty string is not NULL
	if s.Dialect() == sqltx.Postgres {
		if n := one[int](t, s.DB(), `SELECT length('a\b')`); n != 3 {
			t.Errorf(`'a\b' has %d characters, want 3`, n)
		}
		if level := one[string](t, s.DB(), "SHOW client_min_messages"); level != "warning" {
			t.Errorf("client_min_messages is %s, want warning: PostgreSQL warns of a commit that only the primary has", level)
		}
	}
	if s.Dialect() == sqltx.MySQL {
		if n := one[int](t, s.DB(), "SELECT @@unique_checks + @@foreign_key_checks"); n != 2 { // without both, an INSERT into an empty table locks it
			t.Errorf("%d of 2 kinds of keys are checked", n)
		}
	}
	if err := s.DB().Exec("UPDATE stock SET total = -1 WHERE sku = 'a'").Error; !sqltx.IsStatementError(err) {
		t.Errorf("a check: %v", err)
	}
	checkRoundTrip(t, s)
}
