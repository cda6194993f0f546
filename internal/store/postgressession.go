package store

import (
	"context"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"net"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"gorm.io/gorm"
)

// connecting marks the context of a connection that is being opened.
type connecting struct{}

// dialToConnect dials only to open connections, and never to cancel what runs on
// another: the driver cancels the statement of every connection that it gives up,
// and a COMMIT that waits for a synchronous standby would then count as done
// while only the primary has it.
func dialToConnect(dial pgconn.DialFunc) pgconn.DialFunc {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		if ctx.Value(connecting{}) == nil {
			return nil, errors.New("statements are not cancelled")
		}
		return dial(ctx, network, address)
	}
}

// postgresConnector opens sessions.
type postgresConnector struct{ sqldriver.Connector }

// Connect opens a session.
func (c postgresConnector) Connect(ctx context.Context) (sqldriver.Conn, error) {
	conn, err := c.Connector.Connect(context.WithValue(ctx, connecting{}, true))
	if err != nil {
		return nil, err
	}
	return &postgresSession{conn.(*stdlib.Conn)}, nil
}

// postgresSession is a connection that takes no statement for done whose commit
// the server has a doubt about.
type postgresSession struct{ *stdlib.Conn }

// errLost: the connection was lost, and the answer to what it was sent with it.
var errLost = errors.New("the connection was lost")

// ExecContext runs one statement.
func (s *postgresSession) ExecContext(ctx context.Context, query string, args []sqldriver.NamedValue) (sqldriver.Result, error) {
	if s.Conn.Conn().IsClosed() {
		return nil, sqldriver.ErrBadConn
	}
	s.forget()
	result, err := s.Conn.ExecContext(ctx, query, args)
	switch {
	case errors.Is(err, sqldriver.ErrBadConn): // the statement may have run, and package sql would run it again
		return nil, errLost
	case err != nil:
		return nil, err
	}
	return result, s.doubt(false)
}

// exec runs one statement, which may be a COMMIT.
func (s *postgresSession) exec(ctx context.Context, statement Statement) (pgconn.CommandTag, error) {
	if s.Conn.Conn().IsClosed() {
		return pgconn.CommandTag{}, sqldriver.ErrBadConn
	}
	s.forget()
	tag, err := s.Conn.Conn().Exec(ctx, statement.SQL, statement.Args...)
	if err != nil {
		return tag, err
	}
	commit := statement.SQL == "COMMIT"
	if commit && tag.String() == "ROLLBACK" {
		return tag, pgx.ErrTxCommitRollback // a statement that answers rows had failed
	}
	return tag, s.doubt(commit)
}

// warned is where a session keeps the last warning to its statement.
const warned = "holdfast warning"

// keepWarning keeps a warning for the session that it is about.
func keepWarning(conn *pgconn.PgConn, notice *pgconn.Notice) {
	if notice.SeverityUnlocalized == "WARNING" {
		conn.CustomData()[warned] = notice
	}
}

func (s *postgresSession) forget() { delete(s.Conn.Conn().PgConn().CustomData(), warned) }

// doubt is an error if the server warned that what it reports as committed may
// be on the primary alone, because the wait for the standby was cancelled. A
// COMMIT comes with no warning at all: another one is that there was no
// transaction.
func (s *postgresSession) doubt(commit bool) error {
	notice, ok := s.Conn.Conn().PgConn().CustomData()[warned].(*pgconn.Notice)
	if !ok || !commit && notice.Routine != "SyncRepWaitForLSN" {
		return nil
	}
	return fmt.Errorf("committed with a warning: %s (SQLSTATE %s)", notice.Message, notice.Code)
}

// confirmPostgres writes to the log if there are synchronous standbys. Its commit
// waits for them, and with it all that was written before.
const confirmPostgres = "SELECT pg_logical_emit_message(true, 'holdfast', '') WHERE current_setting('synchronous_standby_names') <> ''"

// Confirm returns nil once everything that the database has shown so far is as
// durable as a COMMIT promises. A PostgreSQL with a synchronous standby shows
// rows that only the primary has, where a commit's wait for the standby was
// cancelled or the primary restarted: call Confirm before answering on the
// strength of a row that was read. Elsewhere it does nothing, or costs a read.
func Confirm(ctx context.Context, db *gorm.DB) error {
	if db.Name() != string(Postgres) {
		return nil
	}
	if err := db.WithContext(ctx).Exec(confirmPostgres).Error; err != nil {
		return fmt.Errorf("waiting for the standby: %w", err)
	}
	return nil
}
