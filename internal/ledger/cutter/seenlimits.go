package cutter

import (
	"maps"
	"sync"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

// maxLimited bounds the SKUs that seenLimits remembers.
const maxLimited = 10_000

// seenLimits remembers the buyer limits that rows had when they were last locked. A remembered
// limit may be outdated, so the statements that use it require that the row still has it. A row
// whose limit is not remembered is locked and read. seenLimits is safe for concurrent use.
type seenLimits struct {
	mu     sync.RWMutex
	limits map[stock.SKU]int64 // limits above 0
}

// of returns the limits of the lines' SKUs, and sets them in the lines. It returns nil if no limit
// is known.
func (s *seenLimits) of(lines []line) (limits map[stock.SKU]int64) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if len(s.limits) == 0 {
		return nil
	}
	for i := range lines {
		if limit := s.limits[lines[i].sku]; limit > 0 {
			if limits == nil {
				limits = make(map[stock.SKU]int64)
			}
			limits[lines[i].sku], lines[i].want = limit, limit
		}
	}
	return limits
}

// learn remembers the limits of locked rows.
func (s *seenLimits) learn(rs rows) {
	limits := rs.limits()
	s.mu.Lock()
	defer s.mu.Unlock()
	for sku := range rs {
		delete(s.limits, sku)
	}
	if s.limits == nil || len(s.limits)+len(limits) > maxLimited {
		s.limits = make(map[stock.SKU]int64)
	}
	maps.Copy(s.limits, limits)
}
