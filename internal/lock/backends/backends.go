// Package backends holds the one table of lock backends, by the names that
// --lock has for them.
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

// Default is the backend that locks unless another is asked for.
const Default = "redis"

// Servers are where locks are kept. A backend needs its own only.
type Servers struct {
	Redis     goredis.UniversalClient
	Redlock   []goredis.UniversalClient
	ZooKeeper []string // host:port
	Etcd      []string // host:port
	// Lease is how long a lock outlives its holder at the most; 0: 30 s.
	Lease time.Duration
}

// Backend is one row of the table.
type Backend struct {
	Name string
	// Fences says that its leases have fencing tokens.
	Fences bool
	// Flag is the flag that names its servers; empty: it needs none.
	Flag   string
	Detail string

	open func(ctx context.Context, s Servers) (lock.Locker, error)
}

// Table returns every backend.
func Table() []Backend {
	return []Backend{
		{
			Name: "local", Fences: true,
			Detail: "within one process: no use between instances",
			open:   func(context.Context, Servers) (lock.Locker, error) { return lock.NewLocal(), nil },
		},
		{
			Name: "redis", Fences: true, Flag: "redis",
			Detail: "one Redis, as Redisson locks in it; a failover may forget a lock",
			open: func(_ context.Context, s Servers) (lock.Locker, error) {
				return redis.New(s.Redis, redis.Options{Lease: s.Lease}), nil
			},
		},
		{
			Name: "redlock", Flag: "redlock",
			Detail: "most of several independent Redis servers; no fencing token",
			open: func(_ context.Context, s Servers) (lock.Locker, error) {
				return redlock.New(s.Redlock, s.Lease)
			},
		},
		{
			Name: "zookeeper", Fences: true, Flag: "zookeeper",
			Detail: "ZooKeeper, in one queue with Curator's mutex; the session decides",
			open: func(ctx context.Context, s Servers) (lock.Locker, error) {
				return zookeeper.New(ctx, s.ZooKeeper, s.Lease)
			},
		},
		{
			Name: "etcd", Fences: true, Flag: "etcd",
			Detail: "etcd, in one queue with its client's mutex; the lease decides",
			open: func(ctx context.Context, s Servers) (lock.Locker, error) {
				return etcd.New(ctx, s.Etcd, s.Lease)
			},
		},
	}
}

// Find returns the backend of that name.
func Find(name string) (Backend, bool) {
	for _, b := range Table() {
		if b.Name == name {
			return b, true
		}
	}
	return Backend{}, false
}

// Names returns the names of all backends.
func Names() []string {
	var names []string
	for _, b := range Table() {
		names = append(names, b.Name)
	}
	return names
}

// Open opens the backend. close stops what it runs and ends its own
// connections; the clients in servers stay the caller's.
func (b Backend) Open(ctx context.Context, servers Servers) (l lock.Locker, close func() error, err error) {
	l, err = b.open(ctx, servers)
	if err != nil {
		return nil, nil, fmt.Errorf("lock backend %s: %w", b.Name, err)
	}
	if closer, ok := l.(interface{ Close() error }); ok {
		return l, closer.Close, nil
	}
	return l, func() error { return nil }, nil
}
