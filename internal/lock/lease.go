package lock

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"
)

// releaseTimeout bounds how long Unlock may take to free the lock.
const releaseTimeout = 3 * time.Second

type lease struct {
	hold *hold
	ctx  context.Context
	end  context.CancelCauseFunc
	once sync.Once
	err  error
}

func (l *lease) Context() context.Context { return l.ctx }

func (l *lease) Token() uint64 { return l.hold.grant.Token() }

func (l *lease) Unlock(ctx context.Context) error {
	l.once.Do(func() { l.err = l.unlock(ctx) })
	return l.err
}

func (l *lease) unlock(ctx context.Context) error {
	h := l.hold
	h.mu.Lock()
	delete(h.leases, l)
	last, lost := len(h.leases) == 0, h.lost
	if last {
		h.end()
	}
	h.mu.Unlock()
	l.end(nil)
	if !last {
		return unlockingError(h.key.name, lost)
	}
	h.forget()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	var (
		handedOver bool
		err        error
	)
	if lost == nil {
		handedOver, err = h.handOver(ctx)
	}
	if !handedOver {
		err = h.release(ctx)
	}
	return unlockingError(h.key.name, cmp.Or(lost, err))
}

// release releases the grant and gives the turn to the next waiter of the process.
func (h *hold) release(ctx context.Context) error {
	defer h.leaveQueue()
	g, ok := h.grant.(PipelinedGrant)
	if !ok {
		return h.grant.Release(ctx)
	}
	wait := g.StartRelease()
	h.leaveQueue()
	return wait(ctx)
}

func unlockingError(name string, err error) error {
	if err != nil {
		return fmt.Errorf("unlocking %s: %w", name, err)
	}
	return nil
}
