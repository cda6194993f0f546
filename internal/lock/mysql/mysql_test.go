package mysql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-stock/holdfast/internal/lock/locktest"
	"github.com/holdfast-stock/holdfast/internal/lock/session"
	"github.com/holdfast-stock/holdfast/internal/store/storetest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// TestReadOnlyServer makes the server of a holder read-only, like the first step of a switchover to
// another server.
func TestReadOnlyServer(t *testing.T) {
	t.Parallel()
	server := testenv.OwnMariaDB(t)
	storetest.MigratedURL(t, server.URL())
	pool := storetest.Sessions(t, server.URL())
	l, err := New(t.Context(), pool, locktest.LongLease)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	lease := locktest.MustLock(t, l, "a")
	if _, err := pool.ExecContext(t.Context(), "SET GLOBAL read_only = 1"); err != nil {
		t.Fatal(err)
	}
	locktest.MustBeLost(t, lease)
	_ = lease.Unlock(t.Context())
	if _, err := New(t.Context(), pool, 0); err == nil || !strings.Contains(err.Error(), "read-only") {
		t.Errorf("New on a read-only server: %v", err)
	}
}

// TestGaleraNode checks that a Galera node is refused. It needs no cluster, because loading the
// replication library is enough.
func TestGaleraNode(t *testing.T) {
	t.Parallel()
	const library = "/usr/lib/galera/libgalera_smm.so"
	if _, err := os.Stat(library); err != nil {
		t.Fatalf("Galera is not installed: %v", err)
	}
	server := testenv.OwnMariaDB(t, "--wsrep-provider="+library, "--wsrep-on=OFF", "--binlog-format=ROW")
	if _, err := New(t.Context(), storetest.Sessions(t, server.URL()), 0); err == nil || !strings.Contains(err.Error(), "Galera") {
		t.Errorf("New on a Galera node: %v", err)
	}
}

// TestRefuse checks the answers of servers that cannot be installed here.
func TestRefuse(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		variables map[string]string
		says      string // empty means accepted
	}{
		{map[string]string{"read_only": "OFF"}, ""},
		{map[string]string{"read_only": "OFF", "wsrep_provider": "none"}, ""},
		{map[string]string{"read_only": "OFF", "group_replication_group_name": "g", "group_replication_single_primary_mode": "ON"}, ""},
		{map[string]string{"read_only": "OFF", "group_replication_group_name": "g", "group_replication_single_primary_mode": "OFF"}, "several primaries"},
		{map[string]string{"read_only": "ON", "group_replication_group_name": "g", "group_replication_single_primary_mode": "ON"}, "read-only"},
		{map[string]string{"read_only": "OFF", "wsrep_provider": "/usr/lib/libgalera_smm.so"}, "Galera"},
	} {
		err := refuse(test.variables)
		if (err == nil) != (test.says == "") || err != nil && !strings.Contains(err.Error(), test.says) {
			t.Errorf("%v: %v, want %q", test.variables, err, test.says)
		}
	}
}

// TestKey checks that keys fit and that each part counts.
func TestKey(t *testing.T) {
	t.Parallel()
	keys := map[string]bool{}
	for _, k := range []string{Key("shop", "a"), Key("shop", "b"), Key("shop2", "a"), Key("shop", strings.Repeat("a", 1000))} {
		if len(k) > 64 || k != strings.ToLower(k) {
			t.Errorf("%q is not a name that MySQL distinguishes", k)
		}
		keys[k] = true
	}
	if len(keys) != 4 {
		t.Errorf("only %d of 4 keys are different", len(keys))
	}
}

// TestSettings prepares a session whose server has other defaults. A limit on statements would end
// a wait, and without autocommit a token would not be committed. With a time zone that is set back,
// tokens could be an hour behind.
func TestSettings(t *testing.T) {
	t.Parallel()
	conn, err := storetest.Sessions(t, storetest.MigratedURL(t, testenv.MariaDB(t))).Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.ExecContext(t.Context(), "SET SESSION max_statement_time = 1, autocommit = 0, time_zone = '+05:00'"); err != nil {
		t.Fatal(err)
	}
	if _, err := new(counter).prepare(t.Context(), conn, time.Minute); err != nil {
		t.Fatal(err)
	}
	var (
		limit, autocommit float64
		zone              string
	)
	err = conn.QueryRowContext(t.Context(), "SELECT @@max_statement_time, @@autocommit, @@time_zone").Scan(&limit, &autocommit, &zone)
	if err != nil || limit != 0 || autocommit != 1 || zone != "+00:00" {
		t.Errorf("statements are limited to %v s, autocommit is %v, and the time zone %s (%v)", limit, autocommit, zone, err)
	}
}

// TestRaise raises a sequence that another session has raised further meanwhile.
func TestRaise(t *testing.T) {
	t.Parallel()
	dbURL := storetest.MigratedURL(t, testenv.MariaDB(t))
	conn, err := storetest.Sessions(t, dbURL).Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.ExecContext(t.Context(), "DO SETVAL(fencing_tokens, 9000000)"); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ token, clock, want int64 }{
		{1, 8000000, 9000001},         // another session was faster
		{9000001, 9900000, 9000001},   // the sequence is not far behind
		{9000001, 20000000, 20000001}, // the sequence must be raised
	} {
		if token, err := raise(t.Context(), conn, test.token, test.clock); err != nil || token != test.want {
			t.Errorf("at %d, token %d becomes %d, want %d (%v)", test.clock, test.token, token, test.want, err)
		}
	}
}

// TestWait_CutShort checks that an answer that is cut off or unreadable gives no grant, rather
// than one with token 0.
func TestWait_CutShort(t *testing.T) {
	t.Parallel()
	granted, token := []driver.Value{int64(7), int64(1)}, []driver.Value{int64(42), int64(42 + session.MaxBehind)}
	behind := []driver.Value{int64(42), int64(43 + session.MaxBehind)}
	for name, test := range map[string]struct {
		answer answer
		want   session.Taken
	}{
		"whole":                {answer{rows: [][]driver.Value{granted, token}}, session.Taken{Session: 7, Granted: true, Token: 42}},
		"nothing":              {answer{rows: [][]driver.Value{nil}}, session.Taken{}},
		"no session":           {answer{rows: [][]driver.Value{{"x", int64(1)}, token}}, session.Taken{}},
		"without second part":  {answer{rows: [][]driver.Value{granted}}, session.Taken{}},
		"without token":        {answer{rows: [][]driver.Value{granted, nil}}, session.Taken{}},
		"not raised":           {answer{rows: [][]driver.Value{granted, behind}}, session.Taken{}}, // the answer to that has no token
		"no number":            {answer{rows: [][]driver.Value{granted, {"x", int64(0)}}}, session.Taken{}},
		"cut after its tokens": {answer{rows: [][]driver.Value{granted, token}, end: io.ErrUnexpectedEOF}, session.Taken{}},
	} {
		taken, err := new(counter).wait(t.Context(), test.answer.conn(t), Key("d", "a"))
		if sound := test.want.Granted; sound != (err == nil) || sound && taken != test.want {
			t.Errorf("%s: %+v, %v", name, taken, err)
		}
	}
	for _, second := range [][]driver.Value{nil, behind, {"x", int64(0)}} { // answers to TryLock
		if token, err := new(counter).mint(t.Context(), answer{rows: [][]driver.Value{second}}.conn(t), Key("d", "a")); err == nil {
			t.Errorf("%v gives the token %d", second, token)
		}
	}
}

// TestUptime checks the uptime of a server that reports two seconds, but may have started up to a
// second later.
func TestUptime(t *testing.T) {
	t.Parallel()
	if got, err := uptime(t.Context(), answer{rows: [][]driver.Value{{"Uptime", "2"}}}.conn(t)); got != time.Second || err != nil {
		t.Errorf("uptime %v, %v, want at least %v", got, err, time.Second)
	}
}

// answer is a database whose answer to every text has these result sets, of at most one row each.
type answer struct {
	rows [][]driver.Value
	end  error // error of the last result set
	read bool
}

// conn returns a connection to the database.
func (a answer) conn(t *testing.T) *sql.Conn {
	t.Helper()
	db := sql.OpenDB(a)
	t.Cleanup(func() { db.Close() })
	conn, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

func (a answer) Connect(context.Context) (driver.Conn, error) { return a, nil }
func (answer) Driver() driver.Driver                          { return nil }
func (answer) Prepare(string) (driver.Stmt, error)            { return nil, errors.ErrUnsupported }
func (answer) Begin() (driver.Tx, error)                      { return nil, errors.ErrUnsupported }
func (a answer) Close() error                                 { return a.end }

func (a answer) QueryContext(context.Context, string, []driver.NamedValue) (driver.Rows, error) {
	return &a, nil
}

func (a *answer) Columns() []string      { return make([]string, len(a.rows[0])) }
func (a *answer) HasNextResultSet() bool { return len(a.rows) > 1 }

func (a *answer) Next(row []driver.Value) error {
	if a.read || a.rows[0] == nil {
		return io.EOF
	}
	a.read = true
	copy(row, a.rows[0])
	return nil
}

func (a *answer) NextResultSet() error {
	if !a.HasNextResultSet() {
		return io.EOF
	}
	a.rows, a.read = a.rows[1:], false
	return nil
}
