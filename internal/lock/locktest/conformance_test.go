package locktest_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/google/uuid"
	goredis "github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-stock/holdfast/internal/assembly/backends"
	"github.com/holdfast-stock/holdfast/internal/assembly/backendtest"
	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/lock/etcd"
	"github.com/holdfast-stock/holdfast/internal/lock/locktest"
	"github.com/holdfast-stock/holdfast/internal/lock/mysql"
	"github.com/holdfast-stock/holdfast/internal/lock/postgres"
	"github.com/holdfast-stock/holdfast/internal/lock/zookeeper"
	"github.com/holdfast-stock/holdfast/internal/store"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// childEnv is the environment variable that makes the test program another
// instance. Its value is "BACKEND ADDRS FAULT LEASE". FAULT is a key of faults, or
// noFault.
const childEnv = "HOLDFAST_LOCKTEST"

const noFault = "none"

func TestMain(m *testing.M) {
	store.LogRedis(slog.New(slog.DiscardHandler)) // the tests stop servers, whose failed dials would be logged
	if child := os.Getenv(childEnv); child != "" {
		fields := strings.Fields(child)
		lease, err := time.ParseDuration(fields[3])
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		l, closeLocker, err := open(context.Background(), fields[0], strings.Split(fields[1], ","), fields[2], lease)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		locktest.Child(l)
		_ = closeLocker()
		os.Exit(0)
	}
	flag.Parse()
	_ = flag.Set("test.parallel", "8") // many in parallel, because the tests mostly wait for leases to end
	os.Exit(testenv.Main(m))
}

// open opens a backend whose servers have the addresses. The Locker has the fault.
func open(ctx context.Context, name string, addrs []string, fault string, lease time.Duration) (lock.Locker, func() error, error) {
	l, closeLocker, err := backendtest.Open(ctx, name, addrs, lease)
	if err != nil || fault == noFault {
		return l, closeLocker, err
	}
	client := goredis.NewClient(&goredis.Options{Addr: addrs[0]})
	return faults[fault].inject(l, client), func() error { return errors.Join(closeLocker(), client.Close()) }, nil
}

// rig is a backend with its own servers.
type rig struct {
	t       *testing.T
	backend string
	fault   string // fault of its Lockers
	servers backendtest.Servers
}

// newRig starts the servers.
func newRig(t *testing.T, backend, fault string) *rig {
	if backend == postgres18 {
		return &rig{t: t, backend: "postgres", fault: fault, servers: backendtest.InDatabase(t, testenv.OwnPostgres18(t))}
	}
	return &rig{t: t, backend: backend, fault: fault, servers: backendtest.Start(t, backend)}
}

// postgres18 is the backend postgres on PostgreSQL 18.
const postgres18 = "postgres 18"

func (r *rig) addrs() []string { return r.servers.Addrs() }

func (r *rig) open(ctx context.Context, addrs []string, lease time.Duration) (lock.Locker, error) {
	l, closeLocker, err := open(ctx, r.backend, addrs, r.fault, lease)
	if err == nil {
		r.t.Cleanup(func() { _ = closeLocker() })
	}
	return l, err
}

// subject returns two instances of the backend for the checks, with the lease.
func (r *rig) subject(lease time.Duration) locktest.Subject {
	s := locktest.Subject{Lease: locktest.ShortLease(r.backend), LongLease: locktest.LongLease, Patience: 100 * time.Millisecond}
	backend, _ := backends.Find(r.backend)
	s.Tokens = backend.Fences
	for range 2 {
		l, err := r.open(r.t.Context(), r.addrs(), lease)
		if err != nil {
			r.t.Fatal(err)
		}
		s.Lockers = append(s.Lockers, l)
	}
	if len(r.servers) > 0 {
		s.Servers = r
	} else {
		s.Lockers = s.Lockers[:1] // without servers, two Lockers would not exclude each other
	}
	return s
}

func (r *rig) Process(lease time.Duration) (locktest.Process, error) {
	child, err := testenv.StartSelf(childEnv + "=" + r.backend + " " + strings.Join(r.addrs(), ",") + " " + r.fault + " " + lease.String())
	if err == nil {
		r.t.Cleanup(child.End)
	}
	return locktest.Process{Child: child}, err
}

func (r *rig) OverWire(ctx context.Context, lease time.Duration) (lock.Locker, locktest.Wire, error) {
	wires, addrs := r.servers.OverWires(r.t)
	l, err := r.open(ctx, addrs, lease)
	return l, wires, err
}

func (r *rig) Restart() error {
	for _, s := range r.servers {
		before := s.PID()
		s.Restart()
		if s.PID() == before {
			return errors.New("the server was not restarted")
		}
	}
	return nil
}

func (r *rig) Delete(ctx context.Context, name string) (reason, err error) {
	switch r.backend {
	case "zookeeper":
		conn, _, err := zk.Connect(r.addrs(), 5*time.Second, zk.WithLogger(quiet{}))
		if err != nil {
			return nil, err
		}
		defer conn.Close()
		parent := zookeeper.Root + "/" + name
		children, _, err := conn.Children(parent)
		for _, child := range children {
			err = errors.Join(err, conn.Delete(parent+"/"+child, -1))
		}
		return lock.ErrDeleted, err
	case "etcd":
		client, err := clientv3.New(clientv3.Config{Endpoints: r.addrs(), DialTimeout: testenv.Patience})
		if err != nil {
			return nil, err
		}
		defer client.Close()
		_, err = client.Delete(ctx, etcd.Prefix+name+"/", clientv3.WithPrefix())
		return lock.ErrDeleted, err
	case "mysql":
		return lock.ErrDisconnected, r.endSession(ctx, "SELECT IS_USED_LOCK(?)", r.mysqlKey(name), "KILL %d")
	case "postgres":
		return lock.ErrDisconnected, r.endSession(ctx, "SELECT pid FROM pg_locks WHERE "+advisoryLock, r.postgresKey(name), "SELECT pg_terminate_backend(%d)")
	}
	return nil, fmt.Errorf("the test cannot delete locks of %s", r.backend)
}

// advisoryLock is the condition for the row of an advisory lock in pg_locks.
const advisoryLock = "locktype = 'advisory' AND objsubid = 1 AND (classid::bigint << 32) | objid::bigint = $1"

// endSession ends the session whose ID find returns for the lock's key.
func (r *rig) endSession(ctx context.Context, find string, key any, end string) error {
	pool, err := store.OpenSessions(r.addrs()[0])
	if err != nil {
		return err
	}
	defer pool.Close()
	var id int64
	if err := pool.QueryRowContext(ctx, find, key).Scan(&id); err != nil {
		return err
	}
	_, err = pool.ExecContext(ctx, fmt.Sprintf(end, id))
	return err
}

func (r *rig) mysqlKey(name string) any { return mysql.Key(r.databaseName(), name) }

func (r *rig) postgresKey(name string) any { return postgres.Key(r.databaseName()+".public", name) }

// databaseName returns the name of the database that has the locks.
func (r *rig) databaseName() string {
	u, err := url.Parse(r.addrs()[0])
	if err != nil {
		r.t.Error(err)
		return ""
	}
	return strings.TrimPrefix(u.Path, "/")
}

func (r *rig) Traces(ctx context.Context, name string) (traces int, err error) {
	switch r.backend {
	case "redis", "redlock":
		for _, addr := range r.addrs() {
			client := goredis.NewClient(&goredis.Options{Addr: addr})
			defer client.Close()
			n, err := client.Exists(ctx, name, "holdfast_queue:{"+name+"}", name+":waiters").Result()
			if err != nil {
				return 0, err
			}
			traces += int(n)
		}
	case "zookeeper":
		conn, _, err := zk.Connect(r.addrs(), 5*time.Second, zk.WithLogger(quiet{}))
		if err != nil {
			return 0, err
		}
		defer conn.Close()
		children, _, err := conn.Children(zookeeper.Root + "/" + name)
		if err != nil && !errors.Is(err, zk.ErrNoNode) {
			return 0, err
		}
		traces = len(children)
	case "etcd":
		client, err := clientv3.New(clientv3.Config{Endpoints: r.addrs(), DialTimeout: testenv.Patience})
		if err != nil {
			return 0, err
		}
		defer client.Close()
		found, err := client.Get(ctx, etcd.Prefix+name+"/", clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil {
			return 0, err
		}
		traces = int(found.Count)
	case "mysql":
		return r.sqlTraces(ctx, `SELECT COUNT(*) FROM information_schema.processlist
			WHERE INFO LIKE CONCAT('%', ?, '%') AND STATE = 'User lock' OR ID = IS_USED_LOCK(?)`, r.mysqlKey(name), r.mysqlKey(name))
	case "postgres":
		return r.sqlTraces(ctx, "SELECT COUNT(*) FROM pg_locks WHERE "+advisoryLock, r.postgresKey(name))
	}
	return traces, nil
}

// sqlTraces counts the sessions that hold the lock or wait for it.
func (r *rig) sqlTraces(ctx context.Context, query string, args ...any) (traces int, err error) {
	pool, err := store.OpenSessions(r.addrs()[0])
	if err != nil {
		return 0, err
	}
	defer pool.Close()
	err = pool.QueryRowContext(ctx, query, args...).Scan(&traces)
	return traces, err
}

// quiet discards the ZooKeeper client's log lines.
type quiet struct{}

func (quiet) Printf(string, ...any) {}

// TestConformance checks every promise that each backend makes, on one set of servers. The
// checks that restart the servers run first, one after the other.
func TestConformance(t *testing.T) {
	t.Parallel()
	rows := locktest.Table()
	if testenv.Thorough() { // postgres18 is another version of the same server
		postgres := rows[slices.IndexFunc(rows, func(r locktest.Row) bool { return r.Backend == "postgres" })]
		postgres.Backend = postgres18
		rows = append(rows, postgres)
	}
	for _, row := range rows {
		t.Run(row.Backend, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, row.Backend, noFault)
			check := func(p locktest.Promise, subject func() locktest.Subject, parallel func(*testing.T)) {
				if offered, _ := row.Offers(p); !offered {
					return
				}
				t.Run(p.Name, func(t *testing.T) {
					parallel(t)
					if err := p.Check(t.Context(), subject()); err != nil {
						t.Error(err)
					}
				})
			}
			for _, p := range locktest.Promises() {
				if p.Restarts {
					check(p, func() locktest.Subject { return r.subject(locktest.ShortLease(row.Backend)) }, func(*testing.T) {})
				}
			}
			shared := r.subject(locktest.LongLease)
			if len(r.servers) > 0 {
				t.Run("SilentServers", func(t *testing.T) {
					t.Parallel()
					silentServers(t, rig{t: t, backend: r.backend, fault: noFault, servers: r.servers})
				})
			}
			for _, p := range locktest.Promises() {
				if !p.Restarts {
					check(p, func() locktest.Subject { return shared }, (*testing.T).Parallel)
				}
			}
		})
	}
}

// fault breaks the Lockers of a real Redis. The named promises must then fail.
type fault struct {
	breaks []string // names of promises
	inject func(lock.Locker, goredis.UniversalClient) lock.Locker
}

var faults = map[string]fault{
	"own-lock-for-each-request": {
		[]string{"ProcessesExclude"},
		func(l lock.Locker, _ goredis.UniversalClient) lock.Locker {
			return brokenLocker{sound: l, request: func(ctx context.Context, name string) (context.Context, string) {
				return ctx, name + uuid.NewString()
			}}
		},
	},
	"no-expiry": {
		[]string{"KilledHolder"},
		func(l lock.Locker, client goredis.UniversalClient) lock.Locker {
			return brokenLocker{sound: l, answer: func(ctx context.Context, name string, lease lock.Lease, err error) (lock.Lease, error) {
				// The key is another holder's: a renewal would give this holder's key an expiry
				// again.
				if err == nil {
					_, err = client.TxPipelined(ctx, func(p goredis.Pipeliner) error {
						p.Del(ctx, name)
						p.HSet(ctx, name, "never", 1)
						return nil
					})
				}
				return lease, err
			}}
		},
	},
	"no-report-of-loss": {
		[]string{"StoppedHolder", "HolderCutOff"},
		func(l lock.Locker, _ goredis.UniversalClient) lock.Locker {
			return brokenLocker{sound: l, answer: breakLeases(func(_ context.Context, l *brokenLease) {
				l.ctx = context.WithoutCancel(l.ctx)
			})}
		},
	},
	"keys-left-behind": {
		[]string{"CancelledAtAnyMoment"},
		func(l lock.Locker, client goredis.UniversalClient) lock.Locker {
			return brokenLocker{sound: l, answer: func(ctx context.Context, name string, lease lock.Lease, err error) (lock.Lease, error) {
				if err != nil {
					client.RPush(context.WithoutCancel(ctx), name+":waiters", 1)
				}
				return lease, err
			}}
		},
	},
}

// TestBrokenBackendsFail injects one fault at a time into the Lockers on a real Redis, in this
// process and in others. By default it leaves out faults that show only when leases end.
func TestBrokenBackendsFail(t *testing.T) {
	t.Parallel()
	for name, fault := range faults {
		if (name == "no-expiry" || name == "no-report-of-loss") && !testenv.Thorough() {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newRig(t, "redis", name).subject(locktest.LongLease)
			s.Bound = 5 * s.Lease
			mustBreak(t, s, fault.breaks)
		})
	}
}

// TestTable checks that the table names all backends, and only existing promises.
func TestTable(t *testing.T) {
	t.Parallel()
	var names, promises []string
	for _, row := range locktest.Table() {
		names = append(names, row.Backend)
	}
	if !slices.Equal(names, backends.Names()) {
		t.Errorf("the table has the backends %v, want %v", names, backends.Names())
	}
	for _, p := range locktest.Promises() {
		promises = append(promises, p.Name)
	}
	for _, row := range locktest.Table() {
		for name, why := range row.NotOffered {
			if !slices.Contains(promises, name) || why == "" {
				t.Errorf("%s does not offer the promise %q, with the reason %q", row.Backend, name, why)
			}
		}
	}
}
