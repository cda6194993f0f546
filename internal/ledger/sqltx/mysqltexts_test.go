package sqltx

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"
	"gorm.io/gorm"
)

// TestTexts_OnlyWhereTheyAreSafe checks that statements are sent one by one unless the server is
// known to keep the transaction of a text.
func TestTexts_OnlyWhereTheyAreSafe(t *testing.T) {
	for _, test := range []struct {
		server mysqlServer
		want   bool
	}{
		{mysqlServer{"version": "10.11.19-MariaDB-0+deb12u1", "version_comment": "Debian 12", "wsrep_provider": "none"}, true},
		{mysqlServer{"version": "11.4.2-MariaDB-log"}, true},
		{mysqlServer{"version": "10.11.19-MariaDB", "wsrep_provider": "/usr/lib/galera/libgalera_smm.so"}, false},
		{mysqlServer{"version": "8.4.0", "version_comment": "MySQL Community Server - GPL"}, true},
		{mysqlServer{"version": "8.0.36-28", "version_comment": "Percona Server (GPL), Release 28"}, true},
		{mysqlServer{"version": "8.0.36-28.1", "version_comment": "Percona XtraDB Cluster (GPL)", "wsrep_provider": "/usr/lib/galera4.so"}, false},
		{mysqlServer{"version": "8.4.0", "version_comment": "MySQL Community Server - GPL", "group_replication_group_name": "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa"}, false},
		{mysqlServer{"version": "8.0.32", "version_comment": "Source distribution", "aurora_version": "3.04.0"}, false},
		{mysqlServer{"version": "8.0.39", "version_comment": "MySQL Community Server - GPL", "aurora_version": "3.08.0"}, false},
		{mysqlServer{"version": "8.0.11-TiDB-v8.5.0", "version_comment": "TiDB Server (Apache License 2.0) Community Edition, MySQL 8.0 compatible"}, false},
		{mysqlServer{"version": "8.0.30-Vitess", "version_comment": "Version: 19.0.0"}, false},
		{mysqlServer{}, false},
	} {
		if got := test.server.keepsTransactions(); got != test.want {
			t.Errorf("%v: %v, want %v", test.server, got, test.want)
		}
	}
}

// TestConnect checks that a session accepts texts only if its server and its driver do. Reads at a
// node of a Galera cluster must wait for the writes of other nodes.
func TestConnect(t *testing.T) {
	for _, test := range []struct {
		provider    string // provider of Galera
		texts       bool   // the driver may send texts
		want, waits bool
	}{
		{"none", true, true, false},
		{"none", false, false, false},
		{"/usr/lib/galera/libgalera_smm.so", true, false, true},
	} {
		conn := &fakeConn{server: fakeRows{{"version", "10.11.19-MariaDB"}, {"wsrep_provider", test.provider}}}
		session, err := MySQLConnector(conn, test.texts).Connect(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if got := session.(*mysqlSession).texts; got != test.want {
			t.Errorf("provider %s, driver %v: the session takes texts: %v, want %v", test.provider, test.texts, got, test.want)
		}
		if conn.sent[0] != "START TRANSACTION" || conn.sent[1] != "ROLLBACK" { // the reads are in a transaction, because a proxy may send other reads elsewhere
			t.Errorf("the server's kind was read around %q", conn.sent)
		}
		if got := strings.Contains(strings.Join(conn.sent, ";"), "wsrep_sync_wait"); got != test.waits {
			t.Errorf("provider %s: reads wait for writes: %v, want %v", test.provider, got, test.waits)
		}
	}
}

var errClosed = errors.New("the connection is closed")

// fakeConn gives every text the same answer. It answers queries with server, and fails them if
// server is nil.
type fakeConn struct {
	mysqlConn
	affected []int64
	err      error
	closed   bool
	sent     []string // texts that were sent
	server   fakeRows
}

func (c *fakeConn) ExecContext(_ context.Context, text string, _ []driver.NamedValue) (driver.Result, error) {
	c.sent = append(c.sent, text)
	return fakeResult(c.affected), c.err
}
func (c *fakeConn) QueryContext(context.Context, string, []driver.NamedValue) (driver.Rows, error) {
	if c.server == nil {
		return nil, errors.New("no such variable")
	}
	return &c.server, nil
}
func (*fakeConn) CheckNamedValue(*driver.NamedValue) error { return nil }
func (c *fakeConn) ResetSession(context.Context) error {
	if c.closed {
		return errClosed
	}
	return nil
}
func (c *fakeConn) IsValid() bool { return !c.closed }
func (c *fakeConn) Close() error {
	c.closed = true
	return nil
}

// Driver returns nil, because fakeConn is its own connector.
func (c *fakeConn) Driver() driver.Driver { return nil }
func (c *fakeConn) Connect(context.Context) (driver.Conn, error) {
	return &mysqlSession{mysqlConn: c, texts: true}, nil
}

// fakeRows are names and values of variables.
type fakeRows [][2]string

func (*fakeRows) Columns() []string { return []string{"Variable_name", "Value"} }
func (*fakeRows) Close() error      { return nil }
func (r *fakeRows) Next(row []driver.Value) error {
	if len(*r) == 0 {
		return io.EOF
	}
	row[0], row[1] = (*r)[0][0], (*r)[0][1]
	*r = (*r)[1:]
	return nil
}

// fakeResult has the number of rows that each statement of a text affected.
type fakeResult []int64

func (fakeResult) LastInsertId() (int64, error)   { return 0, nil }
func (r fakeResult) RowsAffected() (int64, error) { return r[len(r)-1], nil }
func (r fakeResult) AllRowsAffected() []int64     { return r }
func (fakeResult) AllLastInsertIds() []int64      { return nil }

// begin begins a transaction on one of the connections.
func begin(t *testing.T, conns pool) *Tx {
	t.Helper()
	tx, err := New(&gorm.DB{Config: &gorm.Config{ConnPool: conns}}, MySQL).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return tx
}

// TestTexts_NoWholeAnswer checks that the outcome of a text is unknown, and its
// connection closed, if some answers are missing or the error could be that of
// the COMMIT.
func TestTexts_NoWholeAnswer(t *testing.T) {
	for name, conn := range map[string]*fakeConn{
		"answers missing": {affected: []int64{0, 1, 1}},
		"interrupted":     {err: &mysql.MySQLError{Number: 1317, SQLState: [5]byte([]byte("70100"))}},
	} {
		open := openMySQL
		if conn.err == nil {
			open = func(context.Context, *sql.Conn) bool { return true } // open must be called only after an error of the server
		}
		conns := pool{DB: sql.OpenDB(conn), exec: execMySQL, open: open}
		defer conns.DB.Close()
		err := begin(t, conns).on.commit([]Statement{{SQL: "UPDATE"}, {SQL: "INSERT"}, {SQL: "COMMIT"}}, 1)
		if !errors.Is(err, ErrUnknownOutcome) || !conn.closed {
			t.Errorf("%s: %v, connection closed %v", name, err, conn.closed)
		}
	}
}

// apartConn is a fakeConn to a server that does not accept texts.
type apartConn struct{ *fakeConn }

func (c apartConn) Connect(context.Context) (driver.Conn, error) {
	return &mysqlSession{mysqlConn: c.fakeConn}, nil
}

// TestTexts_Apart checks that a server which does not accept texts gets each statement of a
// transaction on its own.
func TestTexts_Apart(t *testing.T) {
	conn := apartConn{&fakeConn{affected: []int64{0}}}
	conns := pool{DB: sql.OpenDB(conn), exec: execMySQL, begin: "START TRANSACTION", query: queryMySQL}
	defer conns.DB.Close()
	err := begin(t, conns).on.commit([]Statement{{SQL: "UPDATE"}, {SQL: "INSERT"}, {SQL: "COMMIT"}}, 0)
	if want := []string{"START TRANSACTION", "UPDATE", "INSERT", "COMMIT"}; err != nil || !slices.Equal(conn.sent, want) {
		t.Errorf("sent %q, %v, want %q", conn.sent, err, want)
	}
}

// failingConn is a fakeConn whose n-th call fails, counted from 1.
type failingConn struct {
	*fakeConn
	at, calls int
}

var errFailing = errors.New("the server is unreachable")

func (c *failingConn) hit() error {
	if c.calls++; c.calls == c.at {
		return errFailing
	}
	return nil
}

func (c *failingConn) Connect(context.Context) (driver.Conn, error) { return c, c.hit() }
func (c *failingConn) ExecContext(ctx context.Context, text string, args []driver.NamedValue) (driver.Result, error) {
	if err := c.hit(); err != nil {
		return nil, err
	}
	return c.fakeConn.ExecContext(ctx, text, args)
}
func (c *failingConn) QueryContext(ctx context.Context, text string, args []driver.NamedValue) (driver.Rows, error) {
	if err := c.hit(); err != nil {
		return nil, err
	}
	rows, err := c.fakeConn.QueryContext(ctx, text, args)
	return &failingRows{rows, c}, err
}

type failingRows struct {
	driver.Rows
	c *failingConn
}

func (r *failingRows) Next(row []driver.Value) error {
	if err := r.c.hit(); err != nil {
		return err
	}
	return r.Rows.Next(row)
}

// TestConnect_Fails makes each call fail that asks for the kind of a session's server. The session
// must not be used, because it might send texts to a server that does not accept them.
func TestConnect_Fails(t *testing.T) {
	for at := 1; ; at++ {
		conn := &failingConn{at: at, fakeConn: &fakeConn{
			affected: []int64{0}, server: fakeRows{{"version", "10.11.19-MariaDB"}, {"wsrep_provider", "galera.so"}},
		}}
		session, err := MySQLConnector(conn, true).Connect(t.Context())
		if conn.calls < at {
			if err != nil || at < 7 {
				t.Errorf("connecting: %v after %d calls", err, conn.calls)
			}
			return
		}
		if session != nil || !errors.Is(err, errFailing) || conn.closed != (at > 1) {
			t.Errorf("call %d fails: session %v, %v, closed %v", at, session, err, conn.closed)
		}
	}
}

// TestFirstQuery_CutShort checks that a query fails if the session was killed between the beginning
// of its transaction and the query. The server then answers only the first statement.
func TestFirstQuery_CutShort(t *testing.T) {
	conn := &fakeConn{affected: []int64{0}}
	conns := pool{DB: sql.OpenDB(emptyConn{conn}), exec: execMySQL, begin: "START TRANSACTION", query: queryMySQL}
	defer conns.DB.Close()
	began := begin(t, conns).on
	rows, err := began.QueryContext(t.Context(), "SELECT 1")
	if err == nil {
		defer rows.Close()
		err = rows.Err()
	}
	if !errors.Is(err, errCutShort) {
		t.Fatal(err) // open rows keep the connection in use
	}
	if err := began.Rollback(); err != nil || conns.DB.Stats().InUse != 0 {
		t.Errorf("rolling back: %v, %d connections in use", err, conns.DB.Stats().InUse)
	}
}

// emptyConn answers queries without rows and columns.
type emptyConn struct{ *fakeConn }

func (c emptyConn) Connect(context.Context) (driver.Conn, error) {
	return &mysqlSession{mysqlConn: c, texts: true}, nil
}

func (emptyConn) QueryContext(context.Context, string, []driver.NamedValue) (driver.Rows, error) {
	return noColumns{new(fakeRows)}, nil
}

type noColumns struct{ *fakeRows }

func (noColumns) Columns() []string { return nil }
