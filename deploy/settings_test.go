package deploy

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/store"
	"github.com/holdfast-stock/holdfast/internal/store/storetest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// path returns the absolute path of a file in this folder.
func path(t *testing.T, name string) string {
	t.Helper()
	full, err := filepath.Abs(name)
	if err != nil {
		t.Fatal(err)
	}
	return full
}

// program returns the path of a program that testenv does not start. If it is
// missing, the test is skipped, or fails where testenv would fail.
func program(t *testing.T, name string) string {
	t.Helper()
	for _, found := range []string{name, "/usr/sbin/" + name} {
		if full, err := exec.LookPath(found); err == nil {
			return full
		}
	}
	if os.Getenv("CI") == "true" || os.Getenv("HOLDFAST_NO_SKIP") == "1" {
		t.Fatalf("%s is not installed", name)
	}
	t.Skipf("%s is not installed", name)
	return ""
}

// settings checks settings of a running Redis.
func settings(t *testing.T, server *testenv.RedisServer, want map[string]string) {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer client.Close()
	for name, value := range want {
		if got := client.ConfigGet(t.Context(), name).Val()[name]; got != value {
			t.Errorf("%s is %q, want %q", name, got, value)
		}
	}
}

// TestRedis checks that Redis accepts the files, and that the service does not warn
// about their settings.
func TestRedis(t *testing.T) {
	t.Parallel()
	server := testenv.OwnRedis(t, "--include", path(t, "redis/redis.conf"))
	settings(t, server, map[string]string{"maxmemory-policy": "noeviction", "maxmemory": "536870912", "save": "", "appendonly": "no"})
	client := storetest.Redis(t, server.URL())
	if warnings := store.RedisWarnings(t.Context(), client); len(warnings) > 0 {
		t.Error(warnings)
	}
	locks := testenv.OwnRedis(t, "--include", path(t, "redis/redlock.conf"))
	settings(t, locks, map[string]string{"appendonly": "yes", "appendfsync": "always", "maxmemory-policy": "noeviction"})
}

// TestRedisCluster checks that the script makes three nodes a cluster, and does nothing when run
// again.
func TestRedisCluster(t *testing.T) {
	t.Parallel()
	program(t, "redis-cli")
	args := []string{path(t, "redis/create-cluster.sh")}
	var nodes []string
	for range 3 {
		node := testenv.OwnRedis(t, "--include", path(t, "redis/redis.conf"), "--include", path(t, "redis/cluster.conf"),
			"--cluster-port", fmt.Sprint(testenv.Port(t)), "--requirepass", "secret", "--masterauth", "secret")
		nodes = append(nodes, node.Addr())
		args = append(args, node.Addr())
	}
	for range 2 {
		create := exec.CommandContext(t.Context(), "/bin/sh", args...)
		create.Env = append(os.Environ(), "REDISCLI_AUTH=secret")
		if out, err := create.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	client := storetest.Redis(t, "redis+cluster://:secret@"+strings.Join(nodes, ","))
	for n := range 30 {
		if err := client.Set(t.Context(), fmt.Sprintf("k%d", n), n, 0).Err(); err != nil {
			t.Error(err)
		}
	}
}

// TestMariaDB checks that MariaDB accepts the file and starts with its settings.
func TestMariaDB(t *testing.T) {
	t.Parallel()
	out, err := exec.Command(program(t, "mariadbd"), "--defaults-file="+path(t, "mariadb/holdfast.cnf"), "--verbose", "--help").CombinedOutput()
	if err != nil || strings.Contains(string(out), "unknown variable") {
		t.Fatalf("%v: %.2000s", err, out)
	}
	values := make(map[string]string)
	for line := range strings.Lines(string(out)) {
		if fields := strings.Fields(line); len(fields) == 2 {
			values[fields[0]] = fields[1]
		}
	}
	for name, value := range map[string]string{
		"innodb-flush-log-at-trx-commit": "1", "sync-binlog": "1", "max-connections": "400", "innodb-buffer-pool-size": "536870912",
	} {
		if values[name] != value {
			t.Errorf("%s is %q, want %q", name, values[name], value)
		}
	}

	var flags []string
	for line := range strings.Lines(read(t, "deploy/mariadb/holdfast.cnf")) {
		if name, value, ok := strings.Cut(line, "="); ok && !strings.HasPrefix(line, "#") {
			flags = append(flags, "--"+strings.TrimSpace(name)+"="+strings.TrimSpace(value))
		}
	}
	if len(flags) < 5 {
		t.Fatalf("only %v", flags)
	}
	server := testenv.OwnMariaDB(t, flags...)
	ledgerID(t, "mysql", server.URL(), "mariadb")
}

// TestPostgres checks that PostgreSQL starts with the file.
func TestPostgres(t *testing.T) {
	t.Parallel()
	// The user that runs PostgreSQL may not be able to read the repository.
	folder, err := os.MkdirTemp("", "holdfast-postgres-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(folder) })
	conf := filepath.Join(folder, "postgresql.conf")
	if err := os.Chmod(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(conf, []byte(read(t, "deploy/postgres/postgresql.conf")), 0o644); err != nil {
		t.Fatal(err)
	}
	server := testenv.OwnPostgres(t, "-c", "config_file="+conf)
	db := storetest.SQL(t, server.URL())
	for name, value := range map[string]string{"shared_buffers": "256MB", "autovacuum_naptime": "10s", "synchronous_commit": "on", "config_file": conf} {
		var got string
		if err := db.DB().Raw("SELECT current_setting(?)", name).Scan(&got).Error; err != nil || got != value {
			t.Errorf("%s is %q, want %q, %v", name, got, value, err)
		}
	}
	ledgerID(t, "postgres", server.URL(), "psql")
}

// ledgerID tests the job that writes the ledger's ID, on a real database.
func ledgerID(t *testing.T, kind, db, client string) {
	t.Helper()
	program(t, client)
	u, err := url.Parse(db)
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	run := func(db string) error {
		job := exec.CommandContext(t.Context(), "/bin/sh", path(t, "ledger-id.sh"), kind, u.Hostname(), u.Port(), folder)
		name := strings.TrimPrefix(u.Path, "/")
		job.Env = append(os.Environ(), "HOLDFAST_DB="+db, "MYSQL_USER="+u.User.Username(), "MYSQL_DATABASE="+name,
			"PGUSER="+u.User.Username(), "PGDATABASE="+name)
		out, err := job.CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}
	file := filepath.Join(folder, "ledger-id")
	if err := run(db); err == nil {
		t.Error("the job succeeds without a schema")
	}
	sql := storetest.Migrated(t, db)
	if err := run("sqlite:///other"); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(file); err == nil {
		t.Error("the job wrote an ID although the ledger is in another database")
	}
	if err := run(db); err != nil {
		t.Fatal(err)
	}
	id, err := sql.LedgerID(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if got := strings.ToLower(strings.ReplaceAll(strings.TrimSpace(string(text)), "-", "")); err != nil || got != strings.ReplaceAll(id.String(), "-", "") {
		t.Errorf("%q, %v; the ledger's ID is %v", text, err, id)
	}
}

// TestZooKeeper checks that ZooKeeper starts with its file. Only folders and ports
// are changed.
func TestZooKeeper(t *testing.T) {
	t.Parallel()
	const jar = "/usr/share/java/zookeeper.jar"
	java := program(t, "java")
	if _, err := os.Stat(jar); err != nil {
		program(t, jar)
	}
	folder, port := t.TempDir(), fmt.Sprint(testenv.Port(t))
	conf := write(t, filepath.Join(folder, "zoo.cfg"), read(t, "deploy/zookeeper/zoo.cfg"),
		"=/data\n", "="+folder+"/data\n", "=/datalog\n", "="+folder+"/datalog\n", "clientPort=2181", "clientPort="+port)
	if err := os.Mkdir(folder+"/datalog", 0o755); err != nil {
		t.Fatal(err)
	}
	run(t, port, "srvr", "Mode: standalone", java, "-Xmx128m", "-cp", jar, "org.apache.zookeeper.server.quorum.QuorumPeerMain", conf)
}

// TestEtcd checks that etcd starts with its file. Only folders and ports are changed.
func TestEtcd(t *testing.T) {
	t.Parallel()
	etcd := program(t, "etcd")
	folder, port, peer := t.TempDir(), fmt.Sprint(testenv.Port(t)), fmt.Sprint(testenv.Port(t))
	conf := write(t, filepath.Join(folder, "etcd.yml"), read(t, "deploy/etcd/etcd.yml"),
		"/var/lib/etcd/data", folder+"/data", "0.0.0.0:2379", "127.0.0.1:"+port, "etcd:2379", "127.0.0.1:"+port, ":2380", ":"+peer)
	run(t, port, "GET /health HTTP/1.0\r\n\r\n", `"health":"true"`, etcd, "--config-file", conf)
}

// write writes text to a file. replacements are pairs of old and new text.
func write(t *testing.T, name, text string, replacements ...string) string {
	t.Helper()
	for i := 0; i < len(replacements); i += 2 {
		if !strings.Contains(text, replacements[i]) {
			t.Fatalf("%s has no %q", name, replacements[i])
		}
	}
	if err := os.WriteFile(name, []byte(strings.NewReplacer(replacements...).Replace(text)), 0o644); err != nil {
		t.Fatal(err)
	}
	return name
}

// run starts a server for the rest of the test, and waits until its reply to request
// contains want.
func run(t *testing.T, port, request, want string, command ...string) {
	t.Helper()
	var output strings.Builder
	server := exec.Command(command[0], command[1:]...)
	server.Stdout, server.Stderr = &output, &output
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = server.Process.Kill()
		_ = server.Wait()
		if t.Failed() {
			t.Log(output.String())
		}
	})
	ask := func() (string, error) {
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", "127.0.0.1:"+port)
		if err != nil {
			return "", err
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(time.Second)) // a server that is starting may never answer; it is asked again
		if _, err := conn.Write([]byte(request)); err != nil {
			return "", err
		}
		var text strings.Builder
		buffer := make([]byte, 4096)
		for {
			n, err := conn.Read(buffer)
			text.Write(buffer[:n])
			if err != nil {
				return text.String(), nil
			}
		}
	}
	testenv.AwaitSuccess(t, "the server answers", func() error {
		text, err := ask()
		if err == nil && !strings.Contains(text, want) {
			err = fmt.Errorf("it replies %q, want %q", text, want)
		}
		return err
	})
}
