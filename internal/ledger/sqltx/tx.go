package sqltx

import (
	"cmp"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"gorm.io/gorm"
)

// rollbackTimeout bounds a ROLLBACK. The ROLLBACK does not run on the transaction's context, because
// the end of that context may be its cause.
const rollbackTimeout = 2 * time.Second

// pool sends BEGIN together with the first statement of a transaction. In small transactions, which
// run thousands of times a second, each round trip is a large part of the cost.
type pool struct {
	*sql.DB
	begin string // the statement that begins a transaction

	// The functions below are for connections that accept texts.

	exec execFunc
	// query runs a statement that returns rows, after begin, in one round trip.
	query func(ctx context.Context, conn *sql.Conn, begin, query string, args []any) (*sql.Rows, error)
	// open reports whether the server says that the connection's transaction is open.
	open func(context.Context, *sql.Conn) bool
}

// MySQLPool returns connections, whose sessions come from MySQLConnector, as
// gorm's connection pool.
func MySQLPool(connections *sql.DB) gorm.ConnPool {
	return pool{DB: connections, exec: execMySQL, begin: "START TRANSACTION", query: queryMySQL, open: openMySQL}
}

// PostgresPool returns connections, whose sessions come from PostgresConnector,
// as gorm's connection pool.
func PostgresPool(connections *sql.DB) gorm.ConnPool {
	return pool{DB: connections, exec: execPostgres, begin: "START TRANSACTION", query: queryPostgres, open: openPostgres}
}

// SQLitePool returns connections as gorm's connection pool. lock is the mode in which a transaction
// begins: deferred, immediate or exclusive. The pool discards a connection whose COMMIT was
// answered BUSY, because its transaction is still open. Package sql would use the connection again.
func SQLitePool(connections *sql.DB, lock string) gorm.ConnPool {
	return pool{DB: connections, begin: "BEGIN " + lock}
}

// execFunc sends statements in one round trip, and returns how many rows each
// affected.
type execFunc func(ctx context.Context, conn *sql.Conn, statements []Statement) ([]int64, error)

var (
	_ gorm.GetDBConnector = pool{}
	_ gorm.ConnPool       = (*transaction)(nil)
)

// GetDBConn returns the underlying pool.
func (p pool) GetDBConn() (*sql.DB, error) { return p.DB, nil }

// transaction is a transaction on one connection. Its first statement begins it. It is not safe for
// concurrent use.
type transaction struct {
	gorm.ConnPool // nil: methods of ConnPool that are not defined below panic, because nothing calls them

	ctx   context.Context
	conn  *sql.Conn
	pool  pool
	texts bool // several statements, a COMMIT among them, may be sent at once
	begun bool
	over  bool
}

func (t *transaction) exec(ctx context.Context, statements []Statement) ([]int64, error) {
	if t.over {
		return nil, sql.ErrTxDone
	}
	begin := 0
	if !t.begun {
		t.begun, begin = true, 1 // set even if the call fails, because BEGIN may have run
		statements = append([]Statement{{SQL: t.pool.begin}}, statements...)
	}
	affected, err := t.pool.exec(ctx, t.conn, statements)
	if err != nil {
		return nil, err
	}
	return affected[begin:], nil
}

// ExecContext runs one statement.
func (t *transaction) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	affected, err := t.exec(ctx, []Statement{{query, args}})
	if err != nil {
		return nil, err
	}
	return driver.RowsAffected(affected[0]), nil
}

// QueryContext runs one statement that returns rows.
func (t *transaction) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	switch {
	case t.over:
		return nil, sql.ErrTxDone
	case t.begun:
	case t.texts:
		t.begun = true // set even if the call fails, because BEGIN may have run
		return t.pool.query(ctx, t.conn, t.pool.begin, query, args)
	default:
		if _, err := t.exec(ctx, nil); err != nil {
			return nil, err
		}
	}
	return t.conn.QueryContext(ctx, query, args...)
}

// stillOpen reports whether the server says that the transaction is open after the server refused a
// statement with err. Then the COMMIT sent with the statement did not run.
func (t *transaction) stillOpen(err error) bool {
	if driverError(err) == nil { // the connection is lost, or the answer
		return false
	}
	return t.pool.open(t.ctx, t.conn)
}

// openMySQL asks the server for the variable in_transaction. MySQL has no such variable and returns
// an error, so the outcome stays unknown.
func openMySQL(ctx context.Context, conn *sql.Conn) (open bool) {
	return conn.QueryRowContext(ctx, "SELECT @@in_transaction").Scan(&open) == nil && open
}

// openPostgres reads the transaction status of the server's last answer. It reports whether the
// transaction is open and has failed.
func openPostgres(_ context.Context, conn *sql.Conn) (open bool) {
	_ = conn.Raw(func(raw any) error {
		session, ok := raw.(*postgresSession)
		open = ok && session.Conn.Conn().PgConn().TxStatus() == 'E'
		return nil
	})
	return open
}

// commit runs the statements, of which the last is the COMMIT. It requires that the first statement
// affects the given number of rows, unless the number is 0. A server that accepts texts checks the
// number itself. Every error except ErrUnknownOutcome proves that nothing was committed. After an
// error the transaction may still be open.
func (t *transaction) commit(statements []Statement, rows int64) error {
	switch {
	case t.over:
		return sql.ErrTxDone
	case t.ctx.Err() != nil: // the COMMIT is not sent
		return t.ctx.Err()
	}
	if last := len(statements) - 1; !t.texts && last > 0 {
		if err := t.execFirst(statements[:last], rows); err != nil {
			return err
		}
		statements = statements[last:]
	}
	_, err := t.exec(t.ctx, statements)
	switch {
	case err == nil:
		t.over = true
		_ = t.conn.Close() // the transaction is committed even if this fails
		return nil
	case len(statements) > 1 && (provesNoCommit(err) || t.stillOpen(err)):
		return err
	}
	t.over = true
	t.discard()
	if provesNoCommit(err) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrUnknownOutcome, err)
}

// execFirst runs the statements. It returns ErrUnmet if rows is not 0 and the first statement did
// not affect that many rows.
func (t *transaction) execFirst(statements []Statement, rows int64) error {
	affected, err := t.exec(t.ctx, statements)
	if err == nil && rows > 0 && affected[0] != rows {
		return ErrUnmet
	}
	return err
}

// Rollback rolls back. If the server does not answer, it closes the session.
func (t *transaction) Rollback() error {
	if t.over {
		return sql.ErrTxDone
	}
	t.over = true
	if !t.begun {
		return t.conn.Close()
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.ctx), rollbackTimeout)
	defer cancel()
	if _, err := t.pool.exec(ctx, t.conn, []Statement{{SQL: "ROLLBACK"}}); err != nil {
		t.discard()
		return err
	}
	return t.conn.Close()
}

// discard closes the connection, so that it is not used again.
func (t *transaction) discard() { _ = t.conn.Raw(func(any) error { return driver.ErrBadConn }) }

// execMySQL sends all statements as one text. The server must stop a text at the first
// error and when the transaction is lost.
func execMySQL(ctx context.Context, conn *sql.Conn, statements []Statement) (affected []int64, err error) {
	if len(statements) == 1 {
		return execApart(ctx, conn, statements)
	}
	texts := make([]string, len(statements))
	for i, s := range statements {
		texts[i] = s.SQL
	}
	err = conn.Raw(func(raw any) error {
		args, err := namedValues(raw.(driver.NamedValueChecker), statements)
		if err != nil {
			return err
		}
		result, err := raw.(driver.ExecerContext).ExecContext(ctx, strings.Join(texts, "; "), args)
		if errors.Is(err, driver.ErrSkip) { // the driver does not send texts above the server's limit
			return mysql.ErrPktTooLarge
		}
		if err != nil {
			return err
		}
		affected = result.(mysql.Result).AllRowsAffected()
		if len(affected) != len(statements) { // the session was killed between two of the statements
			return fmt.Errorf("the server answered %d of %d statements: %w", len(affected), len(statements), errCutShort)
		}
		return nil
	})
	return affected, err
}

// errCutShort means that the server answered only a part of a text and reported no error.
var errCutShort = errors.New("the text was cut short")

// execer is a connection, or a transaction.
type execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// execApart sends the statements one by one.
func execApart[E execer](ctx context.Context, conn E, statements []Statement) (affected []int64, err error) {
	for _, s := range statements {
		result, err := conn.ExecContext(ctx, s.SQL, s.Args...)
		if err != nil {
			return affected, err
		}
		n, _ := result.RowsAffected() // all drivers report the number
		affected = append(affected, n)
	}
	return affected, nil
}

// namedValues returns the arguments of all statements as package sql passes them
// to a driver.
func namedValues(checker driver.NamedValueChecker, statements []Statement) ([]driver.NamedValue, error) {
	var values []driver.NamedValue
	for _, s := range statements {
		for _, arg := range s.Args {
			value := driver.NamedValue{Ordinal: len(values) + 1, Value: arg}
			if err := checker.CheckNamedValue(&value); err != nil {
				return nil, err
			}
			values = append(values, value)
		}
	}
	return values, nil
}

// execPostgres sends all statements in one pipeline.
func execPostgres(ctx context.Context, conn *sql.Conn, statements []Statement) (affected []int64, err error) {
	err = conn.Raw(func(raw any) error {
		session := raw.(*postgresSession)
		if len(statements) == 1 {
			tag, err := session.exec(ctx, statements[0])
			affected = append(affected, tag.RowsAffected())
			return err
		}
		batch := &pgx.Batch{}
		for _, s := range statements {
			batch.Queue(s.SQL, s.Args...)
		}
		answers := session.Conn.Conn().SendBatch(ctx, batch)
		for i := range statements {
			if i == len(statements)-1 {
				session.clearWarning() // a trigger may cause warnings; only those of a COMMIT matter
			}
			tag, err := answers.Exec()
			if err == nil {
				err = rolledBack(statements[i], tag)
			}
			if err != nil {
				return cmp.Or(err, answers.Close()) // Close returns the same error, if any
			}
			affected = append(affected, tag.RowsAffected())
		}
		return cmp.Or(answers.Close(), session.warning(statements[len(statements)-1].SQL == "COMMIT"))
	})
	return affected, err
}

// queryMySQL sends begin and query as one text.
func queryMySQL(ctx context.Context, conn *sql.Conn, begin, query string, args []any) (*sql.Rows, error) {
	rows, err := conn.QueryContext(ctx, begin+"; "+query, args...)
	if err != nil {
		return nil, err
	}
	if columns, err := rows.Columns(); err != nil || len(columns) == 0 { // the session was killed between the two
		defer rows.Close()
		return nil, errors.Join(errCutShort, err)
	}
	return rows, nil
}

// queryPostgres sends begin and query as one pipeline.
func queryPostgres(ctx context.Context, conn *sql.Conn, begin, query string, args []any) (*sql.Rows, error) {
	return conn.QueryContext(context.WithValue(ctx, beginning{}, begin), query, args...)
}
