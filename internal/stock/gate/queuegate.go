package gate

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

// Queue makes ReadWrite sound with one consumer for each SKU. The calls of a SKU wait in a queue in
// this process. The instance that holds the SKU's lease consumes its queue, and the other instances
// wait for their turn. The consumer decides all takes that wait with one read and one write.
//
// A turn is short, so that every instance gets one soon. If an instance dies during its turn, its
// lease expires, and another instance takes over. A lease only advises. If an instance continues
// after its lease has ended, and another has had a turn since, the count has seen a greater fencing
// token and refuses the write. A command without an answer ends the turn, so that the count refuses
// it if it arrives after later takes.
//
// While an instance has the turn, it knows how many units the waiting takes will leave. It refuses
// a take that does not fit at once, without queueing it.
//
// A take of several lines waits for the turns of all its SKUs, in SKU order. Turns are also the
// locks of the gate's Counter: Give, Fill and Adjust wait for a turn. These calls do their own work
// while they have the turn, as under a lock.
//
// stock.ErrBusy means that the call did not get its turns in time, or that 4,096 calls are waiting
// for one of them already. Nothing was cut.
type Queue struct {
	readWrite *ReadWrite // ReadWrite that works under turns
	queues    *queues
	wait      time.Duration
}

var _ Gate = (*Queue)(nil)

// NewQueue returns a gate that queues takes, and the counter that it is built on. leases, whose
// locks all instances share, decides which instance consumes the queue of a SKU. It must give
// fencing tokens, and its leases should be short. wait bounds how long one call waits for all turns
// that it has at once. Close closes leases.
func NewQueue(client redis.UniversalClient, ledgerID uuid.UUID, leases OwnedLocker, wait time.Duration) (*Counter, *Queue) {
	q := newQueues(leases, wait)
	turns := NewLocks(q, wait, true)
	turns.inDoubt = q.endTurn
	counter := NewCounter(client, ledgerID, Layout{Locks: turns})
	readWrite := NewReadWrite(counter)
	q.decide = readWrite.cutAll
	return counter, &Queue{readWrite: readWrite, queues: q, wait: wait}
}

// Close waits until the queues are empty, and closes the gate.
func (g *Queue) Close() { g.queues.close() }

// Take cuts all lines or none.
func (g *Queue) Take(ctx context.Context, d stock.Deduction) (stock.Take, error) {
	if len(d.Lines) > 1 {
		return g.readWrite.Take(ctx, d)
	}
	return g.readWrite.counter.takeWith(ctx, tokenSet{}, d, g.cut)
}

// cut waits until the consumer has decided c, which has one line.
func (g *Queue) cut(ctx context.Context, c *cut) error {
	if err := ctx.Err(); err != nil {
		return stock.Busy(err) // nothing was sent
	}
	w := newWaiter(c)
	err := g.queues.enter(w)
	if errors.Is(err, errNoRoom) {
		if err := g.refuse(ctx, c); err != nil {
			return err
		}
		w.repeat = true
		err = g.queues.enter(w)
	}
	if err != nil {
		return err
	}
	waiting, stop := context.WithTimeout(ctx, g.wait)
	defer stop()
	if err := g.queues.await(waiting, w); err != nil {
		return err
	}
	select {
	case <-w.ready:
		return c.err
	case <-ctx.Done(): // the consumer still uses c
		return fmt.Errorf("waiting for the gate's answer: %w", ctx.Err())
	}
}

// refuse returns the error of a take that finds too few units. It reads the records of the
// order, because "sold out" would be the wrong answer if another take of the order is in
// flight. It returns nil if this take is in flight already.
func (g *Queue) refuse(ctx context.Context, c *cut) error {
	states, err := g.readWrite.read(ctx, []*cut{{d: c.d, lines: c.lines, tokens: unfenced}})
	if err != nil {
		return fmt.Errorf("reading the counts: %w", err)
	}
	states[0][0].count.Available = 0 // no units are left for this take
	return check(states[0], c.lines)
}
