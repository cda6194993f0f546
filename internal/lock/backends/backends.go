// Package backends has the table of lock backends, under the names that --lock
// takes.
package backends

import (
	"context"
	"fmt"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/lock/etcd"
	"github.com/holdfast-stock/holdfast/internal/lock/redis"
	"github.com/holdfast-stock/holdfast/internal/lock/redlock"
	"github.com/holdfast-stock/holdfast/internal/lock/zookeeper"
)

// Default is the name of the backend that is used if none is named.
const Default = "redis"

// Servers are the servers of all backends. Each backend uses only its own.
type Servers struct {
	Redis     goredis.UniversalClient
	Redlock   []goredis.UniversalClient
	ZooKeeper []string // host:port
	Etcd      []string // host:port
	// Lease is how long a lock can outlive its holder; 0 means 30 s.
	Lease time.Duration
}

// Entry is one row of the table: a backend that can be opened.
type Entry struct {
	Name string
	// Fences is true if the leases have fencing tokens.
	Fences bool
	// Flag is the name of the flag that takes the servers; empty means that the
	// backend has no servers.
	Flag string

	open func(ctx context.Context, s Servers) (lock.Locker, error)
}

// Table returns all backends.
func Table() []Entry {
	return []Entry{
		{
			Name: "local", Fences: true,
			open: func(context.Context, Servers) (lock.Locker, error) { return lock.NewLocal(), nil },
		},
		{
			Name: "redis", Fences: true, Flag: "redis",
			open: func(_ context.Context, s Servers) (lock.Locker, error) {
				return redis.New(s.Redis, redis.Options{Lease: s.Lease}), nil
			},
		},
		{
			Name: "redlock", Flag: "redlock",
			open: func(_ context.Context, s Servers) (lock.Locker, error) {
				return redlock.New(s.Redlock, s.Lease)
			},
		},
		{
			Name: "zookeeper", Fences: true, Flag: "zookeeper",
			open: func(ctx context.Context, s Servers) (lock.Locker, error) {
				return zookeeper.New(ctx, s.ZooKeeper, s.Lease)
			},
		},
		{
			Name: "etcd", Fences: true, Flag: "etcd",
			open: func(ctx context.Context, s Servers) (lock.Locker, error) {
				return etcd.New(ctx, s.Etcd, s.Lease)
			},
		},
	}
}

// Find returns the backend with the name.
func Find(name string) (Entry, bool) {
	for _, e := range Table() {
		if e.Name == name {
			return e, true
		}
	}
	return Entry{}, false
}

// Names returns the names of all backends.
func Names() []string {
	var names []string
	for _, e := range Table() {
		names = append(names, e.Name)
	}
	return names
}

// Open returns a Locker on the backend. close ends the Locker's goroutines and the
// connections that it has opened. It does not close the clients in servers.
func (e Entry) Open(ctx context.Context, servers Servers) (l lock.Locker, close func() error, err error) {
	l, err = e.open(ctx, servers)
	if err != nil {
		return nil, nil, fmt.Errorf("lock backend %s: %w", e.Name, err)
	}
	if closer, ok := l.(interface{ Close() error }); ok {
		return l, closer.Close, nil
	}
	return l, func() error { return nil }, nil
}
