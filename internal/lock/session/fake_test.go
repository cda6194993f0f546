package session

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-stock/holdfast/internal/faults"
)

// fakeServer is a database server with the statements of fakeDatabase. It records
// them.
type fakeServer struct {
	mu         sync.Mutex
	changed    *sync.Cond
	statements []string
	sessions   int64
	open       map[int64]bool
	holders    map[string]int64 // session that holds each lock
	counts     map[string]int   // how many times that session holds each lock
	tokens     map[string]int64
	uptime     time.Duration
	pooled     bool // each statement outside a transaction uses any free session
	resets     bool // each statement begins with a reset of its session, which frees the session's locks
	apart      bool // each session is on a server of its own, with locks of its own
	alternates bool // each connection sends its statements to two sessions in turn
	silent     bool // statements get no answer, even if their context ends
	failing    bool // checks report that no session has its lock
	waits      time.Duration
	mysql      bool // a wait that has timed out returns false instead of errMaxWait
	late       bool // the next wait for a free lock takes the lock and still fails with errMaxWait
	hidden     bool // the pool does not call Dialed

	faults.Injector // connecting and pinging count as statements
}

var errFault = errors.New("the statement has failed")

// heal ends the faults, and reports whether there was one.
func (f *fakeServer) heal() (failed bool) {
	_, injected := f.Disarm()
	return len(injected) > 0
}

func newFakeServer() *fakeServer {
	f := &fakeServer{
		open: make(map[int64]bool), holders: make(map[string]int64), counts: make(map[string]int), tokens: make(map[string]int64),
		uptime: time.Hour, waits: MaxWait,
	}
	f.changed = sync.NewCond(&f.mu)
	return f
}

var errMaxWait = errors.New("the lock was not free within the maximum wait")

func fakeDatabase(f *fakeServer) Database {
	return Database{
		Try: "try", Check: "check", Unlock: "unlock",
		Wait: func(ctx context.Context, conn *sql.Conn, key any) (t Taken, err error) {
			if t.Session, t.Granted, err = ask(ctx, conn, "wait", key); err == nil {
				f.mu.Lock()
				defer f.mu.Unlock()
				t.Token = f.tokens[key.(string)]
			}
			return t, err
		},
		Key: func(scope, name string) any { return scope + "/" + name },
		Mint: func(ctx context.Context, conn *sql.Conn, key any) (token int64, err error) {
			_, _, err = ask(ctx, conn, "mint", key)
			f.mu.Lock()
			defer f.mu.Unlock()
			return f.tokens[key.(string)], err
		},
		IsTimeout: func(err error) bool { return errors.Is(err, errMaxWait) },
		Prepare: func(ctx context.Context, conn *sql.Conn, _ time.Duration) (s Server, err error) {
			s.Session, _, err = ask(ctx, conn, "prepare", "")
			s.Scope, s.Uptime = "fake", f.uptime
			return s, err
		},
	}
}

// pool returns a pool that keeps no idle connections.
func (f *fakeServer) pool(t *testing.T) *sql.DB {
	t.Helper()
	pool := sql.OpenDB(f)
	pool.SetMaxIdleConns(-1)
	t.Cleanup(func() { pool.Close() })
	return pool
}

// locker returns a Locker on the server, with the shortest lease.
func (f *fakeServer) locker(t *testing.T) *Locker {
	t.Helper()
	return f.lockerWith(t, fakeDatabase(f))
}

func (f *fakeServer) lockerWith(t *testing.T, database Database) *Locker {
	t.Helper()
	l, err := New(t.Context(), f.pool(t), database, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func (f *fakeServer) Connect(ctx context.Context) (sqldriver.Conn, error) {
	if !f.hidden {
		Dialed(ctx, new(net.TCPConn)) // the connection is a fake
	}
	f.mu.Lock()
	f.sessions++
	c := &fakeConn{server: f, session: f.sessions}
	f.open[c.session] = true
	f.mu.Unlock()
	err := c.faulty(ctx, func() error { return nil })
	if err != nil {
		_ = c.Close()
	}
	return c, err
}

// Ping reports whether the session still exists.
func (c *fakeConn) Ping(ctx context.Context) error {
	return c.faulty(ctx, func() error {
		f := c.server
		f.mu.Lock()
		defer f.mu.Unlock()
		if !f.open[c.session] {
			return io.ErrUnexpectedEOF
		}
		return nil
	})
}

func (f *fakeServer) Driver() sqldriver.Driver { return nil }

// kill ends all sessions.
func (f *fakeServer) kill() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.open)
	clear(f.holders)
	clear(f.counts)
	f.changed.Broadcast()
}

// failChecks makes the checks of locks fail. Their sessions continue to exist.
func (f *fakeServer) failChecks() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failing = true
}

func (f *fakeServer) silence(silent bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.silent = silent
	f.changed.Broadcast()
}

// asked returns how often the server got the statement.
func (f *fakeServer) asked(statement string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for _, s := range f.statements {
		if s == statement {
			n++
		}
	}
	return n
}

func (f *fakeServer) openSessions() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.open)
}

type fakeConn struct {
	server  *fakeServer
	session int64
	other   bool // the next statement goes to the other session of the two
}

func (c *fakeConn) Prepare(string) (sqldriver.Stmt, error) { return nil, errors.ErrUnsupported }

func (c *fakeConn) Close() error {
	f := c.server
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.open, c.session)
	f.free(c.session)
	return nil
}

// free frees the session's locks. The caller holds mu.
func (f *fakeServer) free(session int64) {
	for name, holder := range f.holders {
		if holder == session {
			delete(f.holders, name)
			delete(f.counts, name)
		}
	}
	f.changed.Broadcast()
}

func (c *fakeConn) Begin() (sqldriver.Tx, error) { return nil, errors.ErrUnsupported }

// ExecContext begins or ends a transaction.
func (c *fakeConn) ExecContext(ctx context.Context, _ string, _ []sqldriver.NamedValue) (sqldriver.Result, error) {
	return sqldriver.ResultNoRows, c.faulty(ctx, func() error { return nil })
}

func (c *fakeConn) QueryContext(ctx context.Context, statement string, args []sqldriver.NamedValue) (rows sqldriver.Rows, err error) {
	return rows, c.faulty(ctx, func() error {
		rows, err = c.query(ctx, statement, args)
		return err
	})
}

// faulty runs the statement, with its fault if there is one.
func (c *fakeConn) faulty(ctx context.Context, run func() error) error {
	f := c.server
	kind := f.Next("")
	if kind == faults.None {
		return run()
	}
	if kind != faults.Refused {
		_ = run()
	}
	switch kind {
	case faults.Lost:
		_ = c.Close()
	case faults.HungDone:
		<-ctx.Done()
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.open, c.session) // a real driver closes the connection
		return ctx.Err()
	}
	return errFault
}

func (c *fakeConn) query(ctx context.Context, statement string, args []sqldriver.NamedValue) (sqldriver.Rows, error) {
	f := c.server
	f.mu.Lock()
	defer f.mu.Unlock()
	f.statements = append(f.statements, statement)
	for f.silent {
		f.changed.Wait()
	}
	if err := ctx.Err(); err != nil { // a real driver closes the connection
		delete(f.open, c.session)
		return nil, err
	}
	session, name := c.session, args[0].Value.(string)
	if f.pooled {
		session = 1
	} else if !f.open[session] {
		return nil, io.ErrUnexpectedEOF
	}
	if c.other = f.alternates && !c.other; c.other {
		session = -session
	}
	if f.resets {
		f.free(session)
	}
	if f.apart {
		name += fmt.Sprint(session)
	}
	answer := false
	switch statement {
	case "try":
		answer = f.take(session, name)
	case "wait":
		var err error
		if answer, err = f.wait(ctx, session, name); err != nil {
			return nil, err
		}
		f.tokens[name]++
	case "check":
		answer = !f.failing // as on PostgreSQL, where the existence of the session is the proof
	case "unlock":
		if answer = f.holders[name] == session; answer {
			if f.counts[name]--; f.counts[name] == 0 {
				delete(f.holders, name)
			}
			f.changed.Broadcast()
		}
	case "mint":
		f.tokens[name]++
	}
	return &fakeRow{row: []sqldriver.Value{session, answer}}, nil
}

// take gives the session the lock if the lock is free, or once more if the session has it.
func (f *fakeServer) take(session int64, name string) bool {
	if holder := f.holders[name]; holder != 0 && holder != session {
		return false
	}
	f.holders[name] = session
	f.counts[name]++
	return true
}

func (f *fakeServer) wait(ctx context.Context, session int64, name string) (bool, error) {
	timeout := time.AfterFunc(f.waits, f.changed.Broadcast)
	defer timeout.Stop()
	defer context.AfterFunc(ctx, f.changed.Broadcast)()
	if f.late && f.take(session, name) {
		f.late = false
		return false, errMaxWait
	}
	for started := time.Now(); !f.take(session, name); {
		f.changed.Wait()
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
		if time.Since(started) < f.waits { // in a bubble
			continue
		}
		if f.mysql {
			return false, nil
		}
		return false, errMaxWait
	}
	return true, nil
}

type fakeRow struct{ row []sqldriver.Value }

func (*fakeRow) Columns() []string { return []string{"session", "answer"} }
func (*fakeRow) Close() error      { return nil }

func (r *fakeRow) Next(into []sqldriver.Value) error {
	if r.row == nil {
		return io.EOF
	}
	copy(into, r.row)
	r.row = nil
	return nil
}

// log returns the statements since the last call.
func (f *fakeServer) log() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	statements := slices.Clone(f.statements)
	f.statements = nil
	return statements
}
