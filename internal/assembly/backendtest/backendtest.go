// Package backendtest starts the servers of lock backends, and opens backends on them as programs
// do.
package backendtest

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/assembly/backends"
	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/store"
	"github.com/holdfast-stock/holdfast/internal/store/storetest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// Server is a server of a backend.
type Server interface {
	Addr() string // host:port; of a database, the URL
	PID() int
	Restart()
}

// Servers are the servers of one backend.
type Servers []Server

// Start starts the servers of the backend for this test. A backend without servers has none.
func Start(t testenv.T, backend string) Servers {
	t.Helper()
	switch backend {
	case "redis":
		return Servers{testenv.OwnRedis(t)}
	case "redlock":
		return Servers{testenv.OwnRedis(t), testenv.OwnRedis(t), testenv.OwnRedis(t)}
	case "zookeeper":
		return Servers{testenv.OwnZooKeeper(t)}
	case "etcd":
		return Servers{testenv.OwnEtcd(t)}
	case "mysql":
		return InDatabase(t, testenv.OwnMariaDB(t))
	case "postgres":
		return InDatabase(t, testenv.OwnPostgres(t))
	}
	return nil
}

// Flags returns the flags with which a program uses servers of the backend. All tests of the process
// share the servers, except those of redlock.
func Flags(t testenv.T, backend string) []string {
	t.Helper()
	switch backend {
	case "redis":
		return []string{"--redis", testenv.Redis(t)}
	case "redlock":
		return []string{"--redlock", testenv.OwnRedlock(t)}
	case "zookeeper":
		return []string{"--zookeeper", testenv.ZooKeeper(t)}
	case "etcd":
		return []string{"--etcd", testenv.Etcd(t)}
	case "mysql":
		return []string{"--db", storetest.MigratedURL(t, testenv.MariaDB(t))}
	case "postgres":
		return []string{"--db", storetest.MigratedURL(t, testenv.Postgres(t))}
	}
	return nil
}

// database is a database server with the schema.
type database struct{ *testenv.DatabaseServer }

func (d database) Addr() string { return d.URL() }

// InDatabase creates the schema on a database server, for a backend that locks there.
func InDatabase(t testenv.T, server *testenv.DatabaseServer) Servers {
	t.Helper()
	storetest.MigratedURL(t, server.URL())
	return Servers{database{server}}
}

// Addrs returns the addresses of the servers.
func (s Servers) Addrs() (addrs []string) {
	for _, server := range s {
		addrs = append(addrs, server.Addr())
	}
	return addrs
}

// Wires are the wires to all servers of a backend.
type Wires []*testenv.Wire

// OverWires starts a wire to each server, and returns the addresses of the servers over them.
func (s Servers) OverWires(t testenv.T) (wires Wires, addrs []string) {
	t.Helper()
	for _, addr := range s.Addrs() {
		w := testenv.NewWire(t, addr)
		wires, addrs = append(wires, w), append(addrs, w.Through(addr))
	}
	return wires, addrs
}

// Cut closes all connections and returns their number.
func (ws Wires) Cut() (connections int) {
	for _, w := range ws {
		connections += w.Cut()
	}
	return connections
}

// Freeze freezes all wires and returns the number of connections.
func (ws Wires) Freeze() (connections int) {
	for _, w := range ws {
		connections += w.Freeze()
	}
	return connections
}

// Thaw ends Freeze.
func (ws Wires) Thaw() {
	for _, w := range ws {
		w.Thaw()
	}
}

// Open opens the backend on servers with these addresses. A lease of 0 is the default.
func Open(ctx context.Context, backend string, addrs []string, lease time.Duration) (l lock.Locker, closeAll func() error, err error) {
	all := strings.Join(addrs, ",")
	flags := backends.Flags{Backend: backend, Lease: lease, ZooKeeper: all, Etcd: all, Redlock: all}
	var client redis.UniversalClient
	closeClient := func() error { return nil }
	if flags.UsesRedis() {
		if client, err = store.OpenRedis(ctx, "redis://"+all); err != nil {
			return nil, nil, err
		}
		closeClient = client.Close
	}
	l, closeLocker, err := flags.Open(ctx, client, all)
	if err != nil {
		return nil, nil, errors.Join(err, closeClient())
	}
	return l, func() error { return errors.Join(closeLocker(), closeClient()) }, nil
}
