package journal

import (
	"context"
	"slices"
	"time"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

// batch is orders that are brought to their ends at once, so that they share
// transactions. It is for one goroutine.
type batch struct {
	takes   []stock.Take
	results chan result
	open    map[int][]stock.SKU // by index: the orders without a result; of those that are held, the locked SKUs
	held    int
	failed  bool // the ledger could not tell which rows are locked
}

// result is the end of the order with this index.
type result struct {
	index int
	end
}

// finish brings the orders to their ends, and removes those that have one from the
// journal. It reports whether all have, except orders that it holds because their stock
// rows are locked: they end later, and leave the journal then.
func (c *Consumer) finish(ctx context.Context, takes []stock.Take) (all bool) {
	if len(takes) == 0 {
		return true
	}
	working, stopWorking := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
	b := &batch{takes: takes, results: make(chan result, len(takes)), open: make(map[int][]stock.SKU, len(takes))}
	for i, t := range takes {
		b.open[i] = nil
		go func() { b.results <- result{i, c.trace(working, t)} }()
	}
	all = c.remove(ctx, c.await(working, b))
	if len(b.open) == 0 {
		stopWorking()
		return all
	}
	c.held.Go(func() {
		defer stopWorking()
		var ends []end
		for len(b.open) > 0 {
			ends = append(ends, c.close(b, <-b.results))
		}
		c.remove(ctx, ends)
	})
	return all
}

// await waits for the orders of the batch that are not held, and returns the ends of those
// that have one.
func (c *Consumer) await(ctx context.Context, b *batch) (ends []end) {
	impatient := time.NewTicker(patience)
	defer impatient.Stop()
	for len(b.open) > b.held {
		select {
		case r := <-b.results:
			ends = append(ends, c.close(b, r))
		case <-impatient.C:
			c.holdLocked(ctx, b)
		}
	}
	return ends
}

// holdLocked holds those orders of the batch that wait for locked rows.
func (c *Consumer) holdLocked(ctx context.Context, b *batch) {
	var open []stock.Take
	for i, locked := range b.open {
		if locked == nil {
			open = append(open, b.takes[i])
		}
	}
	skus, err := c.ledger.Locked(ctx, stock.SKUsOf(open...))
	if err != nil && !b.failed { // a ledger that is away fails every time
		b.failed = true
		c.log.Warn("asking which stock rows are locked failed", "error", err)
	}
	before := b.held
	for i, locked := range b.open {
		if locked != nil {
			continue
		}
		for _, sku := range b.takes[i].SKUs() {
			if slices.Contains(skus, sku) {
				locked = append(locked, sku)
			}
		}
		if locked != nil && c.aside.hold(locked) {
			b.open[i] = locked
			b.held++
		}
	}
	if b.held > before {
		c.log.Warn("stock rows are locked by another transaction; queued orders of other SKUs are committed", "skus", skus, "orders", b.held-before)
	}
}

// close notes that an order has its result, and returns its end.
func (c *Consumer) close(b *batch, r result) end {
	if locked := b.open[r.index]; locked != nil {
		c.aside.release(locked)
		b.held--
	}
	delete(b.open, r.index)
	return r.end
}

// remove removes from the journal the orders that have ended, and reports whether all
// have.
func (c *Consumer) remove(ctx context.Context, ends []end) (all bool) {
	all = true
	var ended []stock.Take
	for _, e := range ends {
		if e.err != nil {
			all = false
			c.log.Warn("committing a queued order failed and will be retried", "order", e.take.OrderID, "error", e.err)
			continue
		}
		ended = append(ended, e.take)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout) // one order may have used up the time of all
	defer cancel()
	if err := c.orders.Finish(ctx, ended...); err != nil {
		c.log.Warn("removing orders from the journal failed and will be retried", "orders", len(ended), "error", err)
		return false
	}
	for _, e := range ends {
		if e.err == nil {
			c.metrics.ended.WithLabelValues(e.became).Inc()
		}
	}
	return all
}
