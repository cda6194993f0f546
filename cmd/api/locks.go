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

// minLease is the shortest --lease. A busy machine may renew a shorter one too
// late.
const minLease = 100 * time.Millisecond

// lockFlags are the flags of the lock backend.
type lockFlags struct {
	name      string
	lease     time.Duration
	zookeeper string
	etcd      string
	redlock   string
}

func (l *lockFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&l.name, "lock", backends.Default, "backend of the strategies' locks: "+strings.Join(backends.Names(), ", "))
	flags.DurationVar(&l.lease, "lease", 30*time.Second, "how long a lock stays held after its holder has stopped renewing it")
	flags.StringVar(&l.zookeeper, "zookeeper", "", "ZooKeeper servers: `h1:p1,h2:p2`")
	flags.StringVar(&l.etcd, "etcd", "", "etcd servers: `h1:p1,h2:p2`")
	flags.StringVar(&l.redlock, "redlock", "", "independent Redis servers, an odd number of at least 3: `h1:p1,h2:p2,h3:p3`")
}

// servers returns the addresses that the flag of that name lists.
func (l *lockFlags) servers(flag string) []string {
	text := map[string]string{"zookeeper": l.zookeeper, "etcd": l.etcd, "redlock": l.redlock}[flag]
	if text == "" {
		return nil
	}
	return strings.Split(text, ",")
}

// check returns the first invalid flag or combination of flags. needed reports
// whether the strategy takes locks.
func (l *lockFlags) check(needed bool) error {
	backend, ok := backends.Find(l.name)
	if !ok {
		return usagef("--lock: %q is not one of %s", l.name, strings.Join(backends.Names(), ", "))
	}
	if l.lease < minLease {
		return usagef("--lease: %v is shorter than %v", l.lease, minLease)
	}
	for _, flag := range []string{"zookeeper", "etcd", "redlock"} {
		for _, server := range l.servers(flag) {
			if !isAddress(server) {
				return usagef("--%s: %q is not host:port", flag, server)
			}
		}
	}
	if n := len(l.servers("redlock")); n > 0 && (n < 3 || n%2 == 0) {
		return usagef("--redlock: %d servers; an odd number of at least 3 is required", n)
	}
	if needed && backend.Flag != "" && backend.Flag != "redis" && l.servers(backend.Flag) == nil {
		return usagef("--%s: required with --lock %s", backend.Flag, l.name)
	}
	return nil
}

// isAddress reports whether server is host:port.
func isAddress(server string) bool {
	host, port, err := net.SplitHostPort(server)
	if err != nil || host == "" {
		return false
	}
	n, err := strconv.ParseUint(port, 10, 16)
	return err == nil && n > 0
}

// open opens the backend. close releases its connections, but not gate.
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
