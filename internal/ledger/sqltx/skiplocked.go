package sqltx

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
)

// probeTries bounds the tries of CheckSkipLocked. A try fails if another transaction holds the row.
const probeTries = 50

// ErrNoSkipLocked means that SELECT … FOR UPDATE SKIP LOCKED does not lock rows, or does not skip
// locked ones.
var ErrNoSkipLocked = errors.New("the database does not lock rows with SKIP LOCKED")

// CheckSkipLocked checks on two connections that SELECT … FOR UPDATE SKIP LOCKED locks rows and
// skips locked ones. Some databases accept the clause and lock nothing. query must be a SELECT of
// one number from the only row of a table. It changes nothing, and holds the row for two
// statements.
//
// It returns ErrNoSkipLocked if one of the two fails. After any other error, the answer is unknown.
func (db *DB) CheckSkipLocked(ctx context.Context, query string) error {
	if !db.SkipsLocked() {
		return ErrNoSkipLocked
	}
	return db.checkSkipLocked(ctx, query, db.SkipLocked())
}

func (db *DB) checkSkipLocked(ctx context.Context, query, skipLocked string) error {
	holder, err := db.lockedRow(ctx, query, skipLocked)
	if err != nil {
		return err
	}
	defer holder.Rollback()
	other, err := db.Begin(ctx)
	if err != nil {
		return err
	}
	defer other.Rollback()
	var n int64
	switch err := other.QueryRow(ctx, []any{&n}, query+skipLocked); {
	case err == nil || IsLockTimeout(err):
		return fmt.Errorf("%w: it does not leave out a locked row", ErrNoSkipLocked)
	case !errors.Is(err, sql.ErrNoRows):
		return fmt.Errorf("leaving out a locked row: %w", err)
	}
	switch err := other.QueryRow(ctx, []any{&n}, query+" FOR UPDATE NOWAIT"); {
	case err == nil:
		return fmt.Errorf("%w: two transactions lock one row", ErrNoSkipLocked)
	case !IsLockTimeout(err):
		return fmt.Errorf("locking a locked row: %w", err)
	}
	return nil
}

// lockedRow returns a transaction in which the query has found its row with skipLocked.
func (db *DB) lockedRow(ctx context.Context, query, skipLocked string) (*Tx, error) {
	for try := 1; ; try++ {
		tx, err := db.Begin(ctx)
		if err != nil {
			return nil, err
		}
		var n int64
		err = tx.QueryRow(ctx, []any{&n}, query+skipLocked)
		if err == nil {
			return tx, nil
		}
		if errors.Is(err, sql.ErrNoRows) && try < probeTries { // another transaction holds the row: wait for it
			err = tx.QueryRow(ctx, []any{&n}, query+db.dialect.RowLock())
		}
		tx.Rollback()
		if err != nil {
			return nil, fmt.Errorf("locking a row: %w", err)
		}
	}
}
