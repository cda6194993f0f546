package sqltx_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"
	"gorm.io/gorm"

	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/store/storetest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// classes returns the names of the functions that are true of err.
func classes(err error) string {
	var names []string
	for name, is := range map[string]func(error) bool{
		"duplicate": sqltx.IsDuplicate, "retryable": sqltx.IsRetryable, "rolled back": sqltx.IsKnownRollback, "statement": sqltx.IsStatementError,
		"read-only": sqltx.IsReadOnly, "lock timeout": sqltx.IsLockTimeout, "no commit": sqltx.ProvesNoCommit, "value": sqltx.IsValueError,
	} {
		if is(err) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// TestErrors_NotOfAnyClass checks errors that belong to no class, including some whose text looks
// like a deadlock.
func TestErrors_NotOfAnyClass(t *testing.T) {
	for _, err := range []error{
		nil, errors.New("Error 1213: Deadlock found"), context.DeadlineExceeded, context.Canceled,
		gorm.ErrRecordNotFound,
		&pgconn.PgError{Code: "57P01"}, &pgconn.PgError{Code: "53300"}, &pgconn.PgError{Code: ""},
	} {
		if got := classes(err); got != "" {
			t.Errorf("%v is %q", err, got)
		}
	}
	if sqltx.IsKnownRollback(&pgconn.PgError{Code: "40003"}) {
		t.Error("statement_completion_unknown counts as a known rollback")
	}
}

// TestErrors_ByNumber checks error numbers, including those of servers that the tests do not start.
func TestErrors_ByNumber(t *testing.T) {
	withState := func(number uint16, state string) error {
		return &mysql.MySQLError{Number: number, SQLState: [5]byte([]byte(state))}
	}
	my := func(number uint16) error { return withState(number, "HY000") }
	pg := func(code string) error { return &pgconn.PgError{Code: code} }
	for _, test := range []struct {
		err  error
		want string
	}{
		{withState(1644, "45000"), "no commit, statement"}, // raised by a trigger
		{withState(1203, "42000"), ""},                     // too many connections of this user
		{withState(1226, "42000"), ""},                     // a limit of this user
		{my(1366), "no commit, statement, value"},
		{my(3819), "no commit, statement, value"},
		{my(9007), "no commit, retryable"}, // TiDB: write conflict
		{my(8022), "no commit, retryable"}, // TiDB: the COMMIT failed and can be retried
		{my(8028), "no commit, retryable"}, // TiDB: the schema changed
		{my(8501), ""},                     // TiDB: the outcome is unknown
		{my(3572), "lock timeout, no commit, retryable"},
		{my(1205), "lock timeout, no commit, retryable"},
		{my(1290), "no commit, read-only"},
		{my(1792), "no commit, read-only"},
		{my(1836), "no commit, read-only"},
		{my(1874), "no commit, read-only"},
		{my(1036), "no commit, read-only"},
		{my(1153), "no commit, statement"}, // larger than max_allowed_packet
		{my(3), ""},                        // error writing a file, which may be the binary log
		{my(1047), ""},                     // Galera: the node is not ready
		{my(1180), ""},                     // error during COMMIT
		{my(1317), ""},                     // interrupted
		{pg("25006"), "no commit, read-only"},
		{pg("25P02"), "no commit, rolled back"},
		{pg("25P03"), "no commit, rolled back"},
		{pg("25P04"), ""}, // transaction_timeout
		{pg("55P03"), "lock timeout, no commit, retryable"},
		{pg("40003"), ""},
		{pg("54000"), "no commit, statement"}, // a limit of the server
		{pg("P0001"), "no commit, statement"}, // raised by a trigger
		{pg("57P01"), ""},
		{driver.ErrBadConn, "no commit"},
		{sql.ErrConnDone, "no commit"},
		{mysql.ErrInvalidConn, ""},
		{sqltx.ErrLost, ""},
		{sqltx.ErrCutShort, ""},
	} {
		if got := classes(test.err); got != test.want {
			t.Errorf("%v is %q, want %q", test.err, got, test.want)
		}
	}
}

// TestErrors_Statement checks the errors of statements that the database refuses for their text or
// their values, as the driver returns them or wrapped.
func TestErrors_Statement(t *testing.T) {
	forEachSQL(t, func(t *testing.T, dbURL string) {
		s := storetest.Migrated(t, dbURL)
		db := s.Ledger()
		insertStock(t, db, "a")
		for name, statement := range map[string]string{
			"a duplicate":   "INSERT INTO stock (sku, kind, total, available) VALUES ('a', 'product', 1, 1)",
			"NULL":          "UPDATE stock SET available = NULL WHERE sku = 'a'",
			"a check":       "UPDATE stock SET total = -1 WHERE sku = 'a'",
			"no such table": "UPDATE nothing SET a = 1",
			"bad syntax":    "UPDATE SET",
		} {
			_, direct := db.Exec(t.Context(), statement)
			_, raw := s.Pool().ExecContext(t.Context(), statement)
			for _, err := range []error{direct, raw, fmt.Errorf("changing: %w", raw)} {
				if !sqltx.IsStatementError(err) || sqltx.IsRetryable(err) || sqltx.IsDuplicate(err) != (name == "a duplicate") || sqltx.IsValueError(err) != strings.HasPrefix(statement, "UPDATE stock") {
					t.Errorf("%s: %v is %q", name, err, classes(err))
				}
			}
		}
		if db.Dialect() == sqltx.SQLite {
			run(t, db, "CREATE TRIGGER refuse BEFORE UPDATE ON stock BEGIN SELECT RAISE(ABORT, 'refused'); END")
			if _, err := db.Exec(t.Context(), "UPDATE stock SET total = 1"); !sqltx.IsStatementError(err) || sqltx.IsValueError(err) {
				t.Errorf("a trigger: %v is %q", err, classes(err))
			}
			return // this database accepts text of any length
		}
		long := strings.Repeat("x", 10_000)
		run(t, db, "UPDATE orders SET status = CAST(? AS CHAR(65)) WHERE 1 = 0", long)
		if db.Dialect() == sqltx.MySQL {
			const update = "UPDATE stock SET kind = ? WHERE sku = 'a'"
			if _, err := db.Exec(t.Context(), update, long); !sqltx.IsStatementError(err) {
				t.Errorf("too long: %v is %q", err, classes(err))
			}
			// The driver refuses a text above the server's limit before it sends it.
			narrow := storetest.SQL(t, dbURL+"?maxAllowedPacket=4096").Ledger()
			err := narrow.Transact(t.Context(), func(tx *sqltx.Tx) error {
				_, err := tx.Exec(t.Context(), update, long)
				return err
			})
			if !sqltx.IsStatementError(err) {
				t.Errorf("too large a packet: %v is %q", err, classes(err))
			}
		}
	})
}

// TestErrors_LockWaitTimeout checks the error of a statement that waits too long
// for a locked row.
func TestErrors_LockWaitTimeout(t *testing.T) {
	forEachSQL(t, func(t *testing.T, dbURL string) {
		db := storetest.Migrated(t, dbURL).Ledger()
		insertStock(t, db, "a")
		short := map[sqltx.Dialect]string{
			sqltx.MySQL:    "?innodb_lock_wait_timeout=1",
			sqltx.Postgres: "lock_timeout=200",
			sqltx.SQLite:   "?_pragma=busy_timeout(100)",
		}[db.Dialect()]
		if db.Dialect() == sqltx.Postgres {
			short = map[bool]string{true: "&", false: "?"}[strings.Contains(dbURL, "?")] + short
		}
		impatient := storetest.SQL(t, dbURL+short).Ledger()

		holder := begin(t, t.Context(), db)
		defer holder.Rollback()
		run(t, holder, "UPDATE stock SET available = 9 WHERE sku = 'a'")
		_, err := impatient.Exec(t.Context(), "UPDATE stock SET available = 8 WHERE sku = 'a'")
		if !sqltx.IsRetryable(err) || sqltx.IsDuplicate(err) || sqltx.IsStatementError(err) {
			t.Errorf("%v is %q", err, classes(err))
		}
	})
}

// TestErrors_Deadlock checks the error of the transaction that a server rolls back
// to end a deadlock.
func TestErrors_Deadlock(t *testing.T) {
	forEachServer(t, func(t *testing.T, dbURL string) {
		db := storetest.Migrated(t, dbURL).Ledger()
		insertStock(t, db, "a")
		insertStock(t, db, "b")
		first, second := begin(t, t.Context(), db), begin(t, t.Context(), db)
		defer first.Rollback()
		defer second.Rollback()
		run(t, first, "UPDATE stock SET available = 1 WHERE sku = 'a'")
		run(t, second, "UPDATE stock SET available = 1 WHERE sku = 'b'")
		errs := make(chan error, 2)
		update := func(tx *sqltx.Tx, sku string) {
			_, err := tx.Exec(t.Context(), "UPDATE stock SET available = 1 WHERE sku = '"+sku+"'")
			errs <- err
		}
		go update(first, "b")
		go update(second, "a")
		victim := <-errs
		if victim == nil { // the other transaction is the victim
			victim = <-errs
		}
		if !sqltx.IsRetryable(victim) || !sqltx.IsKnownRollback(victim) {
			t.Errorf("%v is %q", victim, classes(victim))
		}
	})
}

// TestErrors_Serialization checks the error of an update of a row that another transaction has
// changed since the snapshot.
func TestErrors_Serialization(t *testing.T) {
	for name, server := range map[string]struct {
		url   func(testenv.T) string
		query string
	}{
		"PostgreSQL": {testenv.Postgres, ""},
		"MariaDB":    {testenv.MariaDB, "?innodb_snapshot_isolation=ON"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := storetest.Migrated(t, testenv.Patient(t, server.url(t)+server.query))
			insertStock(t, s.Ledger(), "a")
			tx := s.DB().Begin(&sql.TxOptions{Isolation: sql.LevelRepeatableRead})
			defer tx.Rollback()
			if err := tx.Exec("SELECT available FROM stock").Error; err != nil {
				t.Fatal(err)
			}
			run(t, s.Ledger(), "UPDATE stock SET available = 1 WHERE sku = 'a'")
			err := tx.Exec("UPDATE stock SET available = 2 WHERE sku = 'a'").Error
			if !sqltx.IsRetryable(err) {
				t.Errorf("%v is %q", err, classes(err))
			}
		})
	}
}

// TestErrors_KnownRollbackAtCommit checks the errors of a COMMIT that prove a rollback, and that
// nothing was committed.
func TestErrors_KnownRollbackAtCommit(t *testing.T) {
	t.Run("PostgreSQL/deferred constraint", func(t *testing.T) {
		db := storetest.Migrated(t, testenv.Postgres(t)).Ledger()
		run(t, db, "ALTER TABLE outbox ADD CONSTRAINT late UNIQUE (number) DEFERRABLE INITIALLY DEFERRED")
		tx := begin(t, t.Context(), db)
		for _, sku := range []string{"a", "b"} {
			run(t, tx, "INSERT INTO outbox (sku, epoch, number, delta, created_at) VALUES (?, 1, 1, 1, now())", sku)
		}
		err := tx.Commit()
		if !sqltx.ProvesNoCommit(err) {
			t.Errorf("%v is %q", err, classes(err))
		}
		if n := one[int](t, db, "SELECT COUNT(*) FROM outbox"); n != 0 {
			t.Errorf("%d rows were committed", n)
		}
	})
	t.Run("PostgreSQL/serialization", func(t *testing.T) {
		s := storetest.Migrated(t, testenv.Postgres(t))
		insertStock(t, s.Ledger(), "a")
		insertStock(t, s.Ledger(), "b")
		serializable := &sql.TxOptions{Isolation: sql.LevelSerializable}
		first, second := s.DB().Begin(serializable), s.DB().Begin(serializable)
		for _, step := range []struct {
			tx        *gorm.DB
			statement string
		}{
			{first, "SELECT SUM(available) FROM stock"},
			{second, "SELECT SUM(available) FROM stock"},
			{first, "UPDATE stock SET available = 0 WHERE sku = 'a'"},
			{second, "UPDATE stock SET available = 0 WHERE sku = 'b'"},
		} {
			if err := step.tx.Exec(step.statement).Error; err != nil {
				t.Fatal(err)
			}
		}
		if err := first.Commit().Error; err != nil {
			t.Fatal(err)
		}
		if err := second.Commit().Error; !sqltx.IsKnownRollback(err) || !sqltx.IsRetryable(err) {
			t.Errorf("%v is %q", err, classes(err))
		}
	})
	// Under a global read lock, COMMIT waits for the lock and fails with error 1205.
	// ProvesNoCommit relies on a rollback then.
	t.Run("MariaDB/lock wait in COMMIT", func(t *testing.T) {
		s := storetest.Migrated(t, testenv.MariaDB(t)+"?lock_wait_timeout=1&max_statement_time=0")
		db := s.Ledger()
		insertStock(t, db, "a")
		tx := begin(t, t.Context(), db)
		run(t, tx, "UPDATE stock SET available = 1 WHERE sku = 'a'")
		connection := one[int64](t, tx, "SELECT CONNECTION_ID()")

		lock, err := s.Pool().Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer lock.Close()
		if _, err := lock.ExecContext(t.Context(), "SET SESSION lock_wait_timeout = 60"); err != nil { // only COMMIT gives up soon
			t.Fatal(err)
		}
		if _, err := lock.ExecContext(t.Context(), "FLUSH TABLES WITH READ LOCK"); err != nil {
			t.Fatal(err)
		}
		err = tx.Commit()
		if _, err := lock.ExecContext(t.Context(), "UNLOCK TABLES"); err != nil {
			t.Fatal(err)
		}
		t.Logf("COMMIT: %v is %q", err, classes(err))
		if err == nil {
			t.Fatal("COMMIT did not fail")
		}
		open := one[int](t, db, "SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_mysql_thread_id = ?", connection)
		available := one[int](t, db, "SELECT available FROM stock")
		t.Logf("open transactions %d, available %d", open, available)
		if sqltx.ProvesNoCommit(err) && (open != 0 || available != 10) {
			t.Errorf("%v counts as a proof that nothing was committed, but %d transactions are open and available is %d", err, open, available)
		}
	})
}

// TestErrors_CutConnectionIsUnknown checks that the error of a COMMIT whose
// connection the server has closed belongs to no class that proves a rollback.
func TestErrors_CutConnectionIsUnknown(t *testing.T) {
	for name, test := range map[string]struct {
		url  func(testenv.T) string
		own  string
		kill string
	}{
		"MariaDB":    {testenv.MariaDB, "SELECT CONNECTION_ID()", "KILL CONNECTION ?"},
		"PostgreSQL": {testenv.Postgres, "SELECT pg_backend_pid()", "SELECT pg_terminate_backend(?)"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := storetest.Migrated(t, test.url(t)).Ledger()
			insertStock(t, db, "a")
			tx := begin(t, t.Context(), db)
			run(t, tx, "UPDATE stock SET available = 1 WHERE sku = 'a'")
			run(t, db, test.kill, one[int64](t, tx, test.own))
			testenv.Await(t, "the row is unlocked", func() bool {
				_, err := db.Exec(t.Context(), "UPDATE stock SET available = 5 WHERE sku = 'a'")
				return err == nil
			})
			err := tx.Commit()
			if err == nil || sqltx.IsKnownRollback(err) || sqltx.IsRetryable(err) || sqltx.IsStatementError(err) {
				t.Errorf("%v is %q", err, classes(err))
			}
		})
	}
}

// TestErrors_Contention checks that many concurrent writers of one row get no error.
func TestErrors_Contention(t *testing.T) {
	forEachSQL(t, func(t *testing.T, dbURL string) {
		db := storetest.Migrated(t, dbURL).Ledger()
		insertStock(t, db, "a")
		run(t, db, "UPDATE stock SET available = 100")
		var writers sync.WaitGroup
		for range 20 {
			writers.Go(func() {
				for range 5 {
					if err := db.Transact(t.Context(), func(tx *sqltx.Tx) error {
						_, err := tx.Exec(t.Context(), "UPDATE stock SET available = available - 1 WHERE sku = 'a'")
						return err
					}); err != nil {
						t.Errorf("%v is %q", err, classes(err))
					}
				}
			})
		}
		writers.Wait()
		if left := one[int](t, db, "SELECT available FROM stock"); left != 0 {
			t.Errorf("%d left of 100", left)
		}
	})
}
