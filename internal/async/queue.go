package async

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/tracing"
)

// Queue accepts orders for a Consumer: it puts them into the journal. It is safe for
// concurrent use.
type Queue struct {
	journal    Journal
	ledger     Ledger
	reconciler Reconciler
	strategy   string
	tracer     *tracing.Tracer
}

// NewQueue returns a Queue in front of the journal. Its orders name the strategy. t may be
// nil.
func NewQueue(j Journal, l Ledger, r Reconciler, strategy string, t *tracing.Tracer) *Queue {
	return &Queue{journal: j, ledger: l, reconciler: r, strategy: strategy, tracer: t}
}

// Take takes the units and queues the order in one step, at the time of the ledger.
//
// It has the errors of gate.Gate's Take. With an error that is not NothingTaken, the
// order may be queued, and must not be given back.
func (q *Queue) Take(ctx context.Context, d stock.Deduction) (stock.Take, error) {
	d.Trace = q.tracer.Parent(ctx)
	return q.journal.Queue(ctx, d, q.ledger.Now())
}

// Accept returns the order of a take that is queued, as it is acknowledged. A committed outcome
// means that a consumer will bring the order to its end.
//
// The gate knows only the orders that are queued or in flight. So Accept looks up a keyed order in
// the ledger after the take: an earlier order of the key had left the gate before, so the ledger
// has it. Accept then withdraws the take. If the row is a void order, another request of the key
// may have been answered with the queued order, so the queued order ends as refused.
func (q *Queue) Accept(ctx context.Context, t stock.Take, keyed bool) (order.Order, order.Outcome) {
	if !keyed {
		return order.New(t, order.Queued, q.strategy), order.Committed()
	}
	switch found, err := q.ledger.Order(ctx, t.OrderID); {
	case errors.Is(err, order.ErrUnknownOrder), err == nil && ended(found, t): // a consumer has finished the order already
		return order.New(t, order.Queued, q.strategy), order.Committed()
	case err != nil:
		return order.Order{}, order.Unknown(err)
	case found.Status == order.Void && !q.ledger.RecordRefusal(ctx, t).Refused(): // a consumer ends the order
		return order.Order{}, order.Duplicate(found)
	default:
		q.withdraw(ctx, t)
		return order.Order{}, order.Duplicate(found)
	}
}

// ended reports whether a consumer has brought the take's order to its end.
func ended(o *order.Order, t stock.Take) bool {
	return o.Holds(t.TakeID) || o.TakeID == t.TakeID && o.Status == order.TurnedDown
}

// withdraw removes a queued order whose ID has a row in the ledger already: no consumer
// can commit this take. If withdraw fails, a consumer does the rest.
func (q *Queue) withdraw(ctx context.Context, t stock.Take) {
	if q.reconciler.GiveBack(ctx, t) {
		_ = q.journal.Finish(ctx, t)
	}
}

// Order returns a queued order. It returns order.ErrUnknownOrder if the order is not queued.
func (q *Queue) Order(ctx context.Context, id uuid.UUID) (*order.Order, error) {
	t, ok, err := q.journal.Queued(ctx, id)
	if err == nil && !ok {
		err = order.ErrUnknownOrder
	}
	if err != nil {
		return nil, err
	}
	o := order.New(t, order.Queued, q.strategy)
	return &o, nil
}

// Journal is the part of a journal that Queue and Consumer use. See gate.Journal.
type Journal interface {
	Queue(ctx context.Context, d stock.Deduction, at time.Time) (stock.Take, error)
	Requeue(ctx context.Context, t stock.Take, takeID uuid.UUID) (stock.Take, error)
	Queued(ctx context.Context, id uuid.UUID) (t stock.Take, ok bool, err error)
	Open(ctx context.Context, consumer string) error
	Read(ctx context.Context, consumer string, limit int, wait time.Duration) ([]stock.Take, error)
	Claim(ctx context.Context, consumer string, limit int, idle time.Duration) ([]stock.Take, error)
	Redeliver(ctx context.Context) (orders int, err error)
	Finish(ctx context.Context, takes ...stock.Take) error
	Leave(ctx context.Context, consumer string) error
	Backlog(ctx context.Context) (length int64, oldest time.Duration, err error)
}
