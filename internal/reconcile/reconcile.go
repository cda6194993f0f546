// Package reconcile repairs inconsistencies between gate and ledger after crashes, lost answers and
// data loss in Redis. It ends takes, refills counts, delivers additions, recovers takes left in
// flight, expires orders, and keeps the instance under the ledger's generation. docs/protocol.md
// has the rules that it follows.
package reconcile

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/singleflight"

	"github.com/holdfast-stock/holdfast/internal/group"
	"github.com/holdfast-stock/holdfast/internal/ledger"
	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/ratelimit"
	"github.com/holdfast-stock/holdfast/internal/retry"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/tracing"
)

const (
	// checkPause is the pause between two checks of the generation and of the database's clock.
	checkPause = time.Second
	// compensationTimeout bounds the compensation and the refill for one request.
	// They do not run on the request's context, which may have ended.
	compensationTimeout = 5 * time.Second
)

// Ledger is the part of the ledger that Reconciler uses.
type Ledger interface {
	// Generation, Use, Owner, Beat and RaiseGeneration read and change the owner of the stock.
	Generation() stock.Generation
	Use(g stock.Generation)
	Owner(ctx context.Context) (ledger.Owner, error)
	Beat(ctx context.Context) (ledger.Owner, error)
	RaiseGeneration(ctx context.Context, seen, next ledger.Owner) error

	// Row, Rows, RowsOf, RaiseEpoch and RaiseEpochs read and renew stock rows.
	Row(ctx context.Context, sku stock.SKU) (ledger.StockRow, error)
	Rows(ctx context.Context, after stock.SKU, limit int) ([]ledger.StockRow, error)
	RowsOf(ctx context.Context, skus []stock.SKU) ([]ledger.StockRow, error)
	RaiseEpoch(ctx context.Context, sku stock.SKU, seen, above int64) (ledger.StockRow, error)
	RaiseEpochs(ctx context.Context, seen []ledger.StockRow, above int64) ([]ledger.StockRow, error)

	// Changes and Applied read and clear the outbox.
	Changes(ctx context.Context, sku stock.SKU, after stock.Change) (changes []stock.Change, last bool, err error)
	Applied(ctx context.Context, changes ...stock.Change) error

	// Resolve finds the outcome of a take whose commit outcome is unknown.
	Resolve(ctx context.Context, d stock.Deduction) order.Outcome

	// MeasureClock and ClockKnown measure the database's clock.
	MeasureClock(ctx context.Context) error
	ClockKnown() error

	// Expire and Due expire and count orders whose payment window has ended.
	Expire(ctx context.Context, held ledger.Job, round *ledger.ExpiryRound, limit int) (ledger.Expiry, error)
	Due(ctx context.Context, limit int) (n int, oldest time.Duration, err error)

	// RefundsDue counts payments that must be paid back to their buyers.
	RefundsDue(ctx context.Context, limit int) (n int, oldest time.Duration, err error)

	JobLedger
	AuditLedger
}

var _ Ledger = (*ledger.Ledger)(nil)

// Counter is the part of gate.Counter that Reconciler uses.
type Counter interface {
	// Use, Load, Loaded, Mark and SetMark manage the generation that the counter runs under.
	Use(g stock.Generation)
	Load(ctx context.Context, g stock.Generation) error
	Loaded(ctx context.Context) (bool, error)
	Mark(ctx context.Context) (stock.Mark, error)
	SetMark(ctx context.Context, m stock.Mark) error

	// FillAll, Adjust, Level and Segments change and read counts.
	FillAll(ctx context.Context, fills []stock.Fill) []error
	Adjust(ctx context.Context, c stock.Change) error
	Level(ctx context.Context, skus ...stock.SKU) ([]stock.Level, error)
	Segments(ctx context.Context, sku stock.SKU) ([]stock.Level, error)

	// Settle, Give, InFlight and ScanInFlight end and list takes.
	Settle(ctx context.Context, takes ...stock.Take) error
	Give(ctx context.Context, t stock.Take) error
	InFlight(ctx context.Context, limit int, skus ...stock.SKU) ([]stock.Take, error)
	ScanInFlight(ctx context.Context, olderThan time.Duration, cursor string) (takes []stock.Take, next string, err error)
}

// Options configure a Reconciler.
type Options struct {
	// Layout names the settings on which instances must agree to sell the same stock.
	Layout string
	// Queues says that the strategy acknowledges orders before the ledger has them. The ledger
	// records this, and no other strategy takes over the stock until Release.
	Queues bool
	// TakeDeadline is how long a take may be in flight before recovery resolves it. A deadline
	// shorter than a request is safe, but makes requests take their units twice.
	TakeDeadline time.Duration
	// OnReturn is called after orders have expired and the units of these SKUs have
	// returned to stock. It may be nil.
	OnReturn func(skus ...stock.SKU)
	Log      *slog.Logger
	Metrics  prometheus.Registerer
	Tracer   *tracing.Tracer // nil: there are no traces
}

// Reconciler reconciles one gate with the ledger. Call Start before the first order, and Run
// while orders are placed. It is safe for concurrent use, and several instances may share the
// stores.
type Reconciler struct {
	counter      Counter // nil without a gate
	ledger       Ledger
	generations  *generations
	jobs         *jobs
	takeDeadline time.Duration
	onReturn     func(skus ...stock.SKU) // may be nil
	log          *slog.Logger
	metrics      *metrics
	tracer       *tracing.Tracer

	settles    *group.Batcher[*stock.Take]  // nil without a gate
	applied    *group.Batcher[stock.Change] // additions to clear from the outbox; nil without a gate
	refills    singleflight.Group
	limiter    *ratelimit.Limiter[stock.SKU] // of refills after guard refusals
	comparison comparison
	open       chan *openTake
}

// New returns a Reconciler. counter is nil if the strategy has no gate. The caller still owns
// counter and ledger.
func New(counter Counter, l Ledger, o Options) *Reconciler {
	m := newMetrics(o.Metrics, counter != nil)
	r := &Reconciler{
		counter: counter, ledger: l,
		generations:  &generations{ledger: l, counter: counter, layout: o.Layout, queues: o.Queues, log: o.Log, metrics: m},
		takeDeadline: o.TakeDeadline,
		onReturn:     o.OnReturn,
		log:          o.Log,
		metrics:      m,
		tracer:       o.Tracer,
		limiter:      ratelimit.New[stock.SKU](1, 1), // one a second
		comparison:   comparison{rechecks: make(map[stock.SKU]recheck)},
		open:         make(chan *openTake, maxOpenTakes),
	}
	r.jobs = &jobs{ledger: l, holder: newHolder(), superseded: &r.generations.superseded, log: o.Log, metrics: m.jobs}
	m.jobs.expect(expiryJob)
	if counter != nil {
		m.jobs.expect(outboxJob)
		m.jobs.expect(driftJob)
		r.settles = group.New(
			group.Limits{Size: maxSettles, Parallel: 1, Queue: maxSettleQueue},
			nil, func(waiting []*stock.Take) {
				takes := make([]stock.Take, len(waiting))
				for i, t := range waiting {
					takes[i] = *t
				}
				r.settleNow(takes...)
				time.Sleep(settlePause)
			})
		r.applied = group.New(group.Limits{Size: maxSettles, Parallel: 1, Queue: maxClearQueue}, nil, r.clear)
	}
	return r
}

// Holder returns the name of this instance as the holder of jobs.
func (r *Reconciler) Holder() string { return r.jobs.holder }

// Start takes over the stock for this instance's layout. Instances of another layout are refused
// from then on. Call it once, before the first order. It writes one row, whatever the number of
// SKUs.
//
// ErrQueuedOrders means that queued orders must be drained first.
func (r *Reconciler) Start(ctx context.Context) error {
	if err := r.ledger.MeasureClock(ctx); err != nil {
		return fmt.Errorf("measuring the database's clock: %w", err)
	}
	if err := r.generations.start(ctx); err != nil {
		return fmt.Errorf("taking over the stock: %w", err)
	}
	return nil
}

// TakeOverFrom makes Start take over the stock only from the owner seen, or share it with instances
// of this layout. If another owner has it by then, or none, Start returns stock.ErrRowChanged. Call
// it before Start.
func (r *Reconciler) TakeOverFrom(seen ledger.Owner) { r.generations.onlyFrom = &seen }

// Release gives up the stock, so that instances of any strategy can take it over. No order may be
// queued any more. It returns stock.ErrRowChanged if another instance has taken the stock over.
func (r *Reconciler) Release(ctx context.Context) error { return r.generations.release(ctx) }

// Ready returns an error if orders cannot be placed now. Either a store does not answer or does not
// accept writes, or the stock belongs to another layout, or the database's clock is not known.
func (r *Reconciler) Ready(ctx context.Context) error {
	if err := r.generations.check(ctx); err != nil {
		return err
	}
	measured := r.ledger.MeasureClock(ctx)
	if err := r.ledger.ClockKnown(); err != nil {
		return errors.Join(err, measured)
	}
	return nil
}

// StoreChanged must be called when Redis may have been replaced or may have lost writes. No units
// are cut until Run or the next order has raised the generation, which makes every count stale.
// StoreChanged does not block.
func (r *Reconciler) StoreChanged() { r.generations.demandNext() }

// Usable tries to make the stock usable, and returns an error if no units can be cut now.
// stock.ErrSuperseded means that another layout has taken over the stock.
func (r *Reconciler) Usable(ctx context.Context) error {
	switch g := r.generations; {
	case g.superseded.Load():
		return stock.ErrSuperseded
	case g.demanded():
		return g.follow(ctx, g.current())
	}
	return nil
}

// Close settles the queued takes, and removes the queued additions from the outbox. Later takes are
// settled without the queue, and recovery and deliveries do the rest.
func (r *Reconciler) Close() {
	if r.counter != nil {
		r.settles.Close()
		r.applied.Close()
	}
}

// Run reconciles until ctx ends. It keeps the instance under the current generation, ends takes
// whose outcome was unknown once the stores answer, and recovers takes left in flight. Every
// instance does this work; several at once do no harm. Run also delivers additions, compares gate
// and ledger, and expires orders. Only one instance at a time does each of these jobs.
func (r *Reconciler) Run(ctx context.Context) {
	var loops sync.WaitGroup
	defer loops.Wait()
	loops.Go(func() { r.keepChecking(ctx) })
	loops.Go(func() { r.keepExpiring(ctx) })
	if r.counter != nil {
		loops.Go(func() { r.endOpenTakes(ctx) })
		loops.Go(func() { r.keepRecovering(ctx) })
		loops.Go(func() { r.keepDelivering(ctx) })
		loops.Go(func() { r.keepComparing(ctx) })
	}
}

func (r *Reconciler) keepChecking(ctx context.Context) {
	for ctx.Err() == nil {
		err := r.Ready(ctx)
		if ctx.Err() != nil {
			return
		}
		r.metrics.ready.Set(oneIf(err == nil))
		if err != nil && !errors.Is(err, stock.ErrSuperseded) {
			r.log.Warn("checking the stores failed", "error", err)
		}
		_ = retry.Sleep(ctx, checkPause)
	}
}

// detached returns a context for compensation, with ctx's values but not its end.
func detached(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), compensationTimeout)
}

// maxErrors bounds the errors that one error joins.
const maxErrors = 5

// joined joins the first few of the errors that are not nil.
func joined(errs []error) error {
	errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	if more := len(errs) - maxErrors; more > 0 {
		errs = append(errs[:maxErrors:maxErrors], fmt.Errorf("and %d more errors", more))
	}
	return errors.Join(errs...)
}
