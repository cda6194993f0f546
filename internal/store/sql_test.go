package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"gorm.io/gorm"

	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// TestBadURLs checks that an invalid URL is refused when it is checked and when it is opened, with the
// same error, which does not contain the password.
func TestBadURLs(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		open  func(context.Context, string) error
		check func(string) error
		urls  []string
	}{
		{func(ctx context.Context, dbURL string) error { _, err := OpenSQL(ctx, dbURL); return err }, CheckSQL, []string{
			"",
			"nonsense",
			"oracle://u:s3same@h/db",
			"mysql://u:s3same@h",      // no database
			"mysql://u:s3same@/db",    // no host
			"mysql://u:s3s/ame@h/db",  // unescaped
			"mysql://u:s3%zzame@h/db", // badly escaped
			"mysql://u:s3same@h/db?tls=no-such-configuration",
			"postgres://u:s3same@h",
			"postgres://u:s3same@h/db?sslmode=maybe",
			"postgres://u:s3s#ame@h/db",
			"sqlite://",
			"sqlite:///",
			"sqlite://relative/path",
		}},
		{func(ctx context.Context, redisURL string) error { _, err := OpenRedis(ctx, redisURL); return err }, CheckRedis, []string{
			"",
			"localhost:6379",
			"nonsense",
			"http://u:s3same@h:1",
			"redis+ring://u:s3same@h:1",
			"redis://u:s3same@h1:1,h2:2",
			"redis://u:s3s/ame@h:1",
			"redis://u:s3same@h:1/x",
			"redis://u:s3same@h:1?nonsense=1",
			"redis+sentinel://u:s3same@h1:1,h2:2", // no master
			"redis+sentinel://u:s3same@h1:1,/m",   // an empty host
			"redis+sentinel://u:s3same@h1:1/m?nonsense=1",
			"redis+sentinel://u:s3same@h1:1/m?db=x",
			"redis+sentinel://u:s3s/ame@h1:1,h2:2/m",
			"redis+cluster://u:s3same@h1:1,h2:x",
			"redis+cluster://u:s3same@h1:1/0",
			"rediss+cluster://u:s3same@h1:1?skip_verify=perhaps",
		}},
	} {
		for _, bad := range test.urls {
			t.Run(Redact(bad), func(t *testing.T) {
				err := test.open(t.Context(), bad)
				if !errors.Is(err, ErrBadURL) {
					t.Fatalf("error %v, want ErrBadURL", err)
				}
				if checked := test.check(bad); checked == nil || checked.Error() != err.Error() {
					t.Errorf("the check returns %v, and the opening %v", checked, err)
				}
				if strings.Contains(err.Error(), "s3") {
					t.Errorf("the error contains a part of the password: %v", err)
				}
			})
		}
	}
}

// TestOpenSQL_Fails checks that the error of a database that cannot be opened says which one, and does
// not contain the password.
func TestOpenSQL_Fails(t *testing.T) {
	t.Parallel()
	closed, missing := closedPort(t), filepath.Join(t.TempDir(), "missing", "ledger.db")
	u, err := parseURL(testenv.MariaDB(t))
	if err != nil {
		t.Fatal(err)
	}
	for dbURL, says := range map[string]string{
		"mysql://u:sesame@" + closed + "/db":       closed,
		"postgres://u:sesame@" + closed + "/db":    closed,
		"mysql://nobody:sesame@" + u.Host + u.Path: u.Host, // a wrong password
		"sqlite://" + missing:                      missing + ": its folder does not exist",
	} {
		_, err := OpenSQL(t.Context(), dbURL)
		if err == nil || errors.Is(err, ErrBadURL) || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "sesame") {
			t.Errorf("%s: error %v", Redact(dbURL), err)
		}
		if says != closed {
			continue
		}
		sessions, err := OpenSessions(dbURL)
		if err != nil {
			t.Fatal(err)
		}
		if err := sessions.PingContext(t.Context()); err == nil || !strings.Contains(err.Error(), closed) {
			t.Errorf("%s: a session: error %v", Redact(dbURL), err)
		}
		sessions.Close()
	}
}

// TestOpenSQL_SilentHost checks that OpenSQL stops waiting for a host that does not answer, and
// reports that. So does OpenRedis.
func TestOpenSQL_SilentHost(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes five seconds")
	}
	listener := testenv.Listen(t) // this host accepts connections and never answers
	for scheme, query := range map[string]string{"mysql": "readTimeout=100ms", "postgres": ""} {
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()
			_, err := OpenSQL(context.WithoutCancel(t.Context()), scheme+"://u:p@"+listener.Addr().String()+"/db?"+query)
			if err == nil || !strings.HasSuffix(err.Error(), "no answer within 5s") {
				t.Errorf("a database that does not answer: %v", err)
			}
		})
	}
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), testenv.Patience)
		defer cancel()
		if _, err := OpenRedis(ctx, "redis://"+listener.Addr().String()); err == nil || ctx.Err() != nil {
			t.Errorf("a Redis that does not answer: %v", err)
		}
	})
}

func TestOpenSQL_PercentDecoded(t *testing.T) {
	t.Parallel()
	t.Run("MariaDB", func(t *testing.T) {
		dbURL := testenv.MariaDB(t)
		admin := opened(t, dbURL)
		run(t, admin.DB(), "CREATE OR REPLACE USER 'p@t'@'%' IDENTIFIED BY 'a/b?c:d@e%'")
		run(t, admin.DB(), "CREATE OR REPLACE DATABASE `odd name`")
		run(t, admin.DB(), "GRANT ALL ON `odd name`.* TO 'p@t'@'%'")
		t.Cleanup(func() {
			run(t, admin.DB(), "DROP DATABASE `odd name`")
			run(t, admin.DB(), "DROP USER 'p@t'@'%'")
		})
		u, err := parseURL(dbURL)
		if err != nil {
			t.Fatal(err)
		}
		s := opened(t, "mysql://p%40t:a%2Fb%3Fc%3Ad%40e%25@"+u.Host+"/odd%20name")
		if got := one[string](t, s.DB(), "SELECT DATABASE()"); got != "odd name" {
			t.Errorf("database %q", got)
		}
	})
	t.Run("SQLite", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "a b#c?d%.db")
		opened(t, "sqlite://"+filepath.Dir(path)+"/a%20b%23c%3Fd%25.db")
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if mode := info.Mode().Perm(); mode != 0o600 {
			t.Errorf("the file's mode is %o, want 600", mode)
		}
	})
}

func TestOpenSQL_SessionsAreBounded(t *testing.T) {
	t.Parallel()
	forEachSQL(t, func(t *testing.T, dbURL string) {
		s := opened(t, dbURL)
		if got := string(s.Dialect()); got != s.DB().Name() || !strings.HasPrefix(dbURL, got) {
			t.Errorf("dialect %q of %s, gorm says %q", got, dbURL, s.DB().Name())
		}
		connections := map[sqltx.Dialect]int{sqltx.MySQL: poolSize, sqltx.Postgres: poolSize, sqltx.SQLite: sqliteConnections}[s.Dialect()]
		if got := s.Pool().Stats().MaxOpenConnections; got != connections {
			t.Errorf("at most %d connections, want %d", got, connections)
		}
		for query, want := range map[sqltx.Dialect]map[string]string{
			sqltx.MySQL: {
				"SELECT @@tx_isolation":             "READ-COMMITTED",
				"SELECT @@innodb_lock_wait_timeout": "3",
				"SELECT @@idle_transaction_timeout": "2",
				"SELECT @@character_set_client":     "ascii",
				"SELECT @@character_set_connection": "ascii",
				"SELECT @@collation_connection":     "ascii_bin",
			},
			sqltx.Postgres: {
				"SHOW transaction_isolation":               "read committed",
				"SHOW lock_timeout":                        "3s",
				"SHOW idle_in_transaction_session_timeout": "2s",
				"SHOW statement_timeout":                   "10s",
				"SHOW tcp_user_timeout":                    "10000",
				"SHOW application_name":                    "holdfast",
			},
			sqltx.SQLite: {
				"PRAGMA journal_mode": "wal",
				"PRAGMA synchronous":  "2",
				"PRAGMA busy_timeout": "5000",
			},
		}[s.Dialect()] {
			if got := one[string](t, s.DB(), query); got != want {
				t.Errorf("%s: %q, want %q", query, got, want)
			}
		}
	})
}

func TestOpenSQL_QueryWins(t *testing.T) {
	t.Parallel()
	forEachSQL(t, func(t *testing.T, dbURL string) {
		query := map[string]string{
			"mysql":    "?innodb_lock_wait_timeout=7&tx_isolation=%27SERIALIZABLE%27&loc=Nowhere&parseTime=false",
			"postgres": "&lock_timeout=7000&application_name=else",
			"sqlite":   "?_pragma=busy_timeout(7)&_time_format=sqlite",
		}
		scheme, _, _ := strings.Cut(dbURL, ":")
		if scheme == "postgres" && !strings.Contains(dbURL, "?") {
			dbURL += "?"
		}
		s := opened(t, dbURL+query[scheme])
		for query, want := range map[sqltx.Dialect]map[string]string{
			sqltx.MySQL:    {"SELECT @@innodb_lock_wait_timeout": "7", "SELECT @@tx_isolation": "SERIALIZABLE"},
			sqltx.Postgres: {"SHOW lock_timeout": "7s", "SHOW application_name": "else"},
			sqltx.SQLite:   {"PRAGMA busy_timeout": "7"},
		}[s.Dialect()] {
			if got := one[string](t, s.DB(), query); got != want {
				t.Errorf("%s: %q, want %q", query, got, want)
			}
		}
		// The URL cannot change the settings for reading rows: times are in UTC.
		if err := s.MigrateUp(t.Context()); err != nil {
			t.Fatal(err)
		}
		checkRoundTrip(t, s)
	})
}

// TestOpenSQL_NoLockWait checks that MariaDB skips locked rows even if the URL disables lock waits.
func TestOpenSQL_NoLockWait(t *testing.T) {
	t.Parallel()
	s := migrated(t, testenv.MariaDB(t)+"?innodb_lock_wait_timeout=0")
	if got := one[string](t, s.DB(), "SELECT @@innodb_lock_wait_timeout"); got != "1" {
		t.Errorf("innodb_lock_wait_timeout is %s, want 1", got)
	}
}

// TestOpenSQL_IdleTransactionEnds checks that the server ends the session of a
// stopped instance that holds a row lock, before another session's wait for the
// lock times out.
func TestOpenSQL_IdleTransactionEnds(t *testing.T) {
	t.Parallel()
	for _, d := range testenv.NetworkDatabases() {
		for kind, statement := range map[string]string{
			"write": "UPDATE stock SET available = 0 WHERE sku = 'a'",
			"read":  "SELECT available FROM stock WHERE sku = 'a' FOR UPDATE",
		} {
			t.Run(d.Name+"/"+kind, func(t *testing.T) {
				t.Parallel()
				s := migrated(t, d.URL(t))
				insertStock(t, s.DB(), "a")
				holder := s.DB().Begin()
				run(t, holder, statement)
				defer holder.Rollback()

				const update = "UPDATE stock SET available = 7 WHERE sku = 'a'" // fails if the update waits for longer than lockWait
				for late := 0; late < 3 && s.DB().Exec(update).Error != nil; late++ {
					t.Log("the server is late") // the limit is a second longer than needed
				}
				run(t, s.DB(), update)
				if err := holder.Exec("UPDATE stock SET available = 9 WHERE sku = 'a'").Error; err == nil {
					t.Error("the holder's session has not ended")
				}
			})
		}
	}
}

// TestLedgerID_OneRow checks that a table ledger without a row, or with several, has no ID, because
// two instances could use different ones.
func TestLedgerID_OneRow(t *testing.T) {
	t.Parallel()
	s := migrated(t, testenv.SQLite(t))
	for _, test := range []struct{ statement, says string }{
		{"INSERT INTO ledger (id) VALUES (x'00112233445566778899aabbccddeeff')", "2 rows"}, {"DELETE FROM ledger", "0 rows"},
	} {
		if _, err := s.Pool().ExecContext(t.Context(), test.statement); err != nil {
			t.Fatal(err)
		}
		if id, err := s.LedgerID(t.Context()); err == nil || !strings.Contains(err.Error(), test.says) {
			t.Errorf("after %s the ID is %v, %v", test.statement, id, err)
		}
	}
}

// TestSchema_Rows checks the properties of the tables on which the service relies: order, letter
// case, checks and counts of affected rows.
func TestSchema_Rows(t *testing.T) {
	t.Parallel()
	forEachSQL(t, func(t *testing.T, dbURL string) {
		s := migrated(t, dbURL)
		checkRoundTrip(t, s)

		// SQL sorts SKUs as Go does, and distinguishes upper and lower case.
		skus := []string{"a", "B", "A-1", "A.1", "A:1", "A_1", "1", "a1", "Z", strings.Repeat("x", 64)}
		for _, sku := range skus {
			insertStock(t, s.DB(), sku)
		}
		slices.Sort(skus)
		var sorted []string
		if err := s.DB().Raw("SELECT sku FROM stock ORDER BY sku").Scan(&sorted).Error; err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(sorted, skus) {
			t.Errorf("sorted %q, want %q", sorted, skus)
		}

		run(t, s.DB(), "UPDATE stock SET available = -5 WHERE sku = 'a'") // allowed, because no check forbids it
		if err := s.DB().Exec("UPDATE stock SET total = -1 WHERE sku = 'a'").Error; !sqltx.IsStatementError(err) {
			t.Errorf("a negative total: error %v", err)
		}
		if found := s.DB().Exec("UPDATE stock SET total = total WHERE sku = 'a'").RowsAffected; found != 1 {
			t.Errorf("an update that changes nothing found %d rows, want 1", found)
		}
	})
}

// checkRoundTrip writes an order and reads it back.
func checkRoundTrip(t *testing.T, s *SQL) {
	t.Helper()
	id, take := uuid.New(), uuid.New()
	created := time.Now().UTC().Truncate(time.Microsecond)
	column := func(id uuid.UUID) any {
		if s.Dialect() == sqltx.Postgres {
			return id.String()
		}
		return id[:]
	}
	insert := "INSERT INTO orders (id, take_id, buyer_id, status, strategy, created_at) VALUES (?, ?, 'b', 'pending', 'x', ?)"
	if s.Dialect() == sqltx.Postgres {
		insert = strings.NewReplacer("(?, ?", "($1, $2", "?", "$3").Replace(insert)
	}
	if _, err := s.pool.ExecContext(t.Context(), insert, column(id), column(take), created); err != nil {
		t.Fatal(err)
	}
	var (
		gotID, gotTake uuid.UUID
		gotCreated     time.Time
		gotExpires     *time.Time
	)
	row := s.DB().Raw("SELECT id, take_id, created_at, expires_at FROM orders WHERE id = ?", column(id)).Row()
	if err := row.Scan(&gotID, &gotTake, &gotCreated, &gotExpires); err != nil {
		t.Fatal(err)
	}
	if gotID != id || gotTake != take || !gotCreated.Equal(created) || gotExpires != nil {
		t.Errorf("read (%v, %v, %v, %v), wrote (%v, %v, %v, nil)", gotID, gotTake, gotCreated, gotExpires, id, take, created)
	}
}

// TestSlowLog_OnlySlowStatementsWithoutValues checks the default log of a database, without LogTo.
func TestSlowLog_OnlySlowStatementsWithoutValues(t *testing.T) {
	var out bytes.Buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&out, nil)))
	defer slog.SetDefault(before)

	s := migrated(t, testenv.MariaDB(t))
	insertStock(t, s.DB(), "a")
	_ = s.DB().Exec("INSERT INTO ledger SELECT id FROM ledger").Error // duplicate
	if out.Len() > 0 {
		t.Errorf("logged: %s", out.String())
	}
	run(t, s.DB(), "DO SLEEP(?), ?", 1.1, "sesame")
	if got := out.String(); !strings.Contains(got, "SLEEP") || strings.Contains(got, "sesame") {
		t.Errorf("logged: %q", got)
	}
}

func TestRedact(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ url, want string }{
		{"", ""},
		{"mysql://h:3306/db", "mysql://h:3306/db"},
		{"mysql://u@h/db", "mysql://u@h/db"},
		{"mysql://u:sesame@h:3306/db?tls=true", "mysql://u:xxxxx@h:3306/db?tls=true"},
		{"redis://:sesame@h:6379/0", "redis://:xxxxx@h:6379/0"},
		{"redis+sentinel://u:sesame@h1:1,h2:2/m?sentinel_password=sesame&db=1", "redis+sentinel://u:xxxxx@h1:1,h2:2/m?sentinel_password=xxxxx&db=1"},
		{"postgres://h/db?user=u&password=sesame", "postgres://h/db?user=u&password=xxxxx"},
		{"postgres://h/db?p%61ssword=sesame", "postgres://h/db?p%61ssword=xxxxx"},
		{"mysql://u:ses/a?m#e@h/db", "mysql://u:xxxxx@h/db"},
		{"mysql://u:ses@me@h/db", "mysql://u:xxxxx@h/db"},
		{"u:sesame@tcp(h)/db", "xxxxx"},
		{"host=h password=sesame", "xxxxx"},
		{"sqlite:///path/to/file", "sqlite:///path/to/file"},
	} {
		if got := Redact(test.url); got != test.want {
			t.Errorf("Redact(%q) = %q, want %q", test.url, got, test.want)
		}
	}
}

// TestOpenSQL_OneSession checks that opening a MySQL database leaves only the session of the pool.
func TestOpenSQL_OneSession(t *testing.T) {
	t.Parallel()
	s := opened(t, testenv.MariaDB(t))
	testenv.Await(t, "the server has one session", func() bool {
		return one[int](t, s.DB(), "SELECT COUNT(*) FROM information_schema.processlist WHERE db = DATABASE()") == 1
	})
}

// run runs a statement, which must succeed.
func run(t testing.TB, db *gorm.DB, statement string, values ...any) {
	t.Helper()
	if err := db.Exec(statement, values...).Error; err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

// one returns the one value that the query returns.
func one[T any](t testing.TB, db *gorm.DB, query string) (value T) {
	t.Helper()
	if err := db.Raw(query).Row().Scan(&value); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return value
}

// insertStock inserts a stock row with 10 units.
func insertStock(t testing.TB, db *gorm.DB, sku string) {
	t.Helper()
	run(t, db, "INSERT INTO stock (sku, kind, total, available) VALUES (?, 'product', 10, 10)", sku)
}

// closedPort returns an address on which no process listens.
func closedPort(t testing.TB) string {
	t.Helper()
	return fmt.Sprintf("127.0.0.1:%d", testenv.Port(t))
}

// TestLongStatements checks that a URL's own bound of a statement is kept, and that
// the database uses the longer bound otherwise.
func TestLongStatements(t *testing.T) {
	t.Parallel()
	for rawURL, want := range map[string]string{
		"mysql://root@h/n":                               "mysql://root@h/n?readTimeout=5m0s",
		"mysql://root@h/n?tls=true":                      "mysql://root@h/n?tls=true&readTimeout=5m0s",
		"mysql://root@h/n?tls=true&readTimeout=1s":       "mysql://root@h/n?tls=true&readTimeout=1s",
		"postgres://root@h/n":                            "postgres://root@h/n?statement_timeout=300000",
		"postgresql://root@h/n?idle_statement_timeout=1": "postgresql://root@h/n?idle_statement_timeout=1&statement_timeout=300000",
		"postgres://root@h/n?statement_timeout=1":        "postgres://root@h/n?statement_timeout=1",
		"sqlite:///path?_pragma=x":                       "sqlite:///path?_pragma=x",
	} {
		if got := LongStatements(rawURL); got != want {
			t.Errorf("%s becomes %s, want %s", rawURL, got, want)
		}
	}
	s, err := OpenSQL(t.Context(), LongStatements(testenv.Postgres(t)))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var timeout string
	if err := s.DB().Raw("SHOW statement_timeout").Row().Scan(&timeout); err != nil || timeout != "5min" {
		t.Errorf("the bound of a statement is %q, %v", timeout, err)
	}
}
