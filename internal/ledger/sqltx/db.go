// Package sqltx runs the ledger's SQL: statements, transactions that need few round trips, and
// commits whose outcome is known or reported as unknown. It hides the differences between MySQL,
// PostgreSQL and SQLite.
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

// runner runs statements, on a connection of their own or in a transaction.
type runner struct {
	gorm    *gorm.DB
	dialect Dialect
	lacks   Lacks
	on      *transaction // nil: each statement has its own connection
}

// Lacks lists the features that an engine lacks, although other engines of its dialect have them.
type Lacks struct {
	// SkipLocked is FOR UPDATE SKIP LOCKED. An engine may accept the clause and lock
	// nothing.
	SkipLocked bool
	// Standbys are synchronous standbys, and the function that waits for them.
	Standbys bool
}

// DB is the ledger's database. Each of its statements runs on a connection of
// its own and commits by itself. It is safe for concurrent use.
type DB struct{ runner }

// Tx is a transaction. It is not safe for concurrent use.
type Tx struct {
	runner
	last []Statement // statements that Commit runs
	rows int64       // number of rows that the first of them must affect; 0: any number
}

// New returns a DB on the database that db has open.
func New(db *gorm.DB, dialect Dialect) *DB { return &DB{runner{gorm: db, dialect: dialect}} }

// Without returns db for an engine that lacks something.
func (db *DB) Without(lacks Lacks) *DB {
	without := *db
	without.lacks = lacks
	return &without
}

// Dialect returns the kind of database.
func (r runner) Dialect() Dialect { return r.dialect }

// SkipsLocked reports whether a SELECT can skip rows that other transactions have locked.
func (r runner) SkipsLocked() bool { return r.dialect != SQLite && !r.lacks.SkipLocked }

// SkipLocked is the clause that makes a SELECT lock its rows and skip locked ones. If the database
// cannot skip them, the clause waits for them.
func (r runner) SkipLocked() string {
	if !r.SkipsLocked() {
		return r.dialect.RowLock()
	}
	return " FOR UPDATE SKIP LOCKED"
}

// Exec runs a statement and returns how many rows it affected. Placeholders are
// question marks; a slice argument becomes a list.
func (r runner) Exec(ctx context.Context, sql string, args ...any) (affected int64, err error) {
	done := r.with(ctx).Exec(sql, args...)
	return done.RowsAffected, done.Error
}

// QueryEach runs a statement and calls scan for each of its rows, in order, to
// read the row's columns with rows.Scan. It stops at the first error of scan, and
// returns it with ErrScan. In a transaction, scan must not run other statements.
func (r runner) QueryEach(ctx context.Context, scan func(rows *sql.Rows) error, sql string, args ...any) error {
	rows, err := r.with(ctx).Raw(sql, args...).Rows()
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

// Reader is a DB or a Tx.
type Reader interface {
	Dialect() Dialect
	QueryEach(ctx context.Context, scan func(rows *sql.Rows) error, sql string, args ...any) error
	QueryRow(ctx context.Context, dest []any, query string, args ...any) error
}

// ReadAll runs a statement and returns a T for each of its rows, in order. fields returns pointers
// to the fields of a T, one for each column. Its errors are those of QueryEach.
func ReadAll[T any](ctx context.Context, from Reader, fields func(*T) []any, query string, args ...any) (all []T, err error) {
	err = from.QueryEach(ctx, func(rows *sql.Rows) error {
		var one T
		err := rows.Scan(fields(&one)...)
		all = append(all, one)
		return err
	}, query, args...)
	return all, err
}

// with returns gorm for one statement, which writes the placeholders and lists.
func (r runner) with(ctx context.Context) *gorm.DB {
	g := r.gorm.WithContext(ctx)
	if r.on != nil {
		g.Statement.ConnPool = r.on
	}
	return g
}

// QueryRow runs a statement and scans its first row into dest, pointers to one value for each
// column. It returns sql.ErrNoRows if there is no row.
func (r runner) QueryRow(ctx context.Context, dest []any, query string, args ...any) error {
	rows, err := r.with(ctx).Raw(query, args...).Rows()
	if err != nil {
		return err
	}
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
func (r runner) Now(ctx context.Context) (time.Time, error) {
	var now Time
	if err := r.QueryRow(ctx, []any{&now}, "SELECT "+r.dialect.Now()); err != nil {
		return time.Time{}, fmt.Errorf("reading the database's clock: %w", err)
	}
	return time.Time(now), nil
}

// Begin takes a connection for a transaction. The first statement begins the transaction. Once ctx
// has ended, Commit rolls it back.
func (db *DB) Begin(ctx context.Context) (*Tx, error) {
	p := db.gorm.ConnPool.(pool)
	conn, err := p.Conn(ctx)
	if err != nil {
		return nil, fmt.Errorf("beginning: %w", err)
	}
	t := &transaction{ctx: ctx, conn: conn, pool: p, texts: takesTexts(conn)}
	if !t.texts {
		t.pool.exec = execApart[*sql.Conn]
	}
	return &Tx{runner: runner{db.gorm, db.dialect, db.lacks, t}}, nil
}

// Rollback ends tx and undoes its statements. It does nothing if tx is over.
func (tx *Tx) Rollback() { _ = tx.on.Rollback() }

// ErrUnknownOutcome means that a COMMIT was sent, and that it is unknown whether it took effect.
var ErrUnknownOutcome = errors.New("the outcome of the commit is unknown")

// AtCommit adds statements that Commit runs before its COMMIT, whose answers tx does not need. They
// share a round trip with the COMMIT if the database allows it.
func (tx *Tx) AtCommit(statements ...Statement) { tx.last = append(tx.last, statements...) }

// ErrUnmet means that a condition of the transaction was not met, and that the transaction was
// rolled back. See Tx.Expect.
var ErrUnmet = errors.New("a condition of the transaction does not hold")

// Expect adds the first statement of tx to those of AtCommit. It must affect the given number of
// rows. Otherwise, or if a condition of Dialect.Require is not met, Commit rolls back and returns
// ErrUnmet.
//
// Expect returns an SQL expression with the given value, which the next statement must contain. On
// MySQL the expression may check the number of rows, and then fails if the number is wrong.
func (tx *Tx) Expect(rows int64, first Statement, value string) (checked string) {
	tx.rows = rows
	switch {
	case !tx.on.texts: // Commit checks the number
	case tx.dialect == MySQL:
		value = tx.dialect.Require(fmt.Sprintf("ROW_COUNT() = %d", rows), value)
	case tx.dialect == Postgres: // the statement counts its rows itself, and an error skips the rest of the pipeline
		counted := tx.dialect.Require("count(*) = ?", "(1 + count(*))")
		first = Statement{"WITH affected AS (" + first.SQL + " RETURNING 1) SELECT " + counted + " FROM affected", append(slices.Clone(first.Args), rows)}
	}
	tx.last = append(tx.last, first)
	return value
}

// Commit runs the statements of AtCommit and commits tx. Every error except
// ErrUnknownOutcome proves that nothing was committed.
func (tx *Tx) Commit() error {
	start := time.Now()
	statements := append(tx.last, Statement{SQL: "COMMIT"})
	if tx.dialect == Postgres {
		statements = numbered(statements)
	}
	err := tx.on.commit(statements, tx.rows)
	if err != nil && tx.rows > 0 && isUnmet(err) {
		err = fmt.Errorf("%w: %w", ErrUnmet, err)
	}
	tx.trace(tx.on.ctx, start, statements, err)
	if err != nil {
		tx.Rollback() // unless tx is over
	}
	return err
}

// Statement is one SQL statement with its arguments. Its placeholders are question marks. One that
// only PostgreSQL gets may have numbers instead ($1, $2 and so on), but not in Expect.
type Statement struct {
	SQL  string
	Args []any
}

// ExecAll runs the statements in order, in a transaction in one round trip if the
// database allows it. It stops at the first error, and returns how many rows each
// statement affected. Outside a transaction each statement commits by itself.
func (r runner) ExecAll(ctx context.Context, statements ...Statement) (affected []int64, err error) {
	start := time.Now()
	if r.dialect == Postgres {
		statements = numbered(statements)
	}
	if r.on != nil {
		affected, err = r.on.exec(ctx, statements)
	} else {
		affected, err = execApart(ctx, r.gorm.Statement.ConnPool, statements)
	}
	r.trace(ctx, start, statements, err)
	return affected, err
}

// Confirm returns nil once every row that the database has shown is as durable as after a COMMIT.
// Call it before an answer relies on a row that was read. A PostgreSQL primary may show rows that
// its synchronous standby lacks, if a commit's wait for the standby was cancelled or the primary
// restarted. Other databases need no confirmation.
func (db *DB) Confirm(ctx context.Context) error {
	statement := db.dialect.confirmation()
	if statement == "" || db.lacks.Standbys {
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

// trace logs the statements without their values if they were slow.
func (r runner) trace(ctx context.Context, start time.Time, statements []Statement, err error) {
	r.gorm.Logger.Trace(ctx, start, func() (string, int64) {
		heads := make([]string, len(statements))
		for i, s := range statements {
			heads[i], _, _ = strings.Cut(s.SQL, " VALUES ")
		}
		return strings.Join(heads, "; "), -1
	}, err)
}
