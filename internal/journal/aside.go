package journal

import (
	"slices"
	"sync"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

const (
	// maxHeld bounds the orders under way that wait for locked rows and that no worker
	// waits for.
	maxHeld = 4 * maxBatch
	// maxAside bounds the orders that are kept until others of their SKUs have ended.
	maxAside = 4096
)

// aside keeps the orders of locked stock rows from delaying those of other SKUs. It is
// safe for concurrent use.
//
// An order that waits for a locked row is held: it goes on by itself. Until it ends, no
// other order of the row's SKU begins. Those that are delivered wait here. If there is no
// room for them, they stay undone, and are claimed later.
type aside struct {
	mu      sync.Mutex
	held    int
	locked  map[stock.SKU]int // the orders held that wait for the SKU's row
	waiting map[uuid.UUID]stock.Take
}

// hold counts an order as held that waits for the rows of these SKUs. It reports false
// if too many are.
func (a *aside) hold(skus []stock.SKU) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.held == maxHeld {
		return false
	}
	a.held++
	if a.locked == nil {
		a.locked = make(map[stock.SKU]int)
	}
	for _, sku := range skus {
		a.locked[sku]++
	}
	return true
}

// release undoes hold.
func (a *aside) release(skus []stock.SKU) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.held--
	for _, sku := range skus {
		if a.locked[sku]--; a.locked[sku] == 0 {
			delete(a.locked, sku)
		}
	}
}

// admit returns the takes whose orders can begin, and keeps the others as far as there is
// room.
func (a *aside) admit(takes []stock.Take) (free []stock.Take) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.locked) == 0 {
		return takes
	}
	for _, t := range takes {
		switch {
		case !a.mustWait(t):
			free = append(free, t)
		case len(a.waiting) < maxAside:
			if a.waiting == nil {
				a.waiting = make(map[uuid.UUID]stock.Take)
			}
			a.waiting[t.OrderID] = t
		}
	}
	return free
}

// resume returns up to limit takes that were kept and whose orders can begin now.
func (a *aside) resume(limit int) (free []stock.Take) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for order, t := range a.waiting {
		if len(free) == limit {
			break
		}
		if !a.mustWait(t) {
			free = append(free, t)
			delete(a.waiting, order)
		}
	}
	return free
}

func (a *aside) mustWait(t stock.Take) bool {
	return slices.ContainsFunc(t.Lines, func(line stock.Line) bool { return a.locked[line.SKU] > 0 })
}
