package protocol

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/store"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// TestGalera: two instances write through two nodes of one cluster. The cluster has every
// accepted order and oversells nothing, also after a node has crashed.
func TestGalera(t *testing.T) {
	t.Parallel()
	if !testenv.Thorough() {
		t.Log("only in a thorough run: it starts a cluster of three servers")
		return
	}
	nodes := testenv.OwnGalera(t)
	s := newShop(t, nodes[0].URL())
	second := openSQL(t, nodes[1].URL())
	for name, units := range map[string]int64{
		"merged": 300, "lua": 300, // many orders in one transaction
		"for-update": 100, "conditional": 100, "optimistic": 100,
	} {
		t.Run("rush/"+name, func(t *testing.T) {
			instances := []*instance{
				s.open(t, settings{strategy: name, noGuard: true}),
				s.open(t, settings{strategy: name, noGuard: true, db: second.Ledger}),
			}
			defer instances[0].Close()
			defer instances[1].Close()
			sku := newSKU("galera")
			addStock(t, instances[0], sku, units)
			if fault := s.saleFault(t, instances[1], sku, sellOut(t, instances, sku, units)); fault != "" {
				t.Error(fault)
			}
		})
	}

	t.Run("crash", func(t *testing.T) {
		instances := []*instance{
			s.open(t, settings{strategy: "merged"}),
			s.open(t, settings{strategy: "merged", db: second.Ledger}),
		}
		defer instances[0].Close()
		defer instances[1].Close()
		sku := newSKU("galera")
		const units = 100_000
		addStock(t, instances[0], sku, units)
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
					o, _, err := instances[n%2].Place(context.WithoutCancel(ctx), order.Request{
						Buyer: fmt.Sprintf("buyer-%d", n), Lines: []stock.Line{{SKU: sku, Quantity: 1}},
					})
					switch {
					case err == nil:
						mu.Lock()
						accepted = append(accepted, o.ID)
						mu.Unlock()
					case !errors.Is(err, stock.ErrBusy) && !errors.Is(err, stock.ErrUnavailable):
						t.Errorf("a client was answered %v", err)
						return
					default:
						testenv.Dither() // a node that is gone refuses at once
					}
				}
			})
		}
		acceptedOrders := func() int {
			mu.Lock()
			defer mu.Unlock()
			return len(accepted)
		}
		testenv.Await(t, "orders are accepted", func() bool { return acceptedOrders() > 100 })
		nodes[1].Kill()
		before := acceptedOrders()
		testenv.Await(t, "the other nodes accept orders", func() bool { return acceptedOrders() > before+100 })
		stop()
		all.Wait()
		for _, node := range []int{0, 2} {
			if lost := missingOrders(t, openSQL(t, nodes[node].URL()), accepted); lost > 0 {
				t.Errorf("node %d lacks %d of %d accepted orders", node, lost, len(accepted))
			}
		}
		// A transaction whose client has given up may commit between the two readings.
		var b ledgerCounts
		defer func() { t.Logf("%+v, with %d orders accepted", b, len(accepted)) }()
		testenv.Await(t, "the counts add up and have the accepted orders", func() bool {
			b = s.ledgerCounts(t, sku)
			return b.available+b.sold == b.total && b.sold >= int64(len(accepted))
		})
	})
}

// missingOrders returns how many of the orders the database does not have.
func missingOrders(t *testing.T, sql *store.SQL, ids []uuid.UUID) int {
	t.Helper()
	var found []uuid.UUID
	if err := sql.DB().Raw("SELECT id FROM orders").Scan(&found).Error; err != nil {
		t.Fatal(err)
	}
	has := make(map[uuid.UUID]bool, len(found))
	for _, id := range found {
		has[id] = true
	}
	return len(slices.DeleteFunc(slices.Clone(ids), func(id uuid.UUID) bool { return has[id] }))
}
