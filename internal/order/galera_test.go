package order

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/store"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// TestGalera: two instances write through two nodes of one cluster. Every order
// accepted is there, nothing is oversold, and that survives the crash of a node.
func TestGalera(t *testing.T) {
	t.Parallel()
	nodes := testenv.OwnGalera(t)
	s := newShop(t, nodes[0].URL())
	second := openSQL(t, nodes[1].URL())
	for name, units := range map[string]int64{
		"merged": 1500, "lua": 1500, // whole transactions at once
		"for-update": 100, "conditional": 100, "optimistic": 100,
	} {
		t.Run("rush/"+name, func(t *testing.T) {
			instances := []*instance{
				s.open(t, settings{strategy: name, noGuard: true}),
				s.open(t, settings{strategy: name, noGuard: true, sql: second}),
			}
			defer instances[0].Close()
			defer instances[1].Close()
			sku := fresh("galera")
			lay(t, instances[0], sku, units)
			if fault := s.verdict(t, instances[1], sku, rush(t, instances, sku)); fault != "" {
				t.Error(fault)
			}
		})
	}

	t.Run("crash", func(t *testing.T) {
		instances := []*instance{
			s.open(t, settings{strategy: "merged"}),
			s.open(t, settings{strategy: "merged", sql: second}),
		}
		defer instances[0].Close()
		defer instances[1].Close()
		sku := fresh("galera")
		const units = 100_000
		lay(t, instances[0], sku, units)
		var (
			mu       sync.Mutex
			accepted []uuid.UUID
			all      sync.WaitGroup
		)
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		for n := range clients {
			all.Go(func() {
				for ctx.Err() == nil {
					o, _, err := instances[n%2].Place(context.WithoutCancel(ctx), Request{
						Buyer: fmt.Sprintf("buyer-%d", n), Lines: []stock.Line{{SKU: sku, Quantity: 1}},
					})
					switch {
					case err == nil:
						mu.Lock()
						accepted = append(accepted, o.ID)
						mu.Unlock()
					case !errors.Is(err, ErrBusy) && !errors.Is(err, ErrUnavailable):
						t.Errorf("a client heard %v", err)
						return
					}
				}
			})
		}
		sold := func() int {
			mu.Lock()
			defer mu.Unlock()
			return len(accepted)
		}
		eventually(t, "orders are accepted", func() bool { return sold() > 100 })
		nodes[1].Kill()
		before := sold()
		eventually(t, "the rest of the cluster goes on", func() bool { return sold() > before+100 })
		stop()
		all.Wait()
		for _, node := range []int{0, 2} {
			if lost := missing(t, openSQL(t, nodes[node].URL()), accepted); lost > 0 {
				t.Errorf("node %d lacks %d of %d orders accepted", node, lost, len(accepted))
			}
		}
		if b := s.books(t, sku); b.available+b.sold != b.total || b.sold < int64(len(accepted)) {
			t.Errorf("%+v, with %d accepted", b, len(accepted))
		}
	})
}

// missing is how many of the orders the database does not have.
func missing(t *testing.T, sql *store.SQL, ids []uuid.UUID) int {
	t.Helper()
	var there []uuid.UUID
	if err := sql.DB().Raw("SELECT id FROM orders").Scan(&there).Error; err != nil {
		t.Fatal(err)
	}
	has := make(map[uuid.UUID]bool, len(there))
	for _, id := range there {
		has[id] = true
	}
	return len(slices.DeleteFunc(slices.Clone(ids), func(id uuid.UUID) bool { return has[id] }))
}
