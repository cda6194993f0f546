package assembly

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/assembly/backends"
	"github.com/holdfast-stock/holdfast/internal/faults"
	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// TestDraining checks that a draining instance takes the stock from a serving instance with the
// same flags.
func TestDraining(t *testing.T) {
	t.Parallel()
	ctx, log := t.Context(), slog.New(slog.DiscardHandler)
	parts := Parts{Strategy: Queueing(), Guard: true}
	stores, err := OpenStores(ctx, parts, log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = stores.Close() })
	start := func(p Parts) *Instance {
		i, err := Build(ctx, stores, p, Options{TakeDeadline: time.Minute, Log: log, Metrics: prometheus.NewRegistry()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = i.Close() })
		if err := i.Start(ctx); err != nil {
			t.Fatal(err)
		}
		return i
	}
	serving := start(parts)
	if err := serving.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	start(parts)
	if err := serving.Ready(ctx); err != nil {
		t.Errorf("beside an instance of the same flags: %v", err)
	}
	parts.Draining = true
	start(parts)
	if err := serving.Ready(ctx); !errors.Is(err, stock.ErrSuperseded) {
		t.Errorf("beside one that drains: %v, want that the stock is taken over", err)
	}
}

// TestStart_OldRedis checks that an instance whose Redis is too old to queue orders does not take
// over the stock. Otherwise no drain could release it.
func TestStart_OldRedis(t *testing.T) {
	t.Parallel()
	ctx, log := t.Context(), slog.New(slog.DiscardHandler)
	stores, err := OpenStores(ctx, Parts{Strategy: Queueing()}, log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = stores.Close() })
	stores.Redis.AddHook(faults.Around(func(ctx context.Context, cmds []redis.Cmder, run func(context.Context) error) error {
		if cmds[0].Name() == "xautoclaim" {
			return oldRedis{}
		}
		return run(ctx)
	}))
	build := func(s Spec) *Instance {
		i, err := Build(ctx, stores, Parts{Strategy: s, Guard: true}, Options{TakeDeadline: time.Minute, Log: log, Metrics: prometheus.NewRegistry()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = i.Close() })
		return i
	}
	spec, _ := FindStrategy("lua")
	serving := build(spec)
	if err := serving.Start(ctx); err != nil {
		t.Fatal(err)
	}
	if err := build(Queueing()).Start(ctx); err == nil || !strings.Contains(err.Error(), "Redis 6.2 or later is needed") {
		t.Errorf("on an old Redis: %v", err)
	}
	if err := serving.Ready(ctx); err != nil {
		t.Errorf("the instance that sells: %v", err)
	}
}

// oldRedis is the answer to a command that Redis does not know.
type oldRedis struct{}

func (oldRedis) Error() string { return "ERR unknown command" }

func (oldRedis) RedisError() {}

// TestOpen_ClosesStores checks that an instance that cannot be opened leaves no open store behind,
// and neither does one that closes with an error.
func TestOpen_ClosesStores(t *testing.T) {
	folder := t.TempDir()
	t.Setenv("TMPDIR", folder) // of the embedded database
	all := Strategies()
	needsRowLocks := all[slices.IndexFunc(all, func(s Spec) bool { return s.NeedsRowLocks })]
	if _, err := Open(t.Context(), Parts{Strategy: needsRowLocks}, Options{Log: slog.New(slog.DiscardHandler)}); !errors.Is(err, sqltx.ErrNoSkipLocked) {
		t.Errorf("row locks in SQLite: %v", err)
	}
	if left, err := os.ReadDir(folder); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}

	lua, _ := FindStrategy("lua")
	s, err := openNamed(t.Context(), Parts{Strategy: lua, DB: "sqlite://" + filepath.Join(folder, "orders.db"), Migrate: true, Redis: "redis://127.0.0.1:1"})
	if err == nil || s.SQL == nil {
		t.Fatalf("opened without a Redis: %v", err)
	}
	if _, err := s.SQL.Pool().Conn(t.Context()); err == nil {
		t.Error("the database is open")
	}

	i, err := Open(t.Context(), Parts{Strategy: lua}, Options{Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	failed := errors.New("closing failed")
	i.closers = slices.Insert(i.closers, 0, func() error { return failed })
	if err := i.Close(); !errors.Is(err, failed) {
		t.Errorf("closed: %v, want %v", err, failed)
	}
	if _, err := i.Stores.SQL.Pool().Conn(t.Context()); err == nil {
		t.Error("the database of an instance that closed with an error is open")
	}
}

// TestClose_ClosesLocks checks that an instance leaves no connection to the servers of its locks.
func TestClose_ClosesLocks(t *testing.T) {
	t.Parallel()
	server := testenv.OwnRedis(t)
	admin := redis.NewClient(&redis.Options{Addr: server.Addr(), PoolSize: 1})
	defer admin.Close()
	clients := func() string {
		list, err := admin.ClientList(t.Context()).Result()
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	locked, _ := FindStrategy("lock")
	i, err := Open(t.Context(), Parts{Strategy: locked, Guard: true, Locks: backends.Flags{Backend: "redlock", Redlock: strings.Repeat(","+server.Addr(), 3)[1:]}},
		Options{Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(clients(), "\n"); n <= 1 {
		t.Errorf("%d connections are open, want some for the locks", n-1)
	}
	if err := i.Close(); err != nil {
		t.Error(err)
	}
	testenv.Await(t, "no connection for the locks is open", func() bool { return strings.Count(clients(), "\n") == 1 })
	runtime.KeepAlive(i) // the end of an unused connection would prove nothing
}

// TestRunBeside runs an instance whose context has ended. It must run until stop is called, and
// have ended when stop returns.
func TestRunBeside(t *testing.T) {
	t.Parallel()
	lua, _ := FindStrategy("lua")
	i, err := Open(t.Context(), Parts{Strategy: lua, Guard: true}, Options{TakeDeadline: time.Minute, Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = i.Close() })
	if err := i.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	var (
		first    sync.Once
		answered atomic.Bool
	)
	asked := make(chan struct{})
	i.Stores.Redis.AddHook(faults.Around(func(ctx context.Context, _ []redis.Cmder, run func(context.Context) error) error {
		first.Do(func() {
			if ctx.Err() != nil {
				t.Error("the instance does not run after the end of its context")
			}
			close(asked)
			<-ctx.Done()
			_ = run(context.WithoutCancel(ctx))
			answered.Store(true)
		})
		return run(ctx)
	}))
	ended, end := context.WithCancel(t.Context())
	end()
	stop := i.RunBeside(ended)
	testenv.Receive(t, "the instance runs", asked)
	stop()
	if !answered.Load() {
		t.Error("stop returns while the instance runs")
	}
}

// TestLockWarnings checks which locks are too weak for a strategy, and that Build logs it.
func TestLockWarnings(t *testing.T) {
	t.Parallel()
	locked, _ := FindStrategy("lock")
	unlocked, _ := FindStrategy("lua")
	for _, test := range []struct {
		strategy Spec
		backend  string
		fence    bool
		want     []string // the beginnings of the warnings
	}{
		{unlocked, "local", false, nil},
		{locked, "redis", true, nil},
		{locked, "redis", false, []string{"--fence off"}},
		{locked, "local", true, []string{"--lock local excludes"}},
		{locked, "local", false, []string{"--lock local excludes", "--fence off"}},
		{locked, "redlock", true, []string{"--lock redlock gives no fencing tokens"}},
	} {
		p := Parts{Strategy: test.strategy, Locks: backends.Flags{Backend: test.backend}, Fence: test.fence}
		if got := p.LockWarnings(); !slices.EqualFunc(got, test.want, strings.HasPrefix) {
			t.Errorf("%s, --lock %s, fence %v: %q, want %q", test.strategy.Name, test.backend, test.fence, got, test.want)
		}
	}
	var log testenv.Buffer
	i, err := Open(t.Context(), Parts{Strategy: locked, Guard: true, Locks: backends.Flags{Backend: "local"}, Fence: true},
		Options{Log: slog.New(slog.NewTextHandler(&log, nil)), Metrics: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	if err := i.Close(); err != nil || !strings.Contains(log.String(), "--lock local excludes") {
		t.Errorf("%v; the log is\n%s", err, log.String())
	}
}

// TestChangedRedis checks that an instance raises the generation, and logs why, when its Redis was
// demoted and promoted again. Such a Redis has kept its scripts, but may have lost writes.
func TestChangedRedis(t *testing.T) {
	t.Parallel()
	lua, _ := FindStrategy("lua")
	var log testenv.Buffer
	i, err := Open(t.Context(), Parts{Strategy: lua, Guard: true, Migrate: true, Redis: testenv.OwnRedis(t).URL(), DB: testenv.SQLite(t)},
		Options{TakeDeadline: time.Minute, Log: slog.New(slog.NewTextHandler(&log, nil)), Metrics: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = i.Close() })
	if err := i.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer i.RunBeside(t.Context())()
	before := i.Ledger.Generation()
	testenv.Await(t, "the generation rises", func() bool {
		for _, of := range [][]any{{"replicaof", "127.0.0.1", "1"}, {"replicaof", "no", "one"}} {
			if err := i.Stores.Redis.Do(t.Context(), of...).Err(); err != nil {
				t.Fatal(err)
			}
		}
		return i.Ledger.Generation() > before
	})
	if text := log.String(); !strings.Contains(text, "a Redis master was replaced or restarted") {
		t.Errorf("the log is\n%s", text)
	}
}
