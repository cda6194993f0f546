package gate

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/lock/recipe"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// maxLockedFills bounds the counts that one call fills at the same time, each under
// a lock of its own.
const maxLockedFills = 8

// Fenced is a gate whose counts check fencing tokens. ReadWrite is one. The
// methods that change counts take the tokens as an argument.
type Fenced interface {
	take(context.Context, tokenSet, stock.Deduction) (stock.Take, error)
	give(context.Context, tokenSet, stock.Take) error
	fill(context.Context, tokenSet, stock.Fill) error
	adjust(context.Context, tokenSet, stock.Change) error

	// As in Gate.
	Use(stock.Generation)
	Load(context.Context, stock.Generation) error
	Loaded(context.Context) (bool, error)
	Mark(context.Context) (stock.Mark, error)
	SetMark(context.Context, stock.Mark) error
	Settle(context.Context, ...stock.Take) error
	InFlight(ctx context.Context, olderThan time.Duration, limit int, skus ...stock.SKU) ([]stock.Take, error)
	ScanInFlight(ctx context.Context, olderThan time.Duration, cursor string) (takes []stock.Take, next string, err error)
	Level(context.Context, ...stock.SKU) ([]stock.Level, error)
	Close()
}

// Locked runs every change of another gate's counts under the locks of the SKUs.
// The lock of a SKU is named `stock:SKU`. Locked adds nothing to the inner gate's
// promises except what the locks promise: it is as sound as its locks are shared
// between instances and as their leases last.
//
// If it is fenced, it passes the locks' fencing tokens to the counts. They refuse
// a holder whose lock has been granted to another since. A locker that gives no
// tokens cannot be fenced.
//
// Settle, InFlight, ScanInFlight and Level change no units available, and run without locks.
type Locked struct {
	inner  Fenced
	locker waitingLocker
	wait   time.Duration
	fenced bool
}

var _ Gate = (*Locked)(nil)

// waitingLocker is what Locked needs of a lock.Locker.
type waitingLocker interface {
	Lock(ctx context.Context, name string) (lock.Lease, error)
}

// NewLocked returns a gate that runs inner under the locks of locker. wait bounds
// how long one call waits for all of its locks together. The caller closes the
// locker.
func NewLocked(inner Fenced, locker waitingLocker, wait time.Duration, fenced bool) *Locked {
	return &Locked{inner: inner, locker: locker, wait: wait, fenced: fenced}
}

// Use makes the inner gate run under generation to.
func (g *Locked) Use(to stock.Generation) { g.inner.Use(to) }

// Load enables the inner gate's store to run generation to.
func (g *Locked) Load(ctx context.Context, to stock.Generation) error { return g.inner.Load(ctx, to) }

// Loaded reports whether the inner gate's store can run the generation in use.
func (g *Locked) Loaded(ctx context.Context) (bool, error) { return g.inner.Loaded(ctx) }

// Mark returns the mark of the inner gate's store.
func (g *Locked) Mark(ctx context.Context) (stock.Mark, error) { return g.inner.Mark(ctx) }

// SetMark replaces the mark of the inner gate's store.
func (g *Locked) SetMark(ctx context.Context, m stock.Mark) error { return g.inner.SetMark(ctx, m) }

// Take takes d at the inner gate under the locks of all lines. stock.ErrBusy: it
// could not get the locks in time.
func (g *Locked) Take(ctx context.Context, d stock.Deduction) (taken stock.Take, err error) {
	err = g.underLocks(ctx, d.SKUs(), func(ctx context.Context, tokens tokenSet) error {
		taken, err = g.inner.take(ctx, tokens, d)
		return err
	})
	return taken, err
}

// Settle settles the takes at the inner gate.
func (g *Locked) Settle(ctx context.Context, takes ...stock.Take) error {
	return g.inner.Settle(ctx, takes...)
}

// Give gives t back at the inner gate under the locks of all lines. stock.ErrBusy:
// it could not get the locks in time, and gave nothing back.
func (g *Locked) Give(ctx context.Context, t stock.Take) error {
	return g.underLocks(ctx, t.SKUs(), func(ctx context.Context, tokens tokenSet) error {
		return g.inner.give(ctx, tokens, t)
	})
}

// Fill fills the inner gate under the SKU's lock. stock.ErrBusy: it could not get
// the lock in time.
func (g *Locked) Fill(ctx context.Context, sku stock.SKU, epoch, units int64) error {
	return g.underLocks(ctx, []stock.SKU{sku}, func(ctx context.Context, tokens tokenSet) error {
		return g.inner.fill(ctx, tokens, stock.Fill{SKU: sku, Epoch: epoch, Units: units})
	})
}

// FillAll fills each count under its SKU's lock, several at once.
func (g *Locked) FillAll(ctx context.Context, fills []stock.Fill) []error {
	errs := make([]error, len(fills))
	var all errgroup.Group
	all.SetLimit(maxLockedFills)
	for i, f := range fills {
		all.Go(func() error {
			errs[i] = g.Fill(ctx, f.SKU, f.Epoch, f.Units)
			return nil
		})
	}
	_ = all.Wait()
	return errs
}

// Adjust adjusts the inner gate under the SKU's lock. stock.ErrBusy: it could not
// get the lock in time.
func (g *Locked) Adjust(ctx context.Context, c stock.Change) error {
	return g.underLocks(ctx, []stock.SKU{c.SKU}, func(ctx context.Context, tokens tokenSet) error {
		return g.inner.adjust(ctx, tokens, c)
	})
}

// ScanInFlight lists the inner gate's takes in flight, of all SKUs.
func (g *Locked) ScanInFlight(ctx context.Context, olderThan time.Duration, cursor string) ([]stock.Take, string, error) {
	return g.inner.ScanInFlight(ctx, olderThan, cursor)
}

// InFlight lists the inner gate's takes in flight.
func (g *Locked) InFlight(ctx context.Context, olderThan time.Duration, limit int, skus ...stock.SKU) ([]stock.Take, error) {
	return g.inner.InFlight(ctx, olderThan, limit, skus...)
}

// Level returns the inner gate's counts.
func (g *Locked) Level(ctx context.Context, skus ...stock.SKU) ([]stock.Level, error) {
	return g.inner.Level(ctx, skus...)
}

// Close closes the inner gate.
func (g *Locked) Close() { g.inner.Close() }

// lockName returns the name of the SKU's lock.
func lockName(sku stock.SKU) string { return "stock:" + string(sku) }

// underLocks calls work while it holds the locks of the SKUs, which it acquires under
// one deadline. The context of work ends with ctx, or as soon as a lock is lost.
func (g *Locked) underLocks(ctx context.Context, skus []stock.SKU, work func(context.Context, tokenSet) error) error {
	names := make([]string, len(skus))
	for i, sku := range skus {
		names[i] = lockName(sku)
	}
	waiting, stopWaiting := context.WithTimeout(ctx, g.wait)
	defer stopWaiting()
	held, err := recipe.LockAll(waiting, g.locker, names...)
	if err != nil { // work has not started, whatever err is
		return fmt.Errorf("%w: %w", stock.ErrBusy, err)
	}
	defer unlock(ctx, held)
	tokens := tokenSet{unchecked: !g.fenced, bySKU: make(map[stock.SKU]uint64, len(skus))}
	for i, sku := range skus {
		token := held.Token(names[i])
		tokens.bySKU[sku] = token
		tokens.unchecked = tokens.unchecked || token == 0 // the locker gives no tokens
	}
	working, stopWorking := context.WithCancelCause(ctx)
	defer stopWorking(nil)
	defer context.AfterFunc(held.Context(), func() { stopWorking(context.Cause(held.Context())) })()
	return work(working, tokens)
}

// unlock releases the locks and ignores an error: the work under them is done, and a
// lock that cannot be released ends with its lease.
func unlock(ctx context.Context, held interface{ Unlock(context.Context) error }) {
	ctx, cancel := detached(ctx)
	defer cancel()
	_ = held.Unlock(ctx)
}
