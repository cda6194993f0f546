package locktest_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/google/uuid"
	goredis "github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/lock/backends"
	"github.com/holdfast-stock/holdfast/internal/lock/etcd"
	"github.com/holdfast-stock/holdfast/internal/lock/locktest"
	"github.com/holdfast-stock/holdfast/internal/lock/zookeeper"
	"github.com/holdfast-stock/holdfast/internal/store"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// lease is short, so that a dead holder's lock is soon free.
const lease = 3 * time.Second

// childEnv tells the test program to be another instance: "BACKEND ADDRS HOW",
// HOW naming the promise it breaks, or "sound".
const childEnv = "HOLDFAST_LOCKTEST"

func TestMain(m *testing.M) {
	if how := os.Getenv(childEnv); how != "" {
		fields := strings.Fields(how)
		l, closeLocker, err := open(context.Background(), fields[0], strings.Split(fields[1], ","), fields[2])
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		code := locktest.Child(l)
		_ = closeLocker()
		os.Exit(code)
	}
	flag.Parse()
	_ = flag.Set("test.parallel", "8") // most of the time they wait for leases to end
	os.Exit(testenv.Main(m))
}

// open opens a backend whose servers are at these addresses.
func open(ctx context.Context, name string, addrs []string, how string) (lock.Locker, func() error, error) {
	backend, ok := backends.Find(name)
	if !ok {
		return nil, nil, fmt.Errorf("no backend %q", name)
	}
	var (
		servers = backends.Servers{Lease: lease}
		clients []goredis.UniversalClient
	)
	if name == "redis" || name == "redlock" {
		for _, addr := range addrs {
			client, err := store.OpenRedis(ctx, "redis://"+addr+"/0")
			if err != nil {
				return nil, nil, err
			}
			clients = append(clients, client)
		}
		servers.Redis, servers.Redlock = clients[0], clients
	}
	servers.ZooKeeper, servers.Etcd = addrs, addrs
	l, closeLocker, err := backend.Open(ctx, servers)
	if err == nil && how != "sound" {
		l = broken{l, servers.Redis, how}
	}
	return l, func() error {
		err := closeLocker()
		for _, client := range clients {
			err = errors.Join(err, client.Close())
		}
		return err
	}, err
}

// server is one of a backend's servers.
type server interface {
	Addr() string
	PID() int
	Restart()
}

// rig is a backend with servers of its own.
type rig struct {
	t       *testing.T
	backend string
	how     string // the promise that its Lockers break, or "sound"
	servers []server
}

func newRig(t *testing.T, backend string) *rig {
	r := &rig{t: t, backend: backend, how: "sound"}
	switch backend {
	case "redis":
		r.servers = []server{testenv.OwnRedis(t)}
	case "redlock":
		r.servers = []server{testenv.OwnRedis(t), testenv.OwnRedis(t), testenv.OwnRedis(t)}
	case "zookeeper":
		r.servers = []server{testenv.OwnZooKeeper(t)}
	case "etcd":
		r.servers = []server{testenv.OwnEtcd(t)}
	}
	return r
}

func (r *rig) addrs() []string {
	var addrs []string
	for _, s := range r.servers {
		addrs = append(addrs, s.Addr())
	}
	return addrs
}

func (r *rig) open(ctx context.Context, addrs []string) (lock.Locker, error) {
	l, closeLocker, err := open(ctx, r.backend, addrs, r.how)
	if err == nil {
		r.t.Cleanup(func() { _ = closeLocker() })
	}
	return l, err
}

// under has the rig's backend for the suite.
func (r *rig) under(row locktest.Row) locktest.Backend {
	b := locktest.Backend{Lease: lease, Waits: 100 * time.Millisecond}
	backend, _ := backends.Find(r.backend)
	b.Tokens = backend.Fences
	for range 2 {
		l, err := r.open(r.t.Context(), r.addrs())
		if err != nil {
			r.t.Fatal(err)
		}
		b.Lockers = append(b.Lockers, l)
	}
	if len(r.servers) > 0 {
		b.Servers = r
	} else {
		b.Lockers = b.Lockers[:1] // two would know nothing of each other
	}
	return b
}

func (r *rig) Process(ctx context.Context) (*locktest.Process, error) {
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+r.backend+" "+strings.Join(r.addrs(), ",")+" "+r.how)
	p, err := locktest.StartProcess(cmd)
	if err == nil {
		r.t.Cleanup(p.End)
	}
	return p, err
}

// wires break together.
type wires []*testenv.Wire

func (ws wires) Cut() (n int) {
	for _, w := range ws {
		n += w.Cut()
	}
	return n
}

func (ws wires) Freeze() (n int) {
	for _, w := range ws {
		n += w.Freeze()
	}
	return n
}

func (ws wires) Thaw() {
	for _, w := range ws {
		w.Thaw()
	}
}

func (r *rig) OverWire(ctx context.Context) (lock.Locker, locktest.Wire, error) {
	var (
		ws    wires
		addrs []string
	)
	for _, s := range r.servers {
		w := testenv.NewWire(r.t, s.Addr())
		ws, addrs = append(ws, w), append(addrs, w.Addr())
	}
	l, err := r.open(ctx, addrs)
	return l, ws, err
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

func (r *rig) Traces(ctx context.Context, name string) (traces int, err error) {
	switch r.backend {
	case "redis", "redlock":
		for _, addr := range r.addrs() {
			client := goredis.NewClient(&goredis.Options{Addr: addr})
			defer client.Close()
			n, err := client.Exists(ctx, name, name+":waiters").Result()
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
		client, err := clientv3.New(clientv3.Config{Endpoints: r.addrs(), DialTimeout: 5 * time.Second})
		if err != nil {
			return 0, err
		}
		defer client.Close()
		found, err := client.Get(ctx, etcd.Prefix+name+"/", clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil {
			return 0, err
		}
		traces = int(found.Count)
	}
	return traces, nil
}

type quiet struct{}

func (quiet) Printf(string, ...any) {}

// TestConformance runs the table: every promise that a backend makes.
func TestConformance(t *testing.T) {
	t.Parallel()
	for _, row := range locktest.Table() {
		t.Run(row.Backend, func(t *testing.T) {
			t.Parallel()
			shared := newRig(t, row.Backend).under(row)
			for _, p := range locktest.Promises() {
				if offered, _ := row.Offers(p); !offered {
					continue
				}
				t.Run(p.Name, func(t *testing.T) {
					t.Parallel()
					b := shared
					if p.Restarts {
						b = newRig(t, row.Backend).under(row)
					}
					if err := p.Check(t.Context(), b); err != nil {
						t.Error(err)
					}
				})
			}
		})
	}
}

// broken is a Locker on a real Redis that breaks one promise.
type broken struct {
	lock.Locker
	client goredis.UniversalClient
	how    string
}

func (b broken) Lock(ctx context.Context, name string) (lock.Lease, error) {
	if b.how == "careless" { // to everybody a lock of his own
		name += uuid.NewString()
	}
	l, err := b.Locker.Lock(ctx, name)
	switch {
	case err != nil && b.how == "litters":
		b.client.RPush(context.WithoutCancel(ctx), name+":waiters", 1)
		return nil, err
	case err != nil:
		return nil, err
	case b.how == "immortal":
		b.client.Persist(ctx, name)
	case b.how == "deaf":
		return deafLease{l}, nil
	}
	return l, nil
}

// deafLease does not hear that it was lost.
type deafLease struct{ lock.Lease }

func (l deafLease) Context() context.Context { return context.WithoutCancel(l.Lease.Context()) }

// TestBrokenBackendsAreConvicted in other processes, and under faults.
func TestBrokenBackendsAreConvicted(t *testing.T) {
	t.Parallel()
	for how, promises := range map[string][]string{
		"careless": {"ProcessesExclude"},
		"immortal": {"KilledHolder"},
		"deaf":     {"StoppedHolder", "HolderCutOff"},
		"litters":  {"WaiterCancelledAtEachStep"},
	} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, "redis")
			r.how = how
			b := r.under(locktest.Row{})
			for _, p := range locktest.Promises() {
				if !slices.Contains(promises, p.Name) {
					continue
				}
				if err := p.Check(t.Context(), b); err == nil {
					t.Errorf("%s acquits it", p.Name)
				} else {
					t.Logf("%s: %v", p.Name, err)
				}
			}
		})
	}
}

// TestTable names backends and promises that exist.
func TestTable(t *testing.T) {
	t.Parallel()
	var names, promises []string
	for _, row := range locktest.Table() {
		names = append(names, row.Backend)
	}
	if !slices.Equal(names, backends.Names()) {
		t.Errorf("the table has %v, and there are %v", names, backends.Names())
	}
	for _, p := range locktest.Promises() {
		promises = append(promises, p.Name)
	}
	for _, row := range locktest.Table() {
		for name, why := range row.NotOffered {
			if !slices.Contains(promises, name) || why == "" {
				t.Errorf("%s does not offer %q, because %q", row.Backend, name, why)
			}
		}
	}
}
