package main

import (
	"context"
	"errors"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/pflag"

	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/lock/backends"
	"github.com/holdfast-stock/holdfast/internal/store"
)

// shortestLease of a lock: a shorter one ends before a busy machine renews it.
const shortestLease = 100 * time.Millisecond

// lockFlags say where the strategies' locks are kept.
type lockFlags struct {
	name      string
	lease     time.Duration
	zookeeper string
	etcd      string
	redlock   string
}

func (l *lockFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&l.name, "lock", backends.Default, "where the strategies' locks are kept: "+strings.Join(backends.Names(), ", "))
	flags.DurationVar(&l.lease, "lease", 30*time.Second, "how long a lock outlives its holder")
	flags.StringVar(&l.zookeeper, "zookeeper", "", "ZooKeeper servers: `h1:p1,h2:p2`")
	flags.StringVar(&l.etcd, "etcd", "", "etcd servers: `h1:p1,h2:p2`")
	flags.StringVar(&l.redlock, "redlock", "", "independent Redis servers, an odd number: `h1:p1,h2:p2,h3:p3`")
}

// servers are the addresses that the flag of that name has.
func (l *lockFlags) servers(flag string) []string {
	text := map[string]string{"zookeeper": l.zookeeper, "etcd": l.etcd, "redlock": l.redlock}[flag]
	if text == "" {
		return nil
	}
	return strings.Split(text, ",")
}

// check holds the flags against one another. needed: the strategy takes locks.
func (l *lockFlags) check(needed bool) error {
	backend, ok := backends.Find(l.name)
	if !ok {
		return usagef("--lock: %q is none of %s", l.name, strings.Join(backends.Names(), ", "))
	}
	if l.lease < shortestLease {
		return usagef("--lease: %v is too short, at least %v", l.lease, shortestLease)
	}
	for _, flag := range []string{"zookeeper", "etcd", "redlock"} {
		for _, server := range l.servers(flag) {
			if !isAddress(server) {
				return usagef("--%s: %q is not host:port", flag, server)
			}
		}
	}
	if n := len(l.servers("redlock")); n > 0 && (n < 3 || n%2 == 0) {
		return usagef("--redlock: %d servers; an odd number is needed, 3 at least", n)
	}
	if needed && backend.Flag != "" && backend.Flag != "redis" && l.servers(backend.Flag) == nil {
		return usagef("--%s: needed with --lock %s", backend.Flag, l.name)
	}
	return nil
}

func isAddress(server string) bool {
	host, port, err := net.SplitHostPort(server)
	if err != nil || host == "" {
		return false
	}
	n, err := strconv.ParseUint(port, 10, 16)
	return err == nil && n > 0
}

// open opens the backend. close ends what it holds.
func (l *lockFlags) open(ctx context.Context, gate redis.UniversalClient) (locker lock.Locker, close func() error, err error) {
	backend, _ := backends.Find(l.name)
	servers := backends.Servers{Redis: gate, ZooKeeper: l.servers("zookeeper"), Etcd: l.servers("etcd"), Lease: l.lease}
	closeClients := func() (err error) {
		for _, client := range servers.Redlock {
			err = errors.Join(err, client.Close())
		}
		return err
	}
	if backend.Flag == "redlock" {
		for _, server := range l.servers("redlock") {
			client, err := store.OpenRedis(ctx, "redis://"+server)
			if err != nil {
				return nil, nil, errors.Join(named("--redlock", err), closeClients())
			}
			servers.Redlock = append(servers.Redlock, client)
		}
	}
	locker, closeLocker, err := backend.Open(ctx, servers)
	if err != nil {
		return nil, nil, errors.Join(err, closeClients())
	}
	return locker, func() error { return errors.Join(closeLocker(), closeClients()) }, nil
}
