package session_test

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/lock/locktest"
	"github.com/holdfast-stock/holdfast/internal/lock/mysql"
	"github.com/holdfast-stock/holdfast/internal/lock/postgres"
	"github.com/holdfast-stock/holdfast/internal/lock/session"
	"github.com/holdfast-stock/holdfast/internal/store"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

func TestMain(m *testing.M) {
	flag.Parse()
	_ = flag.Set("test.parallel", "8") // the tests mostly wait for leases to end
	os.Exit(testenv.Main(m))
}

// onServers runs the test on a MariaDB and on a PostgreSQL.
func onServers(t *testing.T, test func(t *testing.T, s server)) {
	t.Helper()
	for _, database := range testenv.NetworkDatabases() {
		t.Run(database.Name, func(t *testing.T) {
			t.Parallel()
			test(t, newServer(t, database))
		})
	}
}

// server is a migrated database.
type server struct {
	t   *testing.T
	url string
	sql *sql.DB // for the test's own statements
}

func newServer(t *testing.T, database testenv.Database) server {
	t.Helper()
	s := server{t: t, url: database.URL(t)}
	ledger, err := store.OpenSQL(t.Context(), s.url)
	if err != nil {
		t.Fatal(err)
	}
	defer ledger.Close()
	if err := ledger.MigrateUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.sql = s.open(s.url)
	return s
}

func (s server) open(dbURL string) *sql.DB {
	s.t.Helper()
	pool, err := store.OpenSessions(dbURL)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { pool.Close() })
	return pool
}

// locker returns a Locker at the URL.
func (s server) locker(dbURL string, lease time.Duration) *session.Locker {
	s.t.Helper()
	open := postgres.New
	if s.mysql() {
		open = mysql.New
	}
	l, err := open(s.t.Context(), s.open(dbURL), lease)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { l.Close() })
	return l
}

func (s server) mysql() bool { return strings.HasPrefix(s.url, "mysql:") }

// wire returns a wire to the server, and the URL of the database over it.
func (s server) wire() (*testenv.Wire, string) {
	u, err := url.Parse(s.url)
	if err != nil {
		s.t.Fatal(err)
	}
	w := testenv.NewWire(s.t, u.Host)
	u.Host = w.Addr()
	return w, u.String()
}

// endSession makes the server end the session that holds the lock.
func (s server) endSession(name string) {
	s.t.Helper()
	u, err := url.Parse(s.url)
	if err != nil {
		s.t.Fatal(err)
	}
	database := strings.TrimPrefix(u.Path, "/")
	var id int64
	end := "SELECT pg_terminate_backend(%d)"
	if s.mysql() {
		end = "KILL %d"
		err = s.sql.QueryRowContext(s.t.Context(), "SELECT IS_USED_LOCK(?)", mysql.Key(database, name)).Scan(&id)
	} else {
		err = s.sql.QueryRowContext(s.t.Context(), "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND (classid::bigint << 32) | objid::bigint = $1",
			postgres.Key(database+".public", name)).Scan(&id)
	}
	if err == nil {
		_, err = s.sql.ExecContext(s.t.Context(), fmt.Sprintf(end, id))
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// noticed bounds the time in which a holder notices the end of its session: a second,
// and what a busy machine adds. TestEndedSessionIsNoticed checks the exact time.
const noticed = 3 * time.Second

// TestEndedSession has an administrator end the session of a holder. A Confirm notices it
// without waiting for the next check.
func TestEndedSession(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, s server) {
		l := s.locker(s.url, lock.DefaultLease)
		lease := locktest.MustLock(t, l, "a")
		if _, err := lease.(lock.Confirmer).Confirm(t.Context()); err != nil {
			t.Error(err)
		}
		s.endSession("a")
		if _, err := lease.(lock.Confirmer).Confirm(t.Context()); !errors.Is(err, lock.ErrLost) {
			t.Errorf("Confirm after the end of the session: %v, want %v", err, lock.ErrLost)
		}
		locktest.MustBeLost(t, lease, noticed)
		next := locktest.MustLock(t, l, "a")
		if next.Token() <= lease.Token() {
			t.Errorf("token %d was followed by token %d", lease.Token(), next.Token())
		}
		locktest.MustUnlock(t, next)
	})
}

// TestClosedConnection closes the connection of a holder.
func TestClosedConnection(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, s server) {
		wire, dbURL := s.wire()
		lease := locktest.MustLock(t, s.locker(dbURL, lock.DefaultLease), "a")
		if wire.Cut() == 0 {
			t.Fatal("the wire has no connection")
		}
		locktest.MustBeLost(t, lease, noticed)
	})
}

// TestCutOffHolderIsLostFirst cuts a holder off without closing its connection. The
// server must not free the lock before the lease has ended.
func TestCutOffHolderIsLostFirst(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, s server) {
		const leaseTime = 3 * time.Second
		wire, dbURL := s.wire()
		lease := locktest.MustLock(t, s.locker(dbURL, leaseTime), "a")
		lost := make(chan time.Time, 1)
		context.AfterFunc(lease.Context(), func() { lost <- time.Now() })
		answers := locktest.LockAsync(t.Context(), s.locker(s.url, leaseTime), "a")
		if wire.Freeze() == 0 {
			t.Fatal("the wire has no connection")
		}
		next := locktest.MustGrant(t, answers)
		if ended := <-lost; ended.After(next.At) {
			t.Errorf("another was granted the lock %v before the lease ended", ended.Sub(next.At))
		}
		wire.Thaw()
		_ = lease.Unlock(t.Context())
		locktest.MustUnlock(t, next.Lease)
	})
}

// TestTokensWithoutTheTable loses the last token, and then has one that is ahead of
// the clock. Tokens must rise all the same.
func TestTokensWithoutTheTable(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, s server) {
		l := s.locker(s.url, 0)
		var last uint64
		for _, change := range []string{"DELETE FROM lock_tokens", "UPDATE lock_tokens SET token = token + 3600000000", "UPDATE lock_tokens SET token = token"} {
			lease := locktest.MustLock(t, l, "a")
			locktest.MustUnlock(t, lease)
			if lease.Token() <= last {
				t.Errorf("token %d was followed by token %d", last, lease.Token())
			}
			last = lease.Token()
			if _, err := s.sql.ExecContext(t.Context(), change); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// TestDatabasesAreApart checks that two databases of one server have locks of their
// own.
func TestDatabasesAreApart(t *testing.T) {
	t.Parallel()
	for _, database := range testenv.NetworkDatabases() {
		t.Run(database.Name, func(t *testing.T) {
			t.Parallel()
			one, two := newServer(t, database), newServer(t, database)
			held := locktest.MustLock(t, one.locker(one.url, 0), "a")
			locktest.MustUnlock(t, locktest.MustLock(t, two.locker(two.url, 0), "a"))
			locktest.MustBeHeld(t, one.locker(one.url, 0), "a")
			locktest.MustUnlock(t, held)
		})
	}
}

// TestPooler connects to MariaDB through a proxy that assigns each statement to the
// other one of two sessions. TestPgBouncer in package postgres uses a real pooler.
func TestPooler(t *testing.T) {
	t.Parallel()
	s := server{t: t, url: testenv.MariaDB(t)}
	u, err := url.Parse(s.url)
	if err != nil {
		t.Fatal(err)
	}
	u.Host = startPooler(t, u.Host)
	if _, err := mysql.New(t.Context(), s.open(u.String()), 0); err == nil || !strings.Contains(err.Error(), "pooler") {
		t.Errorf("New behind a pooler: %v", err)
	}
}

// TestNoTable checks the error of a database that was not migrated.
func TestNoTable(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, s server) {
		if _, err := s.sql.ExecContext(t.Context(), "DROP TABLE lock_tokens"); err != nil {
			t.Fatal(err)
		}
		l := s.locker(s.url, 0)
		if _, err := l.Lock(t.Context(), "a"); err == nil || !strings.Contains(err.Error(), "lock_tokens") {
			t.Errorf("Lock without the table: %v", err)
		}
	})
}
