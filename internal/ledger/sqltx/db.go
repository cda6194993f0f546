// Package sqltx runs the ledger's SQL: statements, transactions that need few
// round trips, and commits whose outcome is known or reported as unknown. It
// hides what differs between MySQL, PostgreSQL and SQLite.
package sqltx

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"gorm.io/gorm"
)

// session runs statements, on a connection of their own or in a transaction.
type session struct {
	gorm    *gorm.DB
	dialect Dialect
}

// DB is the ledger's database. Each of its statements runs on a connection of
// its own and commits by itself. It is safe for concurrent use.
type DB struct{ session }

// Tx is a transaction. It is for one goroutine.
type Tx struct{ session }

// New returns the database that db has open.
func New(db *gorm.DB, dialect Dialect) *DB { return &DB{session{db, dialect}} }

// Dialect returns the kind of database.
func (s session) Dialect() Dialect { return s.dialect }

// Exec runs a statement and returns how many rows it affected. Placeholders are
// question marks; a slice argument becomes a list.
func (s session) Exec(ctx context.Context, sql string, args ...any) (affected int64, err error) {
	done := s.gorm.WithContext(ctx).Exec(sql, args...)
	return done.RowsAffected, done.Error
}

// QueryEach runs a statement and calls scan for each of its rows, in order, to
// read the row's columns with rows.Scan. It stops at the first error of scan, and
// returns it with ErrScan. In a transaction, scan must not run other statements.
func (s session) QueryEach(ctx context.Context, scan func(rows *sql.Rows) error, sql string, args ...any) error {
	rows, err := s.query(ctx, sql, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := scan(rows); err != nil {
			return fmt.Errorf("%w: %w", ErrScan, err)
		}
	}
	return rows.Err()
}

// query runs a statement that returns rows. The caller must close them.
func (s session) query(ctx context.Context, sql string, args ...any) (*sql.Rows, error) {
	return s.gorm.WithContext(ctx).Raw(sql, args...).Rows()
}

// QueryRow runs a statement and scans its first row into dest, pointers to one
// value for each column. sql.ErrNoRows: there is no row.
func (s session) QueryRow(ctx context.Context, dest []any, sql string, args ...any) error {
	rows, err := s.query(ctx, sql, args...)
	if err != nil {
		return err
	}
	return scanFirst(rows, dest)
}

// scanFirst scans the first row into dest and closes rows.
func scanFirst(rows *sql.Rows, dest []any) error {
	defer rows.Close()
	if !rows.Next() {
		return cmp.Or(rows.Err(), sql.ErrNoRows)
	}
	if err := rows.Scan(dest...); err != nil {
		return err
	}
	return rows.Close()
}

// Now reads the database's clock, in UTC and whole microseconds.
func (s session) Now(ctx context.Context) (time.Time, error) {
	var now Time
	if err := s.QueryRow(ctx, []any{&now}, "SELECT "+s.dialect.Now()); err != nil {
		return time.Time{}, fmt.Errorf("reading the database's clock: %w", err)
	}
	return time.Time(now), nil
}

// Begin begins a transaction. Once ctx has ended, Commit rolls it back.
func (db *DB) Begin(ctx context.Context) (*Tx, error) {
	tx := db.gorm.WithContext(ctx).Begin()
	if tx.Error != nil {
		return nil, fmt.Errorf("beginning: %w", tx.Error)
	}
	return &Tx{session{tx, db.dialect}}, nil
}

// Rollback ends tx and undoes its statements. It does nothing if tx is over.
func (tx *Tx) Rollback() { tx.gorm.Rollback() }

// ErrUnknownOutcome: a COMMIT was sent, and it is not known whether it took
// effect.
var ErrUnknownOutcome = errors.New("the outcome of the commit is unknown")

// Commit commits tx. Every error except ErrUnknownOutcome proves that nothing was
// committed.
func (tx *Tx) Commit() error {
	ctx := tx.gorm.Statement.Context
	if err := ctx.Err(); err != nil { // the COMMIT is not sent
		tx.Rollback()
		return fmt.Errorf("committing: %w", err)
	}
	start := time.Now()
	err := tx.gorm.Commit().Error
	tx.trace(ctx, start, []Statement{{SQL: "COMMIT"}}, err)
	return commitError(err)
}

// commitError classifies err, the answer to a COMMIT or to a text that ends with
// one.
func commitError(err error) error {
	if err == nil || provesNoCommit(err) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrUnknownOutcome, err)
}

// Statement is one SQL statement with its arguments. Its placeholders are
// written as Dialect.Bind writes them.
type Statement struct {
	SQL  string
	Args []any
}

// ExecAll runs the statements in order, in a transaction in one round trip if the
// database allows it. It stops at the first error, and returns how many rows each
// statement affected. Outside a transaction each statement commits by itself.
func (s session) ExecAll(ctx context.Context, statements ...Statement) (affected []int64, err error) {
	start := time.Now()
	if t, ok := s.gorm.Statement.ConnPool.(*transaction); ok {
		affected, err = t.exec(ctx, statements)
	} else {
		affected, err = execApart(ctx, s.gorm.Statement.ConnPool, statements)
	}
	s.trace(ctx, start, statements, err)
	return affected, err
}

// Guard wraps an SQL expression so that it fails unless the statement before
// affected the expected number of rows.
type Guard func(value string) string

// Unguarded returns value as it is.
func Unguarded(value string) string { return value }

// CommitIf runs first, and then the others, in one transaction, and commits it
// if first affected the given number of rows and every condition of Dialect.Require
// holds; otherwise it rolls back. It takes
// one round trip if the database can check the number by itself, and two if not.
//
// Exactly one value in the statement that follows first must be wrapped by
// guard. Every error except ErrUnknownOutcome proves that nothing was committed.
func (db *DB) CommitIf(ctx context.Context, first Statement, rows int64, others func(guard Guard) []Statement) (committed bool, err error) {
	if p, ok := db.gorm.ConnPool.(pool); ok && p.require != nil {
		t, err := p.take(ctx)
		if err != nil {
			return false, fmt.Errorf("beginning: %w", err)
		}
		if takesTexts(t.conn) {
			counted, guard := p.require(first, rows)
			text := slices.Concat([]Statement{counted}, others(guard), []Statement{{SQL: "COMMIT"}})
			start := time.Now()
			committed, err = t.commitIf(ctx, text)
			text[0] = first
			db.trace(ctx, start, text, err)
			return committed, err
		}
		_ = t.Rollback() // it has not begun
	}
	tx, err := db.Begin(ctx)
	if err != nil {
		return false, err
	}
	affected, err := tx.ExecAll(ctx, append([]Statement{first}, others(Unguarded)...)...)
	if isUnmet(err) {
		tx.Rollback()
		return false, nil
	}
	if err != nil || affected[0] != rows {
		tx.Rollback()
		return false, err
	}
	err = tx.Commit()
	return err == nil, err
}

// Confirm returns nil once every row that the database has shown is as durable
// as a COMMIT promises. Call it before an answer relies on a row that was read: a
// PostgreSQL primary with a synchronous standby shows rows that the standby does
// not have, if a commit's wait for the standby was cancelled or the primary
// restarted. Other databases need no confirmation.
func (db *DB) Confirm(ctx context.Context) error {
	statement := db.dialect.confirmation()
	if statement == "" {
		return nil
	}
	if _, err := db.Exec(ctx, statement); err != nil {
		return fmt.Errorf("waiting for the standby: %w", err)
	}
	return nil
}

// Transact runs do in a transaction of its own and commits it if do returns nil.
func (db *DB) Transact(ctx context.Context, do func(tx *Tx) error) error {
	tx, err := db.Begin(ctx)
	if err != nil {
		return err
	}
	if err := do(tx); err != nil {
		tx.Rollback()
		return err
	}
	return tx.Commit()
}

// heads shortens statements for the log: their values are left out.
func heads(statements []Statement) string {
	heads := make([]string, len(statements))
	for i, s := range statements {
		heads[i], _, _ = strings.Cut(s.SQL, " VALUES ")
	}
	return strings.Join(heads, "; ")
}

// trace logs the statements if they were slow.
func (s session) trace(ctx context.Context, start time.Time, statements []Statement, err error) {
	s.gorm.Logger.Trace(ctx, start, func() (string, int64) { return heads(statements), -1 }, err)
}
