package assembly

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/faults"
	"github.com/holdfast-stock/holdfast/internal/stock"
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
