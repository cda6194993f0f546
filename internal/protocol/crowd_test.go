package protocol

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/store"
	"github.com/holdfast-stock/holdfast/internal/store/storetest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// crowd is a number of buyers who order one unit after the other while servers fail.
type crowd struct {
	end func()

	mu       sync.Mutex
	accepted []uuid.UUID
	times    []time.Time // times at which the orders were answered
	unknown  int         // number of answers with an unknown outcome
}

// startCrowd lets the buyers order from the instances, until the test ends at the latest.
// They may be answered busy or unavailable.
func startCrowd(t *testing.T, sku stock.SKU, instances ...*instance) *crowd {
	t.Helper()
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	var all sync.WaitGroup
	c := &crowd{end: func() {
		stop()
		all.Wait()
	}}
	t.Cleanup(c.end)
	for n := range clients {
		all.Go(func() {
			for ctx.Err() == nil {
				o, _, err := instances[n%len(instances)].Place(context.WithoutCancel(ctx), order.Request{
					Buyer: fmt.Sprintf("buyer-%d", n), Lines: []stock.Line{{SKU: sku, Quantity: 1}},
				})
				if !c.note(o.ID, err) {
					t.Errorf("a client was answered %v", err)
					return
				}
				if err != nil {
					testenv.Dither() // pause, because a stopped server refuses at once
				}
			}
		})
	}
	return c
}

// startSale lets a crowd order a new SKU from two instances of merged, each with its own
// connections to the database. It waits until orders are accepted.
func startSale(t *testing.T, dbURL string) (stock.SKU, *crowd) {
	t.Helper()
	s := newShop(t, dbURL)
	sku := newSKU("failover")
	var instances []*instance
	for range 2 {
		i := s.open(t, settings{strategy: "merged", db: storetest.SQL(t, dbURL).Ledger})
		t.Cleanup(i.Close)
		instances = append(instances, i)
	}
	addStock(t, instances[0], sku, 1_000_000)
	c := startCrowd(t, sku, instances...)
	c.awaitMore(t, "orders are accepted")
	return sku, c
}

// note records an answer. It returns false if such an answer is not allowed.
func (c *crowd) note(id uuid.UUID, err error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err == nil:
		c.accepted, c.times = append(c.accepted, id), append(c.times, time.Now())
	case errors.Is(err, stock.ErrUnavailable):
		c.unknown++
	case !errors.Is(err, stock.ErrBusy):
		return false
	}
	return true
}

// counts returns the number of orders that were accepted, and of answers with an unknown
// outcome.
func (c *crowd) counts() (accepted, unknown int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.accepted), c.unknown
}

// orders returns how many orders were accepted.
func (c *crowd) orders() int {
	accepted, _ := c.counts()
	return accepted
}

// awaitMore waits until the instances have accepted 100 more orders than now.
func (c *crowd) awaitMore(t *testing.T, what string) {
	t.Helper()
	before := c.orders()
	testenv.Await(t, what, func() bool { return c.orders() > before+100 })
}

// leave ends the crowd, and returns all orders that were accepted.
func (c *crowd) leave() []uuid.UUID {
	c.end()
	return c.accepted
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

// checkFailover checks that the database has each order that was accepted, and that its
// counts add up.
func checkFailover(t *testing.T, sku stock.SKU, survivor *store.SQL, accepted []uuid.UUID) {
	t.Helper()
	s := &shop{sql: survivor}
	if lost := missingOrders(t, survivor, accepted); lost > 0 {
		t.Errorf("the failover lost %d of %d accepted orders", lost, len(accepted))
	}
	// A transaction whose client has given up may commit between two reads.
	var b ledgerCounts
	defer func() { t.Logf("%+v, with %d orders accepted", b, len(accepted)) }()
	testenv.Await(t, "the counts add up and have the accepted orders", func() bool {
		b = s.ledgerCounts(t, sku)
		return b.available+b.sold == b.total && b.sold >= int64(len(accepted))
	})
}
