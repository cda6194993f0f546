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
	"time"

	"github.com/holdfast-stock/holdfast/internal/store"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// childEnv makes the test program start servers, or a build, and wait to be
// killed.
const childEnv = "HOLDFAST_TESTENV_CHILD"

func TestMain(m *testing.M) {
	switch os.Getenv(childEnv) {
	case "servers":
		os.Exit(child())
	case "build":
		_ = testenv.Run(func(t testenv.T) error { testenv.Build(t, "./cmd/api"); return nil })
		os.Exit(1)
	case "go run":
		ctx := testenv.WithGoRun(context.Background())
		watching := ctx != context.Background()
		fmt.Println("watching:", watching)
		if watching {
			<-ctx.Done()
			fmt.Println("ended")
		}
		os.Exit(0)
	}
	store.LogRedis(slog.New(slog.DiscardHandler)) // servers are killed all the time here
	os.Exit(testenv.Main(m))
}

// child starts servers, stops one of them, prints where they are, and waits.
func child() int {
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

// TestNothingOutlivesItsProcess: whichever way the process ends.
func TestNothingOutlivesItsProcess(t *testing.T) {
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
				t.Fatalf("the child started %v", pids)
			}
			for _, pid := range pids {
				if err := syscall.Kill(pid, 0); err != nil {
					t.Fatalf("process %d: %v", pid, err)
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
				eventually(t, fmt.Sprintf("process %d is gone", pid), func() bool { return ended(pid) })
			}
			eventually(t, folder+" is gone", func() bool {
				_, err := os.Stat(folder)
				return os.IsNotExist(err)
			})
		})
	}
}

// TestBuildKilled: a build that is under way does not write what nobody removes.
func TestBuildKilled(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("needs a kernel that ends processes with their parents")
	}
	// A go that never ends, and says where it would have written.
	folder, said := t.TempDir(), filepath.Join(t.TempDir(), "said")
	script := "#!/bin/sh\necho \"$$ $GOTMPDIR\" >" + said + ".new && mv " + said + ".new " + said + "\nexec sleep 600\n"
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
	eventually(t, "go is started", func() bool {
		text, err := os.ReadFile(said)
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
	eventually(t, "go is gone", func() bool { return ended(pid) })
	eventually(t, temp+" is gone", func() bool {
		_, err := os.Stat(temp)
		return os.IsNotExist(err)
	})
}

// ended: gone, or a zombie that nobody has asked for its exit code.
func ended(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || strings.Contains(string(stat), ") Z ")
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !holds(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within 30 s: %s", what)
		}
	}
}

// TestServers: each answers the service's own clients at the URL it gives, on a
// port below those of outgoing connections.
func TestServers(t *testing.T) {
	t.Parallel()
	ask := map[string]func(ctx context.Context, url string) error{
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
			return db.MigrateUp(ctx) // what a fresh database must be fit for
		},
	}
	for _, test := range []struct {
		name, kind string
		url        func(testenv.T) string
		again      bool // the next call gives the same
	}{
		{"Redis", "redis", testenv.Redis, true},
		{"RedisCluster", "redis", testenv.RedisCluster, true},
		{"RedisSentinel", "redis", testenv.RedisSentinel, true},
		{"MariaDB", "sql", testenv.MariaDB, false},
		{"Postgres", "sql", testenv.Postgres, false},
		{"SQLite", "sql", testenv.SQLite, false},
		{"OwnRedis", "redis", func(t testenv.T) string { return testenv.OwnRedis(t).URL() }, false},
		{"OwnRedisCluster", "redis", func(t testenv.T) string { return testenv.OwnRedisCluster(t, 0).URL() }, false},
		{"OwnRedisSentinel", "redis", func(t testenv.T) string { return testenv.OwnRedisSentinel(t).URL() }, false},
		{"OwnMariaDB", "sql", func(t testenv.T) string { return testenv.OwnMariaDB(t).URL() }, false},
		{"OwnPostgres", "sql", func(t testenv.T) string { return testenv.OwnPostgres(t).URL() }, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			one, two := test.url(t), test.url(t)
			if (one == two) != test.again {
				t.Errorf("%s and then %s", one, two)
			}
			for _, u := range []string{one, two} {
				if err := ask[test.kind](t.Context(), u); err != nil {
					t.Errorf("%s: %v", u, err)
				}
			}
			if u, err := url.Parse(strings.Split(one, ",")[0]); err == nil && u.Port() != "" && (len(u.Port()) != 5 || u.Port() >= "32768") {
				t.Errorf("%s is on a port of outgoing connections", one)
			}
		})
	}
}

// TestFaults: a server that is stopped answers nothing, one that is killed is
// gone, and one that is restarted is back at its address.
func TestFaults(t *testing.T) {
	t.Parallel()
	t.Run("Redis", func(t *testing.T) {
		t.Parallel()
		s := testenv.OwnRedis(t)
		client, err := store.OpenRedis(t.Context(), s.URL())
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		if err := client.Set(t.Context(), "a", 1, 0).Err(); err != nil {
			t.Fatal(err)
		}
		s.Stop()
		if err := client.Ping(t.Context()).Err(); err == nil {
			t.Error("a stopped server answers")
		}
		s.Cont()
		if err := client.Ping(t.Context()).Err(); err != nil {
			t.Error(err)
		}
		s.Kill()
		if conn, err := net.Dial("tcp", s.Addr()); err == nil {
			conn.Close()
			t.Error("a killed server listens")
		}
		s.Restart()
		if n, err := client.Exists(t.Context(), "a").Result(); err != nil || n != 0 {
			t.Errorf("after a restart: %d, %v", n, err)
		}
	})
	t.Run("Sentinel", func(t *testing.T) {
		t.Parallel()
		s := testenv.OwnRedisSentinel(t)
		client, err := store.OpenRedis(t.Context(), s.URL())
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		s.Detach()
		if err := client.Set(t.Context(), "a", 1, 0).Err(); err != nil {
			t.Fatal(err)
		}
		s.Master.Kill()
		eventually(t, "the replica, promoted, answers, and has missed the write", func() bool {
			n, err := client.Exists(t.Context(), "a").Result()
			return err == nil && n == 0
		})
	})
	for name, own := range map[string]func(testenv.T, ...string) *testenv.DatabaseServer{"MariaDB": testenv.OwnMariaDB, "Postgres": testenv.OwnPostgres} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := own(t)
			db, err := store.OpenSQL(t.Context(), s.URL())
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			if err := db.MigrateUp(t.Context()); err != nil {
				t.Fatal(err)
			}
			if further := s.NewDatabase(); further == s.URL() {
				t.Errorf("the new database is the old one: %s", further)
			}
			s.Kill()
			if err := db.Ping(t.Context()); err == nil {
				t.Error("a killed server answers")
			}
			s.Restart()
			if err := db.CheckSchema(t.Context()); err != nil {
				t.Errorf("after a restart: %v", err)
			}
		})
	}
}

// TestAPI: the service runs, and says where.
func TestAPI(t *testing.T) {
	t.Parallel()
	api := testenv.API(t, "--strategy", "merged")
	if !strings.Contains(api.Output(), api.URL()) {
		t.Errorf("at %s: %s", api.URL(), api.Output())
	}
	api.Interrupt()
	if code := api.Wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if p := testenv.StartAPI(t, "--nope"); p.Wait() != 2 {
		t.Errorf("exit code %d: %s", p.Wait(), p.Output())
	}
}

// fake is a T that remembers how it ended.
type fake struct {
	testenv.T
	skipped, failed string
}

type over struct{}

func (f *fake) Helper() {}
func (f *fake) Skipf(format string, args ...any) {
	f.skipped = fmt.Sprintf(format, args...)
	panic(over{})
}
func (f *fake) Fatalf(format string, args ...any) {
	f.failed = fmt.Sprintf(format, args...)
	panic(over{})
}

// TestMissingProgram: a test is skipped saying what to install, and in CI fails.
func TestMissingProgram(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	for ci, want := range map[string]bool{"": true, "true": false} {
		t.Setenv("CI", ci)
		f := &fake{T: t}
		func() {
			defer func() { _ = recover() }()
			testenv.OwnRedis(f)
		}()
		if (f.skipped != "") != want || (f.failed != "") == want || !strings.Contains(f.skipped+f.failed, "apt-get install") {
			t.Errorf("CI=%q: skipped %q, failed %q", ci, f.skipped, f.failed)
		}
	}
}
