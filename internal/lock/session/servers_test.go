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
	pool, err := store.OpenSessions(dbURL, session.Dialed)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { pool.Close() })
	return pool
}

// locker returns a Locker at the URL.
func (s server) locker(dbURL string, lease time.Duration) *session.Locker {
	s.t.Helper()
	l, err := s.tryLocker(dbURL, lease)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { l.Close() })
	return l
}

func (s server) tryLocker(dbURL string, lease time.Duration) (*session.Locker, error) {
	s.t.Helper()
	open := postgres.New
	if s.mysql() {
		open = mysql.New
	}
	return open(s.t.Context(), s.open(dbURL), lease)
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

// key returns the key of the lock.
func (s server) key(name string) any {
	s.t.Helper()
	u, err := url.Parse(s.url)
	if err != nil {
		s.t.Fatal(err)
	}
	database := strings.TrimPrefix(u.Path, "/")
	if s.mysql() {
		return mysql.Key(database, name)
	}
	return postgres.Key(database+".public", name)
}

func (s server) exec(statement string) {
	s.t.Helper()
	if _, err := s.sql.ExecContext(s.t.Context(), statement); err != nil {
		s.t.Fatal(err)
	}
}

// endSession makes the server end the session that holds the lock.
func (s server) endSession(name string) {
	s.t.Helper()
	find, end := "SELECT pid FROM pg_locks WHERE granted AND locktype = 'advisory' AND (classid::bigint << 32) | objid::bigint = $1", "SELECT pg_terminate_backend(%d)"
	if s.mysql() {
		find, end = "SELECT IS_USED_LOCK(?)", "KILL %d"
	}
	var id int64
	if err := s.sql.QueryRowContext(s.t.Context(), find, s.key(name)).Scan(&id); err != nil {
		s.t.Fatal(err)
	}
	s.exec(fmt.Sprintf(end, id))
}

// waiter returns the ID of a session that waits for a lock; 0: there is none.
func (s server) waiter() (id int64) {
	s.t.Helper()
	find := "SELECT pid FROM pg_locks WHERE NOT granted AND locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
	if s.mysql() {
		find = "SELECT id FROM information_schema.processlist WHERE state = 'User lock' AND db = DATABASE()"
	}
	if err := s.sql.QueryRowContext(s.t.Context(), find).Scan(&id); err != nil && !errors.Is(err, sql.ErrNoRows) {
		s.t.Fatal(err)
	}
	return id
}

// TestTokenOfAWaiter raises the last token while a waiter waits on the server. The waiter's
// token must be greater: another holder could have got that one.
func TestTokenOfAWaiter(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, s server) {
		lease := locktest.MustLock(t, s.locker(s.url, locktest.LongLease), "a")
		waiting := locktest.LockAsync(t.Context(), s.locker(s.url, locktest.LongLease), "a")
		testenv.Await(t, "the server has the waiter", func() bool { return s.waiter() != 0 })
		s.exec("UPDATE lock_tokens SET token = token + 3600000000")
		locktest.MustUnlock(t, lease)
		next := locktest.MustGrant(t, waiting).Lease
		if last := lease.Token() + 3600000000; next.Token() <= last {
			t.Errorf("token %d was followed by token %d", last, next.Token())
		}
		locktest.MustUnlock(t, next)
	})
}

// TestEndedSession has an administrator end the session of a holder. A Confirm notices it
// without waiting for the next check.
func TestEndedSession(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, s server) {
		l := s.locker(s.url, locktest.LongLease)
		lease := locktest.MustLock(t, l, "a")
		if _, err := lease.(lock.Confirmer).Confirm(t.Context()); err != nil {
			t.Error(err)
		}
		s.endSession("a")
		if _, err := lease.(lock.Confirmer).Confirm(t.Context()); !errors.Is(err, lock.ErrLost) {
			t.Errorf("Confirm after the end of the session: %v, want %v", err, lock.ErrLost)
		}
		locktest.MustBeLost(t, lease)
		next := locktest.MustLock(t, l, "a")
		if next.Token() <= lease.Token() {
			t.Errorf("token %d was followed by token %d", lease.Token(), next.Token())
		}
		locktest.MustUnlock(t, next)
	})
}

// TestWaiterOutlivesItsSession has an administrator end the session of a waiter, which
// never held the lock. It must go on waiting, and be granted the lock.
func TestWaiterOutlivesItsSession(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, s server) {
		lease := locktest.MustLock(t, s.locker(s.url, locktest.LongLease), "a")
		waiting := locktest.LockAsync(t.Context(), s.locker(s.url, locktest.LongLease), "a")
		end := "SELECT pg_terminate_backend(%d)"
		if s.mysql() {
			end = "KILL %d"
		}
		testenv.Await(t, "the server has the waiter", func() bool { return s.waiter() != 0 })
		for range 2 { // the first session has been idle before, the second is new
			first := s.waiter()
			s.exec(fmt.Sprintf(end, first))
			testenv.Await(t, "the waiter has another session", func() bool { id := s.waiter(); return id != 0 && id != first })
		}
		locktest.MustUnlock(t, lease)
		locktest.MustUnlock(t, locktest.MustGrant(t, waiting).Lease)
	})
}

// TestConnection checks that both drivers report the connections of the sessions.
func TestConnection(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, s server) {
		lease := locktest.MustLock(t, s.locker(s.url, locktest.LongLease), "a")
		connection, err := lease.(lock.Connected).Connection()
		if err != nil {
			t.Fatal(err)
		}
		if err := connection.Control(func(uintptr) {}); err != nil {
			t.Error(err)
		}
		if _, err := lease.(lock.Confirmer).Confirm(t.Context()); err != nil {
			t.Error(err)
		}
		locktest.MustUnlock(t, lease)
	})
}

// TestClosedConnection closes the connection of a holder.
func TestClosedConnection(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, s server) {
		wire, dbURL := s.wire()
		lease := locktest.MustLock(t, s.locker(dbURL, locktest.LongLease), "a")
		if wire.Cut() == 0 {
			t.Fatal("the wire has no connection")
		}
		locktest.MustBeLost(t, lease)
	})
}

// TestCutOffHolderIsLostFirst cuts a holder off without closing its connection. The
// server must not free the lock before the lease has ended.
func TestCutOffHolderIsLostFirst(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, s server) {
		const leaseTime = 6 * time.Second // a third of it is between the two
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

// TestGrantWithoutAToken takes the table away while a waiter waits on the server. The server
// grants the lock and mints no token: the request must fail, and the lock must be free.
func TestGrantWithoutAToken(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, s server) {
		l := s.locker(s.url, locktest.LongLease)
		lease := locktest.MustLock(t, l, "a")
		waiting := locktest.LockAsync(t.Context(), s.locker(s.url, locktest.LongLease), "a")
		testenv.Await(t, "the server has the waiter", func() bool { return s.waiter() != 0 })
		s.exec("ALTER TABLE lock_tokens RENAME TO taken_away")
		locktest.MustUnlock(t, lease)
		if answer := <-waiting; answer.Err == nil {
			t.Errorf("the lock was granted with the token %d", answer.Lease.Token())
		}
		s.exec("ALTER TABLE taken_away RENAME TO lock_tokens")
		next := locktest.MustLock(t, l, "a")
		if next.Token() <= lease.Token() {
			t.Errorf("token %d was followed by token %d", lease.Token(), next.Token())
		}
		locktest.MustUnlock(t, next)
	})
}

// TestTokensAfterARestore restores the table from a backup that is older than the last
// grant. Tokens must rise all the same.
func TestTokensAfterARestore(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, s server) {
		l := s.locker(s.url, 0)
		grant := func() uint64 {
			t.Helper()
			lease := locktest.MustLock(t, l, "a")
			locktest.MustUnlock(t, lease)
			return lease.Token()
		}
		grant()
		s.exec("CREATE TABLE backup AS SELECT * FROM lock_tokens")
		last := grant()
		s.exec("DELETE FROM lock_tokens")
		s.exec("INSERT INTO lock_tokens SELECT * FROM backup")
		if token := grant(); token <= last {
			t.Errorf("token %d was followed by token %d", last, token)
		}
	})
}

// TestTokenRows takes more locks than the table has rows for. The tokens of each must rise,
// also above those of an earlier version, which kept a row for each lock.
func TestTokenRows(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, s server) {
		const locks, rows = 300, 256
		l := s.locker(s.url, 0)
		last := make(map[string]uint64)
		grantAll := func() {
			for i := range locks {
				name := fmt.Sprint("lock-", i)
				lease := locktest.MustLock(t, l, name)
				locktest.MustUnlock(t, lease)
				if lease.Token() <= last[name] {
					t.Errorf("%s: token %d was followed by token %d", name, last[name], lease.Token())
				}
				last[name] = lease.Token()
			}
		}
		grantAll()
		var n int
		if err := s.sql.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM lock_tokens").Scan(&n); err != nil || n > rows {
			t.Errorf("%d rows for %d locks, want at most %d (%v)", n, locks, rows, err)
		}
		ahead := time.Now().Add(time.Hour).UnixMicro() // the clock was set back
		last["lock-0"] = uint64(ahead)
		insert := "INSERT INTO lock_tokens VALUES ($1, $2)"
		if s.mysql() {
			insert = "INSERT INTO lock_tokens VALUES (?, ?)"
		}
		if _, err := s.sql.ExecContext(t.Context(), insert, s.key("lock-0"), ahead); err != nil {
			t.Fatal(err)
		}
		grantAll()
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
		if l, err := s.tryLocker(s.url, 0); !errors.Is(err, lock.ErrNoTable) || !strings.Contains(err.Error(), "api migrate up") {
			t.Errorf("New without the table: %v, error %v, want lock.ErrNoTable", l, err)
		}
	})
}
