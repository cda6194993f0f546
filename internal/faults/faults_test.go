package faults

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	_ "github.com/glebarez/go-sqlite" // database/sql's "sqlite"
	"github.com/go-sql-driver/mysql"
	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/testenv"
)

func TestMain(m *testing.M) {
	_ = mysql.SetLogger(&mysql.NopLogger{})
	os.Exit(testenv.Main(m))
}

// database opens a table t of ids, through faults and past them.
type database struct {
	name  string
	open  func(t *testing.T) (struck, healthy *sql.DB, i *Injector)
	kinds []Kind
}

var errAnswer = errors.New("the database's own error")

var databases = []database{
	{"MariaDB", func(t *testing.T) (struck, healthy *sql.DB, i *Injector) {
		return overWire(t, testenv.MariaDB(t), func(url string) (string, string) {
			address, name, _ := strings.Cut(strings.TrimPrefix(url, "mysql://root@"), "/")
			return "mysql", "root@tcp(" + address + ")/" + name + "?multiStatements=true"
		})
	}, []Kind{Deadlock, LockTimeout, ReadOnly, Duplicate, BadValue, DiskFull, Killed}},
	{"PostgreSQL", func(t *testing.T) (struck, healthy *sql.DB, i *Injector) {
		return overWire(t, testenv.Postgres(t), func(url string) (string, string) { return "pgx", url })
	}, []Kind{Deadlock, LockTimeout, ReadOnly, Duplicate, BadValue, DiskFull, Killed}},
	{"SQLite", func(t *testing.T) (struck, healthy *sql.DB, i *Injector) {
		name := "file:" + t.TempDir() + "/t.db?_pragma=journal_mode(WAL)&_pragma=busy_timeout(5000)"
		healthy = open(t, "sqlite", name)
		d := NewDriver(healthy.Driver(), name, map[Kind]error{Duplicate: errAnswer})
		struck = sql.OpenDB(d)
		t.Cleanup(func() { struck.Close() })
		return struck, healthy, d.Injector
	}, []Kind{Duplicate}},
}

func open(t *testing.T, driverName, source string) *sql.DB {
	t.Helper()
	db, err := sql.Open(driverName, source)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

func overWire(t *testing.T, url string, source func(url string) (driverName, source string)) (struck, healthy *sql.DB, i *Injector) {
	t.Helper()
	w, wireURL, err := NewWire(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	healthy = open(t, first(source(url)), second(source(url)))
	struck = open(t, first(source(wireURL)), second(source(wireURL)))
	return struck, healthy, w.Injector
}

func first(a, _ string) string  { return a }
func second(_, b string) string { return b }

// TestKinds: each kind does to a statement what it says, and the next one runs.
func TestKinds(t *testing.T) {
	t.Parallel()
	for _, d := range databases {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			struck, healthy, i := d.open(t)
			exec := func(db *sql.DB, query string) error {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				conn, err := db.Conn(ctx) // the pool itself would try again
				if err != nil {
					return err
				}
				defer conn.Close()
				_, err = conn.ExecContext(ctx, query)
				return err
			}
			count := func() (n int) {
				t.Helper()
				if err := healthy.QueryRow("SELECT count(*) FROM t").Scan(&n); err != nil {
					t.Fatal(err)
				}
				return n
			}
			if err := exec(healthy, "CREATE TABLE t (id INTEGER)"); err != nil {
				t.Fatal(err)
			}
			for _, kind := range append([]Kind{Refused, Lost, Late, Hung, HungDone, Gone}, d.kinds...) {
				before := count()
				i.Arm(Fault{Kind: kind, Nth: 2, Only: "INSERT"})
				if err := exec(struck, "INSERT INTO t VALUES (1)"); err != nil {
					t.Errorf("%s: the statement before: %v", kind, err)
				}
				if err := exec(struck, "INSERT INTO t VALUES (2)"); err == nil {
					t.Errorf("%s: no error", kind)
				}
				if kind == Gone && exec(struck, "INSERT INTO t VALUES (3)") == nil {
					t.Error("gone, and it takes statements")
				}
				seen, what := i.Disarm()
				if len(what) == 0 || seen < 2 {
					t.Errorf("%s: struck %q of %d", kind, what, seen)
				}
				ran := 1
				if kind == Lost || kind == Late || kind == HungDone {
					ran = 2
				}
				if n := count() - before; n != ran {
					t.Errorf("%s: %d statements ran, want %d", kind, n, ran)
				}
				for try := 0; ; try++ { // a pool may still have a broken connection
					err := exec(struck, "INSERT INTO t VALUES (4)")
					if err == nil {
						break
					}
					if try == 3 {
						t.Errorf("%s: not healed: %v", kind, err)
						break
					}
				}
			}
		})
	}
}

// TestRedisKinds: the same for commands and pipelines.
func TestRedisKinds(t *testing.T) {
	t.Parallel()
	options, err := redis.ParseURL(testenv.Redis(t))
	if err != nil {
		t.Fatal(err)
	}
	options.MaxRetries = -1
	struck, healthy := redis.NewClient(options), redis.NewClient(options)
	h := NewHook()
	struck.AddHook(h)
	key := "faults:" + t.Name()
	t.Cleanup(func() {
		healthy.Del(context.Background(), key)
		struck.Close()
		healthy.Close()
	})
	count := func() int {
		n, err := healthy.Get(t.Context(), key).Int()
		if err != nil && !errors.Is(err, redis.Nil) {
			t.Fatal(err)
		}
		return n
	}
	for _, kind := range []Kind{Refused, Lost, Late, Hung, HungDone, Gone, OutOfMemory, ReadOnly, Loading, NoScript} {
		for name, incr := range map[string]func() error{
			"command": func() error { return struck.Incr(t.Context(), key).Err() },
			"pipeline": func() error {
				pipe := struck.Pipeline()
				cmd := pipe.Incr(t.Context(), key)
				_, _ = pipe.Exec(t.Context())
				return cmd.Err()
			},
		} {
			before := count()
			h.Arm(Fault{Kind: kind, Nth: 2, Only: "incr"})
			if err := incr(); err != nil {
				t.Errorf("%s %s: the one before: %v", name, kind, err)
			}
			if err := incr(); err == nil {
				t.Errorf("%s %s: no error", name, kind)
			}
			h.Disarm()
			ran := 1
			if kind == Lost || kind == Late || kind == HungDone {
				ran = 2
			}
			if n := count() - before; n != ran {
				t.Errorf("%s %s: %d ran, want %d", name, kind, n, ran)
			}
			if err := incr(); err != nil {
				t.Errorf("%s %s: not healed: %v", name, kind, err)
			}
		}
	}
}
