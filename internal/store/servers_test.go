package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

func TestMain(m *testing.M) {
	LogRedis(slog.New(slog.DiscardHandler)) // servers are stopped all the time here
	code := m.Run()
	stopDatabases()
	os.Exit(code)
}

// forEachSQL runs the test on every kind of database, each with an empty one
// of its own.
func forEachSQL(t *testing.T, test func(t *testing.T, dbURL string)) {
	t.Helper()
	for _, server := range []struct {
		name string
		url  func(testing.TB) string
	}{
		{"MariaDB", mariaDB},
		{"PostgreSQL", postgreSQL},
		{"SQLite", sqliteFile},
	} {
		t.Run(server.name, func(t *testing.T) {
			t.Parallel()
			test(t, server.url(t))
		})
	}
}

func sqliteFile(t testing.TB) string {
	t.Helper()
	return "sqlite://" + filepath.Join(t.TempDir(), "ledger.db")
}

// migrated opens the database with its schema in place.
func migrated(t testing.TB, dbURL string) *SQL {
	t.Helper()
	s := opened(t, dbURL)
	if err := s.MigrateUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s
}

func opened(t testing.TB, dbURL string) *SQL {
	t.Helper()
	s, err := OpenSQL(t.Context(), dbURL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// eventually waits until the condition holds.
func eventually(t testing.TB, within time.Duration, what string, holds func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for !holds() {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			t.Fatalf("not within %v: %s", within, what)
		}
	}
}

// databases are the database servers of this test program, each started when
// the first test asks for it and stopped by TestMain.
var databases struct {
	mu      sync.Mutex
	folder  string
	stop    []func()
	mariaDB *databaseServer
	postgre *databaseServer
	made    int
}

// databaseServer is a running server, or the reason why there is none.
type databaseServer struct {
	admin string // URL with a database that is always there
	err   error
}

func mariaDB(t testing.TB) string {
	t.Helper()
	return ownDatabase(t, &databases.mariaDB, startMariaDB)
}

func postgreSQL(t testing.TB) string {
	t.Helper()
	return ownDatabase(t, &databases.postgre, startPostgres)
}

// ownDatabase makes a database for this test alone.
func ownDatabase(t testing.TB, server **databaseServer, start func(folder string) (string, error)) string {
	t.Helper()
	databases.mu.Lock()
	defer databases.mu.Unlock()
	if *server == nil {
		admin, err := startIn(start)
		*server = &databaseServer{admin, err}
	}
	if (*server).err != nil {
		t.Fatal((*server).err)
	}
	admin, err := OpenSQL(t.Context(), (*server).admin)
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	databases.made++
	name := fmt.Sprintf("test%d", databases.made)
	if err := admin.DB().Exec("CREATE DATABASE " + name).Error; err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse((*server).admin)
	if err != nil {
		t.Fatal(err)
	}
	u.Path = "/" + name
	return u.String()
}

func startIn(start func(folder string) (string, error)) (string, error) {
	if databases.folder == "" {
		folder, err := os.MkdirTemp("", "holdfast-test-")
		if err != nil {
			return "", err
		}
		if err := os.Chmod(folder, 0o755); err != nil { // the servers run as users of their own
			return "", err
		}
		databases.folder = folder
		databases.stop = append(databases.stop, func() { os.RemoveAll(folder) })
	}
	return start(databases.folder)
}

// stopDatabases undoes everything in the opposite order.
func stopDatabases() {
	for _, stop := range slices.Backward(databases.stop) {
		stop()
	}
}

func startMariaDB(folder string) (string, error) {
	folder = filepath.Join(folder, "mariadb")
	as, err := userFolder(folder, "mysql")
	if err != nil {
		return "", err
	}
	data := filepath.Join(folder, "data")
	install := exec.Command("mariadb-install-db", "--no-defaults", "--user="+as, "--datadir="+data,
		"--auth-root-authentication-method=normal", "--skip-test-db")
	if out, err := install.CombinedOutput(); err != nil {
		return "", fmt.Errorf("mariadb-install-db: %w: %s", err, out)
	}
	port, err := port()
	if err != nil {
		return "", err
	}
	server := exec.Command("mariadbd", "--no-defaults", "--user="+as, "--datadir="+data, "--socket="+folder+"/s",
		fmt.Sprintf("--port=%d", port), "--bind-address=127.0.0.1", "--tmpdir="+folder, "--skip-name-resolve",
		"--character-set-server=utf8mb4")
	return serve(server, syscall.SIGTERM, fmt.Sprintf("mysql://root@127.0.0.1:%d/mysql", port))
}

func startPostgres(folder string) (string, error) {
	folder = filepath.Join(folder, "postgres")
	as, err := userFolder(folder, "postgres")
	if err != nil {
		return "", err
	}
	programs := ""
	if _, err := exec.LookPath("initdb"); err != nil {
		found, _ := filepath.Glob("/usr/lib/postgresql/*/bin")
		if len(found) == 0 {
			return "", err
		}
		programs = found[len(found)-1] + "/"
	}
	data := filepath.Join(folder, "data")
	install := exec.Command(programs+"initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync")
	if err := runAs(install, as); err != nil {
		return "", err
	}
	if out, err := install.CombinedOutput(); err != nil {
		return "", fmt.Errorf("initdb: %w: %s", err, out)
	}
	port, err := port()
	if err != nil {
		return "", err
	}
	server := exec.Command(programs+"postgres", "-D", data, "-c", "listen_addresses=127.0.0.1", "-c", fmt.Sprintf("port=%d", port),
		"-c", "unix_socket_directories="+folder, "-c", "max_connections=200")
	if err := runAs(server, as); err != nil {
		return "", err
	}
	return serve(server, syscall.SIGINT, fmt.Sprintf("postgres://postgres@127.0.0.1:%d/postgres?sslmode=disable", port))
}

// userFolder makes a folder for the server's user: root's servers run as a
// user of their own, anybody else's as that one.
func userFolder(folder, name string) (string, error) {
	if err := os.Mkdir(folder, 0o755); err != nil {
		return "", err
	}
	if os.Getuid() != 0 {
		me, err := user.Current()
		if err != nil {
			return "", err
		}
		return me.Username, nil
	}
	uid, gid, err := ids(name)
	if err != nil {
		return "", err
	}
	return name, os.Chown(folder, uid, gid)
}

func runAs(command *exec.Cmd, name string) error {
	command.Dir = "/"
	if os.Getuid() != 0 {
		return nil
	}
	uid, gid, err := ids(name)
	command.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
	return err
}

func ids(name string) (uid, gid int, err error) {
	u, err := user.Lookup(name)
	if err != nil {
		return 0, 0, err
	}
	uid, err = strconv.Atoi(u.Uid)
	if err != nil {
		return 0, 0, err
	}
	gid, err = strconv.Atoi(u.Gid)
	return uid, gid, err
}

// serve starts the server and waits until it answers at the URL.
func serve(server *exec.Cmd, stop os.Signal, dbURL string) (string, error) {
	var out bytes.Buffer
	server.Stdout, server.Stderr = &out, &out
	if err := server.Start(); err != nil {
		return "", err
	}
	exited := make(chan error, 1)
	go func() { exited <- server.Wait() }()
	databases.stop = append(databases.stop, func() {
		_ = server.Process.Signal(stop)
		select {
		case <-exited:
		case <-time.After(10 * time.Second):
			_ = server.Process.Kill()
		}
	})
	deadline := time.After(30 * time.Second)
	for {
		s, err := OpenSQL(context.Background(), dbURL)
		if err == nil {
			return dbURL, s.Close()
		}
		select {
		case cause := <-exited:
			exited <- cause
			return "", fmt.Errorf("%s ended: %w: %s", server.Path, cause, out.String())
		case <-deadline:
			return "", fmt.Errorf("%s does not answer: %w", server.Path, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// port finds a port that nobody listens on, below those that connections use.
func port() (int, error) {
	for range 200 {
		port := 20000 + rand.IntN(12000)
		listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			return port, listener.Close()
		}
	}
	return 0, errors.New("no port is free")
}

// process is a Redis server that a test may stop and start again.
type process struct {
	address string
	folder  string
	args    []string
	command *exec.Cmd
}

func freePort(t testing.TB) int {
	t.Helper()
	p, err := port()
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func redisProcess(t testing.TB, args ...string) *process {
	t.Helper()
	port := freePort(t)
	p := &process{address: fmt.Sprintf("127.0.0.1:%d", port), folder: t.TempDir()}
	p.args = append([]string{"--port", fmt.Sprint(port), "--bind", "127.0.0.1", "--dir", p.folder, "--save", "", "--appendonly", "no", "--repl-diskless-sync-delay", "0"}, args...)
	p.start(t)
	t.Cleanup(func() { p.stop(t) })
	return p
}

func (p *process) start(t testing.TB) {
	t.Helper()
	p.command = exec.Command("redis-server", p.args...)
	if err := p.command.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, 10*time.Second, "redis answers", func() bool {
		conn, err := net.Dial("tcp", p.address)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
}

func (p *process) stop(t testing.TB) {
	t.Helper()
	if p.command != nil {
		_ = p.command.Process.Signal(syscall.SIGCONT)
		_ = p.command.Process.Kill()
		_ = p.command.Wait()
		p.command = nil
	}
}

func (p *process) url() string { return "redis://" + p.address }

func sentinelRing(t testing.TB) (ringURL string, nodes []*process) {
	t.Helper()
	master := redisProcess(t)
	_, port, _ := net.SplitHostPort(master.address)
	replica := redisProcess(t, "--replicaof", "127.0.0.1 "+port)
	var sentinels []string
	for range 3 {
		folder := t.TempDir()
		sp := freePort(t)
		conf := filepath.Join(folder, "sentinel.conf")
		if err := os.WriteFile(conf, fmt.Appendf(nil, "port %d\nbind 127.0.0.1\ndir %s\nsentinel monitor mymaster 127.0.0.1 %s 2\nsentinel down-after-milliseconds mymaster 500\nsentinel failover-timeout mymaster 3000\n", sp, folder, port), 0o600); err != nil {
			t.Fatal(err)
		}
		s := &process{address: fmt.Sprintf("127.0.0.1:%d", sp), args: []string{conf, "--sentinel"}}
		s.start(t)
		t.Cleanup(func() { s.stop(t) })
		sentinels = append(sentinels, s.address)
	}
	for _, a := range sentinels {
		c := redis.NewSentinelClient(&redis.Options{Addr: a})
		defer c.Close()
		eventually(t, 20*time.Second, "quorum", func() bool {
			ok, err := c.CkQuorum(t.Context(), "mymaster").Result()
			if err != nil || !strings.HasPrefix(ok, "OK 3") {
				return false
			}
			rs, err := c.Replicas(t.Context(), "mymaster").Result()
			return err == nil && len(rs) == 1 && rs[0]["master-link-status"] == "ok"
		})
	}
	return "redis+sentinel://" + strings.Join(sentinels, ",") + "/mymaster", []*process{master, replica}
}

func redisCluster(t testing.TB, replicas int) (clusterURL string, nodes []*process) {
	t.Helper()
	var addrs []string
	for range 3 + 3*replicas {
		port := freePort(t)
		p := &process{address: fmt.Sprintf("127.0.0.1:%d", port), folder: t.TempDir()}
		p.args = []string{"--port", fmt.Sprint(port), "--cluster-port", fmt.Sprint(freePort(t)), "--bind", "127.0.0.1", "--dir", p.folder, "--save", "", "--appendonly", "no", "--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf", "--cluster-node-timeout", "1000", "--repl-diskless-sync-delay", "0"}
		p.start(t)
		t.Cleanup(func() { p.stop(t) })
		nodes = append(nodes, p)
		addrs = append(addrs, p.address)
	}
	args := append([]string{"--cluster", "create"}, addrs...)
	args = append(args, "--cluster-replicas", fmt.Sprint(replicas), "--cluster-yes")
	if out, err := exec.Command("redis-cli", args...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, a := range addrs {
		c := redis.NewClient(&redis.Options{Addr: a})
		defer c.Close()
		eventually(t, 20*time.Second, "cluster ok", func() bool {
			return strings.Contains(c.ClusterInfo(t.Context()).Val(), "cluster_state:ok")
		})
	}
	return "redis+cluster://" + strings.Join(addrs[:2], ","), nodes
}
