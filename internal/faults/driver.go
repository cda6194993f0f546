package faults

import (
	"context"
	"database/sql/driver"
	"fmt"
	"io"
	"sync"
)

// Driver wraps a driver of database/sql, and strikes the statements that its
// Injector says: BEGIN, COMMIT and ROLLBACK are statements too. The wrapped
// driver's connections must take contexts.
type Driver struct {
	*Injector
	inner   driver.Driver
	name    string
	answers map[Kind]error
}

var _ driver.Connector = (*Driver)(nil)

// NewDriver returns a connector that opens name with the driver. answers are
// the database's own errors; of a kind that is not there, statements run.
func NewDriver(inner driver.Driver, name string, answers map[Kind]error) *Driver {
	return &Driver{Injector: &Injector{}, inner: inner, name: name, answers: answers}
}

// Driver returns the wrapped driver.
func (d *Driver) Driver() driver.Driver { return d.inner }

// Connect opens a connection.
func (d *Driver) Connect(context.Context) (driver.Conn, error) {
	if d.isGone() {
		return nil, errBroken
	}
	inner, err := d.inner.Open(d.name)
	if err != nil {
		return nil, err
	}
	wrapped, ok := inner.(wrappable)
	if !ok {
		_ = inner.Close()
		return nil, fmt.Errorf("wrapping %T: it takes no contexts", inner)
	}
	return &conn{wrappable: wrapped, d: d}, nil
}

// wrappable is what a connection must know.
type wrappable interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.QueryerContext
	driver.Pinger
}

// errBroken is the error of a broken connection. It is not driver.ErrBadConn,
// after which database/sql runs the statement again.
var errBroken = fmt.Errorf("the connection broke: %w", io.ErrUnexpectedEOF)

// conn is one connection. After a fault that breaks it, it is good for nothing.
type conn struct {
	wrappable
	d *Driver

	mu     sync.Mutex
	broken bool
	late   chan struct{} // closed when the late statement ran; nil: there is none
}

var (
	_ driver.Validator       = (*conn)(nil)
	_ driver.SessionResetter = (*conn)(nil)
)

// IsValid keeps a broken connection out of the pool.
func (c *conn) IsValid() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.broken
}

// ResetSession refuses a connection to a store that is gone.
func (c *conn) ResetSession(context.Context) error {
	if !c.IsValid() || c.d.isGone() {
		return driver.ErrBadConn
	}
	return nil
}

// Close closes the connection once its late statement ran.
func (c *conn) Close() error {
	c.mu.Lock()
	late := c.late
	c.mu.Unlock()
	if late == nil {
		return c.wrappable.Close()
	}
	go func() {
		<-late
		_ = c.wrappable.Close()
	}()
	return nil
}

func (c *conn) breakDown() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.broken = true
}

// strike runs the statement as its fault says. refused is told which error the
// database answers instead; nil: it answers none.
func (c *conn) strike(ctx context.Context, text string, run func(context.Context) error, refused func(Kind)) error {
	if !c.IsValid() {
		return errBroken
	}
	kind := c.d.next(text)
	switch kind {
	case None:
		return run(ctx)
	case Refused:
		c.breakDown()
		return errBroken
	case Lost:
		c.breakDown()
		_ = run(ctx)
		return errBroken
	case Late:
		c.breakDown()
		ran := make(chan struct{})
		c.mu.Lock()
		c.late = ran
		c.mu.Unlock()
		c.d.later(func() {
			defer close(ran)
			_ = run(context.Background())
		})
		return errBroken
	case Hung, HungDone:
		c.breakDown()
		if kind == HungDone {
			_ = run(ctx)
		}
		if ctx.Done() == nil { // COMMIT and ROLLBACK have no context of their own
			return errBroken
		}
		<-ctx.Done()
		return ctx.Err()
	}
	answer, ok := c.d.answers[kind]
	if !ok || refused == nil {
		return run(ctx)
	}
	refused(kind)
	return answer
}

// ignored is for statements that a refusal leaves undone.
func ignored(Kind) {}

// said is a statement with its arguments.
func said(query string, args []driver.NamedValue) string {
	text := query
	for _, arg := range args {
		if s, ok := arg.Value.(string); ok {
			text += " " + s
		}
	}
	return text
}

func (c *conn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	var result driver.Result
	err := c.strike(ctx, said(query, args), func(ctx context.Context) (err error) {
		result, err = c.wrappable.ExecContext(ctx, query, args)
		return err
	}, ignored)
	if err != nil {
		return nil, err
	}
	return result, nil
}

func (c *conn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	var rows driver.Rows
	err := c.strike(ctx, said(query, args), func(ctx context.Context) (err error) {
		rows, err = c.wrappable.QueryContext(ctx, query, args)
		if err == nil && !c.IsValid() { // nobody will read them
			err = rows.Close()
		}
		return err
	}, ignored)
	if err != nil {
		return nil, err
	}
	return rows, nil
}

func (c *conn) BeginTx(ctx context.Context, options driver.TxOptions) (driver.Tx, error) {
	var inner driver.Tx
	err := c.strike(ctx, begin, func(ctx context.Context) (err error) {
		inner, err = c.wrappable.BeginTx(ctx, options)
		return err
	}, ignored)
	if err != nil {
		return nil, err
	}
	return tx{c, ctx, inner}, nil
}

type tx struct {
	c     *conn
	ctx   context.Context
	inner driver.Tx
}

// Commit commits. Where the database answers an error, the transaction is rolled
// back, but for a lock timeout, which leaves it open: so SQLite does.
func (t tx) Commit() error {
	return t.c.strike(t.ctx, commit, func(context.Context) error { return t.inner.Commit() },
		func(kind Kind) {
			if kind != LockTimeout {
				_ = t.inner.Rollback()
			}
		})
}

// Rollback rolls back. The database answers no error to it.
func (t tx) Rollback() error {
	return t.c.strike(t.ctx, rollback, func(context.Context) error { return t.inner.Rollback() }, nil)
}

// What transactions say.
const begin, commit, rollback = "BEGIN", "COMMIT", "ROLLBACK"
