package gate

import (
	"context"
	"time"

	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/lock/recipe"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// Locks guard the counts of a Counter. A take, a give, a fill and an adjustment run under the locks
// of their SKUs, or of their segments. The lock of a SKU is named `stock:SKU`. Only instances that
// share the locks exclude each other, and only while a lease lasts.
//
// If the locks are fenced, their fencing tokens are passed to the counts, which refuse a holder
// whose lock has been granted to another holder since. A locker without tokens cannot be fenced.
//
// A nil *Locks guards nothing.
type Locks struct {
	locker waitingLocker
	wait   time.Duration
	fenced bool
	// inDoubt is called with the name of each lock that is held, if a command of its holder may
	// still arrive. It is nil if the fence refuses such a command, or if nothing is fenced.
	inDoubt func(name string)
}

// waitingLocker is what Locks need of a lock.Locker.
type waitingLocker interface {
	Lock(ctx context.Context, name string) (lock.Lease, error)
}

// NewLocks returns the locks of locker. wait bounds how long one call waits for all of
// the locks that it holds at once. The caller closes the locker.
func NewLocks(locker waitingLocker, wait time.Duration, fenced bool) *Locks {
	return &Locks{locker: locker, wait: wait, fenced: fenced}
}

// lockName returns the name of the SKU's lock.
func lockName(sku stock.SKU) string { return "stock:" + string(sku) }

// hold calls work while it holds the locks of the SKUs, which it acquires under one deadline. The
// context of work ends with ctx, or as soon as a lock is lost. It returns stock.ErrBusy if it could
// not get the locks in time; then it has not called work.
func (l *Locks) hold(ctx context.Context, skus []stock.SKU, work func(context.Context, tokenSet) error) error {
	if l == nil {
		return work(ctx, unfenced)
	}
	names := make([]string, len(skus))
	for i, sku := range skus {
		names[i] = lockName(sku)
	}
	waiting, stopWaiting := context.WithTimeout(ctx, l.wait)
	defer stopWaiting()
	held, err := recipe.LockAll(waiting, l.locker, names...)
	if err != nil { // work has not started, so nothing was cut
		return stock.Busy(err)
	}
	defer func() { _ = held.Unlock(ctx) }() // the work is done; if Unlock fails, the locks end with their leases
	tokens := tokenSet{unchecked: !l.fenced, bySKU: make(map[stock.SKU]uint64, len(skus))}
	for i, sku := range skus {
		token := held.Token(names[i])
		tokens.bySKU[sku] = token
		tokens.unchecked = tokens.unchecked || token == 0 // 0: the locker gives no tokens
	}
	working, stopWorking := context.WithCancelCause(ctx)
	defer stopWorking(nil)
	defer context.AfterFunc(held.Context(), func() { stopWorking(context.Cause(held.Context())) })()
	err = work(working, tokens)
	if l.inDoubt != nil && err != nil && !stock.NothingTaken(err) {
		for _, name := range names {
			l.inDoubt(name)
		}
	}
	return err
}
