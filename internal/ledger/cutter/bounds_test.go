package cutter

import (
	"fmt"
	"testing"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

// TestBounds checks that the SKUs that a cutter remembers are bounded, and that it remembers the
// SKUs that were used last.
func TestBounds(t *testing.T) {
	t.Parallel()
	limits := seenLimits{newMemory[int64]()}
	for n := range maxRemembered + 1 {
		sku := stock.SKU(fmt.Sprint("sku-", n))
		limits.learn(rows{sku: {sku: sku, limit: 1}})
		if lines := []line{{sku: sku}}; limits.of(lines)[sku] != 1 || lines[0].want != 1 {
			t.Fatalf("%s is forgotten at once", sku)
		}
	}
	if n := limits.Len(); n != maxRemembered {
		t.Errorf("%d SKUs are remembered", n)
	}
	limits.learn(rows{"sku-1": {sku: "sku-1"}})
	if lines := []line{{sku: "sku-0"}, {sku: "sku-1"}}; limits.of(lines) != nil {
		t.Errorf("limits that are forgotten: %+v", lines)
	}
}
