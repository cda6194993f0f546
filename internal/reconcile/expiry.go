package reconcile

import (
	"context"
	"time"

	"github.com/holdfast-stock/holdfast/internal/ledger"
)

// expiryJob is the name of the job that expires orders.
const expiryJob = "expiry"

const (
	// expiryPause is the pause between two reads of orders that are due, when there
	// are none. It is also the longest pause after a batch.
	expiryPause = time.Second
	// minExpiryBatch and maxExpiryBatch bound the orders of one batch.
	minExpiryBatch, maxExpiryBatch = 64, 500
	// A batch that holds the stock rows for longer than longLock is followed by
	// one of half the size. After a batch below shortLock, the size grows by a
	// quarter. That keeps batches below maxLock, the longest that a sale may wait.
	shortLock, longLock, maxLock = 12 * time.Millisecond, 25 * time.Millisecond, 50 * time.Millisecond
	// expiryShare is the number of parts of the time of which expiry uses one,
	// while there is a backlog. The rest is left to orders.
	expiryShare = 4
	// backlogPause is the shortest pause between two counts of the backlog, and
	// maxBacklog bounds the count.
	backlogPause, maxBacklog = 2 * time.Second, 10_001
	// refundsPause is the shortest pause between two counts of the payments that are
	// due back to their buyers, and maxRefunds bounds the count.
	refundsPause, maxRefunds = 10 * time.Second, 1001
	// expiryTimeout bounds one batch, and the delivery of its units.
	expiryTimeout = 10 * time.Second
)

// expiry is the job that expires orders. It is for one goroutine.
type expiry struct {
	*Reconciler
	batch   int                // the size of the next batch
	round   ledger.ExpiryRound // where the next batch begins
	counted time.Time          // when the backlog was last counted
	refunds time.Time          // when the payments that are due back were last counted
}

// keepExpiring expires orders, whenever no other instance does, until ctx ends.
func (r *Reconciler) keepExpiring(ctx context.Context) {
	e := &expiry{Reconciler: r, batch: minExpiryBatch}
	r.jobs.run(ctx, expiryJob, e.step, func() {
		e.round = ledger.ExpiryRound{}
		r.metrics.backlog.Set(0)
		r.metrics.oldest.Set(0)
		r.metrics.failed.Set(0)
		e.refunds = time.Time{}
		r.metrics.refundsDue.Set(0)
		r.metrics.oldestRefund.Set(0)
	})
}

// step expires one batch and brings its units to the gate.
func (e *expiry) step(ctx context.Context, held ledger.Job) (pause time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, expiryTimeout)
	defer cancel()
	start := time.Now()
	done, err := e.ledger.Expire(ctx, held, &e.round, e.batch)
	defer func() { e.trace(ctx, "job.expiry", start, done.Expired+done.Failed, err) }()
	if err != nil {
		e.batch = max(e.batch/2, minExpiryBatch)
		return 0, err
	}
	e.metrics.expired.Add(float64(done.Expired))
	if done.Locked > maxLock {
		e.metrics.slowExpiries.Inc()
	}
	e.Returned(ctx, done.SKUs...)
	e.metrics.failed.Set(float64(done.Failed))
	more := done.Found == e.batch
	e.measure(ctx, done, more || done.Left > 0)
	e.measureRefunds(ctx)
	e.resize(done.Locked, more)
	if !more {
		return expiryPause, nil
	}
	return min((expiryShare-1)*time.Since(start), expiryPause), nil
}

// resize chooses the size of the next batch from the time for which this one held
// the stock rows. full says that this one was of the full size.
func (e *expiry) resize(locked time.Duration, full bool) {
	switch {
	case locked > longLock:
		e.batch /= 2
	case locked < shortLock && full:
		e.batch += e.batch / 4
	}
	e.batch = min(max(e.batch, minExpiryBatch), maxExpiryBatch)
}

// measure sets the metrics of the backlog. more says that the batch did not include
// all orders that were due, or left some of them.
func (e *expiry) measure(ctx context.Context, done ledger.Expiry, more bool) {
	if !more {
		e.metrics.backlog.Set(0)
		e.metrics.oldest.Set(0)
		return
	}
	e.metrics.oldest.Set(done.Oldest.Seconds())
	if time.Since(e.counted) < backlogPause {
		return
	}
	n, err := e.ledger.Due(ctx, maxBacklog)
	if err != nil {
		e.log.Warn("measuring the backlog of orders that are due failed", "error", err)
		return
	}
	e.metrics.backlog.Set(float64(n))
	e.counted = time.Now()
}

// measureRefunds sets the metrics of the payments that are due back to their buyers.
// The instance that expires orders does so, because it is one of all.
func (e *expiry) measureRefunds(ctx context.Context) {
	if time.Since(e.refunds) < refundsPause {
		return
	}
	n, oldest, err := e.ledger.RefundsDue(ctx, maxRefunds)
	if err != nil {
		e.log.Warn("counting the payments that are due back to their buyers failed", "error", err)
		return
	}
	e.metrics.refundsDue.Set(float64(n))
	e.metrics.oldestRefund.Set(oldest.Seconds())
	e.refunds = time.Now()
}
