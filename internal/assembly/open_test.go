package assembly

import (
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

// TestDraining checks that an instance that drains takes the stock from one of the same
// flags that serves.
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
