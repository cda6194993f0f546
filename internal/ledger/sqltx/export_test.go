package sqltx

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
)

// These names are for the tests in package sqltx_test, which open databases through package store.
var (
	IsKnownRollback = isKnownRollback
	ProvesNoCommit  = provesNoCommit
	IsUnsent        = isUnsent
	TakesTexts      = takesTexts
	OpenMySQL       = openMySQL
	OpenPostgres    = openPostgres

	ErrLost     = errLost
	ErrCutShort = errCutShort
)

// LoseConnection closes the connection of tx.
func (tx *Tx) LoseConnection() {
	_ = tx.on.conn.Raw(func(any) error { return driver.ErrBadConn })
}

// CloseSession closes the session of tx on PostgreSQL, as the driver does when a statement is given
// up.
func (tx *Tx) CloseSession(ctx context.Context) error {
	return tx.on.conn.Raw(func(raw any) error { return raw.(*postgresSession).Conn.Conn().Close(ctx) })
}

// FailRollback makes the ROLLBACK of tx fail before it is sent. It calls sending with the
// context of the ROLLBACK.
func (tx *Tx) FailRollback(sending func(ctx context.Context)) {
	t := tx.on
	exec := t.pool.exec
	t.pool.exec = func(ctx context.Context, conn *sql.Conn, statements []Statement) ([]int64, error) {
		if statements[0].SQL == "ROLLBACK" {
			sending(ctx)
			return nil, errors.New("not sent")
		}
		return exec(ctx, conn, statements)
	}
}

// RollbackError rolls tx back and returns the error, which Rollback does not.
func (tx *Tx) RollbackError() error { return tx.on.Rollback() }

// CheckSkipLockedWith is CheckSkipLocked with another clause in place of SKIP LOCKED.
func (db *DB) CheckSkipLockedWith(ctx context.Context, query, clause string) error {
	return db.checkSkipLocked(ctx, query, clause)
}
