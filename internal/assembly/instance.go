// Package assembly builds an instance of the service from its parts, and holds the table
// of strategies.
package assembly

import (
	"cmp"
	"context"
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
}

// New assembles an instance that cuts stock by strategy s and records it in db, the
// ledger with that ID. The gate and db stay the caller's. Call
// Start before the first order, and Run beside the orders.
func New(db *sqltx.DB, ledgerID uuid.UUID, s Strategy, o Options) *Instance {
	l := ledger.New(db, ledger.Options{
		Strategy: s.Name, Cutter: s.Cutter, HasGate: s.Gate != nil,
		Group: s.Group, Parallel: s.Parallel, PaymentWindow: o.PaymentWindow, Clock: o.Clock,
		Log: o.Log, Metrics: o.Metrics, Tracer: o.Tracer,
	})
	r := reconcile.New(s.Gate, l, reconcile.Options{
		Layout: s.Layout, Queues: s.Journal != nil, TakeDeadline: o.TakeDeadline, Log: o.Log, Metrics: o.Metrics, Tracer: o.Tracer,
	})
	placing := order.Options{Late: cmp.Or(o.LatePayments, order.Revive), Tracer: o.Tracer}
	if s.Journal != nil {
		placing.Queue = async.NewQueue(s.Journal, l, r, s.Name, o.Tracer)
	}
	orders := order.NewService(ledgerID, s.Gate, l, r, placing, o.Metrics)
	i := &Instance{
		Orders:     orders,
		Stock:      admin.New(s.Gate, l, r, orders, o.Log),
		Reconciler: r,
		Ledger:     l,
	}
	if s.Journal != nil {
		i.Consumer = async.NewConsumer(s.Journal, l, r, orders.Learn, o.Log, o.Metrics, o.Tracer)
	}
	return i
}

// Start takes over the stock and prepares what Run needs. Call it before the first order.
// See reconcile.Reconciler.Start.
func (i *Instance) Start(ctx context.Context) error {
	if err := i.Reconciler.Start(ctx); err != nil || i.Consumer == nil {
		return err
	}
	return i.Consumer.Start(ctx)
}

// Run reconciles, and commits queued orders, until ctx ends. Call it beside the orders,
// once.
func (i *Instance) Run(ctx context.Context) {
	var running sync.WaitGroup
	running.Go(func() { i.Reconciler.Run(ctx) })
	if i.Consumer != nil {
		running.Go(func() { i.Consumer.Run(ctx) })
	}
	running.Wait()
}

// Close finishes the orders that were accepted, and then their settles. No call may
// be under way.
func (i *Instance) Close() {
	i.Ledger.Close()
	i.Reconciler.Close()
}
