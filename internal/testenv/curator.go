package testenv

import (
	"context"
	_ "embed"
	"fmt"
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
type CuratorMutex struct{ child *Child }

// Curator starts a process whose mutex is the node with the path, and waits until its client is
// connected. The process ends with the test.
func Curator(t T, addr, path string, session time.Duration) CuratorMutex {
	t.Helper()
	classpath, err := shared(&env, "Curator", compileHolder)
	check(t, "Curator", err)
	child, err := StartChild([]string{
		"java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx128m", "-cp", classpath,
		"Holder", addr, path, fmt.Sprint(session.Milliseconds()),
	})
	check(t, "Curator", err)
	t.Cleanup(child.End)
	ctx, cancel := context.WithTimeout(context.Background(), maxStart)
	defer cancel()
	if line, err := child.Line(ctx); err != nil || line != "ready" {
		t.Fatalf("the Java program wrote %q, %v, want ready", line, err)
	}
	return CuratorMutex{child}
}

// compileHolder compiles the Java program, and returns its class path.
func compileHolder() (classpath string, err error) {
	for _, program := range []string{"java", "javac"} {
		if _, err := lookPath(dependency{file: program, packages: curatorPackages}); err != nil {
			return "", err
		}
	}
	folder, err := env.newBuildFolder()
	if err != nil {
		return "", err
	}
	path := []string{folder}
	for _, jar := range curatorJars {
		file, err := lookPath(dependency{file: filepath.Join("/usr/share/java", jar+".jar"), packages: curatorPackages})
		if err != nil {
			return "", err
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

// Acquire makes the client request the lock.
func (c CuratorMutex) Acquire() error { return c.child.Send("acquire") }

// ReleaseOnGrant waits until the client is granted the lock, calls granted, and releases
// the lock.
func (c CuratorMutex) ReleaseOnGrant(granted func()) error {
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
