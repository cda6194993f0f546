package store

import (
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

// Statement is one SQL statement with its arguments, in the dialect's own
// notation.
type Statement struct {
	SQL  string
	Args []any
}

// ExecAll runs the statements in their order, in one round trip where the
// database allows it, until one fails, and returns how many rows each affected.
// tx is a transaction.
func ExecAll(ctx context.Context, tx *gorm.DB, statements ...Statement) (affected []int64, err error) {
	if t, ok := tx.Statement.ConnPool.(*transaction); ok {
		return t.exec(ctx, statements)
	}
	return execApart(ctx, tx.Statement.ConnPool, statements)
}

// ErrUnknownOutcome: a COMMIT was sent, and whether it took effect is not known.
var ErrUnknownOutcome = errors.New("the outcome of the commit is unknown")

// Commit commits tx. Every error but ErrUnknownOutcome proves that nothing was
// committed.
func Commit(tx *gorm.DB) error {
	if err := tx.Statement.Context.Err(); err != nil { // the COMMIT is not sent
		tx.Rollback()
		return fmt.Errorf("committing: %w", err)
	}
	return outcome(tx.Commit().Error)
}

// outcome is the error of a transaction whose COMMIT, or whose one text with the
// COMMIT in it, was answered by err.
func outcome(err error) error {
	if err == nil || provesNoCommit(err) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrUnknownOutcome, err)
}

// Guard writes an SQL expression such that it has its value, or fails.
type Guard func(value string) string

// Unguarded writes the value as it is.
func Unguarded(value string) string { return value }

// CommitIf runs first, and then the others, in a transaction of their own that
// commits if first affected so many rows. Where the database can tell by
// itself, all of it is one round trip, else two.
//
// One value in the statement that follows first must be written as guard writes
// it. On an error other than ErrUnknownOutcome nothing was committed.
func CommitIf(ctx context.Context, db *gorm.DB, first Statement, rows int64, others func(guard Guard) []Statement) (committed bool, err error) {
	tx := db.WithContext(ctx).Begin()
	if tx.Error != nil {
		return false, fmt.Errorf("beginning: %w", tx.Error)
	}
	if t, ok := tx.Statement.ConnPool.(*transaction); ok && t.pool.guard != nil && takesTexts(t.conn) {
		return t.commitIf(ctx, append([]Statement{first}, others(t.pool.guard(rows))...))
	}
	affected, err := ExecAll(ctx, tx, append([]Statement{first}, others(Unguarded)...)...)
	if err != nil || affected[0] != rows {
		tx.Rollback()
		return false, err
	}
	err = Commit(tx)
	return err == nil, err
}

// rollbackTimeout bounds a ROLLBACK. It does not run on the transaction's
// context, which may be the reason for it.
const rollbackTimeout = 2 * time.Second

// pool begins transactions without a round trip of its own for BEGIN: that goes
// with the first statement. To a service that commits thousands of small
// transactions a second, each round trip is much of what one costs.
type pool struct {
	*sql.DB
	exec  execFunc
	begin string // the statement that begins a transaction
	// final says that a failed statement dooms its transaction.
	final bool
	// guard fails unless the statement before affected so many rows; guarded
	// recognises its error. nil: the database cannot tell within one round trip.
	guard   func(rows int64) Guard
	guarded func(error) bool
}

// execFunc sends statements in one round trip, and returns how many rows each
// affected.
type execFunc func(ctx context.Context, conn *sql.Conn, statements []Statement) ([]int64, error)

var (
	_ gorm.ConnPoolBeginner = pool{}
	_ gorm.GetDBConnector   = pool{}
	_ gorm.TxCommitter      = (*transaction)(nil)
)

// GetDBConn returns the pool that this one draws on.
func (p pool) GetDBConn() (*sql.DB, error) { return p.DB, nil }

// BeginTx takes a connection for a transaction. Sessions have their isolation
// level from OpenSQL, so options are those of database/sql's default.
func (p pool) BeginTx(ctx context.Context, options *sql.TxOptions) (gorm.ConnPool, error) {
	if options != nil && *options != (sql.TxOptions{}) {
		return p.DB.BeginTx(ctx, options)
	}
	conn, err := p.DB.Conn(ctx)
	if err != nil {
		return nil, err
	}
	return &transaction{ctx: ctx, conn: conn, pool: p}, nil
}

// transaction is one connection with a transaction on it, begun by its first
// statement. It is for one goroutine.
type transaction struct {
	ctx    context.Context
	conn   *sql.Conn
	pool   pool
	begun  bool
	doomed bool // it can only be rolled back
	over   bool
}

func (t *transaction) exec(ctx context.Context, statements []Statement) ([]int64, error) {
	if t.over {
		return nil, sql.ErrTxDone
	}
	begin := 0
	if !t.begun {
		t.begun, begin = true, 1 // as far as anyone knows, also if it fails
		statements = append([]Statement{{SQL: t.pool.begin}}, statements...)
	}
	affected, err := t.pool.exec(ctx, t.conn, statements)
	t.doomed = t.doomed || t.pool.final && err != nil
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

// begin begins the transaction for a statement that answers rows.
func (t *transaction) begin(ctx context.Context) error {
	if t.over {
		return sql.ErrTxDone
	}
	if t.begun {
		return nil
	}
	_, err := t.exec(ctx, nil)
	return err
}

// QueryContext runs one statement that answers rows.
func (t *transaction) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	if err := t.begin(ctx); err != nil {
		return nil, err
	}
	return t.conn.QueryContext(ctx, query, args...)
}

// QueryRowContext runs one statement that answers a row. Where the transaction
// could not begin, the row's error is the connection's.
func (t *transaction) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	if err := t.begin(ctx); err != nil {
		ctx, cancel := context.WithCancelCause(ctx)
		cancel(err)
		return t.conn.QueryRowContext(ctx, query, args...)
	}
	return t.conn.QueryRowContext(ctx, query, args...)
}

// PrepareContext prepares a statement on the transaction's connection.
func (t *transaction) PrepareContext(ctx context.Context, query string) (*sql.Stmt, error) {
	if err := t.begin(ctx); err != nil {
		return nil, err
	}
	return t.conn.PrepareContext(ctx, query)
}

// commitIf runs statements with a guard in one of them, and commits, in one
// round trip.
func (t *transaction) commitIf(ctx context.Context, statements []Statement) (committed bool, err error) {
	_, err = t.exec(ctx, append(statements, Statement{SQL: "COMMIT"}))
	switch {
	case err == nil:
		t.end(nil)
		return true, nil
	case t.pool.guarded(err):
		_ = t.Rollback()
		return false, nil
	case provesNoCommit(err), t.stillOpen(err):
		_ = t.Rollback()
		return false, err
	}
	t.end(err)
	return false, fmt.Errorf("%w: %w", ErrUnknownOutcome, err)
}

// stillOpen reports whether the server says that it refused a statement with err
// and that the transaction is open: then the COMMIT in the same text did not run.
func (t *transaction) stillOpen(err error) (open bool) {
	if driverError(err) == nil { // the connection is lost, and with it the answer
		return false
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.ctx), rollbackTimeout)
	defer cancel()
	// MySQL has no such variable and answers with an error: unknown.
	return t.conn.QueryRowContext(ctx, "SELECT @@in_transaction").Scan(&open) == nil && open
}

// Commit commits. An error may prove that it did not, see provesNoCommit; every
// other leaves the outcome unknown.
func (t *transaction) Commit() error {
	if t.over {
		return sql.ErrTxDone
	}
	if !t.begun {
		t.over = true
		return t.conn.Close()
	}
	if t.doomed {
		return errors.Join(pgx.ErrTxCommitRollback, t.Rollback())
	}
	if err := t.ctx.Err(); err != nil { // the COMMIT is not sent
		return errors.Join(err, t.Rollback())
	}
	_, err := t.pool.exec(t.ctx, t.conn, []Statement{{SQL: "COMMIT"}})
	t.end(err)
	return err
}

// end lets go of the connection after a COMMIT that gave err.
func (t *transaction) end(err error) {
	t.over = true
	if err != nil {
		t.discard()
		return
	}
	_ = t.conn.Close() // committed: what becomes of the connection is another matter
}

// Rollback rolls back, by ending the session where it cannot be told to.
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

// discard keeps the connection from being used again.
func (t *transaction) discard() {
	_ = t.conn.Raw(func(any) error { return driver.ErrBadConn })
	_ = t.conn.Close()
}

// execMySQL sends all statements as one text where the server ends a text at the
// first error and at a loss of the transaction, else one after the other.
func execMySQL(ctx context.Context, conn *sql.Conn, statements []Statement) (affected []int64, err error) {
	if len(statements) == 1 || !takesTexts(conn) {
		return execApart(ctx, conn, statements)
	}
	var text strings.Builder
	for i, s := range statements {
		if i > 0 {
			text.WriteString("; ")
		}
		text.WriteString(s.SQL)
	}
	err = conn.Raw(func(raw any) error {
		args, err := namedValues(raw.(driver.NamedValueChecker), statements)
		if err != nil {
			return err
		}
		result, err := raw.(driver.ExecerContext).ExecContext(ctx, text.String(), args)
		if errors.Is(err, driver.ErrSkip) { // it sends nothing that the server would not take
			return mysql.ErrPktTooLarge
		}
		if err != nil {
			return err
		}
		affected = result.(mysql.Result).AllRowsAffected()
		if len(affected) != len(statements) { // the session was killed between two of them
			return fmt.Errorf("the server answered %d of %d statements: %w", len(affected), len(statements), errCutShort)
		}
		return nil
	})
	return affected, err
}

// errCutShort: the server answered a part of a text and reported no error.
var errCutShort = errors.New("the text was cut short")

// execer is a connection, or a transaction.
type execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// execApart sends the statements one after the other.
func execApart(ctx context.Context, conn execer, statements []Statement) (affected []int64, err error) {
	for _, s := range statements {
		result, err := conn.ExecContext(ctx, s.SQL, s.Args...)
		if err != nil {
			return affected, err
		}
		n, err := result.RowsAffected()
		if err != nil {
			return affected, err
		}
		affected = append(affected, n)
	}
	return affected, nil
}

// namedValues are the arguments of all statements, as package sql would hand
// them to the driver.
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
		for range statements {
			tag, err := answers.Exec()
			if err != nil {
				_ = answers.Close() // it would say the same again
				return err
			}
			affected = append(affected, tag.RowsAffected())
		}
		return answers.Close()
	})
	return affected, err
}
