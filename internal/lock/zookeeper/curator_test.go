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

	"github.com/holdfast-stock/holdfast/internal/lock/locktest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// curatorPackages are the Debian packages of the Java compiler, of Curator and of
// what Curator needs.
const curatorPackages = "default-jdk-headless libcurator-recipes-java libcurator-framework-java libcurator-client-java " +
	"libzookeeper-java libnetty-java libguava-java libslf4j-java"

var curatorJars = []string{
	"curator-recipes", "curator-framework", "curator-client", "zookeeper", "zookeeper-jute", "guava", "slf4j-api", "slf4j-nop",
}

// missingCurator skips the test, or fails it where testenv fails for a missing
// server.
func missingCurator(t *testing.T, what string) {
	t.Helper()
	message := fmt.Sprintf("%s is not installed: apt-get install --no-install-recommends %s", what, curatorPackages)
	if os.Getenv("CI") == "true" || os.Getenv("HOLDFAST_NO_SKIP") == "1" {
		t.Fatal(message)
	}
	t.Skip(message)
}

// curatorClasspath compiles the Java program, and returns its class path.
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
		t.Fatalf("compiling the Java program: %v: %s", err, out)
	}
	return classpath
}

// curator is a process of the Java program: one client with one
// InterProcessMutex.
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
			t.Logf("the Java program wrote to its standard error: %s", &c.errors)
		}
	})
	return c
}

// ready waits until the client is connected.
func (c *curator) ready() *curator {
	c.t.Helper()
	c.expect("ready")
	return c
}

func (c *curator) send(command string) {
	c.t.Helper()
	if _, err := io.WriteString(c.commands, command+"\n"); err != nil {
		c.t.Fatal(err)
	}
}

// expect waits for a line.
func (c *curator) expect(want string) {
	c.t.Helper()
	const timeout = 30 * time.Second
	select {
	case line, ok := <-c.lines:
		if !ok || line != want {
			c.t.Fatalf("the Java program wrote %q, want %q", line, want)
		}
	case <-time.After(timeout):
		c.t.Fatalf("the Java program did not write %q within %v", want, timeout)
	}
}

// expectNothing checks that the client is not granted the lock.
func (c *curator) expectNothing(during time.Duration) {
	c.t.Helper()
	select {
	case line := <-c.lines:
		c.t.Fatalf("the Java program wrote %q", line)
	case <-time.After(during):
	}
}

// releaseOnGrant waits until the client is granted the lock, calls granted, and
// releases the lock.
func (c *curator) releaseOnGrant(granted func()) error {
	for line := range c.lines {
		switch line {
		case "acquired":
			granted()
			if _, err := io.WriteString(c.commands, "release\n"); err != nil {
				return err
			}
		case "released":
			return nil
		default:
			return fmt.Errorf("the Java program wrote %q", line)
		}
	}
	return errors.New("the Java program has ended")
}

// connect returns a client that belongs to the test.
func connect(t *testing.T, addr string) *zk.Conn {
	t.Helper()
	conn, _, err := zk.Connect([]string{addr}, 10*time.Second, zk.WithLogger(new(sessionTimeout)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	return conn
}

func open(t *testing.T, addr string, lease time.Duration) *Locker {
	t.Helper()
	l, err := New(t.Context(), addr, lease)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// contenders returns the children of a lock's node in the order of their sequence
// numbers.
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

// waitForContenders waits until the lock's node has n children.
func waitForContenders(t *testing.T, conn *zk.Conn, name string, n int) {
	t.Helper()
	locktest.Eventually(t, fmt.Sprintf("%s has %d contenders", name, n), func() bool { return len(contenders(t, conn, name)) == n })
}

// TestCurator lets our Lockers and Curator's mutex, in Java, wait in one queue.
func TestCurator(t *testing.T) {
	t.Parallel()
	classpath := curatorClasspath(t)
	addr := testenv.OwnZooKeeper(t).Addr()
	const session = 10 * time.Second

	t.Run("Java holder excludes ours", func(t *testing.T) {
		t.Parallel()
		conn := connect(t, addr)
		java := startCurator(t, classpath, addr, "java-holds", session).ready()
		ours := open(t, addr, session)
		java.send("acquire")
		java.expect("acquired")
		locktest.MustBeHeld(t, ours, "java-holds")
		waiting := locktest.LockAsync(t.Context(), ours, "java-holds")
		waitForContenders(t, conn, "java-holds", 2)
		locktest.MustWait(t, waiting, 300*time.Millisecond)
		released := time.Now()
		java.send("release")
		java.expect("released")
		granted := locktest.MustGrant(t, waiting)
		if took := granted.At.Sub(released); took > 3*time.Second {
			t.Errorf("granted %v after the release", took)
		}
		locktest.MustUnlock(t, granted.Lease)
		java.send("quit")
	})

	t.Run("our holder excludes Java", func(t *testing.T) {
		t.Parallel()
		conn := connect(t, addr)
		java := startCurator(t, classpath, addr, "ours-holds", session).ready()
		lease := locktest.MustLock(t, open(t, addr, session), "ours-holds")
		java.send("acquire")
		waitForContenders(t, conn, "ours-holds", 2)
		java.expectNothing(300 * time.Millisecond)
		locktest.MustUnlock(t, lease)
		java.expect("acquired")
		locktest.MustBeHeld(t, open(t, addr, session), "ours-holds")
		java.send("release")
		java.expect("released")
		java.send("quit")
	})

	t.Run("locks are granted in the order of the requests", func(t *testing.T) {
		t.Parallel()
		const name = "fair"
		conn := connect(t, addr)
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
		granted := func(contender string) {
			mu.Lock()
			defer mu.Unlock()
			order = append(order, contender)
		}
		var done sync.WaitGroup
		want := []string{"Java 1", "ours 1", "Java 2", "ours 2"}
		for i := range 2 {
			javas[i].send("acquire")
			waitForContenders(t, conn, name, 2+2*i)
			done.Go(func() {
				if err := javas[i].releaseOnGrant(func() { granted(want[2*i]) }); err != nil {
					t.Error(err)
				}
			})
			waiting := locktest.LockAsync(t.Context(), ours[i], name)
			waitForContenders(t, conn, name, 3+2*i)
			done.Go(func() {
				answer := <-waiting
				if answer.Err != nil {
					t.Error(answer.Err)
					return
				}
				granted(want[2*i+1])
				if err := answer.Lease.Unlock(t.Context()); err != nil {
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
			t.Errorf("granted in the order %v, want %v", order, want)
		}
	})

	t.Run("killed Java holder", func(t *testing.T) {
		t.Parallel()
		const short = 2 * time.Second
		conn := connect(t, addr)
		java := startCurator(t, classpath, addr, "java-dies", short).ready()
		java.send("acquire")
		java.expect("acquired")
		waiting := locktest.LockAsync(t.Context(), open(t, addr, session), "java-dies")
		waitForContenders(t, conn, "java-dies", 2)
		killed := time.Now()
		if err := java.cmd.Process.Signal(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if line, ok := <-java.lines; ok {
			t.Fatalf("the killed Java program wrote %q", line)
		}
		granted := locktest.MustGrant(t, waiting)
		// The server ends sessions at its ticks of 500 ms.
		if took := granted.At.Sub(killed); took > short+2*time.Second {
			t.Errorf("granted %v after the holder was killed, with a session timeout of %v", took, short)
		}
		if left := contenders(t, conn, "java-dies"); len(left) != 1 {
			t.Errorf("contenders after the grant: %v, want only the new holder", left)
		}
		locktest.MustUnlock(t, granted.Lease)
	})
}
