package faults

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	_ "github.com/glebarez/go-sqlite" // registers the driver "sqlite" of database/sql
	"github.com/go-sql-driver/mysql"
	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/testenv"
)

func TestMain(m *testing.M) {
	_ = mysql.SetLogger(&mysql.NopLogger{})
	os.Exit(testenv.Main(m))
}

// database is a kind of database to test. open returns a pool with faults, a pool
// without them on the same database, and the Injector. kinds are its errors.
type database struct {
	name  string
	open  func(t *testing.T) (faulty, healthy *sql.DB, i *Injector)
	kinds []Kind
}

var errDatabase = errors.New("an error of the database")

var databases = []database{
	{"MariaDB", func(t *testing.T) (faulty, healthy *sql.DB, i *Injector) {
		return overWire(t, testenv.MariaDB(t), func(url string) (string, string) {
			address, name, _ := strings.Cut(strings.TrimPrefix(url, "mysql://root@"), "/")
			return "mysql", "root@tcp(" + address + ")/" + name + "?multiStatements=true"
		})
	}, []Kind{Deadlock, LockTimeout, ReadOnly, Duplicate, BadValue, DiskFull, Killed}},
	{"PostgreSQL", func(t *testing.T) (faulty, healthy *sql.DB, i *Injector) {
		return overWire(t, testenv.Postgres(t), func(url string) (string, string) { return "pgx", url })
	}, []Kind{Deadlock, LockTimeout, ReadOnly, Duplicate, BadValue, DiskFull, Killed}},
	{"SQLite", func(t *testing.T) (faulty, healthy *sql.DB, i *Injector) {
		name := "file:" + t.TempDir() + "/t.db?_pragma=journal_mode(WAL)&_pragma=busy_timeout(5000)"
		healthy = open(t, "sqlite", name)
		d := NewDriver(healthy.Driver(), name, map[Kind]error{Duplicate: errDatabase})
		faulty = sql.OpenDB(d)
		t.Cleanup(func() { faulty.Close() })
		return faulty, healthy, d.Injector
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

// overWire opens the database of the URL twice: through a Wire and directly.
// source returns the driver and the data source name of a URL.
func overWire(t *testing.T, url string, source func(url string) (driverName, source string)) (faulty, healthy *sql.DB, i *Injector) {
	t.Helper()
	w, wireURL := NewWire(t, url)
	driverName, direct := source(url)
	_, wired := source(wireURL)
	return open(t, driverName, wired), open(t, driverName, direct), w.Injector
}

// TestKinds checks what each kind of fault does to a statement, and that the next
// statement runs without a fault.
func TestKinds(t *testing.T) {
	t.Parallel()
	for _, d := range databases {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			faulty, healthy, i := d.open(t)
			if err := execute(t, healthy, "CREATE TABLE t (id INTEGER)"); err != nil {
				t.Fatal(err)
			}
			for _, kind := range append([]Kind{Refused, Lost, Late, Hung, HungDone, Gone}, d.kinds...) {
				testKind(t, kind, faulty, healthy, i)
			}
		})
	}
}

// TestGarbled checks that the scan fails, and not the statement.
func TestGarbled(t *testing.T) {
	t.Parallel()
	faulty, _, i := databases[2].open(t)
	i.Arm(Fault{Kind: Garbled, Nth: 1})
	rows, err := faulty.QueryContext(t.Context(), "SELECT 1 UNION SELECT 2")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for n := range 2 {
		var text string
		if !rows.Next() || rows.Scan(&text) == nil {
			t.Errorf("row %d can be scanned as %q", n+1, text)
		}
	}
	if rows.Next() || rows.Err() != nil {
		t.Errorf("a third row, or %v", rows.Err())
	}
}

// TestCut checks that one row is read, and that the second one fails.
func TestCut(t *testing.T) {
	t.Parallel()
	faulty, _, i := databases[2].open(t)
	i.Arm(Fault{Kind: Cut, Nth: 1})
	rows, err := faulty.QueryContext(t.Context(), "SELECT 1 UNION SELECT 2")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	if !rows.Next() || rows.Next() || !errors.Is(rows.Err(), errBroken) {
		t.Errorf("the rows end with %v, want %v after the first", rows.Err(), errBroken)
	}
}

// testKind injects a fault of this kind into the second INSERT.
func testKind(t *testing.T, kind Kind, faulty, healthy *sql.DB, i *Injector) {
	t.Helper()
	before := countRows(t, healthy)
	i.Arm(Fault{Kind: kind, Nth: 2, Only: "INSERT"})
	if err := execute(t, faulty, "INSERT INTO t VALUES (1)"); err != nil {
		t.Errorf("%s: the statement before the fault: %v", kind, err)
	}
	if err := executeUnder(t, kind, faulty, "INSERT INTO t VALUES (2)"); err == nil {
		t.Errorf("%s: no error", kind)
	}
	if kind == Gone && execute(t, faulty, "INSERT INTO t VALUES (3)") == nil {
		t.Error("a statement runs after a Gone fault")
	}
	seen, injected := i.Disarm()
	if len(injected) == 0 || seen < 2 {
		t.Errorf("%s: injected %q, %d statements seen", kind, injected, seen)
	}
	if n, want := countRows(t, healthy)-before, 1+runs(kind); n != want {
		t.Errorf("%s: %d statements ran, want %d", kind, n, want)
	}
	for try := 0; ; try++ { // the pool may still contain a broken connection
		err := execute(t, faulty, "INSERT INTO t VALUES (4)")
		if err == nil {
			break
		}
		if try == 3 {
			t.Errorf("%s: still failing after Disarm: %v", kind, err)
			break
		}
	}
}

// runs returns how often a statement under a fault of this kind runs.
func runs(kind Kind) int {
	if kind == Lost || kind == Late || kind == HungDone {
		return 1
	}
	return 0
}

// execute runs the statement once.
func execute(t *testing.T, db *sql.DB, statement string) error {
	return executeUnder(t, Refused, db, statement)
}

// executeUnder runs the statement once under a fault of this kind. If the fault blocks the
// statement, executeUnder gives up early: half a second after it has a connection, or three seconds
// if the database must run the statement first.
func executeUnder(t *testing.T, kind Kind, db *sql.DB, statement string) error {
	limit := testenv.Patience
	switch kind {
	case Hung:
		limit = time.Second / 2
	case HungDone:
		limit = 3 * time.Second
	}
	conn, err := db.Conn(t.Context()) // db.ExecContext would retry
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	_, err = conn.ExecContext(ctx, statement)
	return err
}

func countRows(t *testing.T, db *sql.DB) (n int) {
	t.Helper()
	if err := db.QueryRow("SELECT count(*) FROM t").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// incrIn increments the key in a pipeline.
func incrIn(t *testing.T, pipe redis.Pipeliner, key string) error {
	cmd := pipe.Incr(t.Context(), key)
	_, _ = pipe.Exec(t.Context())
	return cmd.Err()
}

// TestRedisKinds is TestKinds for commands, pipelines and transactions of Redis.
func TestRedisKinds(t *testing.T) {
	t.Parallel()
	options, err := redis.ParseURL(testenv.Redis(t))
	if err != nil {
		t.Fatal(err)
	}
	options.MaxRetries = -1
	faulty, healthy := redis.NewClient(options), redis.NewClient(options)
	h := NewHook()
	faulty.AddHook(h)
	key := "faults:" + t.Name()
	t.Cleanup(func() {
		healthy.Del(context.Background(), key)
		faulty.Close()
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
			"command":     func() error { return faulty.Incr(t.Context(), key).Err() },
			"pipeline":    func() error { return incrIn(t, faulty.Pipeline(), key) },
			"transaction": func() error { return incrIn(t, faulty.TxPipeline(), key) },
		} {
			before := count()
			h.Arm(Fault{Kind: kind, Nth: 2, Only: "incr"})
			if err := incr(); err != nil {
				t.Errorf("%s %s: the command before the fault: %v", name, kind, err)
			}
			if err := incr(); err == nil {
				t.Errorf("%s %s: no error", name, kind)
			}
			h.Disarm()
			if n, want := count()-before, 1+runs(kind); n != want {
				t.Errorf("%s %s: %d commands ran, want %d", name, kind, n, want)
			}
			if err := incr(); err != nil {
				t.Errorf("%s %s: still failing after Disarm: %v", name, kind, err)
			}
		}
	}
}
