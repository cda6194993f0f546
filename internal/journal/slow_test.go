package journal

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-stock/holdfast/internal/ledger"
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

func (p oneSlow) PlaceQueued(ctx context.Context, t stock.Take) ledger.Outcome {
	if t.OrderID != p.slow {
		return ledger.Committed()
	}
	<-ctx.Done()
	return ledger.Unknown(ctx.Err())
}

// TestSlowOrderDelaysNoOther checks that orders leave the journal although another of
// their batch could not be committed in time.
func TestSlowOrderDelaysNoOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		takes := []stock.Take{{Deduction: oneUnit()}, {Deduction: oneUnit()}, {Deduction: oneUnit()}}
		left := &finished{}
		c := NewForeign(left, oneSlow{slow: takes[1].OrderID}, nil, nil, slog.New(slog.DiscardHandler), prometheus.NewRegistry(), nil)
		if c.finish(t.Context(), takes) {
			t.Error("all orders have ended")
		}
		if len(left.takes) != 2 {
			t.Errorf("%d orders were removed, want 2", len(left.takes))
		}
	})
}
