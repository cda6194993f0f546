package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/go-zookeeper/zk"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"

	"github.com/holdfast-stock/holdfast/internal/assembly/backendtest"
	"github.com/holdfast-stock/holdfast/internal/store"
)

// ours is the name of this project's contestants.
const ours = "holdfast"

// contestant is one implementation of a lock.
type contestant struct {
	backend, name string
	module        string // Go module whose version the report shows; empty: this module
	settings      string
	withinProcess bool     // the lock does not exclude other processes
	sends         []string // Redis commands that the contestant sends itself, not from within scripts

	// open opens the contestant in one process, for a lock of this name.
	open func(ctx context.Context, addrs []string, name string, goroutines int) (opened, error)
}

// opened is a contestant in one process. lock takes the lock for the goroutine with this
// number, and returns the function that unlocks it. A goroutine holds one lock at a time.
type opened struct {
	lock  func(ctx context.Context, goroutine int) (unlock func() error, err error)
	close func()
}

var contestants = []contestant{
	{
		backend: "redis", name: ours, settings: "defaults",
		sends: []string{"evalsha", "eval", "subscribe"}, open: openOurs("redis"),
	},
	{
		backend: "redis", name: "redsync", module: "github.com/go-redsync/redsync/v4", settings: "defaults: retries after 50 to 250 ms",
		sends: []string{"set", "setnx", "evalsha", "eval"}, open: openRedsync,
	},
	{
		backend: "redis", name: "rueidislock", module: "github.com/redis/rueidis", settings: "KeyMajority 1 and NoLoopTracking, as its README recommends for one Redis; leases end by the client's wall clock",
		sends: []string{"evalsha", "eval"}, open: openRueidis(1, true),
	},
	{
		backend: "redis", name: "rueidislock, 3 keys", module: "github.com/redis/rueidis", settings: "defaults: KeyMajority 2, three keys, here in one Redis; leases end by the client's wall clock",
		sends: []string{"evalsha", "eval"}, open: openRueidis(0, false),
	},
	{
		backend: "redis", name: "bsm/redislock", module: "github.com/bsm/redislock", settings: "LinearBackoff of 2 ms (100 ms in its README); it does not renew leases",
		sends: []string{"evalsha", "eval"}, open: openRedislock,
	},
	{
		backend: "redlock", name: ours, settings: "three servers; defaults",
		sends: []string{"set", "setnx", "evalsha", "eval"}, open: openOurs("redlock"),
	},
	{
		backend: "redlock", name: "redsync", module: "github.com/go-redsync/redsync/v4", settings: "the same three servers; defaults",
		sends: []string{"set", "setnx", "evalsha", "eval"}, open: openRedsync,
	},
	{backend: "zookeeper", name: ours, settings: "defaults", open: openOurs("zookeeper")},
	{
		backend: "zookeeper", name: "zk.Lock", module: "github.com/go-zookeeper/zk", settings: "one connection per process, one Lock per goroutine",
		open: openZooKeeper,
	},
	{backend: "etcd", name: ours, settings: "defaults", open: openOurs("etcd")},
	{
		backend: "etcd", name: "concurrency.Mutex", module: "go.etcd.io/etcd/client/v3", settings: "one client per process, one session per goroutine (two goroutines with one session would both hold the lock)",
		open: openEtcd,
	},
	{backend: "mysql", name: ours, settings: "defaults", open: openOurs("mysql")},
	{
		backend: "mysql", name: "GET_LOCK", module: "github.com/go-sql-driver/mysql", settings: "one connection per goroutine; no tokens, and a lost connection is not noticed",
		open: openSQL("SELECT GET_LOCK(?, 60)", "SELECT RELEASE_LOCK(?)", func(name string) any { return name }),
	},
	{backend: "postgres", name: ours, settings: "defaults", open: openOurs("postgres")},
	{
		backend: "postgres", name: "pg_advisory_lock", module: "github.com/jackc/pgx/v5", settings: "one connection per goroutine; no tokens, and a lost connection is not noticed",
		open: openSQL("SELECT pg_advisory_lock($1) IS NOT NULL", "SELECT pg_advisory_unlock($1)", func(string) any { return 1 }),
	},
	{backend: "local", name: ours, settings: "within one process; for comparison", withinProcess: true, open: openOurs("local")},
}

func findContestant(backend, name string) (contestant, bool) {
	for _, c := range contestants {
		if c.backend == backend && c.name == name {
			return c, true
		}
	}
	return contestant{}, false
}

// described returns the version and the settings for the report.
func (c contestant) described() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			if m.Path == c.module {
				return m.Version + ", " + c.settings
			}
		}
	}
	return c.settings
}

// redisClients opens clients with the defaults of go-redis.
func redisClients(addrs []string) (clients []redis.UniversalClient, closeAll func()) {
	for _, addr := range addrs {
		clients = append(clients, redis.NewClient(&redis.Options{Addr: addr}))
	}
	return clients, func() {
		for _, client := range clients {
			_ = client.Close()
		}
	}
}

func openOurs(backend string) func(ctx context.Context, addrs []string, name string, goroutines int) (opened, error) {
	return func(ctx context.Context, addrs []string, name string, _ int) (opened, error) {
		locker, closeLocker, err := backendtest.Open(ctx, backend, addrs, 0)
		if err != nil {
			return opened{}, err
		}
		return opened{
			lock: func(ctx context.Context, _ int) (func() error, error) {
				lease, err := locker.Lock(ctx, name)
				if err != nil {
					return nil, err
				}
				return func() error { return lease.Unlock(context.Background()) }, nil
			},
			close: func() { _ = closeLocker() },
		}, nil
	}
}

// openSQL opens one connection for each goroutine. The statements take the lock's key
// and return true.
func openSQL(lock, unlock string, key func(name string) any) func(ctx context.Context, addrs []string, name string, goroutines int) (opened, error) {
	return func(ctx context.Context, addrs []string, name string, goroutines int) (opened, error) {
		pool, err := store.OpenSessions(addrs[0])
		if err != nil {
			return opened{}, err
		}
		var conns []*sql.Conn
		closeAll := func() {
			for _, conn := range conns {
				_ = conn.Close()
			}
			_ = pool.Close()
		}
		for range goroutines {
			conn, err := pool.Conn(ctx)
			if err != nil {
				closeAll()
				return opened{}, err
			}
			conns = append(conns, conn)
		}
		run := func(ctx context.Context, goroutine int, statement string) error {
			var done bool
			err := conns[goroutine].QueryRowContext(ctx, statement, key(name)).Scan(&done)
			if err == nil && !done {
				err = fmt.Errorf("%s returned false", statement)
			}
			return err
		}
		return opened{
			// A cancelled statement would end the connection. lock returns in the end,
			// because every holder unlocks.
			lock: func(_ context.Context, goroutine int) (func() error, error) {
				return func() error { return run(context.Background(), goroutine, unlock) }, run(context.Background(), goroutine, lock)
			},
			close: closeAll,
		}, nil
	}
}

func openRedsync(_ context.Context, addrs []string, name string, _ int) (opened, error) {
	clients, closeAll := redisClients(addrs)
	var pools []redsyncredis.Pool
	for _, client := range clients {
		pools = append(pools, goredis.NewPool(client))
	}
	r := redsync.New(pools...)
	return opened{
		lock: func(ctx context.Context, _ int) (func() error, error) {
			mutex := r.NewMutex(name)
			if err := mutex.LockContext(ctx); err != nil {
				return nil, err
			}
			return func() error {
				held, err := mutex.Unlock()
				if err == nil && !held {
					err = errors.New("redsync: the lock was no longer held")
				}
				return err
			}, nil
		},
		close: closeAll,
	}, nil
}

func openRueidis(majority int32, noLoop bool) func(ctx context.Context, addrs []string, name string, goroutines int) (opened, error) {
	return func(_ context.Context, addrs []string, name string, _ int) (opened, error) {
		locker, err := rueidislock.NewLocker(rueidislock.LockerOption{
			ClientOption: rueidis.ClientOption{InitAddress: addrs}, KeyMajority: majority, NoLoopTracking: noLoop,
		})
		if err != nil {
			return opened{}, err
		}
		return opened{
			lock: func(ctx context.Context, _ int) (func() error, error) {
				// The lease ends with ctx, so overlap ignores the end of a run.
				held, unlock, err := locker.WithContext(ctx, name)
				if err != nil {
					return nil, err
				}
				return func() error {
					lost := held.Err()
					unlock()
					if lost != nil && ctx.Err() == nil {
						return fmt.Errorf("rueidislock: %w", lost)
					}
					return nil
				}, nil
			},
			close: locker.Close,
		}, nil
	}
}

func openRedislock(_ context.Context, addrs []string, name string, _ int) (opened, error) {
	clients, closeAll := redisClients(addrs)
	client := redislock.New(clients[0])
	return opened{
		lock: func(ctx context.Context, _ int) (func() error, error) {
			held, err := client.Obtain(ctx, name, 30*time.Second, &redislock.Options{RetryStrategy: redislock.LinearBackoff(2 * time.Millisecond)})
			if err != nil {
				return nil, err
			}
			return func() error { return held.Release(context.Background()) }, nil
		},
		close: closeAll,
	}, nil
}

// silent discards the log of the ZooKeeper library.
type silent struct{}

func (silent) Printf(string, ...any) {}

func openZooKeeper(_ context.Context, addrs []string, name string, goroutines int) (opened, error) {
	conn, _, err := zk.Connect(addrs, 30*time.Second, zk.WithLogger(silent{}))
	if err != nil {
		return opened{}, err
	}
	locks := make([]*zk.Lock, goroutines)
	for i := range locks {
		locks[i] = zk.NewLock(conn, "/holdfast-bench/"+name, zk.WorldACL(zk.PermAll))
	}
	return opened{
		// Lock cannot be cancelled. It returns in the end, because every holder unlocks.
		lock: func(_ context.Context, goroutine int) (func() error, error) {
			return locks[goroutine].Unlock, locks[goroutine].Lock()
		},
		close: conn.Close,
	}, nil
}

func openEtcd(_ context.Context, addrs []string, name string, goroutines int) (opened, error) {
	client, err := clientv3.New(clientv3.Config{Endpoints: addrs, DialTimeout: 5 * time.Second, Logger: zap.NewNop()})
	if err != nil {
		return opened{}, err
	}
	var sessions []*concurrency.Session
	closeAll := func() {
		for _, s := range sessions {
			_ = s.Close()
		}
		_ = client.Close()
	}
	for range goroutines {
		session, err := concurrency.NewSession(client, concurrency.WithTTL(30))
		if err != nil {
			closeAll()
			return opened{}, err
		}
		sessions = append(sessions, session)
	}
	return opened{
		lock: func(ctx context.Context, goroutine int) (func() error, error) {
			mutex := concurrency.NewMutex(sessions[goroutine], "holdfast-bench/"+name)
			if err := mutex.Lock(ctx); err != nil {
				return nil, err
			}
			return func() error { return mutex.Unlock(context.Background()) }, nil
		},
		close: closeAll,
	}, nil
}
