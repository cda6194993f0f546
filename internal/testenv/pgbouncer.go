package testenv

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

var pgbouncer = dependency{"pgbouncer", "pgbouncer", ""}

// OwnPgBouncer starts a PgBouncer for this test, in front of the PostgreSQL of
// dbURL, and returns the URL of the same database through it. settings are
// additional lines of its configuration.
func OwnPgBouncer(t T, dbURL string, settings ...string) string {
	t.Helper()
	pooled, err := startPgBouncer(t, dbURL, settings)
	check(t, "PgBouncer", err)
	return pooled
}

func startPgBouncer(t T, dbURL string, settings []string) (string, error) {
	path, err := lookPath(pgbouncer)
	if err != nil {
		return "", err
	}
	u, err := url.Parse(dbURL)
	if err != nil {
		return "", err
	}
	owner, err := ownerFor("postgres")
	if err != nil {
		return "", err
	}
	folder, port, err := env.newPlace("pgbouncer", owner)
	if err != nil {
		return "", err
	}
	server := fmt.Sprintf("host=%s port=%s user=%s", u.Hostname(), u.Port(), u.User.Username())
	if password, ok := u.User.Password(); ok {
		server += " password=" + password
	}
	lines := append([]string{
		"[databases]", "* = " + server,
		"[pgbouncer]", "listen_addr = 127.0.0.1", fmt.Sprintf("listen_port = %d", port.number), "unix_socket_dir =",
		"auth_type = any", "max_client_conn = 200", "default_pool_size = 40",
	}, settings...)
	config := filepath.Join(folder, "pgbouncer.ini")
	if err := os.WriteFile(config, []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
		return "", err
	}
	s := newServer("PgBouncer", folder, []string{path, config}, port)
	s.process.owner, s.process.endSignal = owner, syscall.SIGKILL
	admin := "postgres://pgbouncer@" + port.addr() + "/pgbouncer?sslmode=disable&default_query_exec_mode=simple_protocol"
	s.answers = func(ctx context.Context) error { return onDatabase(ctx, admin, "SHOW VERSION") }
	t.Cleanup(s.end)
	u.Host = port.addr()
	return u.String(), s.start()
}
