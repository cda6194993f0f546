package cutter

import (
	"slices"
	"sync"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

// maxLimited bounds the SKUs that limitedSKUs remembers.
const maxLimited = 10_000

// limitedSKUs remembers which SKUs had a buyer limit when their rows were last
// locked. It only saves the statements that such rows refuse: a SKU that is missing,
// or that has lost its limit, is cut correctly all the same. It is safe for
// concurrent use.
type limitedSKUs struct {
	mu   sync.RWMutex
	skus map[stock.SKU]bool
}

// any reports whether one of the lines is of a SKU that had a buyer limit.
func (l *limitedSKUs) any(lines []line) bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return len(l.skus) > 0 && slices.ContainsFunc(lines, func(line line) bool { return l.skus[line.sku] })
}

// learn notes which of the rows have a buyer limit.
func (l *limitedSKUs) learn(rs rows) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for sku, r := range rs {
		switch {
		case r.limit == 0:
			delete(l.skus, sku)
		case l.skus == nil || len(l.skus) >= maxLimited:
			l.skus = map[stock.SKU]bool{sku: true}
		default:
			l.skus[sku] = true
		}
	}
}
