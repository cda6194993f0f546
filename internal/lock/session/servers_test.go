package session_test

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"io/fs"
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
	"github.com/holdfast-stock/holdfast/internal/store/storetest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
	"github.com/holdfast-stock/holdfast/migrations"
)

func TestMain(m *testing.M) {
	flag.Parse()
	_ = flag.Set("test.parallel", "8") // many in parallel, because the tests mostly wait for leases to end
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
	t     *testing.T
	url   string
	sql   *sql.DB // connection for the test's own statements
	table bool    // the tokens are in a table
}

// onCounters runs the test on a MariaDB and on a PostgreSQL. It also runs it with the table that
// MySQL uses instead of a sequence.
func onCounters(t *testing.T, test func(t *testing.T, s server)) {
	t.Helper()
	onServers(t, test)
	t.Run("table", func(t *testing.T) {
		t.Parallel()
		s := newServer(t, testenv.Database{Name: "MariaDB", URL: testenv.MariaDB})
		s.table = true
		s.newCounter(1)
		test(t, s)
	})
}

func newServer(t *testing.T, database testenv.Database) server {
	t.Helper()
	return newServerAt(t, database.URL(t))
}

func newServerAt(t *testing.T, dbURL string) server {
	t.Helper()
	s := server{t: t, url: storetest.MigratedURL(t, dbURL)}
	s.sql = s.open(s.url)
	return s
}

// newCounter replaces the counter of tokens with one that begins at start.
func (s server) newCounter(start uint64) {
	s.t.Helper()
	s.dropCounter()
	s.makeCounter(start)
}

func (s server) dropCounter() {
	s.t.Helper()
	s.exec(map[bool]string{true: "DROP TABLE fencing_tokens", false: "DROP SEQUENCE fencing_tokens"}[s.mysql()])
}

func (s server) makeCounter(start uint64) {
	s.t.Helper()
	if s.table {
		s.exec(tableOfMySQL(s.t))
		s.exec(fmt.Sprintf("INSERT INTO fencing_tokens VALUES ('%s', %d)", strings.TrimPrefix(s.key("a").(string), "holdfast/")[:2], start))
		return
	}
	s.exec(fmt.Sprintf("CREATE SEQUENCE fencing_tokens START WITH %d", start))
}

// raise makes the counter continue after the token.
func (s server) raise(token uint64) {
	s.t.Helper()
	switch {
	case s.table:
		s.exec(fmt.Sprintf("UPDATE fencing_tokens SET token = %d", token))
	case s.mysql():
		s.exec(fmt.Sprintf("DO SETVAL(fencing_tokens, %d)", token))
	default:
		s.exec(fmt.Sprintf("SELECT setval('fencing_tokens', %d)", token))
	}
}

// tableOfMySQL returns the statement with which MySQL, but not MariaDB, creates the table.
func tableOfMySQL(t *testing.T) string {
	t.Helper()
	files, err := migrations.Files("mysql")
	if err != nil {
		t.Fatal(err)
	}
	text, err := fs.ReadFile(files, "000007_fencing_tokens.up.sql")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "/*!50701 ")
	table, _, found := strings.Cut(rest, "*/")
	if !found {
		t.Fatalf("the migration makes no table on MySQL: %s", text)
	}
	return "CREATE " + table
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
	w := testenv.NewWire(s.t, s.url)
	return w, w.Through(s.url)
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

// waiter returns the ID of a session that waits for a lock, or 0 if there is none.
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

// TestTokenOfAWaiter raises the last token while a waiter waits on the server. The waiter's token
// must be greater, because another holder could have got the raised one.
func TestTokenOfAWaiter(t *testing.T) {
	t.Parallel()
	onCounters(t, func(t *testing.T, s server) {
		lease := locktest.MustLock(t, s.locker(s.url, locktest.LongLease), "a")
		waiting := locktest.LockAsync(t.Context(), s.locker(s.url, locktest.LongLease), "a")
		testenv.Await(t, "the server has the waiter", func() bool { return s.waiter() != 0 })
		last := lease.Token() + anHour
		s.raise(last)
		locktest.MustUnlock(t, lease)
		next := locktest.MustGrant(t, waiting).Lease
		if next.Token() <= last {
			t.Errorf("token %d was followed by token %d", last, next.Token())
		}
		locktest.MustUnlock(t, next)
	})
}

// TestWaiterOutlivesItsSession lets an administrator end the session of a waiter, which never held
// the lock. The waiter must continue to wait, and get the lock.
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

// TestCutOffHolderIsLostFirst cuts a holder off without closing its connection. The
// server must not free the lock before the lease has ended.
func TestCutOffHolderIsLostFirst(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, s server) {
		const leaseTime = 6 * time.Second // a third of this time lies between the two
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

const anHour = 3_600_000_000 // in microseconds

// grant locks, unlocks, and returns the token.
func grant(t *testing.T, l lock.Locker, name string) uint64 {
	t.Helper()
	lease := locktest.MustLock(t, l, name)
	locktest.MustUnlock(t, lease)
	return lease.Token()
}

// tryGrant is grant with TryLock.
func tryGrant(t *testing.T, l lock.Locker, name string) uint64 {
	t.Helper()
	lease, err := l.TryLock(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	locktest.MustUnlock(t, lease)
	return lease.Token()
}

// TestTokensRise replaces the counter with a new one, and with one from a backup that is an hour
// old. Then the counter is ahead of the clock, as after the clock was set back. Tokens must still
// rise.
func TestTokensRise(t *testing.T) {
	t.Parallel()
	onCounters(t, func(t *testing.T, s server) {
		l := s.locker(s.url, 0)
		var last uint64
		for name, change := range []func(){
			func() {}, func() { s.newCounter(1) }, func() { s.newCounter(last - anHour) }, func() { s.raise(last + anHour); last += anHour }, func() {},
		} {
			for _, request := range []func(*testing.T, lock.Locker, string) uint64{grant, tryGrant} {
				change()
				token := request(t, l, "a")
				if token <= last {
					t.Errorf("change %d: token %d was followed by token %d", name, last, token)
				}
				if clock := uint64(time.Now().UnixMicro()); name < 3 && token > clock {
					t.Errorf("change %d: token %d is %d ahead of the clock", name, token, token-clock)
				}
				last = token
			}
		}
	})
}

// TestPrivileges locks as a user that may only use the tokens.
func TestPrivileges(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		own             func(testenv.T, ...string) *testenv.DatabaseServer
		create          string
		before, missing string   // privileges of the user
		denied          []string // texts in the error
	}{
		"MariaDB": {testenv.OwnMariaDB, "CREATE USER locker", "GRANT SELECT ON fencing_tokens TO locker",
			"GRANT INSERT ON fencing_tokens TO locker", []string{"INSERT command denied", "fencing_tokens"}},
		"PostgreSQL": {testenv.OwnPostgres, "CREATE ROLE locker LOGIN", "GRANT SELECT, USAGE ON SEQUENCE fencing_tokens TO locker",
			"GRANT UPDATE ON SEQUENCE fencing_tokens TO locker", []string{"permission denied for sequence fencing_tokens"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newServerAt(t, test.own(t).URL())
			u, err := url.Parse(s.url)
			if err != nil {
				t.Fatal(err)
			}
			u.User = url.User("locker")
			s.exec(test.create)
			s.exec(test.before)
			l := s.locker(u.String(), 0)
			_, err = l.Lock(t.Context(), "a")
			for _, part := range test.denied {
				if err == nil || !strings.Contains(err.Error(), part) {
					t.Errorf("without a privilege: %v, want %q in it", err, part)
				}
			}
			s.exec(test.missing)
			locktest.MustUnlock(t, locktest.MustLock(t, l, "a"))
		})
	}
}

// TestTokensAfterACrash kills the server right after a grant. PostgreSQL keeps the sequence, even
// if it is ahead of the clock. MariaDB loses the last values, and tokens continue from the clock.
func TestTokensAfterACrash(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		own   func(testenv.T, ...string) *testenv.DatabaseServer
		ahead bool
	}{{"MariaDB", testenv.OwnMariaDB, false}, {"PostgreSQL", testenv.OwnPostgres, true}} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			own := test.own(t)
			s := newServerAt(t, own.URL())
			last := grant(t, s.locker(s.url, 0), "a")
			if test.ahead {
				s.raise(last + anHour)
			}
			for range 3 {
				l := s.locker(s.url, 0)
				token := grant(t, l, "a")
				own.Kill()
				own.Restart()
				if token <= last {
					t.Errorf("token %d was followed by token %d", last, token)
				}
				last = token
			}
			if token := grant(t, s.locker(s.url, 0), "a"); token <= last {
				t.Errorf("after the crash, token %d was followed by token %d", last, token)
			}
		})
	}
}

// TestGrantWithoutAToken removes the counter while a waiter waits on the server. The server grants
// the lock and mints no token, so the request must fail, and the lock must be free.
func TestGrantWithoutAToken(t *testing.T) {
	t.Parallel()
	onCounters(t, func(t *testing.T, s server) {
		l := s.locker(s.url, locktest.LongLease)
		lease := locktest.MustLock(t, l, "a")
		waiting := locktest.LockAsync(t.Context(), s.locker(s.url, locktest.LongLease), "a")
		testenv.Await(t, "the server has the waiter", func() bool { return s.waiter() != 0 })
		s.dropCounter()
		locktest.MustUnlock(t, lease)
		if answer := <-waiting; answer.Err == nil {
			t.Errorf("the lock was granted with the token %d", answer.Lease.Token())
		}
		s.makeCounter(1)
		next := locktest.MustLock(t, l, "a")
		if next.Token() <= lease.Token() {
			t.Errorf("token %d was followed by token %d", lease.Token(), next.Token())
		}
		locktest.MustUnlock(t, next)
	})
}

// TestTokenRows takes more locks than the table has rows.
func TestTokenRows(t *testing.T) {
	t.Parallel()
	const locks, rows = 300, 256
	s := newServer(t, testenv.Database{Name: "MariaDB", URL: testenv.MariaDB})
	s.table = true
	s.newCounter(1)
	l := s.locker(s.url, 0)
	for i := range locks {
		grant(t, l, fmt.Sprint("lock-", i))
	}
	var n int
	if err := s.sql.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM fencing_tokens").Scan(&n); err != nil || n == 0 || n > rows {
		t.Errorf("%d rows for %d locks, want at most %d (%v)", n, locks, rows, err)
	}
}

// TestDatabasesAreApart checks that two databases of one server have separate locks.
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

// TestNotMigrated checks the error of a database that was not migrated.
func TestNotMigrated(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, s server) {
		s.dropCounter()
		if l, err := s.tryLocker(s.url, 0); !errors.Is(err, lock.ErrNotMigrated) || !strings.Contains(err.Error(), "api migrate up") {
			t.Errorf("New without the sequence: %v, error %v, want lock.ErrNotMigrated", l, err)
		}
	})
}
