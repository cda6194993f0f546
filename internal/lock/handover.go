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

// handOver passes the grant to the next waiter of the process. It does nothing and returns false if
// there is no waiter, or if the grant must be released instead.
func (h *hold) handOver(ctx context.Context) (done bool, err error) {
	next := h.locker.queue.nextWaiter(h.key.name)
	if next == nil {
		return false, nil
	}
	g, ok := h.grant.(HandoverGrant)
	if !ok || h.handovers == maxHandovers || time.Since(h.since) > maxHandoverTime {
		return false, nil
	}
	var loss handoverLoss
	grant, err := g.HandOver(ctx, loss.lose)
	if err != nil {
		h.leaveQueue()
		return true, err
	}
	if h.locker.queue.handOver(h.key.name, next, func() { next.hold.receive(grant, h) }) {
		loss.deliverTo(next.hold)
		return true, nil
	}
	err = grant.Release(ctx) // the waiter has given up meanwhile
	h.leaveQueue()
	return true, err
}

// receive records the grant that the previous hold has handed over.
func (h *hold) receive(grant Grant, before *hold) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.setGrant(grant, before.since)
	h.handovers = before.handovers + 1
}

// handoverLoss is the lost callback of a grant that is being handed over. It ends
// the leases of the hold that receives the grant. If no hold receives it, it ends
// nothing. It never blocks, because a grant's Release may wait for it.
type handoverLoss struct {
	mu     sync.Mutex
	reason error // nil: the grant is not lost
	hold   *hold // nil: no hold has received the grant yet
}

func (l *handoverLoss) lose(reason error) {
	l.mu.Lock()
	if l.reason == nil {
		l.reason = reason
	}
	h := l.hold
	l.mu.Unlock()
	if h != nil {
		h.lose(reason)
	}
}

// deliverTo makes the loss, past or future, end the leases of h.
func (l *handoverLoss) deliverTo(h *hold) {
	l.mu.Lock()
	l.hold = h
	reason := l.reason
	l.mu.Unlock()
	if reason != nil {
		h.lose(reason)
	}
}
