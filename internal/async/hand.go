package async

import (
	"context"
	"sync"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

// maxInHand bounds the orders that a consumer works on at once. Orders whose stock rows
// are locked wait among them until the ledger gives up, so they delay others only if there
// are so many.
const maxInHand = 1024

// hand is the orders that a consumer works on. It is safe for concurrent use.
type hand struct {
	mu     sync.Mutex
	orders map[uuid.UUID]bool
	freed  chan struct{} // has an element if orders have ended since room waited
}

func newHand() *hand {
	return &hand{orders: make(map[uuid.UUID]bool), freed: make(chan struct{}, 1)}
}

// room returns how many orders can begin. If there is no room, it waits until orders end.
// 0: ctx has ended.
func (h *hand) room(ctx context.Context) int {
	for ctx.Err() == nil {
		h.mu.Lock()
		room := maxInHand - len(h.orders)
		h.mu.Unlock()
		if room > 0 {
			return room
		}
		select {
		case <-h.freed:
		case <-ctx.Done():
		}
	}
	return 0
}

// begin notes that the orders of the takes begin, and returns those that had not begun
// before: an order that takes long may be delivered again.
func (h *hand) begin(takes []stock.Take) (begun []stock.Take) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, t := range takes {
		if !h.orders[t.OrderID] {
			h.orders[t.OrderID] = true
			begun = append(begun, t)
		}
	}
	return begun
}

// end notes that the orders have ended, or are left to their next delivery.
func (h *hand) end(ends []end) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range ends {
		delete(h.orders, e.take.OrderID)
	}
	select {
	case h.freed <- struct{}{}:
	default:
	}
}
