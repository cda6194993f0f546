package sqltx

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
)

// probeTries bounds how often CheckSkipLocked meets a row that another transaction holds.
const probeTries = 50

// ErrNoSkipLocked: SELECT … FOR UPDATE SKIP LOCKED does not lock rows, or does not leave out
// locked ones.
var ErrNoSkipLocked = errors.New("the database does not lock rows with SKIP LOCKED")

// CheckSkipLocked checks on two connections that SELECT … FOR UPDATE SKIP LOCKED locks rows
// and leaves out locked ones: some databases accept the words, and lock nothing. query must
// be a SELECT of one number from the only row of a table. It changes nothing, and holds the
// row for two statements.
//
// ErrNoSkipLocked: it does not. Other errors of the database leave it open.
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
		if errors.Is(err, sql.ErrNoRows) && try < probeTries { // another transaction holds it: wait for that one
			err = tx.QueryRow(ctx, []any{&n}, query+db.dialect.RowLock())
		}
		tx.Rollback()
		if err != nil {
			return nil, fmt.Errorf("locking a row: %w", err)
		}
	}
}
