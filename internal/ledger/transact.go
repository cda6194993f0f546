package ledger

import (
	"context"
	"time"

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

// transact runs do in a transaction. It retries, a bounded number of times, while the database
// reports deadlocks and other retryable errors. do must run its statements under the given context,
// which bounds each try.
func (l *Ledger) transact(ctx context.Context, timeout time.Duration, do func(ctx context.Context, tx *sqltx.Tx) error) error {
	for try := 1; ; try++ {
		err := l.tryTransact(ctx, timeout, do)
		if err == nil || !sqltx.IsRetryable(err) { // an error is not retryable if the outcome is unknown, or ctx had ended before the try
			return err
		}
		l.metrics.retries.Inc()
		if try == maxTries {
			return stock.Busy(err)
		}
		retry.Wait(ctx, try)
	}
}

// tryTransact runs do in a transaction, once.
func (l *Ledger) tryTransact(ctx context.Context, timeout time.Duration, do func(ctx context.Context, tx *sqltx.Tx) error) (err error) {
	ctx, span := l.tracer.Start(ctx, "ledger.transaction")
	defer func() {
		if span.Recorded() {
			if kind := kindOf(err); kind != "" { // otherwise do refused, or the database cannot be reached
				span.Fail(kind)
			}
		}
		span.End()
	}()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return l.db.Transact(ctx, func(tx *sqltx.Tx) error { return do(ctx, tx) })
}
