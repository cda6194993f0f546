package gate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

const (
	// maxWaiting bounds the calls that wait in the queue of one SKU.
	maxWaiting = 4096
	// maxDecided bounds the takes that are decided with one read and one write.
	maxDecided = 128
	// maxTurn is how long an instance consumes the queue of a SKU before it gives
	// other instances a turn.
	maxTurn = 25 * time.Millisecond
	// turnLinger is how long an instance with an empty queue keeps the turn, so that calls in quick
	// succession need only one lease.
	turnLinger = 2 * time.Millisecond
	// turnPause is the pause between two turns of one instance. An instance that
	// waits for the lease gets it meanwhile.
	turnPause = time.Millisecond
)

// queues has the queues of calls, one for each SKU, and gives the calls their turns. It implements
// a locker whose locks are turns: a holder has the turn until it unlocks. It is safe for concurrent
// use.
type queues struct {
	decide func(ctx context.Context, takes ...*cut) (left map[stock.SKU]int64) // see ReadWrite.cutAll; set before the first use
	leases OwnedLocker
	wait   time.Duration // how long a consumer waits for its lease
	length time.Duration // length of a turn

	consumers sync.WaitGroup
	mu        sync.Mutex
	byName    map[string]*skuQueue // queues with a consumer, by the name of the SKU's lock
	closed    bool
}

// skuQueue has the calls that wait for one SKU. The mutex of queues guards it.
type skuQueue struct {
	name     string
	waiting  []*waiter
	deciding []*waiter     // takes that the consumer has removed from waiting
	arrived  chan struct{} // signalled when a call is added; capacity 1

	over   bool  // the turn ends after the calls that have it now: see endTurn
	known  bool  // this instance has the turn, and left is correct
	left   int64 // units available after the last take that was decided
	queued int64 // units of the takes that are waiting or being decided
}

// waiter is one call in a queue. It is a take that the consumer decides, or a caller that does its
// own work during the turn.
type waiter struct {
	name   string        // name of the SKU's lock
	take   *cut          // nil: the caller has its own work
	repeat bool          // another take of the order waits or is in flight, so this one needs no units
	ready  chan struct{} // closed when the take is decided, or when the caller has the turn
	err    error         // why the caller did not get the turn; a take has its own error
	lease  lock.Lease    // lease of the caller's turn
	done   chan struct{} // closed when the caller has ended its turn
}

func newWaiter(take *cut) *waiter {
	return &waiter{name: lockName(take.lines[0].SKU), take: take, ready: make(chan struct{})}
}

// units returns the units that the call will take.
func (w *waiter) units() int64 {
	if w.take == nil || w.repeat {
		return 0
	}
	return w.take.lines[0].Quantity
}

func newQueues(leases OwnedLocker, wait time.Duration) *queues {
	return &queues{leases: leases, wait: wait, length: maxTurn, byName: make(map[string]*skuQueue)}
}

// close waits for the consumers and closes the leases. Later calls, as those of requests that were
// cut off, are refused.
func (qs *queues) close() {
	qs.mu.Lock()
	qs.closed = true
	qs.mu.Unlock()
	qs.consumers.Wait()
	_ = qs.leases.Close()
}

// Lock waits for the turn of the SKU whose lock has the name.
func (qs *queues) Lock(ctx context.Context, name string) (lock.Lease, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	w := &waiter{name: name, ready: make(chan struct{}), done: make(chan struct{})}
	if err := qs.enter(w); err != nil {
		return nil, err
	}
	if err := qs.await(ctx, w); err != nil {
		return nil, err
	}
	<-w.ready // returns at once: a caller that has left the queue has its turn or an error
	if w.err != nil {
		return nil, w.err
	}
	return &turn{Lease: w.lease, end: sync.OnceFunc(func() { close(w.done) })}, nil
}

// turn is a lease that its caller holds until it unlocks.
type turn struct {
	lock.Lease
	end func()
}

// Unlock ends the turn. The consumer unlocks the lease.
func (t *turn) Unlock(context.Context) error {
	t.end()
	return nil
}

// errNoRoom means that a take does not fit behind the waiting takes.
var errNoRoom = errors.New("the calls that wait will take the units that are left")

// enter adds the call to its queue, and starts a consumer if the queue has none. It returns
// errNoRoom if this instance knows how many units are left, and the waiting takes leave too few.
func (qs *queues) enter(w *waiter) error {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	if qs.closed {
		return fmt.Errorf("%w: the queues are closed", stock.ErrBusy)
	}
	q := qs.byName[w.name]
	if q == nil {
		q = &skuQueue{name: w.name, arrived: make(chan struct{}, 1)}
		qs.byName[w.name] = q
		qs.consumers.Go(func() { qs.consume(q) })
	}
	if q.known && w.units() > 0 && q.left-q.queued < w.units() {
		if !hasOrder(q.waiting, w) && !hasOrder(q.deciding, w) {
			return errNoRoom
		}
		w.repeat = true
	}
	if len(q.waiting) == maxWaiting {
		return fmt.Errorf("%w: %d calls wait in the queue of %s", stock.ErrBusy, maxWaiting, w.name)
	}
	q.waiting = append(q.waiting, w)
	q.queued += w.units()
	select {
	case q.arrived <- struct{}{}:
	default:
	}
	return nil
}

// await waits until the call is ready. If ctx ends while the call still waits, await
// removes it from the queue and returns stock.ErrBusy. If ctx ends while the take is
// being decided, await returns nil.
func (qs *queues) await(ctx context.Context, w *waiter) error {
	select {
	case <-w.ready:
		return nil
	case <-ctx.Done():
	}
	qs.mu.Lock()
	defer qs.mu.Unlock()
	q := qs.byName[w.name]
	if q == nil {
		return nil
	}
	i := slices.Index(q.waiting, w)
	if i < 0 {
		return nil
	}
	q.waiting = slices.Delete(q.waiting, i, i+1)
	q.queued -= w.units()
	return fmt.Errorf("%w: waiting in the queue of %s: %w", stock.ErrBusy, w.name, ctx.Err())
}

// consume consumes the queue in turns until it is empty.
func (qs *queues) consume(q *skuQueue) {
	for {
		qs.takeTurn(q)
		qs.mu.Lock()
		if len(q.waiting) == 0 {
			delete(qs.byName, q.name)
			qs.mu.Unlock()
			return
		}
		qs.mu.Unlock()
		time.Sleep(turnPause)
	}
}

// takeTurn waits for the lease and consumes the queue until the turn is over or the
// queue stays empty. If it cannot get the lease, it refuses all calls in the queue.
func (qs *queues) takeTurn(q *skuQueue) {
	ctx, cancel := context.WithTimeout(context.Background(), qs.wait)
	lease, err := qs.leases.Lock(ctx, q.name)
	cancel()
	if err != nil {
		qs.refuseAll(q, fmt.Errorf("%w: becoming the consumer of %s: %w", stock.ErrBusy, q.name, err))
		return
	}
	defer func() { _ = lease.Unlock(context.Background()) }() // if Unlock fails, the lock ends with its lease
	defer qs.forget(q)
	end := time.Now().Add(qs.length)
	for lease.Context().Err() == nil && !qs.isOver(q) && time.Now().Before(end) {
		switch takes, holder := qs.next(q, lease); {
		case holder != nil:
			<-holder.done
		case takes != nil:
			qs.decideAll(q, lease, takes)
		case !q.lingers(end):
			return
		}
	}
}

// lingers waits for the next call. It returns false if no call comes soon.
func (q *skuQueue) lingers(end time.Time) bool {
	timer := time.NewTimer(min(turnLinger, time.Until(end)))
	defer timer.Stop()
	select {
	case <-q.arrived:
		return true
	case <-timer.C:
		return false
	}
}

// forget ends the turn. From then on the number of units left is unknown, because other
// instances may take some.
func (qs *queues) forget(q *skuQueue) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	q.known, q.over = false, false
}

// endTurn is called by a caller that has the turn, and whose command may still arrive. The
// instance's turn must end too, because only a newer token makes the count refuse that command.
// Under the same token, a late write would replace a count that was read and written since.
func (qs *queues) endTurn(name string) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	qs.byName[name].over = true
}

func (qs *queues) isOver(q *skuQueue) bool {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	return q.over
}

// refuseAll answers every call in the queue with err. Their commands have not been sent.
func (qs *queues) refuseAll(q *skuQueue, err error) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	for _, w := range q.waiting {
		q.queued -= w.units()
		if w.take != nil {
			w.take.err = err
		}
		w.err = err
		close(w.ready)
	}
	q.waiting = nil
}

// next removes the first calls from the queue: several takes of distinct orders, or one caller with
// its own work. It returns neither if the queue is empty.
func (qs *queues) next(q *skuQueue, lease lock.Lease) (takes []*waiter, holder *waiter) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	if len(q.waiting) == 0 {
		return nil, nil
	}
	if first := q.waiting[0]; first.take == nil {
		q.waiting = q.waiting[1:]
		q.known = false
		first.lease = lease
		close(first.ready)
		return nil, first
	}
	n := 0
	for n < min(len(q.waiting), maxDecided) && q.waiting[n].take != nil && !hasOrder(q.waiting[:n], q.waiting[n]) {
		n++
	}
	q.deciding = slices.Clone(q.waiting[:n])
	q.waiting = slices.Delete(q.waiting, 0, n)
	return q.deciding, nil
}

// hasOrder reports whether one of the calls is a take of w's order.
func hasOrder(calls []*waiter, w *waiter) bool {
	return slices.ContainsFunc(calls, func(other *waiter) bool {
		return other.take != nil && other.take.d.OrderID == w.take.d.OrderID
	})
}

// decideAll decides the takes with one read and one write. If the number of remaining units is then
// unknown, the turn ends: see endTurn.
func (qs *queues) decideAll(q *skuQueue, lease lock.Lease, takes []*waiter) {
	sku := takes[0].take.lines[0].SKU
	cuts := make([]*cut, len(takes))
	for i, w := range takes {
		cuts[i] = w.take
		cuts[i].tokens = tokenSet{bySKU: map[stock.SKU]uint64{sku: lease.Token()}}
	}
	ctx, cancel := context.WithTimeout(lease.Context(), callTimeout)
	left := qs.decide(ctx, cuts...)
	cancel()
	qs.mu.Lock()
	defer qs.mu.Unlock()
	q.deciding = nil
	q.left, q.known = left[sku]
	q.over = !q.known
	for _, w := range takes {
		q.queued -= w.units()
		close(w.ready)
	}
}
