package testenv

import (
	"bufio"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// curatorPackages are the Debian packages of the Java compiler, of Curator and of what
// Curator needs.
const curatorPackages = "default-jdk-headless libcurator-recipes-java libcurator-framework-java libcurator-client-java " +
	"libzookeeper-java libnetty-java libguava-java libslf4j-java"

var curatorJars = []string{
	"curator-recipes", "curator-framework", "curator-client", "zookeeper", "zookeeper-jute", "guava", "slf4j-api", "slf4j-nop",
}

//go:embed Holder.java
var holderProgram []byte

// CuratorMutex is a process of a Java program: one client of ZooKeeper with one
// InterProcessMutex of Curator.
type CuratorMutex struct {
	t        T
	cmd      *exec.Cmd
	commands io.WriteCloser
	lines    chan string
	errors   Buffer
}

// Curator starts a process whose mutex is the node with the path. The process ends with
// the test.
func Curator(t T, addr, path string, session time.Duration) *CuratorMutex {
	t.Helper()
	classpath, err := shared(&env, "Curator", compileHolder)
	check(t, "Curator", err)
	c := &CuratorMutex{t: t, lines: make(chan string, 16)}
	c.cmd = exec.Command("java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx128m", "-cp", classpath,
		"Holder", addr, path, fmt.Sprint(session.Milliseconds()))
	c.cmd.Stderr = &c.errors
	out, err := c.start()
	check(t, "Curator", err)
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
	})
	return c
}

func (c *CuratorMutex) start() (out io.Reader, err error) {
	if c.commands, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if out, err = c.cmd.StdoutPipe(); err != nil {
		return nil, err
	}
	return out, c.cmd.Start()
}

// compileHolder compiles the Java program, and returns its class path.
func compileHolder() (classpath string, err error) {
	for _, program := range []string{"java", "javac"} {
		if _, err := exec.LookPath(program); err != nil {
			return "", &missingError{dependency{file: program, packages: curatorPackages}}
		}
	}
	folder, err := env.newBuildFolder()
	if err != nil {
		return "", err
	}
	path := []string{folder}
	for _, jar := range curatorJars {
		file := filepath.Join("/usr/share/java", jar+".jar")
		if _, err := os.Stat(file); err != nil {
			return "", &missingError{dependency{file: file, packages: curatorPackages}}
		}
		path = append(path, file)
	}
	netty, err := filepath.Glob("/usr/share/java/netty*.jar")
	if err != nil || len(netty) == 0 {
		return "", &missingError{dependency{file: "Netty for Java", packages: curatorPackages}}
	}
	classpath = strings.Join(append(path, netty...), ":")
	source := filepath.Join(folder, "Holder.java")
	if err := os.WriteFile(source, holderProgram, 0o600); err != nil {
		return "", err
	}
	out, err := exec.Command("javac", "-cp", classpath, "-d", folder, source).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("compiling the Java program: %w: %s", err, out)
	}
	return classpath, nil
}

// Ready waits until the client is connected.
func (c *CuratorMutex) Ready() *CuratorMutex {
	c.t.Helper()
	c.Expect("ready")
	return c
}

// Send sends a command: acquire, release or quit.
func (c *CuratorMutex) Send(command string) {
	c.t.Helper()
	if _, err := io.WriteString(c.commands, command+"\n"); err != nil {
		c.t.Fatalf("sending %q to the Java program: %v: %s", command, err, &c.errors)
	}
}

// Expect waits for a line: acquired or released.
func (c *CuratorMutex) Expect(want string) {
	c.t.Helper()
	const timeout = 30 * time.Second
	select {
	case line, ok := <-c.lines:
		if !ok || line != want {
			c.t.Fatalf("the Java program wrote %q, want %q: %s", line, want, &c.errors)
		}
	case <-time.After(timeout):
		c.t.Fatalf("the Java program did not write %q within %v: %s", want, timeout, &c.errors)
	}
}

// ExpectNothing checks that the client is not granted the lock.
func (c *CuratorMutex) ExpectNothing(during time.Duration) {
	c.t.Helper()
	select {
	case line := <-c.lines:
		c.t.Fatalf("the Java program wrote %q: %s", line, &c.errors)
	case <-time.After(during):
	}
}

// ReleaseOnGrant waits until the client is granted the lock, calls granted, and releases
// the lock.
func (c *CuratorMutex) ReleaseOnGrant(granted func()) error {
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

// Kill kills the process and waits until it has ended.
func (c *CuratorMutex) Kill() {
	c.t.Helper()
	if err := c.cmd.Process.Kill(); err != nil {
		c.t.Fatalf("killing the Java program: %v", err)
	}
	if line, ok := <-c.lines; ok {
		c.t.Fatalf("the killed Java program wrote %q", line)
	}
}
