package protocol

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// TestStandby: with a synchronous standby, PostgreSQL accepts no order that only the
// primary has, so a failover loses none.
func TestStandby(t *testing.T) {
	t.Parallel()
	primary, standby := testenv.OwnPostgresPair(t)
	s := newShop(t, primary.URL())
	i := s.open(t, settings{strategy: "merged"})
	defer i.Close()
	sku := newSKU("standby")
	const units = 100_000
	addStock(t, i, sku, units)

	var (
		mu       sync.Mutex
		accepted []uuid.UUID
		unknown  atomic.Int64 // answers with an unknown outcome
		all      sync.WaitGroup
	)
	acceptedOrders := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(accepted)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	for n := range clients {
		all.Go(func() {
			for ctx.Err() == nil {
				o, _, err := i.Place(context.WithoutCancel(ctx), order.Request{
					Buyer: fmt.Sprintf("buyer-%d", n), Lines: []stock.Line{{SKU: sku, Quantity: 1}},
				})
				switch {
				case err == nil:
					mu.Lock()
					accepted = append(accepted, o.ID)
					mu.Unlock()
				case errors.Is(err, stock.ErrUnavailable):
					unknown.Add(1)
				case !errors.Is(err, stock.ErrBusy):
					t.Errorf("a client was answered %v", err)
					return
				}
			}
		})
	}
	testenv.Await(t, "orders are accepted", func() bool { return acceptedOrders() > 100 })
	standby.Stop()
	testenv.Await(t, "a commit waits for the standby", func() bool {
		var n int
		err := s.sql.DB().Raw("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query_start < now() - interval '1 second'").Row().Scan(&n)
		return err == nil && n > 0
	})
	before := acceptedOrders()
	testenv.Await(t, "the request is answered", func() bool { return unknown.Load() > 0 || acceptedOrders() > before })
	if after := acceptedOrders(); after != before {
		t.Errorf("%d orders were accepted without the standby", after-before)
	}
	primary.Kill()
	stop()
	all.Wait()
	standby.Cont()
	standby.Promote()
	promoted := openSQL(t, standby.URL())
	if lost := missingOrders(t, promoted, accepted); lost > 0 {
		t.Errorf("the failover lost %d of %d accepted orders", lost, len(accepted))
	}
}
