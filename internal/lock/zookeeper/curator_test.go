package zookeeper

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/lock/locktest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// curatorPackages have the Java compiler and Curator with all that it needs.
const curatorPackages = "default-jdk-headless libcurator-recipes-java libcurator-framework-java libcurator-client-java " +
	"libzookeeper-java libnetty-java libguava-java libslf4j-java"

var curatorJars = []string{
	"curator-recipes", "curator-framework", "curator-client", "zookeeper", "zookeeper-jute", "guava", "slf4j-api", "slf4j-nop",
}

// missingCurator ends the test as testenv does for a server.
func missingCurator(t *testing.T, what string) {
	t.Helper()
	message := fmt.Sprintf("%s is not installed: apt-get install --no-install-recommends %s", what, curatorPackages)
	if os.Getenv("CI") == "true" || os.Getenv("HOLDFAST_NO_SKIP") == "1" {
		t.Fatal(message)
	}
	t.Skip(message)
}

// curatorClasspath compiles the Java side, and says where it and its libraries
// are.
func curatorClasspath(t *testing.T) string {
	t.Helper()
	for _, program := range []string{"java", "javac"} {
		if _, err := exec.LookPath(program); err != nil {
			missingCurator(t, program)
		}
	}
	classes := t.TempDir()
	path := []string{classes}
	for _, jar := range curatorJars {
		file := filepath.Join("/usr/share/java", jar+".jar")
		if _, err := os.Stat(file); err != nil {
			missingCurator(t, file)
		}
		path = append(path, file)
	}
	netty, err := filepath.Glob("/usr/share/java/netty*.jar")
	if err != nil || len(netty) == 0 {
		missingCurator(t, "Netty for Java")
	}
	classpath := strings.Join(append(path, netty...), ":")
	out, err := exec.CommandContext(t.Context(), "javac", "-cp", classpath, "-d", classes,
		filepath.Join("testdata", "Holder.java")).CombinedOutput()
	if err != nil {
		t.Fatalf("compiling the Java side: %v: %s", err, out)
	}
	return classpath
}

// curator is a Java process with an InterProcessMutex.
type curator struct {
	t        *testing.T
	cmd      *exec.Cmd
	commands io.WriteCloser
	lines    chan string
	errors   bytes.Buffer
}

func startCurator(t *testing.T, classpath, addr, name string, session time.Duration) *curator {
	t.Helper()
	c := &curator{t: t, lines: make(chan string, 16)}
	c.cmd = exec.Command("java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx128m", "-cp", classpath,
		"Holder", addr, Root+"/"+name, fmt.Sprint(session.Milliseconds()))
	c.cmd.Stderr = &c.errors
	var err error
	if c.commands, err = c.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			c.lines <- lines.Text()
		}
		close(c.lines)
		_ = c.cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = c.cmd.Process.Kill()
		<-ended
		if t.Failed() && c.errors.Len() > 0 {
			t.Logf("the Java side says: %s", &c.errors)
		}
	})
	return c
}

// ready waits until it is connected.
func (c *curator) ready() *curator {
	c.t.Helper()
	c.expect("ready")
	return c
}

func (c *curator) tell(command string) {
	c.t.Helper()
	if _, err := io.WriteString(c.commands, command+"\n"); err != nil {
		c.t.Fatal(err)
	}
}

func (c *curator) expect(want string) {
	c.t.Helper()
	select {
	case line, ok := <-c.lines:
		if !ok || line != want {
			c.t.Fatalf("the Java side says %q, and should say %q", line, want)
		}
	case <-time.After(30 * time.Second):
		c.t.Fatalf("the Java side does not say %q", want)
	}
}

// silent checks that it has not been granted the lock.
func (c *curator) silent(during time.Duration) {
	c.t.Helper()
	select {
	case line := <-c.lines:
		c.t.Fatalf("the Java side says %q", line)
	case <-time.After(during):
	}
}

// quiet keeps the library from logging.
type quiet struct{}

func (quiet) Printf(string, ...any) {}

// watcher connects a client of the test's own.
func watcher(t *testing.T, addr string) *zk.Conn {
	t.Helper()
	conn, _, err := zk.Connect([]string{addr}, 10*time.Second, zk.WithLogger(quiet{}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	return conn
}

func open(t *testing.T, addr string, lease time.Duration) *Locker {
	t.Helper()
	l, err := New(t.Context(), []string{addr}, lease)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// contenders are the nodes below a lock's, in the order of their numbers.
func contenders(t *testing.T, conn *zk.Conn, name string) []string {
	t.Helper()
	children, _, err := conn.Children(Root + "/" + name)
	if err != nil && !errors.Is(err, zk.ErrNoNode) {
		t.Fatal(err)
	}
	slices.SortFunc(children, func(a, b string) int {
		return strings.Compare(a[max(0, len(a)-10):], b[max(0, len(b)-10):])
	})
	return children
}

// queued waits until so many stand in the queue.
func queued(t *testing.T, conn *zk.Conn, name string, n int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d contenders for %s", n, name), func() bool { return len(contenders(t, conn, name)) == n })
}

// eventually waits until ready, for 20 seconds.
func eventually(t *testing.T, what string, ready func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ready(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within 20 s: %s", what)
		}
	}
}

func refused(t *testing.T, l lock.Locker, name string) {
	t.Helper()
	if lease, err := l.TryLock(t.Context(), name); !errors.Is(err, lock.ErrHeld) {
		if err == nil {
			_ = lease.Unlock(t.Context())
		}
		t.Fatalf("TryLock on a held lock: %v", err)
	}
}

// granting is a Lock under way.
type granting struct {
	lease lock.Lease
	err   error
	at    time.Time
}

func lockLater(t *testing.T, l lock.Locker, name string) <-chan granting {
	granted := make(chan granting, 1)
	go func() {
		lease, err := l.Lock(t.Context(), name)
		granted <- granting{lease, err, time.Now()}
	}()
	return granted
}

func mustGrant(t *testing.T, granted <-chan granting) granting {
	t.Helper()
	select {
	case g := <-granted:
		if g.err != nil {
			t.Fatal(g.err)
		}
		return g
	case <-time.After(30 * time.Second):
		t.Fatal("not granted")
		panic("unreachable")
	}
}

func notGranted(t *testing.T, granted <-chan granting, during time.Duration) {
	t.Helper()
	select {
	case g := <-granted:
		t.Fatalf("it did not wait: %v", g.err)
	case <-time.After(during):
	}
}

// TestCurator stands in one queue with the Java original.
func TestCurator(t *testing.T) {
	t.Parallel()
	classpath := curatorClasspath(t)
	addr := testenv.OwnZooKeeper(t).Addr()
	const session = 10 * time.Second

	t.Run("a Java holder excludes ours", func(t *testing.T) {
		t.Parallel()
		conn := watcher(t, addr)
		java := startCurator(t, classpath, addr, "java-holds", session).ready()
		ours := open(t, addr, session)
		java.tell("acquire")
		java.expect("acquired")
		refused(t, ours, "java-holds")
		granted := lockLater(t, ours, "java-holds")
		queued(t, conn, "java-holds", 2)
		notGranted(t, granted, 300*time.Millisecond)
		released := time.Now()
		java.tell("release")
		java.expect("released")
		g := mustGrant(t, granted)
		if took := g.at.Sub(released); took > 3*time.Second {
			t.Errorf("granted %v after the release", took)
		}
		locktest.MustUnlock(t, g.lease)
		java.tell("quit")
	})

	t.Run("our holder excludes Java", func(t *testing.T) {
		t.Parallel()
		conn := watcher(t, addr)
		java := startCurator(t, classpath, addr, "ours-holds", session).ready()
		lease := locktest.MustLock(t, open(t, addr, session), "ours-holds")
		java.tell("acquire")
		queued(t, conn, "ours-holds", 2)
		java.silent(300 * time.Millisecond)
		locktest.MustUnlock(t, lease)
		java.expect("acquired")
		refused(t, open(t, addr, session), "ours-holds")
		java.tell("release")
		java.expect("released")
		java.tell("quit")
	})

	t.Run("first come, first served", func(t *testing.T) {
		t.Parallel()
		const name = "fair"
		conn := watcher(t, addr)
		javas := []*curator{
			startCurator(t, classpath, addr, name, session),
			startCurator(t, classpath, addr, name, session),
		}
		for _, java := range javas {
			java.ready()
		}
		ours := []*Locker{open(t, addr, session), open(t, addr, session)}
		lease := locktest.MustLock(t, open(t, addr, session), name)

		var mu sync.Mutex
		var order []string
		granted := func(who string) {
			mu.Lock()
			defer mu.Unlock()
			order = append(order, who)
		}
		var done sync.WaitGroup
		want := []string{"Java 1", "ours 1", "Java 2", "ours 2"}
		for i := range 2 {
			javas[i].tell("acquire")
			queued(t, conn, name, 2+2*i)
			done.Go(func() {
				for line := range javas[i].lines {
					if line == "released" {
						return
					}
					if line != "acquired" {
						t.Errorf("the Java side says %q", line)
						return
					}
					granted(want[2*i])
					if _, err := io.WriteString(javas[i].commands, "release\n"); err != nil {
						t.Error(err)
						return
					}
				}
				t.Error("the Java side has ended")
			})
			waiting := lockLater(t, ours[i], name)
			queued(t, conn, name, 3+2*i)
			done.Go(func() {
				g := <-waiting
				if g.err != nil {
					t.Error(g.err)
					return
				}
				granted(want[2*i+1])
				if err := g.lease.Unlock(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		mu.Lock()
		early := slices.Clone(order)
		mu.Unlock()
		if len(early) > 0 {
			t.Fatalf("granted before the holder's release: %v", early)
		}
		locktest.MustUnlock(t, lease)
		done.Wait()
		if !slices.Equal(order, want) {
			t.Errorf("granted to %v, and they came as %v", order, want)
		}
	})

	t.Run("a killed Java holder", func(t *testing.T) {
		t.Parallel()
		const short = 2 * time.Second
		conn := watcher(t, addr)
		java := startCurator(t, classpath, addr, "java-dies", short).ready()
		java.tell("acquire")
		java.expect("acquired")
		granted := lockLater(t, open(t, addr, session), "java-dies")
		queued(t, conn, "java-dies", 2)
		killed := time.Now()
		if err := java.cmd.Process.Signal(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if _, ok := <-java.lines; ok {
			t.Fatal("the Java side has something to say after its death")
		}
		g := mustGrant(t, granted)
		// The server ends sessions on its tick of 500 ms.
		if took := g.at.Sub(killed); took > short+2*time.Second {
			t.Errorf("granted %v after the holder's death, and its session ended after %v", took, short)
		}
		if left := contenders(t, conn, "java-dies"); len(left) != 1 {
			t.Errorf("the dead holder's node is still there: %v", left)
		}
		locktest.MustUnlock(t, g.lease)
	})
}
