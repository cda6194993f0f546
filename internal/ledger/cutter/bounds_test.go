package cutter

import (
	"fmt"
	"testing"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

// TestBounds checks that cutters remember a bounded number of SKUs, and keep the latest ones,
// because a request may name any SKU.
func TestBounds(t *testing.T) {
	t.Parallel()
	units, limits := new(unitRows), new(seenLimits)
	for n := range max(maxShort, maxLimited) + 1 {
		sku := stock.SKU(fmt.Sprint(n))
		units.setShort(sku, true)
		limits.learn(rows{sku: {sku: sku, limit: 1}})
		if len(units.short) > maxShort || len(limits.limits) > maxLimited {
			t.Fatalf("%d SKUs are short, %d have limits", len(units.short), len(limits.limits))
		}
		if lines := []line{{sku: sku}}; !units.anyShort(lines) || limits.of(lines)[sku] != 1 {
			t.Fatalf("SKU %d is forgotten", n)
		}
	}
}
