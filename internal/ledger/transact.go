package ledger

import (
	"context"
	"errors"
	"time"

	"github.com/holdfast-stock/holdfast/internal/ledger/cutter"
	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/retry"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

const (
	// transactionTimeout bounds one transaction without its retries.
	transactionTimeout = 5 * time.Second
	// maxTries bounds the tries of one transaction that meets deadlocks,
	// serialization failures or conflicts.
	maxTries = 10
)

// transact runs do in a transaction, and tries again as retried does. do must run its statements
// under the context that it is given, which bounds one try.
func (l *Ledger) transact(ctx context.Context, timeout time.Duration, do func(ctx context.Context, tx *sqltx.Tx) error) error {
	return l.retried(ctx, func() (err error) {
		ctx, span := l.tracer.Start(ctx, "ledger.transaction")
		if span.Recorded() {
			defer func() {
				if kind := kindOf(err); kind != "" { // otherwise do refused, or the database cannot be reached
					span.Fail(kind)
				}
				span.End()
			}()
		}
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		return l.db.Transact(ctx, func(tx *sqltx.Tx) error { return do(ctx, tx) })
	})
}

// retried runs a transaction, and runs it again after a conflict with another one: a deadlock, a
// serialization failure, a lock timeout or cutter.ErrConflict. If the last try ends with a conflict
// too, it returns stock.ErrBusy. A transaction whose outcome is unknown is not run again.
func (l *Ledger) retried(ctx context.Context, transaction func() error) error {
	for try := 1; ; try++ {
		err := transaction()
		if err == nil || !sqltx.IsRetryable(err) && !errors.Is(err, cutter.ErrConflict) {
			return err
		}
		l.metrics.retries.Inc()
		if try == maxTries {
			return stock.Busy(err)
		}
		retry.Wait(ctx, try)
	}
}
