package postgres

import (
	"database/sql"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-stock/holdfast/internal/lock/locktest"
	"github.com/holdfast-stock/holdfast/internal/lock/session"
	"github.com/holdfast-stock/holdfast/internal/store/storetest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// TestPgBouncer connects through a PgBouncer. With transaction pooling, a connection has no session
// of its own. With session pooling, it has one.
func TestPgBouncer(t *testing.T) {
	t.Parallel()
	dbURL := storetest.MigratedURL(t, testenv.Postgres(t))
	for _, settings := range [][]string{
		{"pool_mode = transaction"},
		{"pool_mode = transaction", "server_round_robin = 1"},
		{"pool_mode = statement"},
	} {
		t.Run(strings.Join(settings, ", "), func(t *testing.T) {
			t.Parallel()
			pooled := storetest.Sessions(t, testenv.OwnPgBouncer(t, dbURL, settings...))
			if _, err := New(t.Context(), pooled, 0); err == nil || settings[0] == "pool_mode = transaction" && !strings.Contains(err.Error(), "pooler") {
				t.Errorf("New behind a PgBouncer: %v", err)
			}
		})
	}
	t.Run("pool_mode = session", func(t *testing.T) {
		t.Parallel()
		l, err := New(t.Context(), storetest.Sessions(t, testenv.OwnPgBouncer(t, dbURL, "pool_mode = session")), 0)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		lease := locktest.MustLock(t, l, "a")
		direct, err := New(t.Context(), storetest.Sessions(t, dbURL), 0)
		if err != nil {
			t.Fatal(err)
		}
		defer direct.Close()
		locktest.MustBeHeld(t, direct, "a")
		locktest.MustUnlock(t, lease)
	})
}

// TestCrashedProcess kills a process of the server, which then ends all sessions and
// forgets their locks. New sessions must count the uptime from then on.
func TestCrashedProcess(t *testing.T) {
	t.Parallel()
	dbURL := storetest.MigratedURL(t, testenv.OwnPostgres(t).URL())
	pool := storetest.Sessions(t, dbURL)
	connect := func() (s session.Server, err error) {
		conn, err := pool.Conn(t.Context())
		if err != nil {
			return s, err
		}
		defer conn.Close()
		return prepare(t.Context(), conn, time.Minute)
	}
	victim, err := pool.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer victim.Close()
	var pid int
	if err := victim.QueryRowContext(t.Context(), "SELECT pg_backend_pid()").Scan(&pid); err != nil {
		t.Fatal(err)
	}
	killed := time.Now()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	testenv.Await(t, "the uptime counts from the crash", func() bool {
		server, err := connect()
		return err == nil && !time.Now().Add(-server.Uptime).Before(killed)
	})
}

// TestWaitThatTimesOut waits for a lock in a session whose server limits statements. Only
// lock_timeout may end the wait, because isLockTimeout must recognize its end.
func TestWaitThatTimesOut(t *testing.T) {
	t.Parallel()
	pool := storetest.Sessions(t, storetest.MigratedURL(t, testenv.Postgres(t)))
	var conns [2]*sql.Conn
	for i := range conns {
		conn, err := pool.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conns[i] = conn
	}
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(conns[0].ExecContext(t.Context(), "SELECT pg_advisory_lock(1)"))
	must(conns[1].ExecContext(t.Context(), "SET statement_timeout = '1min'"))
	must(prepare(t.Context(), conns[1], time.Minute))
	var limits string
	must(nil, conns[1].QueryRowContext(t.Context(), "SELECT current_setting('lock_timeout') || ', ' || current_setting('statement_timeout')").Scan(&limits))
	if limits != "30s, 0" {
		t.Errorf("the bounds are %s", limits)
	}
	must(conns[1].ExecContext(t.Context(), "SET lock_timeout = 1"))
	if taken, err := wait(t.Context(), conns[1], int64(1)); !isLockTimeout(err) {
		t.Errorf("the wait has ended with %+v, %v", taken, err)
	}
}

// TestRaise makes two sessions wait until a third one has raised the sequence. They must not lower
// it.
func TestRaise(t *testing.T) {
	t.Parallel()
	dbURL := storetest.MigratedURL(t, testenv.Postgres(t))
	pool := storetest.Sessions(t, dbURL)
	const ahead = int64(9_000_000_000_000_000)
	raising, err := pool.Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer raising.Rollback()
	if _, err := raising.ExecContext(t.Context(), "SELECT pg_advisory_xact_lock(1752132708, 1717662580)"); err != nil {
		t.Fatal(err)
	}
	tokens := make(chan int64, 2)
	for range cap(tokens) {
		go func() {
			conn, err := pool.Conn(t.Context())
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			token, err := mint(t.Context(), conn, nil)
			if err != nil {
				t.Error(err)
			}
			tokens <- token
		}()
	}
	testenv.Await(t, "two sessions wait", func() bool {
		var n int
		err := pool.QueryRowContext(t.Context(), `SELECT COUNT(*) FROM pg_locks WHERE NOT granted AND locktype = 'advisory'
			AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`).Scan(&n)
		return err == nil && n == cap(tokens) || len(tokens) > 0 // the waiters should not have got a token
	})
	if _, err := raising.ExecContext(t.Context(), "SELECT setval('fencing_tokens', $1)", ahead); err != nil {
		t.Fatal(err)
	}
	if err := raising.Commit(); err != nil {
		t.Fatal(err)
	}
	if one, two := <-tokens, <-tokens; min(one, two) != ahead+1 || max(one, two) != ahead+2 {
		t.Errorf("after %d, tokens %d and %d", ahead, one, two)
	}
}

func TestKey(t *testing.T) {
	t.Parallel()
	if Key("shop.public", "a") == Key("shop.public", "b") || Key("shop.public", "a") == Key("shop.other", "a") {
		t.Error("two locks have the same key")
	}
}
