package protocol

import (
	"testing"

	"github.com/holdfast-stock/holdfast/internal/store/storetest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// TestGalera lets two instances write through two nodes of one cluster. The cluster must have every
// accepted order and oversell nothing, even after a node has crashed.
func TestGalera(t *testing.T) {
	t.Parallel()
	if !testenv.Thorough() {
		t.Log("only in a thorough run: it starts a cluster of three servers")
		return
	}
	nodes := testenv.OwnGalera(t)
	s := newShop(t, nodes[0].URL())
	second := storetest.SQL(t, nodes[1].URL())
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
		crowd := startCrowd(t, sku, instances...)
		crowd.awaitMore(t, "orders are accepted")
		nodes[1].Kill()
		crowd.awaitMore(t, "the other nodes accept orders")
		accepted := crowd.leave()
		for _, node := range []int{0, 2} {
			checkFailover(t, sku, storetest.SQL(t, nodes[node].URL()), accepted)
		}
	})
}
