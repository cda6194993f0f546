package sqltx

import (
	"database/sql/driver"
	"errors"
	"strings"
	"testing"
	"time"
)

// TestMySQLPrimary checks on which of two hosts a session is opened. The first host is as given,
// and the second writable. The connection to the other host must be closed. Package store tests
// this with servers.
func TestMySQLPrimary(t *testing.T) {
	t.Parallel()
	writable := fakeRows{{"version", "8.4.0"}, {"read_only", "OFF"}, {"innodb_read_only", "OFF"}}
	for name, test := range map[string]struct {
		first *fakeConn
		uses  bool
		says  string // error if no other host is writable
	}{
		"writable":                 {&fakeConn{server: writable}, true, ""},
		"says nothing":             {&fakeConn{server: fakeRows{}}, true, ""},
		"read-only":                {&fakeConn{server: fakeRows{{"read_only", "ON"}, {"innodb_read_only", "OFF"}}}, false, "first: it is read-only"},
		"a replica in Aurora":      {&fakeConn{server: fakeRows{{"read_only", "OFF"}, {"innodb_read_only", "ON"}}}, false, "first: it is read-only"},
		"a part is refused":        {&fakeConn{server: fakeRows{{"read_only", "NO_LOCK"}}}, false, "first: it is read-only"},
		"Galera without a cluster": {&fakeConn{server: writable, err: errors.New("not yet prepared node")}, false, "first: not yet prepared node"},
	} {
		t.Run(name, func(t *testing.T) {
			next := &fakeConn{server: writable}
			again, more := *test.first, *test.first // copied, because a fake can be used only once
			used, unused := test.first, next
			if !test.uses {
				used, unused = next, test.first
			}
			session, err := MySQLPrimary(time.Hour, []MySQLHost{{"first", test.first}, {"next", next}}).Connect(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if got := session.(*primarySession).mysqlConn.(*mysqlSession).mysqlConn; got != used || used.closed {
				t.Errorf("the session is on another host, or closed: %v", used.closed)
			}
			if test.uses == unused.closed { // if test.uses, the second host is not asked
				t.Errorf("the connection to the other host is closed: %v", unused.closed)
			}
			if test.uses {
				return
			}
			_, err = MySQLPrimary(time.Hour, []MySQLHost{{"first", &again}, {"next", &more}}).Connect(t.Context())
			if err == nil || !strings.Contains(err.Error(), test.says) || !strings.Contains(err.Error(), "; next: ") {
				t.Errorf("no host is writable: %v", err)
			}
		})
	}
}

// TestMySQLPrimary_Moves checks that idle sessions are not used again once a session was opened on
// another host.
func TestMySQLPrimary_Moves(t *testing.T) {
	t.Parallel()
	first, next := &fakeConn{server: fakeRows{{"read_only", "OFF"}}}, &fakeConn{server: fakeRows{{"read_only", "OFF"}}}
	primary := MySQLPrimary(time.Hour, []MySQLHost{{"first", first}, {"next", next}})
	connect := func() *primarySession {
		t.Helper()
		session, err := primary.Connect(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return session.(*primarySession)
	}
	before := connect()
	if err := before.ResetSession(t.Context()); err != nil {
		t.Errorf("no session was opened elsewhere: %v", err)
	}
	first.server = fakeRows{{"read_only", "ON"}}
	after := connect()
	if err := before.ResetSession(t.Context()); !errors.Is(err, driver.ErrBadConn) {
		t.Errorf("a session of the earlier primary may be used: %v", err)
	}
	if err := after.ResetSession(t.Context()); err != nil {
		t.Errorf("a session of the primary must not be used: %v", err)
	}
	first.server, first.closed = fakeRows{{"read_only", "OFF"}}, false // the first host is the primary again
	back := connect()
	if now, earlier := back.ResetSession(t.Context()), after.ResetSession(t.Context()); now != nil || !errors.Is(earlier, driver.ErrBadConn) {
		t.Errorf("a session of the primary may be used: %v, and one of the earlier primary: %v", now, earlier)
	}
	first.closed = true
	if err := back.ResetSession(t.Context()); !errors.Is(err, errClosed) {
		t.Errorf("a session that is closed may be used: %v", err)
	}
}
