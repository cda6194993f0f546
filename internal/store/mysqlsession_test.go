package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// TestSession_StatesWhatItReliesOn: global variables of the server do not change
// what the ledger's statements mean.
func TestSession_StatesWhatItReliesOn(t *testing.T) {
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
			t.Run(query, func(t *testing.T) { reliable(t, server.NewDatabase()+query) })
		}
		// A mode of the URL's own is kept, and so is the transaction.
		dbURL := server.NewDatabase()
		insertStock(t, migrated(t, dbURL).DB(), "a")
		for _, query := range []string{"?", "?interpolateParams=false&"} {
			oracle := opened(t, dbURL+query+"sql_mode=%27ORACLE%27")
			if mode := one[string](t, oracle.DB(), "SELECT @@sql_mode"); !strings.Contains(mode, "ORACLE") {
				t.Errorf("sql_mode is %q, the URL's is ORACLE", mode)
			}
			tx := oracle.DB().Begin()
			run(t, tx, "UPDATE stock SET available = 1 WHERE sku = 'a'")
			tx.Rollback()
			if left := one[int](t, oracle.DB(), "SELECT available FROM stock WHERE sku = 'a'"); left != 10 {
				t.Errorf("%d left after a ROLLBACK, want 10", left)
			}
		}
	})
	t.Run("PostgreSQL", func(t *testing.T) {
		t.Parallel()
		server := testenv.OwnPostgres(t,
			"-c", "standard_conforming_strings=off", "-c", "default_transaction_isolation=serializable",
			"-c", "default_transaction_deferrable=on", "-c", "DateStyle=German, DMY", "-c", "TimeZone=Asia/Tokyo", "-c", "bytea_output=escape")
		reliable(t, server.URL())
	})
}

// reliable holds the session against what the ledger needs of it.
func reliable(t *testing.T, dbURL string) {
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
		committed, err := CommitIf(t.Context(), s.DB(), Statement{SQL: "UPDATE stock SET available = available - 1 WHERE sku = 'a'"}, 1,
			func(guard Guard) []Statement {
				return []Statement{{SQL: "INSERT INTO stock (sku, kind, total, available) VALUES (" + guard("'"+sku+"'") + ", 'product', 1, 1)"}}
			})
		if err != nil || !committed {
			t.Fatalf("committed %v, %v", committed, err)
		}
	}
	tx := s.DB().Begin()
	run(t, tx, "UPDATE stock SET available = available - 1 WHERE sku = 'a'")
	if err := Commit(tx); err != nil {
		t.Fatal(err)
	}
	// Nothing is left open: neither locked nor uncommitted.
	run(t, other.DB(), "UPDATE stock SET total = total WHERE sku = 'a'")
	if left := one[int](t, other.DB(), "SELECT available FROM stock WHERE sku = 'a'"); left != 7 {
		t.Errorf("%d left, want 7", left)
	}
	insertStock(t, s.DB(), "") // text as it is written: an empty one is no NULL
	if s.Dialect() == Postgres {
		if n := one[int](t, s.DB(), `SELECT length('a\b')`); n != 3 {
			t.Errorf("a backslash in a text makes %d characters of 3", n)
		}
	}
	if err := s.DB().Exec("UPDATE stock SET total = -1 WHERE sku = 'a'").Error; !IsStatementError(err) {
		t.Errorf("a check: %v", err)
	}
	checkRoundTrip(t, s)
}

// TestTexts_OnlyWhereTheyAreSafe: a server that is not known to keep the
// transaction of a text is sent its statements apart.
func TestTexts_OnlyWhereTheyAreSafe(t *testing.T) {
	for _, test := range []struct {
		server mysqlServer
		want   bool
	}{
		{mysqlServer{"version": "10.11.19-MariaDB-0+deb12u1", "version_comment": "Debian 12", "wsrep_provider": "none"}, true},
		{mysqlServer{"version": "11.4.2-MariaDB-log"}, true},
		{mysqlServer{"version": "10.11.19-MariaDB", "wsrep_provider": "/usr/lib/galera/libgalera_smm.so"}, false},
		{mysqlServer{"version": "8.4.0", "version_comment": "MySQL Community Server - GPL"}, true},
		{mysqlServer{"version": "8.0.36-28", "version_comment": "Percona Server (GPL), Release 28"}, true},
		{mysqlServer{"version": "8.0.36-28.1", "version_comment": "Percona XtraDB Cluster (GPL)", "wsrep_provider": "/usr/lib/galera4.so"}, false},
		{mysqlServer{"version": "8.4.0", "version_comment": "MySQL Community Server - GPL", "group_replication_group_name": "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa"}, false},
		{mysqlServer{"version": "8.0.32", "version_comment": "Source distribution", "aurora_version": "3.04.0"}, false},
		{mysqlServer{"version": "8.0.11-TiDB-v8.5.0", "version_comment": "TiDB Server (Apache License 2.0) Community Edition, MySQL 8.0 compatible"}, false},
		{mysqlServer{"version": "8.0.30-Vitess", "version_comment": "Version: 19.0.0"}, false},
		{mysqlServer{}, false},
	} {
		if got := test.server.keepsTransactions(); got != test.want {
			t.Errorf("%v: %v, want %v", test.server, got, test.want)
		}
	}
	for query, want := range map[string]bool{"": true, "?interpolateParams=false": false} {
		s := opened(t, testenv.MariaDB(t)+query)
		conn, err := s.pool.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if got := takesTexts(conn); got != want {
			t.Errorf("%q: one text %v, want %v", query, got, want)
		}
		conn.Close()
	}
}

// TestTexts_Killed: whatever a KILL QUERY hits, the text is committed whole or
// not at all, and who asked is not told otherwise.
func TestTexts_Killed(t *testing.T) {
	t.Parallel()
	s, killer := migrated(t, testenv.MariaDB(t)), opened(t, testenv.MariaDB(t))
	name := one[string](t, s.DB(), "SELECT DATABASE()")
	insertStock(t, s.DB(), "a")
	s.pool.SetMaxOpenConns(1)
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
				_ = killer.DB().Exec("KILL QUERY ?", id).Error // it may be gone
			}
		}
	})
	defer all.Wait()
	defer close(done)
	var outcomes [3]int // committed, refused, unknown
	for n := range 300 {
		sku := fmt.Sprint("k", n)
		committed, err := CommitIf(t.Context(), s.DB(), Statement{SQL: "UPDATE stock SET available = available + 1 WHERE sku = 'a'"}, 1,
			func(guard Guard) []Statement {
				row := "INSERT INTO stock (sku, kind, total, available) VALUES (%s, 'product', 1, 1)"
				return []Statement{{SQL: fmt.Sprintf(row, guard("'"+sku+"'"))}, {SQL: fmt.Sprintf(row, "'"+sku+"-'")}}
			})
		var rows int
		if err := killer.DB().Raw("SELECT COUNT(*) FROM "+name+".stock WHERE sku IN (?, ?)", sku, sku+"-").Row().Scan(&rows); err != nil {
			t.Fatal(err)
		}
		switch {
		case committed:
			outcomes[0]++
		case errors.Is(err, ErrUnknownOutcome):
			outcomes[2]++
		default:
			outcomes[1]++
		}
		if committed && rows != 2 || err != nil && !errors.Is(err, ErrUnknownOutcome) && rows != 0 || rows == 1 {
			t.Fatalf("committed %v, %v: %d rows of 2", committed, err, rows)
		}
	}
	t.Logf("committed, refused, unknown: %v", outcomes)
}

// readOnlyUser makes a user that read_only binds, and returns the URL as that
// user.
func readOnlyUser(t *testing.T, dbURL string) string {
	t.Helper()
	admin := opened(t, dbURL)
	u, err := url.Parse(dbURL)
	if err != nil {
		t.Fatal(err)
	}
	run(t, admin.DB(), "CREATE USER plain@'%' IDENTIFIED BY 'plain'")
	run(t, admin.DB(), "GRANT ALL ON `"+strings.TrimPrefix(u.Path, "/")+"`.* TO plain@'%'")
	u.User = url.UserPassword("plain", "plain")
	return u.String()
}

// TestReadOnly: a database that refuses writes has committed nothing, and says so.
func TestReadOnly(t *testing.T) {
	refused := func(t *testing.T, s *SQL) {
		t.Helper()
		first := Statement{SQL: "UPDATE stock SET available = available - 1 WHERE sku = 'a'"}
		committed, err := CommitIf(t.Context(), s.DB(), first, 1, inserting("c"))
		if committed || !IsReadOnly(err) || errors.Is(err, ErrUnknownOutcome) {
			t.Errorf("committed %v, %v is %q", committed, err, classes(err))
		}
		if err := s.DB().Exec(first.SQL).Error; !IsReadOnly(err) {
			t.Errorf("%v is %q", err, classes(err))
		}
	}
	t.Run("MariaDB", func(t *testing.T) {
		t.Parallel()
		server := testenv.OwnMariaDB(t)
		admin := migrated(t, server.URL())
		insertStock(t, admin.DB(), "a")
		plain := readOnlyUser(t, server.URL())
		for _, query := range []string{"", "?interpolateParams=false"} {
			s := opened(t, plain+query)
			tx := s.DB().Begin()
			run(t, tx, "UPDATE stock SET available = 1 WHERE sku = 'a'")
			// As in a handover: the lock waits for no transaction.
			run(t, admin.DB(), "SET GLOBAL read_only = 1")
			refused(t, s)
			if err := Commit(tx); err != nil && errors.Is(err, ErrUnknownOutcome) {
				t.Errorf("a COMMIT on a read-only server: %v", err)
			}
			run(t, admin.DB(), "SET GLOBAL read_only = 0")
			run(t, s.DB(), "UPDATE stock SET available = 10 WHERE sku = 'a'")
		}
	})
	t.Run("PostgreSQL", func(t *testing.T) {
		t.Parallel()
		server := testenv.OwnPostgres(t)
		insertStock(t, migrated(t, server.URL()).DB(), "a")
		run(t, opened(t, server.URL()).DB(), "ALTER ROLE postgres SET default_transaction_read_only = on")
		refused(t, opened(t, server.URL()))
	})
}

// TestTexts_RefusedInTheMiddle: a server that refuses a statement of a text for a
// reason of its own has not come to the COMMIT.
func TestTexts_RefusedInTheMiddle(t *testing.T) {
	s := migrated(t, testenv.MariaDB(t))
	insertStock(t, s.DB(), "a")
	// "Lost connection to another server": an error that a COMMIT may give as well.
	run(t, s.DB(), "CREATE TRIGGER refuse BEFORE INSERT ON stock FOR EACH ROW SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 3")
	committed, err := CommitIf(t.Context(), s.DB(), Statement{SQL: "UPDATE stock SET available = 1 WHERE sku = 'a'"}, 1, inserting("c"))
	if committed || err == nil || errors.Is(err, ErrUnknownOutcome) {
		t.Errorf("committed %v, %v", committed, err)
	}
	if left := one[int](t, s.DB(), "SELECT available FROM stock WHERE sku = 'a'"); left != 10 {
		t.Errorf("%d left, want 10", left)
	}
}

// TestRollback_Failed: a connection whose ROLLBACK failed is not used again, or
// its transaction would go on under the next statement.
func TestRollback_Failed(t *testing.T) {
	t.Parallel()
	for name, dbURL := range map[string]func(testenv.T) string{"MariaDB": testenv.MariaDB, "PostgreSQL": testenv.Postgres} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := migrated(t, dbURL(t))
			insertStock(t, s.DB(), "a")
			conns := s.DB().Statement.ConnPool.(pool)
			sound := conns.exec
			conns.exec = func(ctx context.Context, conn *sql.Conn, statements []Statement) ([]int64, error) {
				if statements[0].SQL == "ROLLBACK" {
					return nil, errors.New("not sent")
				}
				return sound(ctx, conn, statements)
			}
			s.pool.SetMaxOpenConns(1)
			began, err := conns.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			tx := began.(*transaction)
			if _, err := tx.ExecContext(t.Context(), "UPDATE stock SET available = 1 WHERE sku = 'a'"); err != nil {
				t.Fatal(err)
			}
			if err := tx.Rollback(); err == nil {
				t.Error("the ROLLBACK did not fail")
			}
			if left := one[int](t, s.DB(), "SELECT available FROM stock WHERE sku = 'a'"); left != 10 {
				t.Errorf("%d left, want 10: the transaction goes on", left)
			}
			if err := tx.Commit(); err == nil {
				t.Error("a transaction that is over was committed")
			}
		})
	}
}

// shortConn answers every text in the same way, and no query.
type shortConn struct {
	mysqlConn
	answered []int64
	err      error
	closed   bool
}

func (c *shortConn) ExecContext(context.Context, string, []driver.NamedValue) (driver.Result, error) {
	return shortResult(c.answered), c.err
}
func (*shortConn) QueryContext(context.Context, string, []driver.NamedValue) (driver.Rows, error) {
	return nil, errors.New("no such variable")
}
func (*shortConn) CheckNamedValue(*driver.NamedValue) error { return nil }
func (*shortConn) ResetSession(context.Context) error       { return nil }
func (c *shortConn) IsValid() bool                          { return !c.closed }
func (c *shortConn) Close() error {
	c.closed = true
	return nil
}

type shortResult []int64

func (shortResult) LastInsertId() (int64, error)   { return 0, nil }
func (r shortResult) RowsAffected() (int64, error) { return r[len(r)-1], nil }
func (r shortResult) AllRowsAffected() []int64     { return r }
func (shortResult) AllLastInsertIds() []int64      { return nil }
func (c *shortConn) Driver() driver.Driver         { return nil }
func (c *shortConn) Connect(context.Context) (driver.Conn, error) {
	return &mysqlSession{mysqlConn: c, texts: true}, nil
}

// TestTexts_NoWholeAnswer: neither answers that are missing nor an error that a
// COMMIT may give says what became of a text. The connection is not used again.
func TestTexts_NoWholeAnswer(t *testing.T) {
	for name, conn := range map[string]*shortConn{
		"cut short":   {answered: []int64{0, 1, 1}},
		"interrupted": {err: &mysql.MySQLError{Number: 1317, SQLState: [5]byte([]byte("70100"))}},
	} {
		conns := pool{DB: sql.OpenDB(conn), exec: execMySQL, guard: mysqlGuard, guarded: mysqlGuarded}
		defer conns.DB.Close()
		began, err := conns.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		committed, err := began.(*transaction).commitIf(t.Context(), []Statement{{SQL: "UPDATE"}, {SQL: "INSERT"}})
		if committed || !errors.Is(err, ErrUnknownOutcome) || !conn.closed {
			t.Errorf("%s: committed %v, %v, connection closed %v", name, committed, err, conn.closed)
		}
	}
}
