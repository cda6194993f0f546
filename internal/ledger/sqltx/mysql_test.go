package sqltx_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/store/storetest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// TestTexts_OnlyWithInterpolation checks that a session sends several statements
// as one text only if the driver interpolates the arguments.
func TestTexts_OnlyWithInterpolation(t *testing.T) {
	for query, want := range map[string]bool{"": true, "?interpolateParams=false": false} {
		conn, err := storetest.SQL(t, testenv.MariaDB(t)+query).Pool().Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if got := sqltx.TakesTexts(conn); got != want {
			t.Errorf("%q: one text %v, want %v", query, got, want)
		}
		conn.Close()
	}
}

// twoRows returns statements for commitIf. They insert two stock rows: sku, which
// is guarded, and sku with a trailing hyphen.
func twoRows(sku string) func(checked func(string) string) []sqltx.Statement {
	return func(checked func(string) string) []sqltx.Statement {
		const row = "INSERT INTO stock (sku, kind, total, available) VALUES (%s, 'product', 1, 1)"
		return []sqltx.Statement{{SQL: fmt.Sprintf(row, checked("'"+sku+"'"))}, {SQL: fmt.Sprintf(row, "'"+sku+"-'")}}
	}
}

// TestTexts_Killed checks that a text is committed whole or not at all, wherever KILL QUERY
// interrupts it, and that Commit never reports the opposite.
func TestTexts_Killed(t *testing.T) {
	t.Parallel()
	s := storetest.Migrated(t, testenv.MariaDB(t))
	db, killer := s.Ledger(), storetest.SQL(t, testenv.MariaDB(t))
	name := one[string](t, db, "SELECT DATABASE()")
	insertStock(t, db, "a")
	s.Pool().SetMaxOpenConns(1)
	var (
		done = make(chan struct{})
		all  sync.WaitGroup
	)
	all.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			var ids []int64
			if err := killer.DB().Raw("SELECT id FROM information_schema.processlist WHERE db = ?", name).Scan(&ids).Error; err != nil {
				t.Error(err)
				return
			}
			for _, id := range ids {
				_ = killer.DB().Exec("KILL QUERY ?", id).Error // the session may have ended
			}
		}
	})
	defer all.Wait()
	defer close(done)
	var outcomes [3]int // numbers of committed, refused and unknown outcomes
	for n := range 300 {
		sku := fmt.Sprint("k", n)
		committed, err := commitIf(t.Context(), db, sqltx.Statement{SQL: "UPDATE stock SET available = available + 1 WHERE sku = 'a'"}, 1, twoRows(sku))
		rows := one[int](t, killer.Ledger(), "SELECT COUNT(*) FROM "+name+".stock WHERE sku IN (?, ?)", sku, sku+"-")
		switch {
		case committed:
			outcomes[0]++
		case errors.Is(err, sqltx.ErrUnknownOutcome):
			outcomes[2]++
		default:
			outcomes[1]++
		}
		if committed && rows != 2 || err != nil && !errors.Is(err, sqltx.ErrUnknownOutcome) && rows != 0 || rows == 1 {
			t.Fatalf("committed %v, %v: %d rows of 2", committed, err, rows)
		}
	}
	t.Logf("committed, refused, unknown: %v", outcomes)
}

// readOnlyUser creates a user whose writes are refused under read_only, and returns the URL with
// that user.
func readOnlyUser(t *testing.T, dbURL string) string {
	t.Helper()
	admin := storetest.SQL(t, dbURL).Ledger()
	u, err := url.Parse(dbURL)
	if err != nil {
		t.Fatal(err)
	}
	run(t, admin, "CREATE USER plain@'%' IDENTIFIED BY 'plain'")
	run(t, admin, "GRANT ALL ON `"+strings.TrimPrefix(u.Path, "/")+"`.* TO plain@'%'")
	u.User = url.UserPassword("plain", "plain")
	return u.String()
}

// TestReadOnly checks that the error of a database that refuses writes proves
// that nothing was committed.
func TestReadOnly(t *testing.T) {
	refused := func(t *testing.T, db *sqltx.DB) {
		t.Helper()
		first := sqltx.Statement{SQL: "UPDATE stock SET available = available - 1 WHERE sku = 'a'"}
		committed, err := commitIf(t.Context(), db, first, 1, inserting("c"))
		if committed || !sqltx.IsReadOnly(err) || errors.Is(err, sqltx.ErrUnknownOutcome) {
			t.Errorf("committed %v, %v is %q", committed, err, classes(err))
		}
		if _, err := db.Exec(t.Context(), first.SQL); !sqltx.IsReadOnly(err) {
			t.Errorf("%v is %q", err, classes(err))
		}
	}
	t.Run("MariaDB", func(t *testing.T) {
		t.Parallel()
		server := testenv.OwnMariaDB(t)
		admin := storetest.Migrated(t, server.URL()).Ledger()
		insertStock(t, admin, "a")
		plain := readOnlyUser(t, server.URL())
		for _, query := range []string{"", "?interpolateParams=false"} {
			db := storetest.SQL(t, plain+query).Ledger()
			tx := begin(t, t.Context(), db)
			run(t, tx, "UPDATE stock SET available = 1 WHERE sku = 'a'")
			// As in the demotion of a primary, SET GLOBAL does not wait for open transactions.
			run(t, admin, "SET GLOBAL read_only = 1")
			refused(t, db)
			if err := tx.Commit(); err != nil && errors.Is(err, sqltx.ErrUnknownOutcome) {
				t.Errorf("a COMMIT on a read-only server: %v", err)
			}
			run(t, admin, "SET GLOBAL read_only = 0")
			run(t, db, "UPDATE stock SET available = 10 WHERE sku = 'a'")
		}
	})
	t.Run("PostgreSQL", func(t *testing.T) {
		t.Parallel()
		server := testenv.OwnPostgres(t)
		admin := storetest.Migrated(t, server.URL()).Ledger()
		insertStock(t, admin, "a")
		run(t, admin, "ALTER ROLE postgres SET default_transaction_read_only = on")
		refused(t, storetest.SQL(t, server.URL()).Ledger())
	})
	t.Run("SQLite", func(t *testing.T) {
		t.Parallel()
		dbURL := testenv.SQLite(t)
		insertStock(t, storetest.Migrated(t, dbURL).Ledger(), "a")
		refused(t, storetest.SQL(t, dbURL+"?_pragma=query_only(1)").Ledger())
	})
}

// TestOpen checks that MariaDB says whether a transaction is open, and PostgreSQL whether it has
// also failed.
func TestOpen(t *testing.T) {
	for name, test := range map[string]struct {
		dbURL  string
		isOpen func(context.Context, *sql.Conn) bool
		want   []bool // after each statement
	}{
		"MariaDB":    {testenv.MariaDB(t), sqltx.OpenMySQL, []bool{false, true, true, false}},
		"PostgreSQL": {testenv.Postgres(t), sqltx.OpenPostgres, []bool{false, false, true, false}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn, err := storetest.SQL(t, test.dbURL).Pool().Conn(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			for n, statement := range []string{"SELECT 1", "START TRANSACTION", "nonsense", "ROLLBACK"} {
				if _, err := conn.ExecContext(t.Context(), statement); (err != nil) != (statement == "nonsense") {
					t.Fatal(err)
				}
				if open := test.isOpen(t.Context(), conn); open != test.want[n] {
					t.Errorf("after %s: open %v", statement, open)
				}
			}
		})
	}
}

// TestTexts_RefusedInTheMiddle checks that Commit does not report an unknown outcome if the server
// refused a statement before the COMMIT, even with an error that a COMMIT can return.
func TestTexts_RefusedInTheMiddle(t *testing.T) {
	for name, test := range map[string]struct{ dbURL, refuse string }{
		// Error 3, "Error writing file", may also answer a COMMIT.
		"MariaDB": {testenv.MariaDB(t), "CREATE TRIGGER refuse BEFORE INSERT ON stock FOR EACH ROW SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 3"},
		// A cancelled statement may be the COMMIT.
		"PostgreSQL": {testenv.Postgres(t), `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE query_canceled; END';
			CREATE TRIGGER refuse BEFORE INSERT ON stock FOR EACH ROW WHEN (NEW.sku <> 'a') EXECUTE FUNCTION refuse()`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := storetest.Migrated(t, test.dbURL)
			db := s.Ledger()
			insertStock(t, db, "a")
			for statement := range strings.SplitSeq(test.refuse, ";\n") {
				run(t, db, statement)
			}
			committed, err := commitIf(t.Context(), db, sqltx.Statement{SQL: "UPDATE stock SET available = 1 WHERE sku = 'a'"}, 1, inserting("c"))
			if committed || err == nil || errors.Is(err, sqltx.ErrUnknownOutcome) {
				t.Errorf("committed %v, %v", committed, err)
			}
			if left := one[int](t, db, "SELECT available FROM stock WHERE sku = 'a'"); left != 10 {
				t.Errorf("%d left, want 10", left)
			}
			noneInUse(t, s.Pool(), "the end")
		})
	}
}
