package sqltx

import (
	"cmp"
	"context"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
)

// connecting marks the context of a connection that is being opened.
type connecting struct{}

// dialToConnect dials to open connections, and refuses to dial to cancel a statement. The driver
// cancels the statement of every connection that it gives up. A COMMIT that waits for a synchronous
// standby would then succeed while only the primary has it.
func dialToConnect(dial pgconn.DialFunc) pgconn.DialFunc {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		if ctx.Value(connecting{}) == nil {
			return nil, errors.New("statements are not cancelled")
		}
		return dial(ctx, network, address)
	}
}

// PostgresConnector returns a connector for config. Its sessions never cancel a statement. They
// return an error for a commit that the standby may not have.
func PostgresConnector(config *pgx.ConnConfig) sqldriver.Connector {
	config = config.Copy()
	config.DialFunc = dialToConnect(config.DialFunc)
	config.OnNotice = keepWarning
	return postgresConnector{stdlib.GetConnector(*config)}
}

type postgresConnector struct{ sqldriver.Connector }

// Connect opens a session.
func (c postgresConnector) Connect(ctx context.Context) (sqldriver.Conn, error) {
	conn, err := c.Connector.Connect(context.WithValue(ctx, connecting{}, true))
	if err != nil {
		return nil, err
	}
	return &postgresSession{conn.(*stdlib.Conn)}, nil
}

// postgresSession is a connection that reports a statement as failed if the server
// warns that its commit may not be durable.
type postgresSession struct{ *stdlib.Conn }

// errLost means that the connection was lost before the statement was answered.
var errLost = errors.New("the connection was lost")

// ExecContext runs one statement.
func (s *postgresSession) ExecContext(ctx context.Context, query string, args []sqldriver.NamedValue) (sqldriver.Result, error) {
	s.clearWarning()
	result, err := s.Conn.ExecContext(ctx, query, args)
	switch {
	case errors.Is(err, sqldriver.ErrBadConn): // the statement may have run; package sql must not run it again
		return nil, errLost
	case err != nil:
		return nil, err
	}
	return result, s.warning(false)
}

// beginning is the context key of the statement that begins a transaction. It is sent together with
// a query.
type beginning struct{}

// QueryContext runs one statement that returns rows.
func (s *postgresSession) QueryContext(ctx context.Context, query string, args []sqldriver.NamedValue) (sqldriver.Rows, error) {
	begin, ok := ctx.Value(beginning{}).(string)
	if !ok {
		return s.Conn.QueryContext(ctx, query, args)
	}
	values := make([]any, len(args))
	for i, arg := range args {
		values[i] = arg.Value
	}
	batch := &pgx.Batch{}
	batch.Queue(begin)
	batch.Queue(query, values...)
	answers := s.Conn.Conn().SendBatch(ctx, batch)
	if _, err := answers.Exec(); err != nil {
		return nil, cmp.Or(err, answers.Close()) // Close returns the same error, if any
	}
	rows, err := answers.Query()
	if err != nil {
		return nil, cmp.Or(err, answers.Close())
	}
	return pipelinedRows{rows, answers}, nil
}

// pipelinedRows are the rows of the last query of a pipeline.
type pipelinedRows struct {
	rows    pgx.Rows
	answers pgx.BatchResults
}

// Columns returns the names of the columns.
func (r pipelinedRows) Columns() []string {
	fields := r.rows.FieldDescriptions()
	names := make([]string, len(fields))
	for i, field := range fields {
		names[i] = field.Name
	}
	return names
}

// Close ends the pipeline. It returns the error of the query, if there is one.
func (r pipelinedRows) Close() error {
	r.rows.Close()
	return r.answers.Close()
}

// Next reads the next row. It returns io.EOF if there is none, or the query has failed. Package sql
// then calls Close.
func (r pipelinedRows) Next(row []sqldriver.Value) error {
	if !r.rows.Next() {
		return io.EOF
	}
	values, err := r.rows.Values()
	for i, value := range values {
		switch v := value.(type) {
		case [16]byte: // a UUID, which package sql cannot convert
			row[i] = v[:]
		case sqldriver.Valuer:
			if row[i], err = v.Value(); err != nil {
				return err
			}
		default:
			row[i] = v
		}
	}
	return err
}

// exec runs one statement, which may be a COMMIT.
func (s *postgresSession) exec(ctx context.Context, statement Statement) (pgconn.CommandTag, error) {
	if s.Conn.Conn().IsClosed() {
		return pgconn.CommandTag{}, sqldriver.ErrBadConn
	}
	s.clearWarning()
	tag, err := s.Conn.Conn().Exec(ctx, statement.SQL, statement.Args...)
	if err != nil {
		return tag, err
	}
	if err := rolledBack(statement, tag); err != nil {
		return tag, err
	}
	return tag, s.warning(statement.SQL == "COMMIT")
}

// numbered returns the statements with numbers as placeholders, which PostgreSQL expects instead of
// question marks.
func numbered(statements []Statement) []Statement {
	all := slices.Clone(statements)
	for i, s := range all {
		before, after, found := strings.Cut(s.SQL, "?")
		if !found {
			continue
		}
		var sql strings.Builder
		for n := 1; found; n++ {
			sql.WriteString(before + "$" + strconv.Itoa(n))
			before, after, found = strings.Cut(after, "?")
		}
		all[i].SQL = sql.String() + before
	}
	return all
}

// rolledBack returns an error if the statement is a COMMIT that PostgreSQL answered with ROLLBACK.
// That happens after a statement failed without an error of the transaction, for example one that
// returns rows.
func rolledBack(statement Statement, answer pgconn.CommandTag) error {
	if statement.SQL == "COMMIT" && answer.String() == "ROLLBACK" {
		return pgx.ErrTxCommitRollback
	}
	return nil
}

// lastWarning is the key under which a session keeps the last warning.
const lastWarning = "holdfast warning"

// keepWarning keeps a warning in the session that it concerns.
func keepWarning(conn *pgconn.PgConn, notice *pgconn.Notice) {
	if notice.SeverityUnlocalized == "WARNING" {
		conn.CustomData()[lastWarning] = notice
	}
}

func (s *postgresSession) clearWarning() { delete(s.Conn.Conn().PgConn().CustomData(), lastWarning) }

// warning returns an error if the server warned that a reported commit may be on
// the primary alone, because the wait for the standby was cancelled. A COMMIT
// normally has no warnings; its other warning is that there was no transaction.
func (s *postgresSession) warning(commit bool) error {
	notice, ok := s.Conn.Conn().PgConn().CustomData()[lastWarning].(*pgconn.Notice)
	if !ok || !commit && notice.Routine != "SyncRepWaitForLSN" {
		return nil
	}
	return fmt.Errorf("committed with a warning: %s (SQLSTATE %s)", notice.Message, notice.Code)
}
