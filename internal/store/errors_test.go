package store

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
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"
	"gorm.io/gorm"

	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// classes names what the questions answer about err.
func classes(err error) string {
	var names []string
	for name, is := range map[string]func(error) bool{
		"duplicate": IsDuplicate, "retryable": IsRetryable, "rolled back": isKnownRollback, "statement": IsStatementError,
		"read-only": IsReadOnly, "lock timeout": IsLockTimeout, "no commit": provesNoCommit,
	} {
		if is(err) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

func TestErrors_Duplicate(t *testing.T) {
	forEachSQL(t, func(t *testing.T, dbURL string) {
		s := migrated(t, dbURL)
		insertStock(t, s.DB(), "a")
		again := "INSERT INTO stock (sku, kind, total, available) VALUES ('a', 'product', 1, 1)"
		_, raw := s.pool.ExecContext(t.Context(), again)
		for name, err := range map[string]error{
			"gorm":    s.DB().Exec(again).Error,
			"driver":  raw,
			"wrapped": fmt.Errorf("inserting: %w", raw),
		} {
			if err == nil || !IsDuplicate(err) || IsRetryable(err) {
				t.Errorf("%s: %v is %q", name, err, classes(err))
			}
		}
	})
}

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
	if isKnownRollback(&pgconn.PgError{Code: "40003"}) {
		t.Error("statement_completion_unknown counts as known")
	}
}

// TestErrors_ByNumber: the errors of servers that the tests do not start.
func TestErrors_ByNumber(t *testing.T) {
	my := func(number uint16) error {
		return &mysql.MySQLError{Number: number, SQLState: [5]byte([]byte("HY000"))}
	}
	pg := func(code string) error { return &pgconn.PgError{Code: code} }
	for _, test := range []struct {
		err  error
		want string
	}{
		{my(9007), "no commit, retryable"}, // TiDB: write conflict
		{my(8022), "no commit, retryable"}, // TiDB: a COMMIT that may be tried again
		{my(8028), "no commit, retryable"}, // TiDB: the schema changed
		{my(8501), ""},                     // TiDB: the result is undetermined
		{my(3572), "lock timeout, no commit, retryable"},
		{my(1205), "lock timeout, no commit, retryable, rolled back"},
		{my(1290), "no commit, read-only"},
		{my(1792), "no commit, read-only"},
		{my(1836), "no commit, read-only"},
		{my(1874), "no commit, read-only"},
		{my(1036), "no commit, read-only"},
		{my(3), ""},    // writing a file: the binary log's too
		{my(1047), ""}, // Galera: the node is not ready
		{my(1180), ""}, // an error during COMMIT
		{my(1317), ""}, // interrupted
		{pg("25006"), "no commit, read-only"},
		{pg("25P02"), "no commit, rolled back"},
		{pg("25P03"), "no commit, rolled back"},
		{pg("25P04"), ""}, // transaction_timeout
		{pg("55P03"), "lock timeout, no commit, retryable"},
		{pg("40003"), ""},
		{pg("57P01"), ""},
		{driver.ErrBadConn, "no commit"},
		{sql.ErrConnDone, "no commit"},
		{mysql.ErrInvalidConn, ""},
		{errLost, ""},
		{errCutShort, ""},
	} {
		if got := classes(test.err); got != test.want {
			t.Errorf("%v is %q, want %q", test.err, got, test.want)
		}
	}
}

func TestErrors_Statement(t *testing.T) {
	forEachSQL(t, func(t *testing.T, dbURL string) {
		s := migrated(t, dbURL)
		insertStock(t, s.DB(), "a")
		for name, statement := range map[string]string{
			"a value that does not do": "UPDATE stock SET available = NULL WHERE sku = 'a'",
			"a check":                  "UPDATE stock SET total = -1 WHERE sku = 'a'",
			"no such table":            "UPDATE nothing SET a = 1",
			"bad syntax":               "UPDATE SET",
		} {
			if err := s.DB().Exec(statement).Error; !IsStatementError(err) || IsRetryable(err) || IsDuplicate(err) {
				t.Errorf("%s: %v is %q", name, err, classes(err))
			}
		}
		if s.Dialect() == SQLite {
			return // it takes text of any length
		}
		long := strings.Repeat("x", 10_000)
		if err := s.DB().Exec("UPDATE orders SET status = CAST(? AS CHAR(65)) WHERE 1 = 0", long).Error; err != nil {
			t.Error(err)
		}
		if s.Dialect() == MySQL {
			if err := s.DB().Exec("UPDATE stock SET kind = ? WHERE sku = 'a'", long).Error; !IsStatementError(err) {
				t.Errorf("too long: %v is %q", err, classes(err))
			}
			// The driver sends no text that the server would not take.
			narrow := opened(t, dbURL+"?maxAllowedPacket=4096")
			err := narrow.DB().Transaction(func(tx *gorm.DB) error {
				return tx.Exec("UPDATE stock SET kind = ? WHERE sku = 'a'", long).Error
			})
			if !IsStatementError(err) {
				t.Errorf("too large a packet: %v is %q", err, classes(err))
			}
		}
	})
}

func TestErrors_LockWaitTimeout(t *testing.T) {
	forEachSQL(t, func(t *testing.T, dbURL string) {
		s := migrated(t, dbURL)
		insertStock(t, s.DB(), "a")
		short := map[Dialect]string{
			MySQL:    "?innodb_lock_wait_timeout=1",
			Postgres: "lock_timeout=200",
			SQLite:   "?_pragma=busy_timeout(100)",
		}[s.Dialect()]
		if s.Dialect() == Postgres {
			short = map[bool]string{true: "&", false: "?"}[strings.Contains(dbURL, "?")] + short
		}
		impatient := opened(t, dbURL+short)

		holder := s.DB().Begin()
		defer holder.Rollback()
		run(t, holder, "UPDATE stock SET available = 9 WHERE sku = 'a'")
		err := impatient.DB().Exec("UPDATE stock SET available = 8 WHERE sku = 'a'").Error
		if !IsRetryable(err) || IsDuplicate(err) || IsStatementError(err) {
			t.Errorf("%v is %q", err, classes(err))
		}
	})
}

func TestErrors_Deadlock(t *testing.T) {
	for name, dbURL := range map[string]func(testenv.T) string{"MariaDB": testenv.MariaDB, "PostgreSQL": testenv.Postgres} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := migrated(t, dbURL(t))
			insertStock(t, s.DB(), "a")
			insertStock(t, s.DB(), "b")
			one, other := s.DB().Begin(), s.DB().Begin()
			defer one.Rollback()
			defer other.Rollback()
			run(t, one, "UPDATE stock SET available = 1 WHERE sku = 'a'")
			run(t, other, "UPDATE stock SET available = 1 WHERE sku = 'b'")
			errs := make(chan error, 2)
			go func() { errs <- one.Exec("UPDATE stock SET available = 1 WHERE sku = 'b'").Error }()
			go func() { errs <- other.Exec("UPDATE stock SET available = 1 WHERE sku = 'a'").Error }()
			first := <-errs // the victim's, or the survivor's after it
			victim := first
			if victim == nil {
				victim = <-errs
			}
			if !IsRetryable(victim) || !isKnownRollback(victim) {
				t.Errorf("%v is %q", victim, classes(victim))
			}
		})
	}
}

func TestErrors_Serialization(t *testing.T) {
	for name, open := range map[string]struct {
		url   func(testenv.T) string
		level sql.IsolationLevel
	}{
		"PostgreSQL": {testenv.Postgres, sql.LevelRepeatableRead},
		"MariaDB":    {testenv.MariaDB, sql.LevelSnapshot}, // only with innodb_snapshot_isolation
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := migrated(t, open.url(t))
			insertStock(t, s.DB(), "a")
			level := open.level
			if s.Dialect() == MySQL {
				s = opened(t, open.url(t)+"?innodb_snapshot_isolation=ON")
				if err := s.MigrateUp(t.Context()); err != nil {
					t.Fatal(err)
				}
				insertStock(t, s.DB(), "a")
				level = sql.LevelRepeatableRead
			}
			tx := s.DB().Begin(&sql.TxOptions{Isolation: level})
			defer tx.Rollback()
			run(t, tx, "SELECT available FROM stock")
			run(t, s.DB(), "UPDATE stock SET available = 1 WHERE sku = 'a'")
			err := tx.Exec("UPDATE stock SET available = 2 WHERE sku = 'a'").Error
			if !IsRetryable(err) {
				t.Errorf("%v is %q", err, classes(err))
			}
		})
	}
}

// COMMIT itself may fail with the database's word that it rolled back.
func TestErrors_KnownRollbackAtCommit(t *testing.T) {
	t.Run("PostgreSQL/deferred constraint", func(t *testing.T) {
		s := migrated(t, testenv.Postgres(t))
		run(t, s.DB(), "ALTER TABLE outbox ADD CONSTRAINT late UNIQUE (number) DEFERRABLE INITIALLY DEFERRED")
		tx := s.DB().Begin()
		for _, sku := range []string{"a", "b"} {
			run(t, tx, "INSERT INTO outbox (sku, epoch, number, delta, created_at) VALUES (?, 1, 1, 1, now())", sku)
		}
		err := tx.Commit().Error
		if !isKnownRollback(err) {
			t.Errorf("%v is %q", err, classes(err))
		}
		if n := one[int](t, s.DB(), "SELECT COUNT(*) FROM outbox"); n != 0 {
			t.Errorf("%d rows are there", n)
		}
	})
	t.Run("PostgreSQL/transaction failed before", func(t *testing.T) {
		s := migrated(t, testenv.Postgres(t))
		tx := s.DB().Begin()
		_ = tx.Exec("nonsense").Error
		if err := tx.Commit().Error; !isKnownRollback(err) {
			t.Errorf("%v is %q", err, classes(err))
		}
	})
	t.Run("PostgreSQL/serialization", func(t *testing.T) {
		s := migrated(t, testenv.Postgres(t))
		insertStock(t, s.DB(), "a")
		insertStock(t, s.DB(), "b")
		serializable := &sql.TxOptions{Isolation: sql.LevelSerializable}
		first, second := s.DB().Begin(serializable), s.DB().Begin(serializable)
		for _, tx := range []*gorm.DB{first, second} {
			run(t, tx, "SELECT SUM(available) FROM stock")
		}
		run(t, first, "UPDATE stock SET available = 0 WHERE sku = 'a'")
		run(t, second, "UPDATE stock SET available = 0 WHERE sku = 'b'")
		if err := first.Commit().Error; err != nil {
			t.Fatal(err)
		}
		if err := second.Commit().Error; !isKnownRollback(err) || !IsRetryable(err) {
			t.Errorf("%v is %q", err, classes(err))
		}
	})
	// Under a global read lock COMMIT waits for the lock, times out, and the
	// error is 1205. That it also rolls back is what isKnownRollback relies on.
	t.Run("MariaDB/lock wait in COMMIT", func(t *testing.T) {
		s := opened(t, testenv.MariaDB(t)+"?lock_wait_timeout=1&max_statement_time=0")
		if err := s.MigrateUp(t.Context()); err != nil {
			t.Fatal(err)
		}
		insertStock(t, s.DB(), "a")
		tx := s.DB().Begin()
		run(t, tx, "UPDATE stock SET available = 1 WHERE sku = 'a'")
		connection := one[int64](t, tx, "SELECT CONNECTION_ID()")

		lock, err := s.pool.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer lock.Close()
		if _, err := lock.ExecContext(t.Context(), "FLUSH TABLES WITH READ LOCK"); err != nil {
			t.Fatal(err)
		}
		err = tx.Commit().Error
		if _, err := lock.ExecContext(t.Context(), "UNLOCK TABLES"); err != nil {
			t.Fatal(err)
		}
		t.Logf("COMMIT: %v is %q", err, classes(err))
		if err == nil {
			t.Fatal("COMMIT did not fail")
		}
		var open int
		if err := s.DB().Raw("SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_mysql_thread_id = ?", connection).Row().Scan(&open); err != nil {
			t.Fatal(err)
		}
		available := one[int](t, s.DB(), "SELECT available FROM stock")
		t.Logf("open transactions %d, available %d", open, available)
		if isKnownRollback(err) && (open != 0 || available != 10) {
			t.Errorf("%v counts as a known rollback, but %d transactions are open and available is %d", err, open, available)
		}
	})
	t.Run("context ended before", func(t *testing.T) {
		forEachSQL(t, func(t *testing.T, dbURL string) {
			s := migrated(t, dbURL)
			insertStock(t, s.DB(), "a")
			ctx, cancel := context.WithCancel(t.Context())
			tx := s.DB().WithContext(ctx).Begin()
			run(t, tx, "UPDATE stock SET available = 1 WHERE sku = 'a'")
			cancel()
			if err := tx.Commit().Error; err == nil {
				t.Error("COMMIT succeeded")
			}
			// Whatever the class, the row is free and unchanged soon after.
			eventually(t, 5*time.Second, "the row is as it was", func() bool {
				return one[int](t, s.DB(), "SELECT available FROM stock") == 10
			})
			run(t, s.DB(), "UPDATE stock SET available = 2 WHERE sku = 'a'")
		})
	})
}

// A COMMIT whose connection is cut has an unknown outcome, on every server.
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
			s := migrated(t, test.url(t))
			insertStock(t, s.DB(), "a")
			tx := s.DB().Begin()
			run(t, tx, "UPDATE stock SET available = 1 WHERE sku = 'a'")
			run(t, s.DB(), test.kill, one[int64](t, tx, test.own))
			eventually(t, 5*time.Second, "the row is free", func() bool {
				return s.DB().Exec("UPDATE stock SET available = 5 WHERE sku = 'a'").Error == nil
			})
			err := tx.Commit().Error
			if err == nil || isKnownRollback(err) || IsRetryable(err) || IsStatementError(err) {
				t.Errorf("%v is %q", err, classes(err))
			}
		})
	}
}

// Many writers of one row: whatever errors come, they are retryable.
func TestErrors_Contention(t *testing.T) {
	forEachSQL(t, func(t *testing.T, dbURL string) {
		s := migrated(t, dbURL)
		insertStock(t, s.DB(), "a")
		run(t, s.DB(), "UPDATE stock SET available = 100")
		var writers sync.WaitGroup
		for range 20 {
			writers.Go(func() {
				for range 5 {
					if err := s.DB().Transaction(func(tx *gorm.DB) error {
						return tx.Exec("UPDATE stock SET available = available - 1 WHERE sku = 'a'").Error
					}); err != nil {
						t.Errorf("%v is %q", err, classes(err))
					}
				}
			})
		}
		writers.Wait()
		if left := one[int](t, s.DB(), "SELECT available FROM stock"); left != 0 {
			t.Errorf("%d left of 100", left)
		}
	})
}
