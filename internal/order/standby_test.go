package order

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// TestStandby: a PostgreSQL with a synchronous standby. No order is accepted
// that only the primary has, so that a failover loses none.
func TestStandby(t *testing.T) {
	t.Parallel()
	primary, standby := testenv.OwnPostgresPair(t)
	s := newShop(t, primary.URL())
	i := s.open(t, settings{strategy: "merged"})
	defer i.Close()
	sku := fresh("standby")
	const units = 100_000
	lay(t, i, sku, units)

	var (
		mu       sync.Mutex
		accepted []uuid.UUID
		open     atomic.Int64 // answers that leave the outcome open
		all      sync.WaitGroup
	)
	sold := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(accepted)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	for n := range clients {
		all.Go(func() {
			for ctx.Err() == nil {
				o, _, err := i.Place(context.WithoutCancel(ctx), Request{
					Buyer: fmt.Sprintf("buyer-%d", n), Lines: []stock.Line{{SKU: sku, Quantity: 1}},
				})
				switch {
				case err == nil:
					mu.Lock()
					accepted = append(accepted, o.ID)
					mu.Unlock()
				case errors.Is(err, ErrUnavailable):
					open.Add(1)
				case !errors.Is(err, ErrBusy):
					t.Errorf("a client heard %v", err)
					return
				}
			}
		})
	}
	eventually(t, "orders are accepted", func() bool { return sold() > 100 })
	standby.Stop()
	eventually(t, "a commit waits for the standby", func() bool {
		var n int
		err := s.sql.DB().Raw("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query_start < now() - interval '1 second'").Row().Scan(&n)
		return err == nil && n > 0
	})
	before := sold()
	eventually(t, "the commit is given up, or taken for done", func() bool { return open.Load() > 0 || sold() > before })
	if after := sold(); after != before {
		t.Errorf("%d orders were accepted without the standby", after-before)
	}
	primary.Kill()
	stop()
	all.Wait()
	standby.Cont()
	standby.Promote()
	promoted := openSQL(t, standby.URL())
	if lost := missing(t, promoted, accepted); lost > 0 {
		t.Errorf("the failover lost %d of %d orders accepted", lost, len(accepted))
	}
}

// TestCommitOfThePrimaryAlone: an order that an administrator's cancel has left
// visible on the primary, and on no standby, is proof of nothing: not to its own
// request, and not to a retry.
func TestCommitOfThePrimaryAlone(t *testing.T) {
	t.Parallel()
	primary, standby := testenv.OwnPostgresPair(t)
	s := newShop(t, primary.URL())
	i := s.open(t, settings{strategy: "merged"})
	defer i.Close()
	sku := fresh("alone")
	lay(t, i, sku, 5)
	standby.Stop()
	resume := sync.OnceFunc(standby.Cont)
	defer resume()
	heard := place(t.Context(), i, ask(sku).keyed("k"))
	eventually(t, "the commit is cancelled", func() bool {
		var n int
		err := s.sql.DB().Raw("SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity WHERE wait_event = 'SyncRep'").Row().Scan(&n)
		return err == nil && n > 0
	})
	if r := wait(t, "the answer", heard); !errors.Is(r.err, ErrUnavailable) {
		t.Errorf("heard %+v", r)
	}
	mustRefuse(t, i, ask(sku).keyed("k"), ErrUnavailable)
	resume()
	eventually(t, "the order is found again", func() bool {
		_, replayed, err := i.Place(t.Context(), ask(sku).keyed("k"))
		return err == nil && replayed
	})
	s.atRest(t, nil, sku, 1)
}
