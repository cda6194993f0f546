package sqltx

import (
	"database/sql"
	"database/sql/driver"
	"errors"

	gosqlite "github.com/glebarez/go-sqlite"
	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	sqlite3 "modernc.org/sqlite/lib"
)

// Error numbers of MySQL and MariaDB.
const (
	mysqlDuplicateEntry     = 1062
	mysqlLockWaitTimeout    = 1205
	mysqlDeadlock           = 1213
	mysqlRecordChanged      = 1020 // MariaDB with snapshot isolation
	mysqlTooManyConnections = 1203 // limit for this user, with the SQLSTATE of a syntax error
	mysqlResourceLimit      = 1226 // also has the SQLSTATE of a syntax error
	mysqlIncorrectValue     = 1366
	mysqlCheckViolated      = 3819
	mysqlPacketTooLarge     = 1153
	mysqlOutOfRange         = 1690
	mysqlLockNotNow         = 3572
	mysqlReadOnlyTable      = 1036 // InnoDB started read-only, in MariaDB
	mysqlReadOnlyServer     = 1290 // read_only and super_read_only; other options refuse only statements that the ledger does not use
	mysqlReadOnlySession    = 1792
	mysqlReadOnlyMode       = 1836
	mysqlReadOnlyInnoDB     = 1874
	tidbSafeToRetry         = 8022
	tidbSchemaChanged       = 8028
	tidbWriteConflict       = 9007
)

// ErrScan means that the caller of QueryEach cannot use a value of a row.
var ErrScan = errors.New("reading a row")

// IsDuplicate reports whether err says that a row with the same key exists.
func IsDuplicate(err error) bool {
	switch e := driverError(err).(type) {
	case *mysql.MySQLError:
		return e.Number == mysqlDuplicateEntry
	case *pgconn.PgError:
		return e.Code == "23505"
	case *gosqlite.Error:
		return e.Code() == sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY || e.Code() == sqlite3.SQLITE_CONSTRAINT_UNIQUE
	}
	return false
}

// isUnmet reports whether err may mean that a condition of Dialect.Require was not met.
func isUnmet(err error) bool {
	switch e := driverError(err).(type) {
	case *mysql.MySQLError:
		return e.Number == mysqlOutOfRange
	case *pgconn.PgError:
		return e.Code == "22003"
	case *gosqlite.Error:
		return e.Code() == sqlite3.SQLITE_CONSTRAINT_NOTNULL
	}
	return false
}

// IsRetryable reports whether err is a conflict with another transaction. The transaction may
// succeed if it is rolled back and run again. The database may or may not have rolled it back
// already. It is false for ErrUnknownOutcome: as the answer to a COMMIT, such a conflict proves
// that nothing was committed.
func IsRetryable(err error) bool {
	switch e := driverError(err).(type) {
	case *mysql.MySQLError:
		switch e.Number {
		case mysqlDeadlock, mysqlLockWaitTimeout, mysqlLockNotNow, mysqlRecordChanged,
			tidbWriteConflict, tidbSafeToRetry, tidbSchemaChanged:
			return true
		}
	case *pgconn.PgError:
		return e.Code == "40001" || e.Code == "40P01" || e.Code == "55P03"
	case *gosqlite.Error:
		return primary(e) == sqlite3.SQLITE_BUSY || primary(e) == sqlite3.SQLITE_LOCKED
	}
	return false
}

// IsLockTimeout reports whether err says that a row stayed locked by another
// transaction for longer than a session waits. The transaction may succeed if it
// is rolled back and run again.
func IsLockTimeout(err error) bool {
	switch e := driverError(err).(type) {
	case *mysql.MySQLError:
		return e.Number == mysqlLockWaitTimeout || e.Number == mysqlLockNotNow
	case *pgconn.PgError:
		return e.Code == "55P03"
	}
	return false
}

// IsReadOnly reports whether err says that the database refuses writes at present.
// The statement had no effect.
func IsReadOnly(err error) bool {
	switch e := driverError(err).(type) {
	case *mysql.MySQLError:
		switch e.Number {
		case mysqlReadOnlyTable, mysqlReadOnlyServer, mysqlReadOnlySession, mysqlReadOnlyMode, mysqlReadOnlyInnoDB:
			return true
		}
	case *pgconn.PgError:
		return e.Code == "25006"
	case *gosqlite.Error:
		return primary(e) == sqlite3.SQLITE_READONLY
	}
	return false
}

// provesNoCommit reports whether err proves that nothing was committed: the COMMIT was not sent,
// the database rolled back, or it refused an earlier statement. err is the answer to a COMMIT, or
// to a text that ends with one. With any other error the outcome is unknown: the commit may have
// succeeded and its answer be lost.
func provesNoCommit(err error) bool {
	return isUnsent(err) || isKnownRollback(err) || IsRetryable(err) || IsStatementError(err) || IsReadOnly(err)
}

// isUnsent reports whether err arose before any statement was sent, except to be
// prepared. It does not use pgconn.SafeToRetry, which also returns true if the server
// closed the connection in the middle of its answer.
func isUnsent(err error) bool {
	return errors.As(err, new(pgx.ErrPreprocessingBatch)) || errors.Is(err, driver.ErrBadConn) || errors.Is(err, sql.ErrConnDone)
}

// isKnownRollback reports whether err, returned by the only COMMIT of a transaction, means that the
// database has rolled the transaction back. It leaves out conflicts and refused statements.
func isKnownRollback(err error) bool {
	if errors.Is(err, pgx.ErrTxCommitRollback) {
		return true
	}
	switch e := driverError(err).(type) {
	case *mysql.MySQLError:
		return string(e.SQLState[:2]) == "40"
	case *pgconn.PgError:
		// 40003 is itself "statement completion unknown". 25P02: the transaction
		// had failed; 25P03: it had been idle for too long.
		return pgClass(e) == "40" && e.Code != "40003" || e.Code == "25P02" || e.Code == "25P03"
	}
	return false
}

// IsStatementError reports whether the database refused a statement because of its
// syntax, a value, a constraint or its size. The same statement without the row at
// fault may succeed.
func IsStatementError(err error) bool {
	if errors.Is(err, mysql.ErrPktTooLarge) {
		return true
	}
	switch e := driverError(err).(type) {
	case *mysql.MySQLError:
		switch e.Number {
		case mysqlTooManyConnections, mysqlResourceLimit:
			return false
		case mysqlIncorrectValue, mysqlCheckViolated, mysqlPacketTooLarge:
			return true
		}
		class := string(e.SQLState[:2])
		return class == "21" || class == "22" || class == "23" || class == "42" || class == "45" // class 45: raised by a trigger
	case *pgconn.PgError:
		switch pgClass(e) {
		case "21", "22", "23", "42", "54", "P0": // class 54: too large or too complex; P0: raised by a trigger
			return true
		}
	case *gosqlite.Error:
		switch primary(e) {
		case sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_RANGE:
			return true
		}
	}
	return false
}

// IsValueError reports whether the database refused a value, or a row that violates a constraint
// other than a unique key. Errors of triggers do not count. The database refuses the same row again
// for as long as the schema is the same.
func IsValueError(err error) bool {
	if IsDuplicate(err) {
		return false
	}
	switch e := driverError(err).(type) {
	case *mysql.MySQLError:
		class := string(e.SQLState[:2])
		return class == "22" || class == "23" || e.Number == mysqlIncorrectValue || e.Number == mysqlCheckViolated
	case *pgconn.PgError:
		return pgClass(e) == "22" || pgClass(e) == "23"
	case *gosqlite.Error:
		return primary(e) == sqlite3.SQLITE_CONSTRAINT && e.Code() != sqlite3.SQLITE_CONSTRAINT_TRIGGER || primary(e) == sqlite3.SQLITE_MISMATCH
	}
	return false
}

// driverError returns the error in err that the database itself reported, or nil
// if there is none.
func driverError(err error) error {
	var (
		my   *mysql.MySQLError
		pg   *pgconn.PgError
		lite *gosqlite.Error
	)
	switch {
	case errors.As(err, &my):
		return my
	case errors.As(err, &pg):
		return pg
	case errors.As(err, &lite):
		return lite
	}
	return nil
}

func pgClass(e *pgconn.PgError) string {
	if len(e.Code) < 2 {
		return ""
	}
	return e.Code[:2]
}

func primary(e *gosqlite.Error) int { return e.Code() & 0xff }
