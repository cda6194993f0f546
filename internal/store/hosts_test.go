package store

import (
	"context"
	"database/sql"
	"errors"
	"net"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	driver "github.com/go-sql-driver/mysql"

	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// twins are two servers with a database of the same name, like a primary and its replica.
type twins struct {
	url   string // URL that names both servers
	first twin
	next  twin
}

type twin struct {
	*testenv.DatabaseServer
	addr  string
	admin *SQL // can write in any case
}

func newTwins(t *testing.T, own func(testenv.T, ...string) *testenv.DatabaseServer) (w twins) {
	t.Helper()
	w.first = newTwin(t, own(t))
	w.next = newTwin(t, own(t))
	u := w.first.parsed(t)
	run(t, w.next.admin.DB(), "CREATE DATABASE "+strings.TrimPrefix(u.Path, "/"))
	if u.Scheme == "mysql" {
		for _, s := range []twin{w.first, w.next} { // root can write to a read-only server
			run(t, s.admin.DB(), "CREATE USER shop@'%'")
			run(t, s.admin.DB(), "GRANT ALL ON *.* TO shop@'%'")
			run(t, s.admin.DB(), "REVOKE SUPER, READ_ONLY ADMIN ON *.* FROM shop@'%'")
		}
		u.User = url.User("shop")
	}
	u.Host += "," + w.next.addr
	query := u.Query() // a busy machine takes longer to answer
	if u.Scheme == "mysql" {
		query.Set("timeout", "30s")
	} else {
		query.Set("connect_timeout", "30")
	}
	u.RawQuery = query.Encode()
	w.url = u.String()
	return w
}

func newTwin(t *testing.T, server *testenv.DatabaseServer) twin {
	t.Helper()
	s := twin{DatabaseServer: server, admin: opened(t, server.URL())}
	s.addr = s.parsed(t).Host
	return s
}

func (s twin) parsed(t *testing.T) *url.URL {
	t.Helper()
	u, err := url.Parse(s.URL())
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// setReadOnly makes the server refuse writes, or accept them again.
func (s twin) setReadOnly(t *testing.T, readOnly bool) {
	t.Helper()
	value := map[bool]string{true: "on", false: "off"}[readOnly]
	if s.admin.Dialect() == "mysql" {
		run(t, s.admin.DB(), "SET GLOBAL read_only = "+value)
		return
	}
	run(t, s.admin.DB(), "ALTER SYSTEM SET default_transaction_read_only = "+value)
	run(t, s.admin.DB(), "SELECT pg_reload_conf()")
	testenv.Await(t, "the server has read its settings", func() bool {
		var now string
		err := s.admin.DB().Raw("SHOW default_transaction_read_only").Row().Scan(&now)
		return err == nil && now == value
	})
}

// portOf returns the port of the server of a session.
func portOf(t *testing.T, session interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}, s *SQL) (port string) {
	t.Helper()
	query := "SELECT @@port"
	if s.Dialect() == "postgres" {
		query = "SELECT inet_server_port()"
	}
	if err := session.QueryRowContext(t.Context(), query).Scan(&port); err != nil {
		t.Fatal(err)
	}
	return port
}

// mustUse checks that all sessions of the pool belong to the server. It uses four sessions, which
// is more than the number of retries of a pool.
func mustUse(t *testing.T, s *SQL, server twin) {
	t.Helper()
	for range 4 {
		conn, err := s.Pool().Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if port := portOf(t, conn, s); !strings.HasSuffix(server.addr, ":"+port) {
			t.Errorf("a session is on port %s, and the server that accepts writes is %s", port, server.addr)
		}
	}
}

// awaitWrite waits until the database accepts a write. A session that was open may fail
// first.
func awaitWrite(t *testing.T, s *SQL) {
	t.Helper()
	testenv.AwaitSuccess(t, "the database accepts a write", func() error {
		_, err := s.Ledger().Exec(t.Context(), "UPDATE ledger SET beat = beat + 1")
		return err
	})
}

// TestSeveralHosts checks that sessions are opened on the server that accepts writes. They must
// follow the role of the primary when that server is made read-only, and when it is stopped.
func TestSeveralHosts(t *testing.T) {
	t.Parallel()
	for name, own := range map[string]func(testenv.T, ...string) *testenv.DatabaseServer{
		"MariaDB": testenv.OwnMariaDB, "PostgreSQL": testenv.OwnPostgres,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newTwins(t, own)
			w.first.setReadOnly(t, true)
			s := migrated(t, w.url)
			if !strings.Contains(s.Target(), w.first.addr+","+w.next.addr) {
				t.Errorf("the target %s does not name both servers", s.Target())
			}
			mustUse(t, s, w.next)
			sessions, err := OpenSessions(w.url)
			if err != nil {
				t.Fatal(err)
			}
			defer sessions.Close()
			if port := portOf(t, sessions, s); !strings.HasSuffix(w.next.addr, ":"+port) {
				t.Errorf("a session for locks is on port %s, and the server that accepts writes is %s", port, w.next.addr)
			}

			w.next.setReadOnly(t, true)
			if _, err := OpenSQL(t.Context(), w.url); err == nil || errors.Is(err, ErrBadURL) ||
				strings.Count(err.Error(), w.first.addr) < 2 || strings.Count(err.Error(), w.next.addr) < 2 || !strings.Contains(strings.ReplaceAll(err.Error(), "-", " "), "read only") {
				t.Errorf("both servers are read-only: %v", err)
			}

			if name == "MariaDB" { // a PostgreSQL that is made a standby ends its sessions
				w.first.setReadOnly(t, false)
				first := migrated(t, w.url)
				mustUse(t, first, w.first)
				awaitWrite(t, s)
				mustUse(t, s, w.first)
				w.first.Kill()
			}
			w.next.setReadOnly(t, false)
			awaitWrite(t, s)
			mustUse(t, s, w.next)
		})
	}
}

// TestSeveralHosts_Silent checks that a host that accepts connections and never answers does not
// keep the next one from being used.
func TestSeveralHosts_Silent(t *testing.T) {
	t.Parallel()
	listener := testenv.Listen(t)
	for _, d := range testenv.NetworkDatabases() {
		t.Run(d.Name, func(t *testing.T) {
			t.Parallel()
			dbURL := strings.Replace(d.URL(t), "@", "@"+listener.Addr().String()+",", 1)
			testenv.AwaitSuccess(t, "the next host is used", func() error { // a busy machine may need several tries
				s, err := OpenSQL(t.Context(), dbURL)
				if err != nil {
					return err
				}
				return s.Close()
			})
		})
	}
}

// TestMySQLHosts checks the configuration of each host.
func TestMySQLHosts(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		hosts string
		want  []string // expected addresses; nil: the URL is refused
	}{
		{"h", []string{"h:3306"}},
		{"h1:1,h2", []string{"h1:1", "h2:3306"}},
		{"h1,h2:2,[::1]:3", []string{"h1:3306", "h2:2", "[::1]:3"}},
		{"h1,", nil},
		{",h2", nil},
		{"h1:x,h2", nil},
	} {
		u, hosts, err := parseDatabase("mysql://u:sesame@" + test.hosts + "/db?tls=true")
		if err == nil {
			var got []string
			config, bad := mysqlConfig(u, hosts)
			if err = bad; err == nil {
				for _, host := range mysqlHosts(config) {
					got = append(got, host.Addr)
					if name, _, _ := net.SplitHostPort(host.Addr); host.TLS.ServerName != name {
						t.Errorf("%s: the certificate of %s must be for %s", test.hosts, host.Addr, host.TLS.ServerName)
					}
					if several := len(test.want) > 1; host.RejectReadOnly != several {
						t.Errorf("%s: RejectReadOnly is %v", test.hosts, host.RejectReadOnly)
					}
					if _, silent := host.Logger.(*driver.NopLogger); !silent {
						t.Errorf("%s: the driver writes to standard error", test.hosts)
					}
				}
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("%s: %v, want %v", test.hosts, got, test.want)
			}
		}
		if (err == nil) != (test.want != nil) || err != nil && strings.Contains(err.Error(), "sesame") {
			t.Errorf("%s: %v", test.hosts, err)
		}
	}
}

// TestMySQLBounds_Idle checks that the pool closes an idle session before MySQL does, and that reads
// and writes are bounded.
func TestMySQLBounds_Idle(t *testing.T) {
	t.Parallel()
	const version = "8.0.36"
	config := &driver.Config{}
	setMySQLState(config, version)
	idle := setMySQLBounds(config, version)
	if limit, err := time.ParseDuration(config.Params["wait_timeout"] + "s"); err != nil || idle >= limit {
		t.Errorf("the pool keeps a session for %v, and MySQL for %v, %v", idle, limit, err)
	}
	if config.ReadTimeout != ioTimeout || config.WriteTimeout != ioTimeout {
		t.Errorf("a read is bounded to %v, a write to %v", config.ReadTimeout, config.WriteTimeout)
	}
}
