// Package backends has the table of lock backends, under the names that --lock
// takes.
package backends

import (
	"context"
	"database/sql"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/lock/etcd"
	"github.com/holdfast-stock/holdfast/internal/lock/mysql"
	"github.com/holdfast-stock/holdfast/internal/lock/postgres"
	"github.com/holdfast-stock/holdfast/internal/lock/redis"
	"github.com/holdfast-stock/holdfast/internal/lock/redlock"
	"github.com/holdfast-stock/holdfast/internal/lock/zookeeper"
)

// Default is the name of the backend that is used if none is named.
const Default = "redis"

// servers are the servers of all backends. Each backend uses only its own.
type servers struct {
	Redis     goredis.UniversalClient
	Redlock   []goredis.UniversalClient
	ZooKeeper string  // see zookeeper.New
	Etcd      string  // see etcd.New
	SQL       *sql.DB // a pool without idle connections, on a migrated database
	// Lease is how long a lock can outlive its holder; 0 means 30 s.
	Lease time.Duration
}

// Entry is one row of the table: a backend that can be opened.
type Entry struct {
	Name string
	// Fences is true if the leases have fencing tokens.
	Fences bool
	// Lists is true if the servers list the holders, so that the Locker is a recipe.Board.
	Lists bool
	// Flag is the name of the flag that takes the servers; empty means that the
	// backend has no servers.
	Flag string

	open  func(ctx context.Context, s servers) (lock.Locker, error)
	check func(address string) error // nil: the flag is not the backend's own
}

// Table returns all backends.
func Table() []Entry {
	return []Entry{
		{
			Name: "local", Fences: true,
			open: func(context.Context, servers) (lock.Locker, error) { return lock.NewLocal(), nil },
		},
		{
			Name: "redis", Fences: true, Lists: true, Flag: "redis",
			open: func(_ context.Context, s servers) (lock.Locker, error) {
				return redis.New(s.Redis, redis.Options{Lease: s.Lease}), nil
			},
		},
		{
			Name: "redlock", Flag: "redlock", check: redlock.CheckAddress,
			open: func(_ context.Context, s servers) (lock.Locker, error) {
				return redlock.New(s.Redlock, s.Lease)
			},
		},
		{
			Name: "zookeeper", Fences: true, Lists: true, Flag: "zookeeper", check: zookeeper.CheckAddress,
			open: func(ctx context.Context, s servers) (lock.Locker, error) {
				return zookeeper.New(ctx, s.ZooKeeper, s.Lease)
			},
		},
		{
			Name: "etcd", Fences: true, Lists: true, Flag: "etcd", check: etcd.CheckAddress,
			open: func(ctx context.Context, s servers) (lock.Locker, error) {
				return etcd.New(ctx, s.Etcd, s.Lease)
			},
		},
		{
			Name: "mysql", Fences: true, Flag: "db",
			open: func(ctx context.Context, s servers) (lock.Locker, error) {
				return mysql.New(ctx, s.SQL, s.Lease)
			},
		},
		{
			Name: "postgres", Fences: true, Flag: "db",
			open: func(ctx context.Context, s servers) (lock.Locker, error) {
				return postgres.New(ctx, s.SQL, s.Lease)
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
