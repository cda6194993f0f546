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
	// maxPlaces bounds the calls that wait in the queue of one SKU.
	maxPlaces = 4096
	// maxDecided bounds the takes that are decided with one read and one write.
	maxDecided = 128
	// maxTurn is how long an instance consumes the queue of a SKU before it gives
	// other instances a turn.
	maxTurn = 25 * time.Millisecond
	// turnLinger is how long an instance with an empty queue keeps the turn. So a
	// quick succession of calls needs one lease.
	turnLinger = 2 * time.Millisecond
	// turnPause is the pause between two turns of one instance. An instance that
	// waits for the lease gets it meanwhile.
	turnPause = time.Millisecond
)

// turns gives the calls of each SKU their turns, one at a time. It is a locker whose
// locks are turns: the holder has the turn until it unlocks. It is safe for
// concurrent use.
type turns struct {
	counts *ReadWrite
	leases OwnedLocker
	wait   time.Duration // how long a consumer waits for its lease
	length time.Duration // of a turn

	consumers sync.WaitGroup
	mu        sync.Mutex
	queues    map[string]*queue // by the name of the SKU's lock; only those with a consumer
}

// queue has the calls that wait for one SKU. The mutex of turns guards it.
type queue struct {
	name     string
	places   []*place
	deciding []*place      // takes that the consumer has removed from places
	arrived  chan struct{} // signalled when a place is added; capacity 1

	known  bool  // this instance has the turn, and left is right
	left   int64 // units available after the last take that was decided
	queued int64 // units of the takes that wait or are being decided
}

// place is one call in a queue: a take that the consumer decides, or a visit. A visit
// is a caller that does its own work while it has the turn.
type place struct {
	name   string        // of the SKU's lock
	take   *cut          // nil: a visit
	repeat bool          // a take of the order waits or is in flight, so this one needs no units
	ready  chan struct{} // closed when the take is decided, or when the visit has the turn
	err    error         // why the visit did not get the turn; a take has its own
	lease  lock.Lease    // of the visit's turn
	done   chan struct{} // closed when the visit has ended
}

func newPlace(take *cut) *place {
	return &place{name: lockName(take.lines[0].SKU), take: take, ready: make(chan struct{})}
}

// units returns the units that the place claims of what is left.
func (p *place) units() int64 {
	if p.take == nil || p.repeat {
		return 0
	}
	return p.take.lines[0].Quantity
}

func newTurns(counts *ReadWrite, leases OwnedLocker, wait time.Duration) *turns {
	return &turns{counts: counts, leases: leases, wait: wait, length: maxTurn, queues: make(map[string]*queue)}
}

// close waits for the consumers and closes the leases. No call may be waiting.
func (t *turns) close() {
	t.consumers.Wait()
	_ = t.leases.Close()
}

// Lock waits for the turn of the SKU whose lock has the name.
func (t *turns) Lock(ctx context.Context, name string) (lock.Lease, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	p := &place{name: name, ready: make(chan struct{}), done: make(chan struct{})}
	if err := t.enter(p); err != nil {
		return nil, err
	}
	if err := t.await(ctx, p); err != nil {
		return nil, err
	}
	<-p.ready // without a wait: a visit outside the queue has its turn, or an error
	if p.err != nil {
		return nil, p.err
	}
	return &visit{Lease: p.lease, end: sync.OnceFunc(func() { close(p.done) })}, nil
}

// visit is a turn that its caller holds like a lock.
type visit struct {
	lock.Lease
	end func()
}

// Unlock ends the visit. The lease is the consumer's.
func (v *visit) Unlock(context.Context) error {
	v.end()
	return nil
}

// errNoRoom says that a take does not fit behind the takes that wait.
var errNoRoom = errors.New("the units left are taken by the calls that wait")

// enter adds the place to its queue, and starts a consumer if the queue has none.
// errNoRoom: this instance knows how many units are left, and the takes that wait leave
// too few.
func (t *turns) enter(p *place) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	q := t.queues[p.name]
	if q == nil {
		q = &queue{name: p.name, arrived: make(chan struct{}, 1)}
		t.queues[p.name] = q
		t.consumers.Go(func() { t.consume(q) })
	}
	if q.known && p.units() > 0 && q.left-q.queued < p.units() {
		if !hasOrder(q.places, p) && !hasOrder(q.deciding, p) {
			return errNoRoom
		}
		p.repeat = true
	}
	if len(q.places) == maxPlaces {
		return fmt.Errorf("%w: %d calls wait in the queue of %s", stock.ErrBusy, maxPlaces, p.name)
	}
	q.places = append(q.places, p)
	q.queued += p.units()
	select {
	case q.arrived <- struct{}{}:
	default:
	}
	return nil
}

// await waits until the place is ready. If ctx ends while the place still waits, await
// removes it from the queue and returns stock.ErrBusy. If ctx ends while the take is
// being decided, await returns nil.
func (t *turns) await(ctx context.Context, p *place) error {
	select {
	case <-p.ready:
		return nil
	case <-ctx.Done():
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	q := t.queues[p.name]
	if q == nil {
		return nil
	}
	i := slices.Index(q.places, p)
	if i < 0 {
		return nil
	}
	q.places = slices.Delete(q.places, i, i+1)
	q.queued -= p.units()
	return fmt.Errorf("%w: waiting in the queue of %s: %w", stock.ErrBusy, p.name, ctx.Err())
}

// consume consumes the queue in turns until it is empty.
func (t *turns) consume(q *queue) {
	for {
		t.takeTurn(q)
		t.mu.Lock()
		if len(q.places) == 0 {
			delete(t.queues, q.name)
			t.mu.Unlock()
			return
		}
		t.mu.Unlock()
		time.Sleep(turnPause)
	}
}

// takeTurn waits for the lease and consumes the queue until the turn is over or the
// queue stays empty. If it cannot get the lease, it refuses all calls in the queue.
func (t *turns) takeTurn(q *queue) {
	ctx, cancel := context.WithTimeout(context.Background(), t.wait)
	lease, err := t.leases.Lock(ctx, q.name)
	cancel()
	if err != nil {
		t.refuseAll(q, fmt.Errorf("%w: becoming the consumer of %s: %w", stock.ErrBusy, q.name, err))
		return
	}
	defer unlock(context.Background(), lease)
	defer t.forget(q)
	end := time.Now().Add(t.length)
	for lease.Context().Err() == nil && time.Now().Before(end) {
		switch takes, visitor := t.next(q, lease); {
		case visitor != nil:
			<-visitor.done
		case takes != nil:
			t.decide(q, lease, takes)
		case !q.lingers(end):
			return
		}
	}
}

// lingers waits for the next place. It returns false if none comes soon.
func (q *queue) lingers(end time.Time) bool {
	timer := time.NewTimer(min(turnLinger, time.Until(end)))
	defer timer.Stop()
	select {
	case <-q.arrived:
		return true
	case <-timer.C:
		return false
	}
}

// forget marks the units left as unknown: the turn ends, or a visitor may change them.
func (t *turns) forget(q *queue) {
	t.mu.Lock()
	defer t.mu.Unlock()
	q.known = false
}

// refuseAll answers every call in the queue with err. Nothing of them was sent.
func (t *turns) refuseAll(q *queue, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range q.places {
		q.queued -= p.units()
		if p.take != nil {
			p.take.err = err
		}
		p.err = err
		close(p.ready)
	}
	q.places = nil
}

// next removes the first calls from the queue: several takes of distinct orders, or
// one visitor, which has the turn until it is done. It returns neither if the queue is
// empty.
func (t *turns) next(q *queue, lease lock.Lease) (takes []*place, visitor *place) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(q.places) == 0 {
		return nil, nil
	}
	if first := q.places[0]; first.take == nil {
		q.places = q.places[1:]
		q.known = false
		first.lease = lease
		close(first.ready)
		return nil, first
	}
	n := 0
	for n < min(len(q.places), maxDecided) && q.places[n].take != nil && !hasOrder(q.places[:n], q.places[n]) {
		n++
	}
	q.deciding = slices.Clone(q.places[:n])
	q.places = slices.Delete(q.places, 0, n)
	return q.deciding, nil
}

// hasOrder reports whether one of the places is a take of p's order.
func hasOrder(places []*place, p *place) bool {
	return slices.ContainsFunc(places, func(other *place) bool {
		return other.take != nil && other.take.d.OrderID == p.take.d.OrderID
	})
}

// decide decides the takes with one read and one write.
func (t *turns) decide(q *queue, lease lock.Lease, takes []*place) {
	sku := takes[0].take.lines[0].SKU
	cuts := make([]*cut, len(takes))
	for i, p := range takes {
		cuts[i] = p.take
		cuts[i].tokens = tokenSet{bySKU: map[stock.SKU]uint64{sku: lease.Token()}}
	}
	ctx, cancel := context.WithTimeout(lease.Context(), callTimeout)
	left := t.counts.cutAll(ctx, cuts...)
	cancel()
	t.mu.Lock()
	defer t.mu.Unlock()
	q.deciding = nil
	q.left, q.known = left[sku]
	for _, p := range takes {
		q.queued -= p.units()
		close(p.ready)
	}
}
