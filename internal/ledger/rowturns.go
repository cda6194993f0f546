package ledger

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

// maxStockChanges bounds the concurrent transactions that change stock rows outside of groups. The
// remaining connections serve orders, reads and jobs.
const maxStockChanges = 16

// turns keeps changes that wait for a locked stock row from holding all connections. For each row,
// one change of this instance waits in the database. The others wait in the process, in order of
// arrival. Groups of new orders have slowGroups instead. It is safe for concurrent use.
type turns struct {
	mu      sync.Mutex
	of      map[stock.SKU]*turn // no entry: no change has the turn or waits for it
	changes int                 // changes that have turns or wait for them, one for each row

	atOnce chan struct{} // holds a value for each change under way
}

// turn is the right to lock a stock row.
type turn struct {
	taken   chan struct{} // holds a value while a change has the turn
	changes int           // number of changes that have the turn or wait for it
}

func newTurns() *turns {
	return &turns{of: make(map[stock.SKU]*turn), atOnce: make(chan struct{}, maxStockChanges)}
}

// take waits for the turns of the stock rows. The caller must call end after its transaction. Turns
// are taken in the same order by all callers, so a caller must not hold a turn already. The wait
// lasts at most transactionTimeout.
//
// It returns stock.ErrBusy if it did not get the turns in time, or too many changes wait.
func (ts *turns) take(ctx context.Context, skus ...stock.SKU) (end func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, transactionTimeout)
	defer cancel()
	var ends []func()
	end = func() {
		for _, e := range ends {
			e()
		}
	}
	for _, sku := range slices.Sorted(slices.Values(skus)) {
		endOne, err := ts.wait(ctx, sku)
		if err != nil {
			end()
			return nil, err
		}
		ends = append(ends, endOne)
	}
	select {
	case ts.atOnce <- struct{}{}:
		ends = append(ends, func() { <-ts.atOnce })
		return end, nil
	case <-ctx.Done():
		end()
		return nil, fmt.Errorf("%w: too many stock rows are locked: %w", stock.ErrBusy, ctx.Err())
	}
}

// wait waits for the turn of one row.
func (ts *turns) wait(ctx context.Context, sku stock.SKU) (end func(), err error) {
	ts.mu.Lock()
	if ts.changes >= maxQueue {
		ts.mu.Unlock()
		return nil, fmt.Errorf("%w: too many changes wait for locked rows", stock.ErrBusy)
	}
	ts.changes++
	t := ts.of[sku]
	if t == nil {
		t = &turn{taken: make(chan struct{}, 1)}
		ts.of[sku] = t
	}
	t.changes++
	ts.mu.Unlock()
	leave := func() {
		ts.mu.Lock()
		defer ts.mu.Unlock()
		ts.changes--
		if t.changes--; t.changes == 0 {
			delete(ts.of, sku)
		}
	}
	select {
	case t.taken <- struct{}{}:
		return func() { <-t.taken; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, fmt.Errorf("%w: other changes wait for the row of %s: %w", stock.ErrBusy, sku, ctx.Err())
	}
}
