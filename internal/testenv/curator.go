package testenv

import (
	"context"
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

// curatorPackages are the Debian packages of the Java compiler, of Curator and of Curator's
// dependencies.
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
	t     T
	child *Child
}

// Curator starts a process whose mutex is the node with the path. The process ends with
// the test.
func Curator(t T, addr, path string, session time.Duration) *CuratorMutex {
	t.Helper()
	classpath, err := shared(&env, "Curator", compileHolder)
	check(t, "Curator", err)
	child, err := StartChild([]string{
		"java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx128m", "-cp", classpath,
		"Holder", addr, path, fmt.Sprint(session.Milliseconds()),
	})
	check(t, "Curator", err)
	t.Cleanup(child.End)
	return &CuratorMutex{t, child}
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
	if err := c.child.Send(command); err != nil {
		c.t.Fatalf("%v", err)
	}
}

// line returns the next line that the program writes within the time.
func (c *CuratorMutex) line(within time.Duration) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	return c.child.Line(ctx)
}

// Expect waits for a line: acquired or released.
func (c *CuratorMutex) Expect(want string) {
	c.t.Helper()
	if line, err := c.line(30 * time.Second); err != nil || line != want {
		c.t.Fatalf("the Java program wrote %q, %v, want %q", line, err, want)
	}
}

// ExpectNothing checks that the client is not granted the lock.
func (c *CuratorMutex) ExpectNothing(during time.Duration) {
	c.t.Helper()
	if line, err := c.line(during); !errors.Is(err, context.DeadlineExceeded) {
		c.t.Fatalf("the Java program wrote %q, %v, want nothing", line, err)
	}
}

// ReleaseOnGrant waits until the client is granted the lock, calls granted, and releases
// the lock.
func (c *CuratorMutex) ReleaseOnGrant(granted func()) error {
	for {
		line, err := c.child.Line(context.Background())
		switch {
		case err != nil:
			return err
		case line == "acquired":
			granted()
			if err := c.child.Send("release"); err != nil {
				return err
			}
		case line == "released":
			return nil
		default:
			return fmt.Errorf("the Java program wrote %q", line)
		}
	}
}

// Kill kills the process and waits until it has ended.
func (c *CuratorMutex) Kill() {
	c.t.Helper()
	if err := c.child.Kill(); err != nil {
		c.t.Fatalf("killing the Java program: %v", err)
	}
	if line, err := c.child.Line(context.Background()); !errors.Is(err, io.EOF) {
		c.t.Fatalf("the killed Java program wrote %q, %v", line, err)
	}
}
