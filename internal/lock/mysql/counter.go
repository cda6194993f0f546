package mysql

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/holdfast-stock/holdfast/internal/lock/session"
)

// counter mints tokens. On MariaDB it is the sequence fencing_tokens, which all locks of a database
// share. MySQL has no sequences, so there it is a table with that name, and a grant commits a
// write. On MySQL, locks that do not share a row can have equal tokens.
type counter struct {
	table atomic.Bool
}

// next returns the statements whose last result is the next token, and the server's clock if the
// counter is a sequence. The statements contain the key, which needs no quoting, so they can be
// part of a text of several statements.
func (c *counter) next(key string) string {
	if !c.table.Load() {
		return "SELECT NEXTVAL(fencing_tokens), CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS SIGNED)"
	}
	// Locks whose keys begin with the same two hexadecimal digits share a row.
	shared := key[len(keyPrefix):][:2]
	return fmt.Sprintf(`INSERT INTO fencing_tokens (lock_key, token)
		VALUES ('%s', LAST_INSERT_ID(CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS SIGNED)))
		ON DUPLICATE KEY UPDATE token = LAST_INSERT_ID(GREATEST(fencing_tokens.token + 1, VALUES(token)));
		SELECT LAST_INSERT_ID(), 0`, shared)
}

// read reads the results of next, beginning with the current result of rows, and closes rows.
func read(rows *sql.Rows) (token, clock int64, err error) {
	if err := next(rows, &token, &clock); err != nil {
		return 0, 0, err
	}
	return token, clock, rows.Close()
}

// mint returns the next token of the lock that conn holds.
func (c *counter) mint(ctx context.Context, conn *sql.Conn, key any) (int64, error) {
	rows, err := conn.QueryContext(ctx, c.next(key.(string)))
	if err != nil {
		return 0, err
	}
	defer rows.Close()
	token, clock, err := read(rows)
	if err != nil {
		return 0, err
	}
	return raise(ctx, conn, token, clock)
}

// wait sends all statements as one text. If the wait ends without the lock, the token is
// not used.
func (c *counter) wait(ctx context.Context, conn *sql.Conn, key any) (taken session.Taken, err error) {
	rows, err := conn.QueryContext(ctx, fmt.Sprintf("SELECT CONNECTION_ID(), GET_LOCK('%s', %d); %s",
		key, session.MaxWait/time.Second, c.next(key.(string))))
	if err != nil {
		return taken, err
	}
	defer rows.Close()
	if err := next(rows, &taken.Session, &taken.Granted); err != nil {
		return taken, err
	}
	rows.NextResultSet() // if there is none, there is no row to read
	token, clock, err := read(rows)
	if err != nil || !taken.Granted {
		return taken, err
	}
	taken.Token, err = raise(ctx, conn, token, clock)
	return taken, err
}

// raise returns the token, or a later one if that one is too far behind the clock. SETVAL never
// lowers a sequence, even if another session has raised it meanwhile.
func raise(ctx context.Context, conn *sql.Conn, token, clock int64) (int64, error) {
	if token >= clock-session.MaxBehind {
		return token, nil
	}
	err := conn.QueryRowContext(ctx, fmt.Sprintf("DO SETVAL(fencing_tokens, %d); SELECT NEXTVAL(fencing_tokens)", clock)).Scan(&token)
	return token, err
}

// errCutShort means that the session was ended in the middle of a text.
var errCutShort = errors.New("the server has answered only a part of the statements")

// next reads the next row.
func next(rows *sql.Rows, into ...any) error {
	if !rows.Next() {
		return cmp.Or(rows.Err(), errCutShort)
	}
	return rows.Scan(into...)
}
