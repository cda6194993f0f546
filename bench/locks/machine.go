package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// machine says what this was measured on.
func machine() string {
	model := "unknown CPU"
	if info, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(info)) {
			if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
				model = strings.TrimSpace(value)
				break
			}
		}
	}
	return fmt.Sprintf("%s, %d cores, Linux %s, %s; %s; %s; %s", model, runtime.NumCPU(), output("uname", "-r"), runtime.Version(),
		short(output("redis-server", "--version")), short(output("etcd", "--version")), zooKeeperVersion())
}

// zooKeeperVersion is in the name of its library.
func zooKeeperVersion() string {
	found, _ := filepath.Glob("/usr/share/java/zookeeper-[0-9]*.jar")
	if len(found) == 0 {
		return "unknown ZooKeeper"
	}
	return strings.TrimSuffix(strings.Replace(filepath.Base(found[0]), "zookeeper-", "ZooKeeper ", 1), ".jar")
}

// commit is what the tree is at.
func commit() string {
	head := output("git", "rev-parse", "--short=12", "HEAD")
	if head == "" {
		return "unknown"
	}
	if output("git", "status", "--porcelain", "--untracked-files=no") != "" {
		head += " with changes"
	}
	return head
}

func output(name string, args ...string) string {
	out, _ := exec.Command(name, args...).CombinedOutput() // what is missing has no version
	return strings.TrimSpace(string(out))
}

// short keeps the name and the version of what a program says of itself.
func short(version string) string {
	line, _, _ := strings.Cut(version, "\n")
	words := strings.Fields(line)
	return strings.Join(words[:min(3, len(words))], " ")
}
