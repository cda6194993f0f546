package cutter

import (
	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

// maxRemembered bounds the SKUs of each memory of a cutter.
const maxRemembered = 10_000

// newMemory returns a memory with a V for each SKU. When it is full, it forgets the SKU that was
// used longest ago.
func newMemory[V any]() *lru.Cache[stock.SKU, V] {
	memory, err := lru.New[stock.SKU, V](maxRemembered)
	if err != nil {
		panic(err) // only if the size is not positive
	}
	return memory
}

// seenLimits remembers the buyer limits above 0 that rows had when they were last locked. A
// remembered limit may be outdated, so the statements that use it require that the row still has it.
// A row whose limit is not remembered is locked and read. seenLimits is safe for concurrent use.
type seenLimits struct{ *lru.Cache[stock.SKU, int64] }

// of returns the limits of the lines' SKUs, and sets them in the lines. It returns nil if no limit
// is known.
func (s seenLimits) of(lines []line) (limits map[stock.SKU]int64) {
	for i := range lines {
		if limit, known := s.Get(lines[i].sku); known {
			if limits == nil {
				limits = make(map[stock.SKU]int64)
			}
			limits[lines[i].sku], lines[i].want = limit, limit
		}
	}
	return limits
}

// learn remembers the limits of locked rows.
func (s seenLimits) learn(rs rows) {
	for sku, r := range rs {
		if r.limited() {
			s.Add(sku, r.limit)
		} else {
			s.Remove(sku)
		}
	}
}
