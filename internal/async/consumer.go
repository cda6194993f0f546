// Package async acknowledges orders before the ledger has them. A Queue puts them into a
// journal in Redis, and a Consumer brings each to one final row of the ledger.
// docs/protocol.md has the rules that it follows.
package async

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-stock/holdfast/internal/ledger"
	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/retry"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/tracing"
)

const (
	// maxBatch bounds the orders that one call to the journal reads or finishes.
	maxBatch = 256
	// readWait is how long a consumer waits for an order before it looks again for orders that
	// other consumers have left. A read cannot be interrupted, so stopping a process takes up to
	// this long.
	readWait = 200 * time.Millisecond
	// maxIdle is how long an order may be with a consumer that does not finish it, before another
	// one claims it. The orders of a killed instance wait for this time.
	maxIdle = 5 * time.Second
	// claimPause is the pause between two searches for orders that other consumers have left, if
	// the first has found none, or if orders fail. watchPause is the pause between two measurements
	// of the journal.
	claimPause, watchPause = time.Second, time.Second
	// prunePause is the pause between two removals of consumers that are gone.
	prunePause = time.Minute
	// commitTimeout bounds the work on one order after it was read, and the work left when the
	// consumer stops.
	commitTimeout = 10 * time.Second
	// maxTries bounds how often one order meets a stale gate. After that, the order waits for its
	// next delivery.
	maxTries = 5
	// failurePause is the shortest pause after an order that is not finished.
	failurePause = 50 * time.Millisecond
)

// Ledger is the part of the ledger that Queue and Consumer use.
type Ledger interface {
	// Record commits the order of a take, and returns its outcome.
	Record(ctx context.Context, t stock.Take) (order.Order, order.Outcome)
	// RecordRefusal records that a queued order is refused. The row blocks the order's ID. A
	// refused outcome means that the take is not committed and never will be.
	RecordRefusal(ctx context.Context, t stock.Take) order.Outcome
	// Order reads an order. It returns order.ErrUnknownOrder if there is none.
	Order(ctx context.Context, id uuid.UUID) (*order.Order, error)
	// Now returns the ledger's time, or an estimate if its clock is unknown.
	Now() time.Time
}

// Reconciler ends takes and removes the causes of failed ones. See reconcile.Reconciler.
type Reconciler interface {
	Usable(ctx context.Context) error
	PrepareRetry(ctx context.Context, reason error, skus ...stock.SKU) error
	CatchUp(ctx context.Context, skus ...stock.SKU) error
	GiveBack(ctx context.Context, t stock.Take) bool
	AfterRefusal(ctx context.Context, t stock.Take, reason error)
}

// Consumer commits the queued orders of one journal, beside the consumers of other instances.
//
// Two consumers may work on the same order, if one was slow and the other claimed it. Both record
// the same take under the order's ID, so it is committed once. A take is given back only when the
// ledger has another row under the ID, or when the stock row's epoch has changed and the ledger
// does not have the order. Then no consumer can commit the take any more. If the row under the ID
// is a void order, the queued order ends as refused. Such a void order comes from an instance of
// another strategy, or from recovery after Redis had lost an earlier order of the key.
type Consumer struct {
	name       string // among the consumers of all instances
	journal    Journal
	learn      func(asked time.Time, reason error)
	ledger     Ledger
	reconciler Reconciler
	log        *slog.Logger
	metrics    *metrics
	tracer     *tracing.Tracer
	underWay   *underWay
}

// NewConsumer returns a Consumer of the journal. For each order that the ledger refuses, it calls
// learn with the reason and a time before the request to the ledger. t may be nil.
func NewConsumer(j Journal, l Ledger, r Reconciler, learn func(asked time.Time, reason error), log *slog.Logger, registry prometheus.Registerer, t *tracing.Tracer) *Consumer {
	return &Consumer{
		name: uuid.NewString(), journal: j, learn: learn, ledger: l, reconciler: r,
		log: log, metrics: newMetrics(registry), tracer: t, underWay: newUnderWay(),
	}
}

// Start prepares the journal, and returns an error if orders cannot be queued. Call it before the
// first order is queued.
func (c *Consumer) Start(ctx context.Context) error { return c.journal.Open(ctx, c.name) }

// Run commits queued orders until ctx ends. Then it finishes the orders that it has
// read. Orders that it cannot finish are claimed by other consumers.
func (c *Consumer) Run(ctx context.Context) {
	var watching, finishing, working sync.WaitGroup
	watching.Go(func() { c.watch(ctx) })
	ends, failures := make(chan end, maxUnderWay), &failures{}
	finishing.Go(func() { c.finishAll(ctx, ends, failures) })
	c.consume(ctx, failures, func(t stock.Take) {
		working.Go(func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
			defer cancel()
			ends <- c.trace(ctx, t)
		})
	})
	working.Wait()
	close(ends)
	finishing.Wait()
	watching.Wait()
	c.leave(ctx, c.name)
}

// Queued returns the number of orders that have not ended.
func (c *Consumer) Queued(ctx context.Context) (int64, error) {
	queued, _, err := c.journal.Backlog(ctx)
	return queued, err
}

// failures counts consecutive failures. It is safe for concurrent use.
type failures struct{ inRow atomic.Int64 }

func (f *failures) note(failed bool) {
	if failed {
		f.inRow.Add(1)
	} else {
		f.inRow.Store(0)
	}
}

// consume begins each order that the journal delivers, until ctx ends. After a failure it
// pauses.
func (c *Consumer) consume(ctx context.Context, failures *failures, begin func(stock.Take)) {
	var looked time.Time // for orders that other consumers have left
	for ctx.Err() == nil {
		failed := failures.inRow.Load()
		if failed > 0 {
			_ = retry.Sleep(ctx, failurePause+retry.Jitter(failurePause, int(failed)))
		}
		claim := time.Since(looked) >= claimPause
		takes, more, err := c.next(ctx, claim)
		if claim && (!more || failed > 0) { // while orders fail, new ones must not wait for those of others
			looked = time.Now()
		}
		if ctx.Err() == nil && err != nil {
			c.log.Warn("reading queued orders failed and will be retried", "error", err)
			failures.note(true)
		} else if len(takes) == 0 {
			failures.note(false) // so that a new order does not wait
		}
		for _, t := range takes {
			begin(t)
		}
	}
}

// next returns orders to begin: those that other consumers have left, if claim is true, or
// new ones. There may be none. more means that others may have left more.
func (c *Consumer) next(ctx context.Context, claim bool) (takes []stock.Take, more bool, err error) {
	if err := c.reconciler.Usable(ctx); err != nil {
		if errors.Is(err, stock.ErrSuperseded) { // the instances that sell now commit the orders
			return nil, false, retry.Sleep(ctx, claimPause)
		}
		return nil, false, err
	}
	limit := min(c.underWay.room(ctx), maxBatch)
	if limit == 0 {
		return nil, false, nil
	}
	if claim {
		takes, err := c.journal.Claim(ctx, c.name, limit, maxIdle)
		if takes = c.underWay.begin(takes); len(takes) > 0 || err != nil {
			return takes, err == nil, err
		}
	}
	takes, err = c.journal.Read(ctx, c.name, limit, readWait)
	return c.underWay.begin(takes), false, err
}

// finishAll removes the orders that have ended from the journal, until ends is closed.
func (c *Consumer) finishAll(ctx context.Context, ends <-chan end, failures *failures) {
	for first := range ends {
		some := []end{first}
		for len(some) < maxBatch && len(ends) > 0 { // no other goroutine receives
			some = append(some, <-ends)
		}
		failures.note(!c.finish(ctx, some))
		c.underWay.end(some)
	}
}

// finish removes the orders that have ended from the journal, and reports whether all
// have.
func (c *Consumer) finish(ctx context.Context, ends []end) (all bool) {
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
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
	defer cancel()
	if err := c.journal.Finish(ctx, ended...); err != nil {
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

// end is how a queued order ended.
type end struct {
	take   stock.Take // the last take that is known of the order
	became string     // one of the constants below
	err    error      // why the order has not ended
}

// The ways in which a queued order can end.
const (
	committed = "committed"
	refused   = "refused"
	duplicate = "duplicate" // the ledger has the order's ID already: a retry of an order that had ended
)

// trace is end in the trace of the request that queued the order.
func (c *Consumer) trace(ctx context.Context, t stock.Take) end {
	ctx, span := c.tracer.Continue(ctx, t.Trace, "journal.commit")
	defer span.End()
	e := c.end(ctx, t)
	if span.Recorded() {
		span.Text("holdfast.order.id", t.OrderID.String())
		span.Text("holdfast.outcome", cmp.Or(e.became, "unfinished"))
	}
	return e
}

// end brings one order to its end in the ledger. Its units are then committed, or
// given back.
func (c *Consumer) end(ctx context.Context, t stock.Take) end {
	asked := time.Now()
	t, out := c.record(ctx, t)
	found, exists := out.Duplicate()
	switch {
	case exists && found.Status == order.Void: // this order was acknowledged and must not vanish: it is refused
	case exists: // the ID belongs to another take's order, or to a row that is not an order
		return c.given(ctx, t, duplicate)
	case out.Committed():
		return end{take: t, became: committed}
	case out.Unknown() || !final(out.Reason()):
		return end{take: t, err: out.Reason()}
	default:
		if errors.Is(out.Reason(), ledger.ErrRejected) {
			c.log.Error("a queued order cannot be recorded, and is refused", "order", t.OrderID, "error", out.Reason())
		}
		c.learn(asked, out.Reason())
	}
	// The refused row is written first. It blocks the order's ID, so no other consumer
	// can commit the take after it is given back.
	switch down := c.ledger.RecordRefusal(ctx, t); {
	case down.Unknown():
		return end{take: t, err: down.Reason()}
	case down.Committed(): // another consumer was faster
		return end{take: t, became: committed}
	}
	e := c.given(ctx, t, refused)
	if e.err == nil && !errors.Is(out.Reason(), errTakingAgain) { // the ledger refused the order, not the gate
		c.reconciler.AfterRefusal(ctx, t, out.Reason())
	}
	return e
}

// given gives the take back and ends the order.
func (c *Consumer) given(ctx context.Context, t stock.Take, became string) end {
	if !c.reconciler.GiveBack(ctx, t) {
		return end{take: t, err: errNotGiven}
	}
	return end{take: t, became: became}
}

var errNotGiven = errors.New("the take could not be given back")

// record commits the take's order. If the take's epoch is stale, it takes the units
// again. It returns the last take and its outcome.
func (c *Consumer) record(ctx context.Context, t stock.Take) (stock.Take, order.Outcome) {
	for try := 1; ; try++ {
		_, out := c.ledger.Record(ctx, t)
		if out.Unknown() && try < maxTries && ctx.Err() == nil {
			retry.Wait(ctx, try) // recording a take twice commits it once
			continue
		}
		if !out.Refused() || !stock.Reconcilable(out.Reason()) || try == maxTries {
			return t, out
		}
		if err := c.reconciler.PrepareRetry(ctx, out.Reason(), stock.SKUsOf(t)...); err != nil {
			return t, order.Refused(err)
		}
		if !errors.Is(out.Reason(), stock.ErrStaleEpoch) {
			retry.Wait(ctx, try)
			continue
		}
		if out := c.committedBefore(ctx, t); !out.Refused() {
			return t, out
		}
		again, err := c.takeAgain(ctx, t)
		switch {
		case err == nil:
			t = again
		case stock.Reconcilable(err): // the next try removes the cause
			retry.Wait(ctx, try)
		case stock.NothingTaken(err):
			return t, order.Refused(err)
		default: // the next delivery finds the take that the journal has
			return t, order.Unknown(err)
		}
	}
}

// committedBefore finds out whether the ledger has an order whose take's epoch is stale: another
// consumer may have committed it before the epoch changed. A refused outcome means that the ledger
// has no such order, and that the take can no longer be committed.
func (c *Consumer) committedBefore(ctx context.Context, t stock.Take) order.Outcome {
	found, err := c.ledger.Order(ctx, t.OrderID)
	switch {
	case errors.Is(err, order.ErrUnknownOrder):
		return order.Refused(err)
	case err != nil:
		return order.Unknown(err)
	case found.Holds(t.TakeID):
		return order.Committed()
	}
	return order.Duplicate(found)
}

// takeAgain gives the take back, because it can no longer be committed, and takes the order's units
// again.
func (c *Consumer) takeAgain(ctx context.Context, t stock.Take) (stock.Take, error) {
	if !c.reconciler.GiveBack(ctx, t) {
		return t, errNotGiven
	}
	again, err := c.journal.Requeue(ctx, t, uuid.New())
	if errors.Is(err, stock.ErrSoldOut) { // added or returned units may not have reached the gate
		if err := c.reconciler.CatchUp(ctx, t.SKUs()...); err != nil {
			return t, err
		}
		again, err = c.journal.Requeue(ctx, t, uuid.New())
	}
	if err != nil {
		return t, fmt.Errorf("%w: %w", errTakingAgain, err)
	}
	return again, nil
}

var errTakingAgain = errors.New("taking the units again")

// final reports whether a refusal for the reason is final. An order that is refused for another
// reason is tried again.
func final(reason error) bool {
	return errors.Is(reason, ledger.ErrRejected) || errors.As(reason, new(*stock.Refusal)) && !stock.Reconcilable(reason)
}

// watch measures the journal, delivers lost orders again, and removes consumers that have been
// inactive for long, until ctx ends.
func (c *Consumer) watch(ctx context.Context) {
	for pruned := time.Now(); ctx.Err() == nil; {
		c.measure(ctx)
		lost, err := c.journal.Redeliver(ctx)
		if lost > 0 {
			c.log.Warn("the journal had lost the messages of queued orders; they are delivered again", "orders", lost)
		}
		if err != nil && ctx.Err() == nil {
			c.log.Warn("looking for queued orders without a message failed", "error", err)
		}
		if time.Since(pruned) > prunePause {
			pruned = time.Now()
			c.leave(ctx, nobody)
		}
		_ = retry.Sleep(ctx, watchPause)
	}
}

// measure sets the metrics of the journal.
func (c *Consumer) measure(ctx context.Context) {
	queued, oldest, err := c.journal.Backlog(ctx)
	if err == nil {
		c.metrics.length.Set(float64(queued))
		c.metrics.oldest.Set(oldest.Seconds())
	}
	if err != nil && ctx.Err() == nil {
		c.log.Warn("measuring the journal failed", "error", err)
	}
}

// nobody is not the name of any consumer.
const nobody = ""

// leave removes the consumer of that name from the journal, and all consumers that have been
// inactive for a long time.
func (c *Consumer) leave(ctx context.Context, name string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
	defer cancel()
	if err := c.journal.Leave(ctx, name); err != nil {
		c.log.Warn("removing consumers from the journal failed", "error", err)
	}
}
