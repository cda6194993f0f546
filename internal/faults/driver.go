package faults

import (
	"context"
	"database/sql/driver"
	"fmt"
	"io"
	"sync"
)

// Driver wraps a driver of database/sql and injects the faults of its Injector
// into statements. BEGIN, COMMIT and ROLLBACK count as statements. The wrapped
// driver's connections must accept contexts.
type Driver struct {
	*Injector
	inner    driver.Driver
	name     string
	dbErrors map[Kind]error
}

var _ driver.Connector = (*Driver)(nil)

// NewDriver returns a connector that opens the data source name with the driver.
// dbErrors has the error that the database returns for each kind of error. A
// fault of a kind that is missing there has no effect.
func NewDriver(inner driver.Driver, name string, dbErrors map[Kind]error) *Driver {
	return &Driver{Injector: &Injector{}, inner: inner, name: name, dbErrors: dbErrors}
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
	wrapped, ok := inner.(contextConn)
	if !ok {
		_ = inner.Close()
		return nil, fmt.Errorf("wrapping %T: its methods accept no contexts", inner)
	}
	return &conn{contextConn: wrapped, d: d}, nil
}

// contextConn has the methods that a wrapped connection must have.
type contextConn interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.QueryerContext
	driver.Pinger
}

// errBroken is the error of a broken connection. It is not driver.ErrBadConn,
// because database/sql would run the statement again.
var errBroken = fmt.Errorf("the connection broke: %w", io.ErrUnexpectedEOF)

// conn is one connection. A fault may break it: then every statement fails.
type conn struct {
	contextConn
	d *Driver

	mu     sync.Mutex
	broken bool
	late   chan struct{} // closed when the late statement has run; nil without a late statement
}

var (
	_ driver.Validator       = (*conn)(nil)
	_ driver.SessionResetter = (*conn)(nil)
)

// IsValid reports whether the pool may keep the connection. It may not keep a
// broken one.
func (c *conn) IsValid() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.broken
}

// ResetSession returns driver.ErrBadConn if the connection is broken, and after a
// Gone fault.
func (c *conn) ResetSession(context.Context) error {
	if !c.IsValid() || c.d.isGone() {
		return driver.ErrBadConn
	}
	return nil
}

// Close closes the connection, but not before its late statement has run.
func (c *conn) Close() error {
	c.mu.Lock()
	late := c.late
	c.mu.Unlock()
	if late == nil {
		return c.contextConn.Close()
	}
	go func() {
		<-late
		_ = c.contextConn.Close()
	}()
	return nil
}

func (c *conn) markBroken() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.broken = true
}

// inject runs the statement under the fault that the Injector chooses for it.
// Before it returns an error of the database, it calls onError with the kind. A
// nil onError means that the database has no errors for this statement.
func (c *conn) inject(ctx context.Context, text string, run func(context.Context) error, onError func(Kind)) error {
	if !c.IsValid() {
		return errBroken
	}
	kind := c.d.Next(text)
	switch kind {
	case None:
		return run(ctx)
	case Refused:
		c.markBroken()
		return errBroken
	case Lost:
		c.markBroken()
		_ = run(ctx)
		return errBroken
	case Late:
		c.markBroken()
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
		c.markBroken()
		if kind == HungDone {
			_ = run(ctx)
		}
		if ctx.Done() == nil { // Commit and Rollback may run without a deadline
			return errBroken
		}
		<-ctx.Done()
		return ctx.Err()
	}
	if kind == Garbled || kind == Cut {
		return run(context.WithValue(ctx, reading{}, kind))
	}
	err, ok := c.d.dbErrors[kind]
	if !ok || onError == nil {
		return run(ctx)
	}
	onError(kind)
	return err
}

// reading is the context key of a fault of the rows.
type reading struct{}

// cutRows are rows whose connection breaks after the first one.
type cutRows struct {
	driver.Rows
	read int
}

func (r *cutRows) Next(values []driver.Value) error {
	if r.read++; r.read > 1 {
		return errBroken
	}
	return r.Rows.Next(values)
}

// garbled is a value that nothing can scan.
type garbled struct{}

// garbledRows are rows of garbled values.
type garbledRows struct{ driver.Rows }

func (r garbledRows) Next(values []driver.Value) error {
	err := r.Rows.Next(values)
	for i := range values {
		values[i] = garbled{}
	}
	return err
}

// noEffect is the onError of statements whose error leaves nothing to undo.
func noEffect(Kind) {}

// statementText returns the statement followed by its text arguments.
func statementText(query string, args []driver.NamedValue) string {
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
	err := c.inject(ctx, statementText(query, args), func(ctx context.Context) (err error) {
		result, err = c.contextConn.ExecContext(ctx, query, args)
		return err
	}, noEffect)
	if err != nil {
		return nil, err
	}
	return result, nil
}

func (c *conn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	var rows driver.Rows
	err := c.inject(ctx, statementText(query, args), func(ctx context.Context) (err error) {
		rows, err = c.contextConn.QueryContext(ctx, query, args)
		switch kind := ctx.Value(reading{}); {
		case err != nil:
		case kind == Garbled:
			rows = garbledRows{rows}
		case kind == Cut:
			rows = &cutRows{Rows: rows}
		}
		if err == nil && !c.IsValid() { // inject returns an error, so the caller gets no rows
			err = rows.Close()
		}
		return err
	}, noEffect)
	if err != nil {
		return nil, err
	}
	return rows, nil
}

func (c *conn) BeginTx(ctx context.Context, options driver.TxOptions) (driver.Tx, error) {
	var inner driver.Tx
	err := c.inject(ctx, begin, func(ctx context.Context) (err error) {
		inner, err = c.contextConn.BeginTx(ctx, options)
		return err
	}, noEffect)
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

// Commit commits. An error of the database rolls the transaction back, except a
// lock timeout, which leaves it open, as in SQLite.
func (t tx) Commit() error {
	return t.c.inject(t.ctx, commit, func(context.Context) error { return t.inner.Commit() },
		func(kind Kind) {
			if kind != LockTimeout {
				_ = t.inner.Rollback()
			}
		})
}

// Rollback rolls back. The database has no errors for it.
func (t tx) Rollback() error {
	return t.c.inject(t.ctx, rollback, func(context.Context) error { return t.inner.Rollback() }, nil)
}

// The statements of transactions, as an Injector sees them.
const begin, commit, rollback = "BEGIN", "COMMIT", "ROLLBACK"
