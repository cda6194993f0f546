package lock

import (
	"context"
	"sync"
	"time"
)

// maxHandovers and maxHandoverTime bound how many times in a row, and for how
// long, a process hands a lock over within itself. Then it releases the lock, so
// that other processes get a turn.
const (
	maxHandovers    = 16
	maxHandoverTime = 10 * time.Millisecond
)

// handOver ends the grant in favour of the next waiter of the process. If there
// is no such waiter, or the grant must be released instead, it does nothing and
// returns false.
func (h *hold) handOver(ctx context.Context) (done bool, err error) {
	next := h.locker.queue.nextWaiter(h.key.name)
	if next == nil {
		return false, nil
	}
	switch g := h.grant.(type) {
	case HandoverGrant:
		if h.handovers == maxHandovers || time.Since(h.since) > maxHandoverTime {
			return false, nil
		}
		return true, h.handOverGrant(ctx, g, next)
	case RequeueGrant:
		return true, h.handOverPlace(ctx, g, next)
	}
	return false, nil
}

// handOverGrant gives the waiter the lock itself.
func (h *hold) handOverGrant(ctx context.Context, g HandoverGrant, next *waiter) error {
	var loss handoverLoss
	grant, err := g.HandOver(ctx, loss.lose)
	if err != nil {
		h.leaveQueue()
		return err
	}
	if h.giveTurn(next, func(n *hold) { n.grant, n.handovers, n.since = grant, h.handovers+1, h.since }) {
		loss.deliverTo(next.hold)
		return nil
	}
	err = grant.Release(ctx) // the waiter has given up meanwhile
	h.leaveQueue()
	return err
}

// handOverPlace releases the lock and gives the waiter a place in the backend's
// queue.
func (h *hold) handOverPlace(ctx context.Context, g RequeueGrant, next *waiter) error {
	place, err := g.ReleaseAndQueue(ctx)
	if place != nil && h.giveTurn(next, func(n *hold) { n.place = place }) {
		return err
	}
	if place != nil {
		place.Leave(ctx) // the waiter has given up meanwhile
	}
	h.leaveQueue()
	return err
}

// giveTurn transfers h's turn to the next waiter, after give has transferred the
// grant or the place. It returns false, and does nothing, if h no longer has the
// turn or the waiter is no longer the next.
func (h *hold) giveTurn(next *waiter, give func(n *hold)) bool {
	return h.locker.queue.handOver(h.key.name, h, next, func() {
		next.hold.mu.Lock()
		defer next.hold.mu.Unlock()
		give(next.hold)
	})
}

// handoverLoss is the lost callback of a grant that is being handed over. It ends
// the leases of the hold that receives the grant. If no hold receives it, it ends
// nothing. It never blocks, because a grant's Release may wait for it.
type handoverLoss struct {
	mu   sync.Mutex
	lost bool
	hold *hold // nil: no hold has received the grant yet
}

func (l *handoverLoss) lose() {
	l.mu.Lock()
	l.lost = true
	h := l.hold
	l.mu.Unlock()
	if h != nil {
		h.lose()
	}
}

// deliverTo makes the loss, past or future, end the leases of h.
func (l *handoverLoss) deliverTo(h *hold) {
	l.mu.Lock()
	l.hold = h
	lost := l.lost
	l.mu.Unlock()
	if lost {
		h.lose()
	}
}
