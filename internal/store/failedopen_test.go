package store

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"

	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// TestFailedOpen checks that no pool stays open if a database cannot be opened, or cannot be opened
// for a migration. An open pool has a goroutine, and the test's bubble cannot end before its
// goroutines.
func TestFailedOpen(t *testing.T) {
	t.Parallel()
	nobody := closedPort(t)
	mariadb, postgres := testenv.MariaDB(t), testenv.Postgres(t)
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, bytes.Repeat([]byte("text\n"), 1000), 0o600); err != nil {
		t.Fatal(err)
	}
	mysqlAt := func(rawURL string) func(context.Context) error {
		return func(ctx context.Context) error {
			u, hosts, err := parseDatabase(rawURL)
			if err != nil {
				return err
			}
			config, err := mysqlConfig(u, hosts)
			if err != nil {
				return err
			}
			d, err := mysqlMigrations(ctx, config, "")
			if err == nil {
				t.Cleanup(func() { d.Close() })
			}
			return err
		}
	}
	for name, open := range map[string]func(context.Context) error{
		"SQLite, another file": func(ctx context.Context) error {
			_, err := OpenSQL(ctx, "sqlite://"+filepath.ToSlash(text))
			return err
		},
		"MySQL, nobody listens":                mysqlAt("mysql://u@" + nobody + "/shop"),
		"MySQL, a database without new tables": mysqlAt(inDatabase(t, mariadb, "information_schema")),
		"PostgreSQL, nobody listens": func(ctx context.Context) error {
			return postgresMigrationsFail(ctx, "postgres://u@"+nobody+"/shop")
		},
		"PostgreSQL, no schema": func(ctx context.Context) error {
			return postgresMigrationsFail(ctx, withParameter(t, postgres, "search_path", "nowhere"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if err := open(ctx); err == nil {
					t.Error("it was opened")
				}
			})
		})
	}
}

func postgresMigrationsFail(ctx context.Context, rawURL string) error {
	config, err := postgresConfig(rawURL)
	if err != nil {
		return err
	}
	_, err = postgresMigrations(ctx, config)
	return err
}

// inDatabase returns the URL with the name of another database of the server.
func inDatabase(t *testing.T, rawURL, name string) string {
	t.Helper()
	u, err := url.Parse(rawURL)
	if err != nil {
		t.Fatal(err)
	}
	u.Path = "/" + name
	return u.String()
}

func withParameter(t *testing.T, rawURL, name, value string) string {
	t.Helper()
	u, err := url.Parse(rawURL)
	if err != nil {
		t.Fatal(err)
	}
	query := u.Query()
	query.Set(name, value)
	u.RawQuery = query.Encode()
	return u.String()
}

// TestOpenRedis_Refused checks that a client whose first command is refused, or whose first TLS
// record, closes its connection, and that it uses TLS if the URL says so.
func TestOpenRedis_Refused(t *testing.T) {
	t.Parallel()
	for scheme, begin := range map[string]byte{"redis://": '*', "rediss+cluster://": 0x16} { // the first byte of a command or record
		listener := testenv.Listen(t)
		closed := make(chan bool, 1)
		go func() {
			began := false
			defer func() { closed <- began }()
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			defer conn.Close()
			for commands := bufio.NewReader(conn); err == nil; {
				if _, err = commands.ReadString(begin); err == nil {
					began = true
					_, err = io.WriteString(conn, "-NOPERM refused\r\n")
				}
			}
		}()
		if _, err := OpenRedis(t.Context(), scheme+listener.Addr().String()); err == nil {
			t.Fatal("a Redis that refuses PING was opened")
		}
		if began := testenv.Receive(t, "the end of the connection", closed); !began {
			t.Errorf("%s: the connection did not begin with %q", scheme, begin)
		}
	}
}
