// Package assembly builds an instance of the service from its parts, as the table of
// strategies says.
package assembly

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-stock/holdfast/internal/admin"
	"github.com/holdfast-stock/holdfast/internal/async"
	"github.com/holdfast-stock/holdfast/internal/ledger"
	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/reconcile"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/store"
	"github.com/holdfast-stock/holdfast/internal/tracing"
)

// Options configure an instance.
type Options struct {
	// TakeDeadline is how long a take may be in flight before recovery resolves
	// it. See reconcile.Options.
	TakeDeadline time.Duration
	// LatePayments says what becomes of a payment for an order that has expired.
	// Empty: the order is revived.
	LatePayments order.Late
	// PaymentWindow is how long an order may be pending before it expires. 0: it
	// does not expire.
	PaymentWindow time.Duration
	// SoldOutMemory is how long "sold out" is repeated without asking the ledger again. See
	// order.Options.
	SoldOutMemory time.Duration
	// Clock is the time of day on this machine. nil means time.Now.
	Clock   func() time.Time
	Log     *slog.Logger
	Metrics prometheus.Registerer
	Tracer  *tracing.Tracer // nil: there are no traces
}

// Instance is one instance of the service. Several may share the stores. Its parts
// are safe for concurrent use.
type Instance struct {
	Orders     *order.Service
	Stock      *admin.Admin
	Reconciler *reconcile.Reconciler
	Ledger     *ledger.Ledger
	// Consumer commits queued orders. It is nil if the strategy queues none. Run runs it.
	Consumer *async.Consumer
	// Stores are the stores that the instance was built on. They are empty if New made it.
	Stores  Stores
	log     *slog.Logger
	closers []func() error // in the order in which Close calls the closers
}

// New joins strategy s and db, the ledger with that ID, into an instance. The caller still owns the
// gate and db, and closes them. Call Start before the first order, and Run while orders are placed.
func New(db *sqltx.DB, ledgerID uuid.UUID, s Strategy, o Options) *Instance {
	l := ledger.New(db, ledger.Options{
		Strategy: s.Name, Cutter: s.Cutter, HasGate: s.Gate != nil,
		Group: s.Group, Parallel: s.Parallel, PaymentWindow: o.PaymentWindow, Clock: o.Clock,
		Log: o.Log, Metrics: o.Metrics, Tracer: o.Tracer,
	})
	var counter reconcile.Counter
	if s.Counter != nil { // a nil pointer is not a nil interface
		counter = s.Counter
	}
	var orders *order.Service // set below, before Run expires the first order
	r := reconcile.New(counter, l, reconcile.Options{
		Layout: s.Layout, Queues: s.Journal != nil, TakeDeadline: o.TakeDeadline, Log: o.Log, Metrics: o.Metrics, Tracer: o.Tracer,
		OnReturn: func(skus ...stock.SKU) { orders.StockChanged(skus...) },
	})
	placing := order.Options{Late: cmp.Or(o.LatePayments, order.Revive), SoldOutMemory: o.SoldOutMemory, Tracer: o.Tracer}
	if s.Journal != nil {
		placing.Queue = async.NewQueue(s.Journal, l, r, s.Name, o.Tracer)
	}
	orders = order.NewService(ledgerID, s.Gate, l, r, placing, o.Metrics)
	i := &Instance{
		Orders:     orders,
		Stock:      admin.New(s.Gate, l, r, orders, o.Log),
		Reconciler: r,
		Ledger:     l,
		log:        o.Log,
	}
	if s.Journal != nil {
		i.Consumer = async.NewConsumer(s.Journal, l, r, orders.Learn, o.Log, o.Metrics, o.Tracer)
	}
	return i
}

// Start prepares what Run needs and takes over the stock. Call it before the first order.
// See reconcile.Reconciler.Start.
func (i *Instance) Start(ctx context.Context) error {
	if i.Consumer != nil { // first: an instance that cannot queue orders must not take over
		if err := i.Consumer.Start(ctx); err != nil {
			return err
		}
	}
	return i.Reconciler.Start(ctx)
}

// Run reconciles, commits queued orders, and watches the Redis of Stores, until ctx ends. Call it
// once, while orders are placed.
func (i *Instance) Run(ctx context.Context) {
	var running sync.WaitGroup
	running.Go(func() { i.Reconciler.Run(ctx) })
	if i.Consumer != nil {
		running.Go(func() { i.Consumer.Run(ctx) })
	}
	if i.Stores.Redis != nil {
		running.Go(func() { store.WatchRedis(ctx, i.Stores.Redis, watchPause, i.redisChanged) })
	}
	running.Wait()
}

// watchPause is the pause between two checks of the Redis masters' identity.
const watchPause = time.Second

func (i *Instance) redisChanged() {
	i.log.Warn("a Redis master was replaced or restarted; every count will be refilled")
	i.Reconciler.StoreChanged()
}

// RunBeside calls Run in the background, also after ctx has ended, until stop is called.
// stop waits for it to end.
func (i *Instance) RunBeside(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	running.Go(func() { i.Run(ctx) })
	return func() {
		cancel()
		running.Wait()
	}
}

// Ready returns an error if the instance cannot place orders now. A schema that is newer than this
// program is not an error: a newer program has migrated it, and this one serves until the newer one
// takes over.
func (i *Instance) Ready(ctx context.Context) error {
	if err := i.Reconciler.Ready(ctx); err != nil || i.Stores.SQL == nil {
		return err
	}
	err := i.Stores.SQL.CheckSchema(ctx)
	if errors.Is(err, store.ErrSchemaNew) {
		return nil
	}
	return err
}

// Close finishes the orders that were accepted, and settles the queued takes. Then it closes
// what Build and Open have opened. Calls of requests that were cut off may still be under way, and
// fail then.
func (i *Instance) Close() error {
	i.Ledger.Close()
	i.Reconciler.Close()
	var errs []error
	for _, closer := range i.closers {
		errs = append(errs, closer())
	}
	return errors.Join(errs...)
}
