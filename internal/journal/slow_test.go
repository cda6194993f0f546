package journal

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// finished keeps the takes that were removed in time.
type finished struct {
	stock.QueuedOrders
	takes []stock.Take
}

func (f *finished) Finish(ctx context.Context, takes ...stock.Take) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	f.takes = append(f.takes, takes...)
	return nil
}

// oneSlow commits every order at once, except one, which it cannot commit in time.
type oneSlow struct {
	Placer
	slow uuid.UUID
}

func (p oneSlow) PlaceQueued(ctx context.Context, t stock.Take) order.Outcome {
	if t.OrderID != p.slow {
		return order.Committed()
	}
	<-ctx.Done()
	return order.Unknown(ctx.Err())
}

// TestSlowOrderDelaysNoOther checks that orders leave the journal although another of
// their batch could not be committed in time.
func TestSlowOrderDelaysNoOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		takes := []stock.Take{{Deduction: oneUnit()}, {Deduction: oneUnit()}, {Deduction: oneUnit()}}
		left := &finished{}
		c := NewForeign(left, oneSlow{slow: takes[1].OrderID}, &memory{}, nil, slog.New(slog.DiscardHandler), prometheus.NewRegistry(), nil)
		if c.finish(t.Context(), takes) {
			t.Error("all orders have ended")
		}
		if len(left.takes) != 2 {
			t.Errorf("%d orders were removed, want 2", len(left.takes))
		}
	})
}

// TestWarnsOnce checks that a batch that waits warns once that the ledger cannot tell which
// rows are locked.
func TestWarnsOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		c := NewForeign(&finished{}, slow{d: 4 * patience}, &memory{away: errors.New("away")}, nil, slog.New(slog.NewTextHandler(&log, nil)), prometheus.NewRegistry(), nil)
		if !c.finish(t.Context(), []stock.Take{{Deduction: oneUnit()}}) {
			t.Error("the order has not ended")
		}
		if n := strings.Count(log.String(), "asking which stock rows"); n != 1 {
			t.Errorf("%d warnings:\n%s", n, log.String())
		}
	})
}

// oneOrder is a journal that delivers one order, once.
type oneOrder struct {
	finished
	take      stock.Take
	delivered sync.Once
	left      bool // the consumer has left
}

func (*oneOrder) Open(context.Context, string) error { return nil }

func (q *oneOrder) Read(_ context.Context, _ string, _ int, wait time.Duration) (takes []stock.Take, err error) {
	q.delivered.Do(func() { takes = []stock.Take{q.take} })
	if takes == nil {
		time.Sleep(wait)
	}
	return takes, nil
}

func (*oneOrder) Claim(context.Context, string, int, time.Duration) ([]stock.Take, error) {
	return nil, nil
}

func (*oneOrder) Redeliver(context.Context) (int, error) { return 0, nil }

func (*oneOrder) Backlog(context.Context) (int64, time.Duration, error) { return 0, 0, nil }

func (q *oneOrder) Leave(context.Context, string) error {
	q.left = true
	return nil
}

// slow commits an order after the time d.
type slow struct {
	Placer
	d time.Duration
}

func (p slow) PlaceQueued(ctx context.Context, _ stock.Take) order.Outcome {
	time.Sleep(p.d)
	if ctx.Err() != nil {
		return order.Unknown(ctx.Err())
	}
	return order.Committed()
}

// TestStopWaitsForHeldOrders checks that a consumer that stops finishes an order that waits
// for a locked row, before it leaves.
func TestStopWaitsForHeldOrders(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := &oneOrder{take: stock.Take{Deduction: oneUnit()}}
		c := NewForeign(q, slow{d: 3 * patience}, &memory{locked: []stock.SKU{sku}}, &mender{}, slog.New(slog.DiscardHandler), prometheus.NewRegistry(), nil)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			c.run(ctx)
		}()
		time.Sleep(2 * patience)
		if free := c.aside.admit([]stock.Take{{Deduction: oneUnit()}}); len(free) != 0 {
			t.Error("no order is held")
		}
		stop()
		<-ended
		if len(q.takes) != 1 || !q.left {
			t.Errorf("%d orders were removed; the consumer has left: %v", len(q.takes), q.left)
		}
	})
}
