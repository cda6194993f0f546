package main

import (
	"path/filepath"
	"strings"

	"github.com/holdfast-stock/holdfast/internal/machine"
)

// measuredOn says what this was measured on.
func measuredOn() string {
	return strings.Join([]string{
		machine.Describe(), machine.Version("redis-server", "--version"), machine.Version("etcd", "--version"), zooKeeperVersion(),
	}, "; ")
}

// zooKeeperVersion is in the name of its library.
func zooKeeperVersion() string {
	found, _ := filepath.Glob("/usr/share/java/zookeeper-[0-9]*.jar")
	if len(found) == 0 {
		return "unknown ZooKeeper"
	}
	return strings.TrimSuffix(strings.Replace(filepath.Base(found[0]), "zookeeper-", "ZooKeeper ", 1), ".jar")
}
