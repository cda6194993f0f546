package lock

import (
	"context"
	"time"
)

// watchDelay is how long a lock must be held before its grant is watched. The servers need no watch
// for locks that are held for less.
const watchDelay = 250 * time.Millisecond

// watchGrant ends the leases when the servers no longer have the grant.
func (h *hold) watchGrant(g WatchedGrant) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	h.mu.Lock()
	h.unwatch = cancel
	ended := h.ended
	h.mu.Unlock()
	if ended {
		return
	}
	if reason := g.Watch(ctx); ctx.Err() == nil {
		h.lose(reason)
	}
}

// expire ends the leases if the grant's lease has ended. If the lease was renewed
// meanwhile, expire is called again at its new end.
func (h *hold) expire(g ExpiringGrant) {
	left := time.Until(g.Until())
	if left <= 0 {
		h.lose(ErrExpired)
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.ended {
		h.expiry.Reset(left)
	}
}

// lose ends all leases. The reason of its first call counts.
func (h *hold) lose(reason error) {
	h.mu.Lock()
	if h.lost == nil {
		h.lost = reason
	}
	acquired := h.grant != nil
	for l := range h.leases {
		l.end(h.lost)
	}
	h.end()
	h.mu.Unlock()
	h.forget()
	if acquired { // otherwise acquire or the lease's Unlock leaves the queue
		h.leaveQueue()
	}
}
