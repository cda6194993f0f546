// Package service assembles one instance of the service.
package service

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-stock/holdfast/internal/admin"
	"github.com/holdfast-stock/holdfast/internal/journal"
	"github.com/holdfast-stock/holdfast/internal/ledger"
	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/reconcile"
	"github.com/holdfast-stock/holdfast/internal/stock/strategy"
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
	// Queue answers orders as soon as the gate's journal has them. The strategy must
	// have a journal.
	Queue bool
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
	// Consumer commits queued orders, also those that another strategy has queued. It
	// is nil if the strategy sees no queued orders. Run runs it, also on an instance
	// that does not queue orders.
	Consumer *journal.Consumer
}

// New assembles an instance that cuts stock by strategy s and records it in db, the
// ledger with that ID. The gate and db stay the caller's. Call
// Reconciler.Start before the first order, and Run beside the orders.
func New(db *sqltx.DB, ledgerID uuid.UUID, s strategy.Strategy, o Options) *Instance {
	l := ledger.New(db, ledger.Options{
		Strategy: s.Name, QueuedBy: strategy.Queueing()[0], Cutter: s.Cutter, HasGate: s.Gate != nil,
		Group: s.Group, Parallel: s.Parallel, PaymentWindow: o.PaymentWindow, Clock: o.Clock,
		Log: o.Log, Metrics: o.Metrics, Tracer: o.Tracer,
	})
	r := reconcile.New(s.Gate, l, reconcile.Options{
		Layout: s.Layout, TakeDeadline: o.TakeDeadline, Log: o.Log, Metrics: o.Metrics, Tracer: o.Tracer,
	})
	orders := order.NewService(ledgerID, s.Gate, s.Journal, l, r, order.Options{
		Late: cmp.Or(o.LatePayments, order.Revive), Queue: o.Queue, Queued: s.Queued, Tracer: o.Tracer,
	}, o.Metrics)
	i := &Instance{
		Orders:     orders,
		Stock:      admin.New(s.Gate, l, r, orders, o.Log),
		Reconciler: r,
		Ledger:     l,
	}
	switch {
	case s.Journal != nil:
		i.Consumer = journal.New(s.Journal, i.Orders, l, r, o.Log, o.Metrics, o.Tracer)
	case s.Queued != nil:
		i.Consumer = journal.NewForeign(s.Queued, i.Orders, l, r, o.Log, o.Metrics, o.Tracer)
	}
	return i
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
