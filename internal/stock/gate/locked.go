package gate

import (
	"context"
	"fmt"
	"time"

	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// Locked puts every change of another gate's counts under the locks of their
// SKUs, named `stock:SKU`. It is as good as its locks are shared, and as its
// leases last; it adds nothing to what the inner gate is alone.
//
// Fenced, it shows the locks' tokens to the counts, which then refuse a holder
// whose lock was granted to another meanwhile. A locker without tokens cannot.
//
// Settle, InFlight and Level change no count and go past the locks.
type Locked struct {
	stock.Gate
	locker lock.Locker
	wait   time.Duration
	fenced bool
}

var _ stock.Gate = (*Locked)(nil)

// NewLocked puts inner under the locks of locker. wait bounds how long one
// call waits for all of its locks together.
func NewLocked(inner stock.Gate, locker lock.Locker, wait time.Duration, fenced bool) *Locked {
	return &Locked{Gate: inner, locker: locker, wait: wait, fenced: fenced}
}

// Close closes the inner gate, if it is one to be closed. The locker stays the
// caller's.
func (g *Locked) Close() {
	if inner, ok := g.Gate.(interface{ Close() }); ok {
		inner.Close()
	}
}

// Take takes at the inner gate under the locks of all lines. stock.ErrBusy:
// they were not to be had.
func (g *Locked) Take(ctx context.Context, d stock.Deduction) (taken stock.Deduction, err error) {
	err = g.under(ctx, stock.SKUsOf(d), func(ctx context.Context) error {
		taken, err = g.Gate.Take(ctx, d)
		return err
	})
	return taken, err
}

// Give gives back at the inner gate under the locks of all lines.
// stock.ErrBusy: they were not to be had, and nothing was given.
func (g *Locked) Give(ctx context.Context, d stock.Deduction) error {
	return g.under(ctx, stock.SKUsOf(d), func(ctx context.Context) error { return g.Gate.Give(ctx, d) })
}

// Fill fills the inner gate under the SKU's lock. stock.ErrBusy: it was not to
// be had.
func (g *Locked) Fill(ctx context.Context, sku stock.SKU, epoch, units int64) error {
	return g.under(ctx, []stock.SKU{sku}, func(ctx context.Context) error { return g.Gate.Fill(ctx, sku, epoch, units) })
}

// Adjust adjusts the inner gate under the SKU's lock. stock.ErrBusy: it was
// not to be had.
func (g *Locked) Adjust(ctx context.Context, c stock.Change) error {
	return g.under(ctx, []stock.SKU{c.SKU}, func(ctx context.Context) error { return g.Gate.Adjust(ctx, c) })
}

// under does the work while it holds the locks of the SKUs, taken in their
// order under one deadline. The work's context ends with ctx or with the first
// lease that is lost.
func (g *Locked) under(ctx context.Context, skus []stock.SKU, work func(context.Context) error) error {
	waiting, stopWaiting := context.WithTimeout(ctx, g.wait)
	defer stopWaiting()
	working, stopWorking := context.WithCancelCause(ctx)
	defer stopWorking(nil)
	tokens := make(map[stock.SKU]uint64, len(skus))
	for _, sku := range skus {
		lease, err := g.locker.Lock(waiting, "stock:"+string(sku))
		if err != nil { // whatever it was, the work was not begun
			return fmt.Errorf("%w: %w", stock.ErrBusy, err)
		}
		defer unlock(ctx, lease)
		tokens[sku] = lease.Token()
		held := lease.Context()
		defer context.AfterFunc(held, func() { stopWorking(context.Cause(held)) })()
	}
	if g.fenced {
		return work(withTokens(working, tokens))
	}
	return work(working)
}

// unlock does not tell of its error: what was done under the lock is done, and
// a lock that cannot be freed ends by itself with its lease.
func unlock(ctx context.Context, lease lock.Lease) {
	ctx, cancel := detached(ctx)
	defer cancel()
	_ = lease.Unlock(ctx)
}
