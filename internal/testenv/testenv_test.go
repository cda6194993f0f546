package testenv_test

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/holdfast-stock/holdfast/internal/store"
	"github.com/holdfast-stock/holdfast/internal/store/storetest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// childEnv is the environment variable that makes the test program act as a child
// process. Its value says what the child does.
const childEnv = "HOLDFAST_TESTENV_CHILD"

func TestMain(m *testing.M) {
	switch os.Getenv(childEnv) {
	case "servers":
		os.Exit(runServers())
	case "build":
		_ = testenv.Run(func(t testenv.T) error { testenv.Build(t, "./cmd/api"); return nil })
		os.Exit(1)
	case "go run":
		ctx := testenv.WithGoRun(context.Background())
		watching := ctx != context.Background()
		fmt.Println("watching:", watching)
		if watching {
			bounded, cancel := context.WithTimeout(ctx, testenv.Patience) // nothing else ends this process if the test has failed
			defer cancel()
			if <-bounded.Done(); ctx.Err() != nil {
				fmt.Println("ended")
			}
		}
		os.Exit(0)
	}
	store.LogRedis(slog.New(slog.DiscardHandler)) // these tests kill servers, and every failed dial would be logged
	os.Exit(testenv.Main(m))
}

// runServers starts servers, stops one of them, prints the process IDs and a
// folder, and waits for a line of input.
func runServers() int {
	err := testenv.Run(func(t testenv.T) error {
		redis, stopped, mariadb, postgres := testenv.OwnRedis(t), testenv.OwnRedis(t), testenv.OwnMariaDB(t), testenv.OwnPostgres(t)
		stopped.Stop()
		folder := filepath.Dir(strings.TrimPrefix(testenv.SQLite(t), "sqlite://"))
		for _, s := range []interface{ PIDs() []int }{redis, stopped, mariadb, postgres} {
			for _, pid := range s.PIDs() {
				fmt.Println("pid", pid)
			}
		}
		fmt.Println("folder", folder)
		fmt.Println("ready")
		_, err := bufio.NewReader(os.Stdin).ReadString('\n')
		return err
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// TestServersEndWithTheirProcess checks that the servers of a process end and its
// folders are removed, both when the process is killed and when it returns.
func TestServersEndWithTheirProcess(t *testing.T) {
	t.Parallel()
	for _, end := range []string{"killed", "done"} {
		t.Run(end, func(t *testing.T) {
			t.Parallel()
			c := exec.Command(os.Args[0])
			c.Env = append(os.Environ(), childEnv+"=servers")
			c.Stderr = os.Stderr
			in, err := c.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			out, err := c.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			var (
				pids   []int
				folder string
			)
			for lines := bufio.NewScanner(out); lines.Scan() && lines.Text() != "ready"; {
				var pid int
				if _, err := fmt.Sscanf(lines.Text(), "pid %d", &pid); err == nil {
					pids = append(pids, pid)
				}
				fmt.Sscanf(lines.Text(), "folder %s", &folder)
			}
			if len(pids) < 5 { // PostgreSQL alone has several
				t.Fatalf("the child started the processes %v, want at least 5", pids)
			}
			for _, pid := range pids {
				if err := syscall.Kill(pid, 0); err != nil {
					t.Fatalf("process %d does not run: %v", pid, err)
				}
			}
			if end == "killed" {
				err = c.Process.Kill()
			} else {
				_, err = in.Write([]byte("\n"))
			}
			if err != nil {
				t.Fatal(err)
			}
			_ = c.Wait()
			for _, pid := range pids {
				testenv.Await(t, fmt.Sprintf("process %d has ended", pid), func() bool { return ended(pid) })
			}
			testenv.Await(t, folder+" is removed", func() bool {
				_, err := os.Stat(folder)
				return os.IsNotExist(err)
			})
		})
	}
}

// TestBuildKilled kills a process during a build. The go command must end, and its
// temporary folder must be removed.
func TestBuildKilled(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("needs a kernel that ends processes with their parents")
	}
	// This go command writes its process ID and its temporary folder to a file and
	// then never ends.
	folder, report := t.TempDir(), filepath.Join(t.TempDir(), "report")
	script := "#!/bin/sh\necho \"$$ $GOTMPDIR\" >" + report + ".new && mv " + report + ".new " + report + "\nexec sleep 600\n"
	if err := os.WriteFile(filepath.Join(folder, "go"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), childEnv+"=build", "PATH="+folder+":"+os.Getenv("PATH"))
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	var (
		pid  int
		temp string
	)
	testenv.Await(t, "the go command has started", func() bool {
		text, err := os.ReadFile(report)
		if err != nil {
			return false
		}
		_, err = fmt.Sscanf(string(text), "%d %s", &pid, &temp)
		return err == nil
	})
	if _, err := os.Stat(temp); err != nil {
		t.Error(err)
	}
	if err := c.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = c.Wait()
	testenv.Await(t, "the go command has ended", func() bool { return ended(pid) })
	testenv.Await(t, temp+" is removed", func() bool {
		_, err := os.Stat(temp)
		return os.IsNotExist(err)
	})
}

// ended reports whether the process has ended. A zombie counts as ended.
func ended(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || strings.Contains(string(stat), ") Z ")
}

// TestServers checks that the service's clients can use the URL of each server,
// and that its port is below those of outgoing connections.
func TestServers(t *testing.T) {
	t.Parallel()
	connect := map[string]func(ctx context.Context, url string) error{
		"redis": func(ctx context.Context, url string) error {
			client, err := store.OpenRedis(ctx, url)
			if err != nil {
				return err
			}
			return client.Close()
		},
		"sql": func(ctx context.Context, url string) error {
			db, err := store.OpenSQL(ctx, url)
			if err != nil {
				return err
			}
			defer db.Close()
			return db.MigrateUp(ctx) // needs an empty database
		},
	}
	for _, test := range []struct {
		name, kind string
		url, next  func(testenv.T) string
		shared     bool // whether the next call returns the same URL
	}{
		{"Redis", "redis", testenv.Redis, testenv.Redis, true},
		{"RedisCluster", "redis", testenv.RedisCluster, testenv.RedisCluster, true},
		{"RedisSentinel", "redis", testenv.RedisSentinel, testenv.RedisSentinel, true},
		{"MariaDB", "sql", testenv.MariaDB, testenv.MariaDB, false},
		{"Postgres", "sql", testenv.Postgres, testenv.Postgres, false},
		{"SQLite", "sql", testenv.SQLite, testenv.SQLite, false},
		{"OwnRedis", "redis", func(t testenv.T) string { return testenv.OwnRedis(t).URL() }, testenv.Redis, false},
		{"OwnRedisCluster", "redis", func(t testenv.T) string { return testenv.OwnRedisCluster(t, 0).URL() }, testenv.RedisCluster, false},
		{"OwnRedisSentinel", "redis", func(t testenv.T) string { return testenv.OwnRedisSentinel(t).URL() }, testenv.RedisSentinel, false},
		{"OwnMariaDB", "sql", func(t testenv.T) string { return testenv.OwnMariaDB(t).URL() }, testenv.MariaDB, false},
		{"OwnPostgres", "sql", func(t testenv.T) string { return testenv.OwnPostgres(t).URL() }, testenv.Postgres, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			first, second := test.url(t), test.next(t)
			if (first == second) != test.shared {
				t.Errorf("two calls return %s and %s, want the same: %v", first, second, test.shared)
			}
			for _, u := range []string{first, second} {
				if err := connect[test.kind](t.Context(), u); err != nil {
					t.Errorf("%s: %v", u, err)
				}
			}
			port := func(list string) string {
				u, err := url.Parse(strings.Split(list, ",")[0])
				if err != nil {
					return "" // a list of several servers
				}
				return u.Port()
			}
			if p := port(first); p != "" && (len(p) != 5 || p >= "32768") {
				t.Errorf("the port of %s is one of outgoing connections", first)
			}
			if p := port(first); p != "" && p == port(second) && strings.HasPrefix(test.name, "Own") {
				t.Errorf("%s and %s are the same server", first, second)
			}
		})
	}
}

// TestPostgres18 checks the version of the additional servers of a thorough run.
func TestPostgres18(t *testing.T) {
	t.Parallel()
	if !testenv.Thorough() {
		t.Log("only in a thorough run: PostgreSQL 18 may not be installed")
		return
	}
	for _, dbURL := range []string{testenv.Postgres18(t), testenv.OwnPostgres18(t).URL()} {
		db := storetest.SQL(t, dbURL)
		if e := db.Engine(t.Context()); !strings.HasPrefix(e.Version, "18.") {
			t.Errorf("the server is %s %s", e.Name, e.Version)
		}
	}
}

// TestRedisFaults checks Stop, Cont, Kill and Restart of a Redis: a restarted
// server is empty and has the same address.
func TestRedisFaults(t *testing.T) {
	t.Parallel()
	s := testenv.OwnRedis(t)
	client := storetest.Redis(t, s.URL())
	if err := client.Set(t.Context(), "a", 1, 0).Err(); err != nil {
		t.Fatal(err)
	}
	s.Stop()
	if err := client.Ping(t.Context()).Err(); err == nil {
		t.Error("a stopped server answers")
	}
	s.Cont()
	testenv.Await(t, "the server answers again", func() bool { return client.Ping(t.Context()).Err() == nil })
	s.Kill()
	if conn, err := net.Dial("tcp", s.Addr()); err == nil {
		conn.Close()
		t.Error("a killed server listens")
	}
	s.Restart()
	if n, err := client.Exists(t.Context(), "a").Result(); err != nil || n != 0 {
		t.Errorf("%d keys after a restart, want 0; error %v", n, err)
	}
}

// TestSentinelFaults checks that a detached replica misses a write and is promoted
// when the master is killed.
func TestSentinelFaults(t *testing.T) {
	t.Parallel()
	s := testenv.OwnRedisSentinel(t)
	client := storetest.Redis(t, s.URL())
	s.Detach()
	if err := client.Set(t.Context(), "a", 1, 0).Err(); err != nil {
		t.Fatal(err)
	}
	s.Master.Kill()
	testenv.Await(t, "the promoted replica answers without the write", func() bool {
		n, err := client.Exists(t.Context(), "a").Result()
		return err == nil && n == 0
	})
}

// TestDatabaseFaults checks Kill and Restart of a database server: a restarted
// server has its data and the same address.
func TestDatabaseFaults(t *testing.T) {
	t.Parallel()
	for name, own := range map[string]func(testenv.T, ...string) *testenv.DatabaseServer{"MariaDB": testenv.OwnMariaDB, "Postgres": testenv.OwnPostgres} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := own(t)
			db := storetest.Migrated(t, s.URL())
			if another := s.NewDatabase(); another == s.URL() {
				t.Errorf("NewDatabase returned the existing database %s", another)
			}
			s.Kill()
			if err := db.CheckSchema(t.Context()); err == nil {
				t.Error("a killed server answers")
			}
			s.Restart()
			if err := db.CheckSchema(t.Context()); err != nil {
				t.Errorf("after a restart: %v", err)
			}
		})
	}
}

// TestAPI starts the service, finds its URL and interrupts it. It also checks the
// exit code after an unknown flag.
func TestAPI(t *testing.T) {
	t.Parallel()
	api := testenv.API(t, "--strategy", "merged")
	if !strings.Contains(api.Output(), api.URL()) {
		t.Errorf("the output does not contain the URL %s: %s", api.URL(), api.Output())
	}
	api.Interrupt()
	if code := api.Wait(); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
	if p := testenv.StartFile(t, testenv.Build(t, "./cmd/api"), "--nope"); p.Wait() != 2 {
		t.Errorf("exit code %d, want 2: %s", p.Wait(), p.Output())
	}
}

// fakeT is a T that records how it ended.
type fakeT struct {
	testenv.T
	skipped, failed string
}

// endTest is the panic that ends a fake test.
type endTest struct{}

func (f *fakeT) Helper() {}
func (f *fakeT) Skipf(format string, args ...any) {
	f.skipped = fmt.Sprintf(format, args...)
	panic(endTest{})
}
func (f *fakeT) Fatalf(format string, args ...any) {
	f.failed = fmt.Sprintf(format, args...)
	panic(endTest{})
}

// TestMissingProgram checks that a test is skipped if a program is missing, and
// fails with CI=true. The message must say what to install.
func TestMissingProgram(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	for ci, wantSkip := range map[string]bool{"": true, "true": false} {
		t.Setenv("CI", ci)
		f := &fakeT{T: t}
		func() {
			defer func() { _ = recover() }()
			testenv.OwnRedis(f)
		}()
		if (f.skipped != "") != wantSkip || (f.failed != "") == wantSkip || !strings.Contains(f.skipped+f.failed, "apt-get install") {
			t.Errorf("CI=%q: skipped %q, failed %q", ci, f.skipped, f.failed)
		}
	}
}

// TestCannotStart starts a program that ends instead of serving. The test must end at once, with
// what the program printed.
func TestCannotStart(t *testing.T) {
	t.Parallel()
	f := &fakeT{T: t}
	func() {
		defer func() { _ = recover() }()
		testenv.API(f, "--nope")
	}()
	if !strings.Contains(f.failed, "api ended: exit status 2") || !strings.Contains(f.failed, "--nope") || strings.Contains(f.failed, "not within") {
		t.Errorf("failed %q", f.failed)
	}
}
