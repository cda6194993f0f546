// Package journal commits queued orders: it brings every order in a gate's journal
// to one final row of the ledger. docs/protocol.md has the rules that it follows.
package journal

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
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
	// workers is the number of batches at once, so that one gathers while the
	// other commits. maxBatch bounds the orders in each.
	workers, maxBatch = 2, 256
	// readWait is how long a worker waits for an order before it looks again for
	// orders that other consumers have left. A read cannot be interrupted, so a process
	// that stops waits as long.
	readWait = 200 * time.Millisecond
	// maxIdle is how long an order may be with a consumer that does not finish it,
	// before another one claims it. It is the time that the orders of a killed
	// instance wait.
	maxIdle = 5 * time.Second
	// claimPause is the pause between two looks for such orders. watchPause is the
	// pause between two measurements of the journal.
	claimPause, watchPause = time.Second, time.Second
	// prunePause is the pause between two removals of consumers that are gone.
	prunePause = time.Minute
	// commitTimeout bounds the work on one order after it was read, and what is
	// left to do when the consumer stops.
	commitTimeout = 10 * time.Second
	// patience is how long a worker waits for its orders before it asks which of them
	// wait for locked stock rows, and goes on without those.
	patience = time.Second
	// maxTries bounds how often one order in a batch meets a stale gate. Then it
	// waits for its next delivery.
	maxTries = 5
	// failurePause is the shortest pause after a batch that is not finished.
	failurePause = 50 * time.Millisecond
	// drainPause is the pause between two measurements of a journal that must become
	// empty.
	drainPause = 50 * time.Millisecond
)

// Ledger is what committing needs of the ledger.
type Ledger interface {
	// Record commits the order of a take, and returns its outcome.
	Record(ctx context.Context, t stock.Take) (order.Order, order.Outcome)
	// TurnDown records that a queued order is refused, and bars its ID.
	TurnDown(ctx context.Context, t stock.Take) order.Outcome
	// Order reads an order. order.ErrUnknownOrder: there is none.
	Order(ctx context.Context, id uuid.UUID) (*order.Order, error)
	// Locked returns those of the SKUs whose stock rows are locked by transactions. It
	// does not wait for them.
	Locked(ctx context.Context, skus []stock.SKU) ([]stock.SKU, error)
	// Generation returns the generation in use.
	Generation() stock.Generation
}

// Reconciler is what committing needs to remove what makes takes fail. See
// reconcile.Reconciler.
type Reconciler interface {
	Usable(ctx context.Context) error
	Mend(ctx context.Context, reason error, skus ...stock.SKU) error
	End(ctx context.Context, t stock.Take, out order.Outcome) order.Outcome
	GiveBack(ctx context.Context, t stock.Take) bool
}

// Placer places queued orders under new takes, and is told what consumers see.
type Placer interface {
	// PlaceQueued takes the units of a queued order again, at this instance's gate, and
	// records the order. The order's own take must not be committable any more. Whatever
	// the outcome, nothing is left to do for the units that PlaceQueued has taken.
	PlaceQueued(ctx context.Context, t stock.Take) order.Outcome
	// Learn is told why the ledger refused an order, and a time before the ledger was
	// asked.
	Learn(asked time.Time, reason error)
	// SawJournal is told the number of orders in another strategy's journal, or why it
	// did not answer, and the generation in use before it was asked.
	SawJournal(under stock.Generation, orders int64, err error)
}

// Consumer commits the queued orders of one journal, beside the consumers of other
// instances.
//
// Two consumers may work on the same order: one was slow, and the other claimed it.
// Both record the same take under the order's ID, so it is committed once. A take
// is given back only when the ledger has another row under the ID, or when the
// stock row's epoch has changed and the ledger does not have the order. Then no
// consumer can commit the take any more. If that row is a void order, the units are
// taken again, and the order takes its place.
//
// A foreign Consumer belongs to an instance whose strategy does not queue. The stock is
// that strategy's, so no take of the journal can be committed any more. It gives none
// of them back, because the counts that they were cut from are not in use. It places
// their orders again.
type Consumer struct {
	name       string // among the consumers of all instances
	orders     stock.QueuedOrders
	journal    stock.Journal // of the orders; nil if foreign
	placer     Placer
	ledger     Ledger
	reconciler Reconciler
	log        *slog.Logger
	metrics    *metrics
	tracer     *tracing.Tracer
	aside      aside
	held       sync.WaitGroup // of the batches whose last orders are held

	mu      sync.Mutex
	claimed time.Time // when the last look for orders of other consumers found none, or later
}

// New returns a Consumer of the journal. t may be nil.
func New(j stock.Journal, p Placer, l Ledger, r Reconciler, log *slog.Logger, registry prometheus.Registerer, t *tracing.Tracer) *Consumer {
	c := NewForeign(j, p, l, r, log, registry, t)
	c.journal = j
	return c
}

// NewForeign returns a Consumer of orders that another strategy has queued. t may be nil.
func NewForeign(q stock.QueuedOrders, p Placer, l Ledger, r Reconciler, log *slog.Logger, registry prometheus.Registerer, t *tracing.Tracer) *Consumer {
	return &Consumer{
		name: uuid.NewString(), orders: q, placer: p, ledger: l, reconciler: r,
		log: log, metrics: newMetrics(registry), tracer: t,
	}
}

// foreign reports whether another strategy has queued the orders.
func (c *Consumer) foreign() bool { return c.journal == nil }

// Start prepares the journal, and returns why orders cannot be queued. Call it before
// the first order is queued.
func (c *Consumer) Start(ctx context.Context) error { return c.orders.Open(ctx, c.name) }

// Run commits queued orders until ctx ends. Then it finishes the orders that it has
// read. Orders that it cannot finish are claimed by other consumers. Run returns at once
// if the store cannot keep a journal: then no order was ever queued.
//
// A foreign Consumer only measures the journal while no order is queued.
func (c *Consumer) Run(ctx context.Context) {
	if !c.foreign() {
		c.run(ctx)
		return
	}
	for ctx.Err() == nil {
		under := c.ledger.Generation()
		queued, err := c.measure(ctx)
		c.placer.SawJournal(under, queued, err)
		if queued > 0 && !errors.Is(c.reconciler.Usable(ctx), stock.ErrSuperseded) {
			c.log.Info("committing orders that another strategy has queued", "orders", queued)
			_, _ = c.Drain(ctx)
		}
		_ = retry.Sleep(ctx, watchPause)
	}
}

// Drain commits queued orders until none is left or ctx ends. It returns the number of
// orders that are left, or why it is unknown.
func (c *Consumer) Drain(ctx context.Context) (left int64, err error) {
	running, stop := context.WithCancel(ctx)
	var consuming sync.WaitGroup
	consuming.Go(func() { c.run(running) })
	defer consuming.Wait()
	defer stop()
	for {
		left, _, err = c.orders.Backlog(context.WithoutCancel(ctx))
		if err == nil && left == 0 || ctx.Err() != nil {
			return left, err
		}
		_ = retry.Sleep(ctx, drainPause)
	}
}

func (c *Consumer) run(ctx context.Context) {
	if err := c.Start(ctx); errors.Is(err, stock.ErrNoJournal) {
		c.log.Info("orders cannot be queued here", "error", err)
		return
	}
	var loops sync.WaitGroup
	for range workers {
		loops.Go(func() { c.consume(ctx) })
	}
	loops.Go(func() { c.watch(ctx) })
	loops.Wait()
	c.held.Wait()
	c.leave(ctx, c.name)
}

// consume reads batches and brings their orders to an end.
func (c *Consumer) consume(ctx context.Context) {
	for failed := 0; ctx.Err() == nil; { // in a row
		takes, err := c.next(ctx)
		if ctx.Err() == nil && err != nil {
			c.log.Warn("reading queued orders failed and will be retried", "error", err)
		}
		if c.finish(ctx, takes) && err == nil {
			failed = 0
			continue
		}
		failed++
		c.letOthersClaim()
		_ = retry.Sleep(ctx, failurePause+retry.Jitter(failurePause, failed))
	}
}

// next returns the next batch: orders that were set aside, those that other consumers have
// left, or new ones. It may be empty.
func (c *Consumer) next(ctx context.Context) ([]stock.Take, error) {
	if err := c.reconciler.Usable(ctx); err != nil {
		if errors.Is(err, stock.ErrSuperseded) { // the instances that sell now commit the orders
			return nil, retry.Sleep(ctx, claimPause)
		}
		return nil, err
	}
	if takes := c.aside.resume(maxBatch); len(takes) > 0 {
		return takes, nil
	}
	if c.claimDue() {
		takes, err := c.orders.Claim(ctx, c.name, maxBatch, maxIdle)
		if free := c.aside.admit(takes); len(free) > 0 || err != nil {
			return free, err
		}
		if len(takes) == 0 { // otherwise all are set aside, and new orders must not wait for them
			c.claimsAfter(0)
		}
	}
	takes, err := c.orders.Read(ctx, c.name, maxBatch, readWait)
	return c.aside.admit(takes), err
}

func (c *Consumer) claimDue() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Since(c.claimed) >= claimPause
}

// letOthersClaim keeps this consumer from claiming for a while, after it could not
// finish orders: perhaps only its own connections are broken, and the consumers of
// other instances can finish them.
func (c *Consumer) letOthersClaim() {
	c.claimsAfter(maxIdle)
}

// claimsAfter makes the next look for orders of other consumers due after d and a
// claimPause, or later.
func (c *Consumer) claimsAfter(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if at := time.Now().Add(d); at.After(c.claimed) { // another worker may have failed meanwhile
		c.claimed = at
	}
}

// end is how a queued order ended.
type end struct {
	take   stock.Take // the last take that is known of the order
	became string     // one of the constants below
	err    error      // it has not ended
}

// How a queued order can end.
const (
	committed = "committed"
	refused   = "refused"
	duplicate = "duplicate" // the ledger has its ID already: it was a retry of an order that had ended
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
	t, out := c.commit(ctx, t)
	found, exists := out.Duplicate()
	switch {
	case exists && found.Status == order.Void: // its key has passed it, but this order was acknowledged and must not vanish
	case exists: // the ID belongs to another take's order, or to a row that is none
		return c.given(ctx, t, duplicate)
	case out.Committed():
		return end{take: t, became: committed}
	case out.Unknown() || !final(out.Reason()):
		return end{take: t, err: out.Reason()}
	default:
		if errors.Is(out.Reason(), ledger.ErrRejected) {
			c.log.Error("a queued order cannot be recorded, and is refused", "order", t.OrderID, "error", out.Reason())
		}
		c.placer.Learn(asked, out.Reason())
	}
	// The refused row goes first. It bars the ID, so that no other consumer can
	// commit the take after it is given back.
	switch down := c.ledger.TurnDown(ctx, t); {
	case down.Unknown():
		return end{take: t, err: down.Reason()}
	case down.Committed(): // another consumer was faster
		return end{take: t, became: committed}
	}
	e := c.given(ctx, t, refused)
	if e.err == nil && !c.foreign() {
		c.reconciler.End(ctx, t, out) // refills the gate if the guard has refused what the gate admitted
	}
	return e
}

// given gives the take back and ends the order.
func (c *Consumer) given(ctx context.Context, t stock.Take, became string) end {
	if !c.foreign() && !c.reconciler.GiveBack(ctx, t) {
		return end{take: t, err: errNotGiven}
	}
	return end{take: t, became: became}
}

var errNotGiven = errors.New("the take could not be given back")

// commit commits the take's order, under this take or another one. It returns the last
// take that the journal has, and the order's outcome.
func (c *Consumer) commit(ctx context.Context, t stock.Take) (stock.Take, order.Outcome) {
	if c.foreign() {
		return t, c.placer.PlaceQueued(ctx, t)
	}
	t, out := c.record(ctx, t)
	if found, exists := out.Duplicate(); !exists || !found.Replaceable() {
		return t, out
	}
	if !c.reconciler.GiveBack(ctx, t) { // the void order bars the take
		return t, order.Unknown(errNotGiven)
	}
	return t, c.placer.PlaceQueued(ctx, t)
}

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
		if err := c.reconciler.Mend(ctx, out.Reason(), stock.SKUsOf(t)...); err != nil {
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
		case stock.Reconcilable(err): // the next try mends it
		case stock.NothingTaken(err):
			return t, order.Refused(err)
		default: // the next delivery finds the take that the journal has
			return t, order.Unknown(err)
		}
	}
}

// committedBefore finds out whether the ledger has an order whose take's epoch is
// stale: another consumer may have committed it before the epoch changed. Refused:
// it has not, and the take can no longer be committed.
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

// takeAgain gives the take back, which can no longer be committed, and takes the
// order's units again.
func (c *Consumer) takeAgain(ctx context.Context, t stock.Take) (stock.Take, error) {
	if !c.reconciler.GiveBack(ctx, t) {
		return t, errNotGiven
	}
	again, err := c.journal.Requeue(ctx, t, uuid.New())
	if err != nil {
		return t, fmt.Errorf("taking the units again: %w", err)
	}
	return again, nil
}

// final reports whether a refusal for the reason stands. Other refusals may pass:
// the order is tried again.
func final(reason error) bool {
	return errors.Is(reason, ledger.ErrRejected) || errors.As(reason, new(*stock.Refusal)) && !stock.Reconcilable(reason)
}

// watch measures the journal, gives lost orders a new place, and removes consumers that
// are gone, until ctx ends.
func (c *Consumer) watch(ctx context.Context) {
	for pruned := time.Now(); ctx.Err() == nil; {
		_, _ = c.measure(ctx)
		lost, err := c.orders.Redeliver(ctx)
		if lost > 0 {
			c.log.Warn("the journal had lost the places of queued orders; they are delivered again", "orders", lost)
		}
		if err != nil && ctx.Err() == nil {
			c.log.Warn("looking for queued orders without a place failed", "error", err)
		}
		if time.Since(pruned) > prunePause {
			pruned = time.Now()
			c.leave(ctx, nobody)
		}
		_ = retry.Sleep(ctx, watchPause)
	}
}

// measure sets the metrics of the journal, and returns the number of queued orders.
func (c *Consumer) measure(ctx context.Context) (queued int64, err error) {
	queued, oldest, err := c.orders.Backlog(ctx)
	if err == nil {
		c.metrics.length.Set(float64(queued))
		c.metrics.oldest.Set(oldest.Seconds())
	}
	if err != nil && ctx.Err() == nil {
		c.log.Warn("measuring the journal failed", "error", err)
	}
	return queued, err
}

// nobody is no consumer's name.
const nobody = ""

// leave removes the consumer of that name, and all that are gone, from the journal.
func (c *Consumer) leave(ctx context.Context, name string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
	defer cancel()
	if err := c.orders.Leave(ctx, name); err != nil {
		c.log.Warn("removing consumers from the journal failed", "error", err)
	}
}
