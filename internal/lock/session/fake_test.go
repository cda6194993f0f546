package session

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"time"
)

// fakeServer is a database server with the statements of fakeDatabase. It records
// them.
type fakeServer struct {
	mu         sync.Mutex
	changed    *sync.Cond
	statements []string
	sessions   int64
	open       map[int64]bool
	holders    map[string]int64 // by lock: the session
	counts     map[string]int   // by lock: how many times the session holds it
	tokens     map[string]int64
	uptime     time.Duration
	pooled     bool // each statement outside a transaction uses the session that is free
	silent     bool // statements are not answered, even if their context ends
	failing    bool // no session has its lock
	waits      time.Duration
	late       bool // the next wait for a free lock takes it and still fails with errMaxWait
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
		Try: "try", Wait: "wait", Check: "check", Unlock: "unlock",
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

// locker returns a Locker on the server, with the shortest lease.
func (f *fakeServer) locker(t *testing.T) *Locker {
	t.Helper()
	pool := sql.OpenDB(f)
	pool.SetMaxIdleConns(-1)
	t.Cleanup(func() { pool.Close() })
	l, err := New(t.Context(), pool, fakeDatabase(f), time.Second)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func (f *fakeServer) Connect(ctx context.Context) (sqldriver.Conn, error) {
	Dialed(ctx, new(net.TCPConn)) // it is not connected
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sessions++
	f.open[f.sessions] = true
	return &fakeConn{f, f.sessions}, nil
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

// failChecks makes the checks of locks fail. Their sessions go on.
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

// asked returns how often the server was asked to run the statement.
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
}

func (c *fakeConn) Prepare(string) (sqldriver.Stmt, error) { return nil, errors.ErrUnsupported }

func (c *fakeConn) Close() error {
	f := c.server
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.open, c.session)
	for name, holder := range f.holders {
		if holder == c.session {
			delete(f.holders, name)
			delete(f.counts, name)
		}
	}
	f.changed.Broadcast()
	return nil
}

func (c *fakeConn) Begin() (sqldriver.Tx, error) { return nil, errors.ErrUnsupported }

// ExecContext begins or ends a transaction.
func (c *fakeConn) ExecContext(context.Context, string, []sqldriver.NamedValue) (sqldriver.Result, error) {
	return sqldriver.ResultNoRows, nil
}

func (c *fakeConn) QueryContext(ctx context.Context, statement string, args []sqldriver.NamedValue) (sqldriver.Rows, error) {
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
	answer := false
	switch statement {
	case "try":
		answer = f.take(session, name)
	case "wait":
		var err error
		if answer, err = f.wait(ctx, session, name); err != nil {
			return nil, err
		}
	case "check":
		answer = !f.failing // as on PostgreSQL, where the session itself is the proof
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

// take gives the session the lock if it is free, or once more if the session has it.
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
		if time.Since(started) >= f.waits {
			return false, errMaxWait
		}
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
