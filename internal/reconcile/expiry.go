package reconcile

import (
	"context"
	"time"

	"github.com/holdfast-stock/holdfast/internal/ledger"
)

// expiryJob is the name of the job that expires orders.
const expiryJob = "expiry"

const (
	// expiryPause is the pause after a read that found no due orders. It is also the longest pause
	// after a batch.
	expiryPause = time.Second
	// expiryBatch bounds the orders of one batch. A batch locks stock rows for about as long as a
	// large group of orders does. A batch that locks them for longer than slowBatch is
	// too slow.
	expiryBatch, slowBatch = 100, 50 * time.Millisecond
	// expiryShare bounds the time that expiry uses during a backlog: to one part in expiryShare.
	// The rest is left to orders.
	expiryShare = 5
	// countPause is the shortest pause between two counts of due orders and payments. maxBacklog
	// and maxRefunds bound the counts.
	countPause, maxBacklog, maxRefunds = 5 * time.Second, 10_001, 1001
	// expiryTimeout bounds one batch, and the delivery of its units.
	expiryTimeout = 10 * time.Second
)

// expiry is the job that expires orders. It is not safe for concurrent use.
type expiry struct {
	*Reconciler
	round   ledger.ExpiryRound // state of the current round
	counted time.Time          // time of the last count
}

// keepExpiring expires orders, whenever no other instance does, until ctx ends.
func (r *Reconciler) keepExpiring(ctx context.Context) {
	e := &expiry{Reconciler: r}
	r.jobs.run(ctx, expiryJob, e.step, func() {
		r.metrics.backlog.Set(0)
		r.metrics.oldest.Set(0)
		r.metrics.failed.Set(0)
		r.metrics.refundsDue.Set(0)
		r.metrics.oldestRefund.Set(0)
	})
}

// step expires one batch and brings its units to the gate.
func (e *expiry) step(ctx context.Context, held ledger.Job) (pause time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, expiryTimeout)
	defer cancel()
	start := time.Now()
	done, err := e.ledger.Expire(ctx, held, &e.round, expiryBatch)
	defer func() { e.trace(ctx, "job.expiry", start, done.Expired+done.Failed, err) }()
	if err != nil {
		return 0, err
	}
	e.metrics.expired.Add(float64(done.Expired))
	if done.Locked > slowBatch {
		e.metrics.slowExpiries.Inc()
	}
	if e.onReturn != nil {
		e.onReturn(done.SKUs...)
	}
	e.BringToGate(ctx, done.Returned...)
	if done.Failed > 0 || !done.More {
		e.metrics.failed.Set(float64(done.Failed))
	}
	if time.Since(e.counted) >= countPause {
		e.count(ctx)
	}
	if !done.More {
		return expiryPause, nil
	}
	return min((expiryShare-1)*time.Since(start), expiryPause), nil
}

// count sets the metrics of due orders, and of payments that must be paid back. Only the instance
// that expires orders counts, so that they are counted once.
func (e *expiry) count(ctx context.Context) {
	orders, oldest, err := e.ledger.Due(ctx, maxBacklog)
	if err != nil {
		e.log.Warn("counting the orders that are due failed", "error", err)
		return
	}
	e.metrics.backlog.Set(float64(orders))
	e.metrics.oldest.Set(oldest.Seconds())
	payments, oldest, err := e.ledger.RefundsDue(ctx, maxRefunds)
	if err != nil {
		e.log.Warn("counting the payments that are due back to their buyers failed", "error", err)
		return
	}
	e.metrics.refundsDue.Set(float64(payments))
	e.metrics.oldestRefund.Set(oldest.Seconds())
	e.counted = time.Now()
}
