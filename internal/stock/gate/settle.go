package gate

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

// maxSettleLines bounds the records that one script call settles.
const maxSettleLines = 500

// Settle removes the records of takes that the ledger has. It does not change available units, and
// needs no locks. It ignores a take that is not in flight, or whose order is held by another take.
// If it fails, it may have removed some records. Settling a take again does no harm.
func (c *Counter) Settle(ctx context.Context, takes ...stock.Take) error {
	if c.layout.divides() {
		whole := takes
		takes = make([]stock.Take, len(whole))
		for i, t := range whole {
			takes[i] = c.layout.everywhere(t)
		}
	}
	return c.settle(ctx, nil, takes)
}

// settle is Settle for the records of SKUs or segments. If journal has the journal's keys,
// the orders of the takes also leave the queue.
func (c *Counter) settle(ctx context.Context, journal []string, takes []stock.Take) error {
	type batch struct {
		skus  numbering
		lines []string
	}
	var batches []*batch
	open := make(map[stock.SKU]*batch) // batches by SKU on a cluster, otherwise one under ""
	for i := range takes {
		t := &takes[i]
		text := appendID(appendID(make([]byte, 0, 80), t.OrderID), t.TakeID)
		for lines := range slices.Chunk(t.Lines, c.linesPerCall(t.Deduction)) {
			var of stock.SKU
			if c.cluster {
				of = lines[0].SKU
			}
			b := open[of]
			// The lines of a take stay in one call, because an order leaves the queue with all its
			// records.
			if b == nil || len(b.lines)+len(lines) > maxSettleLines {
				b = new(batch)
				open[of] = b
				batches = append(batches, b)
			}
			for _, line := range lines {
				b.lines = append(b.lines, string(binary.BigEndian.AppendUint16(text, uint16(b.skus.number(line.SKU)))))
			}
		}
	}
	calls := make([]*call, len(batches))
	for i, b := range batches {
		keys := c.keys(b.skus.skus[0])
		names := append([]string{keys.count, keys.flight}, journal...)
		calls[i] = newCall(ctx, &c.scripts.Load().settle, names, append(b.skus.arguments(), b.lines...))
	}
	if err := c.run(ctx, calls...); err != nil {
		return fmt.Errorf("settling %d takes: %w", len(takes), err)
	}
	return nil
}
