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

// ExecContext runs one statement.
func (s *postgresSession) ExecContext(ctx context.Context, query string, args []sqldriver.NamedValue) (sqldriver.Result, error) {
	s.forget()
	result, err := s.Conn.ExecContext(ctx, query, args)
	if err == nil {
		err = s.doubt(false)
	}
	return result, err
}

// exec runs one statement, which may be a COMMIT.
func (s *postgresSession) exec(ctx context.Context, statement Statement) (pgconn.CommandTag, error) {
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
