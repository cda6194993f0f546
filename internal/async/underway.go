package async

import (
	"context"
	"sync"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

// maxUnderWay bounds the orders that a consumer works on at once. Orders whose stock rows are
// locked count too, until the ledger gives up. They delay other orders only when they reach this
// bound.
const maxUnderWay = 1024

// underWay is the orders that a consumer works on. It is safe for concurrent use.
type underWay struct {
	mu     sync.Mutex
	orders map[uuid.UUID]bool
	freed  chan struct{} // has an element if orders have ended since the last call of room
}

func newUnderWay() *underWay {
	return &underWay{orders: make(map[uuid.UUID]bool), freed: make(chan struct{}, 1)}
}

// room returns how many orders can begin. If there is no room, it waits until orders end. It
// returns 0 if ctx has ended.
func (u *underWay) room(ctx context.Context) int {
	for ctx.Err() == nil {
		u.mu.Lock()
		room := maxUnderWay - len(u.orders)
		u.mu.Unlock()
		if room > 0 {
			return room
		}
		<-u.freed // also after ctx has ended: no order is under way forever
	}
	return 0
}

// begin records that the orders of the takes begin. It returns those that had not begun before,
// because a slow order may be delivered again.
func (u *underWay) begin(takes []stock.Take) (begun []stock.Take) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, t := range takes {
		if !u.orders[t.OrderID] {
			u.orders[t.OrderID] = true
			begun = append(begun, t)
		}
	}
	return begun
}

// end records that the orders have ended, or wait for their next delivery.
func (u *underWay) end(ends []end) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, e := range ends {
		delete(u.orders, e.take.OrderID)
	}
	select {
	case u.freed <- struct{}{}:
	default:
	}
}
