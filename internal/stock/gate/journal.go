package gate

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

// maxQueued bounds the orders in the journal. Each needs some 500 bytes of Redis's
// memory.
const maxQueued = 100_000

// errQueueFull says that the journal has as many orders as it may have.
var errQueueFull = errors.New("the journal is full")

// Journal is the stock.Journal of a Script whose counts are on one server.
type Journal struct {
	QueuedOrders
	gate  *Script
	limit int // of queued orders
}

var _ stock.Journal = (*Journal)(nil)

// Journal returns the gate's journal, or nil on a cluster: there a count and the
// journal may be on different servers, and cannot change in one step.
func (g *Script) Journal() *Journal {
	if g.cluster {
		return nil
	}
	return &Journal{QueuedOrders: queuedOrdersOf(&g.counts), gate: g, limit: maxQueued}
}

// queueing says how a cut's order is queued.
type queueing struct {
	previous uuid.UUID // the take that is replaced in the journal; uuid.Nil for a new order
	at       time.Time
	limit    int
}

func (c *counts) journalKey() string { return c.ledgerPrefix + "}:journal" }

func (c *counts) queuedKey() string { return c.ledgerPrefix + "}:queued" }

// Queue takes d and queues its order.
func (j *Journal) Queue(ctx context.Context, d stock.Deduction, at time.Time) (stock.Take, error) {
	return j.take(ctx, d, queueing{at: at, limit: j.limit})
}

// Requeue takes the units of t's order again and replaces t.
func (j *Journal) Requeue(ctx context.Context, t stock.Take, takeID uuid.UUID) (stock.Take, error) {
	d := t.Deduction
	d.TakeID = takeID
	return j.take(ctx, d, queueing{previous: t.TakeID, at: t.QueuedAt, limit: j.limit})
}

func (j *Journal) take(ctx context.Context, d stock.Deduction, q queueing) (stock.Take, error) {
	if err := validate(d); err != nil {
		return stock.Take{}, err
	}
	receipt := make(stock.Receipt, len(d.Lines))
	if err := j.gate.cut(ctx, &cut{d: d, lines: d.Lines, queue: &q, receipt: receipt}); err != nil {
		return stock.Take{}, err
	}
	return stock.Take{Deduction: d, Receipt: receipt, QueuedAt: q.at}, nil
}

// Finish settles the takes and removes their orders from the journal. If it fails,
// it may have finished some of them. Finishing a take again does no harm.
func (j *Journal) Finish(ctx context.Context, takes ...stock.Take) error {
	if len(takes) == 0 {
		return nil
	}
	return j.gate.settle(ctx, []string{j.journal, j.queued}, takes)
}
