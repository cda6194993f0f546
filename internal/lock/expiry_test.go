package lock

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// expiring is a grant whose lease ends at until.
type expiring struct {
	Grant
	mu    sync.Mutex
	until time.Time
}

func (g *expiring) Until() time.Time {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.until
}

func (g *expiring) renew(until time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.until = until
}

// expiringHandsOver is an expiring grant that hands over another one.
type expiringHandsOver struct {
	*expiring
	next Grant
}

func (g expiringHandsOver) HandOver(context.Context, func(error)) (Grant, error) { return g.next, nil }

// grantsInTurn returns these grants in turn, and never reports a loss.
type grantsInTurn chan Grant

func (b grantsInTurn) Acquire(context.Context, string, bool, func(error)) (Grant, error) {
	return <-b, nil
}

// granting returns a Locker whose backend returns these grants in turn.
func granting(grants ...Grant) *locker {
	b := make(grantsInTurn, len(grants))
	for _, g := range grants {
		b <- g
	}
	return newLocker(b)
}

func newExpiring(ends time.Duration) *expiring {
	return &expiring{Grant: localGrant(1), until: time.Now().Add(ends)}
}

// mustEndAfter checks when the lease ends, and why.
func mustEndAfter(t *testing.T, lease Lease, after time.Duration, reason error) {
	t.Helper()
	asked := time.Now()
	<-lease.Context().Done()
	if took := time.Since(asked); took != after {
		t.Errorf("the lease ended after %v, want %v", took, after)
	}
	if cause := context.Cause(lease.Context()); !errors.Is(cause, reason) || !errors.Is(cause, ErrLost) {
		t.Errorf("the lease ended with the cause %v, want %v", cause, reason)
	}
}

// TestLeaseExpires ends leases while the backend does nothing.
func TestLeaseExpires(t *testing.T) {
	t.Parallel()
	t.Run("never renewed", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			l := granting(newExpiring(2*time.Second), newExpiring(5*time.Second))
			lease := mustLock(t, l, "a")
			waiter := make(chan Lease, 1)
			go func() { waiter <- mustLock(t, l, "a") }()
			mustEndAfter(t, lease, 2*time.Second, ErrExpired)
			mustUnlock(t, <-waiter) // the backend may now grant the lock to the next waiter
			if err := lease.Unlock(t.Context()); !errors.Is(err, ErrExpired) {
				t.Errorf("Unlock: %v, want %v", err, ErrExpired)
			}
		})
	})
	t.Run("renewed twice", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := newExpiring(2 * time.Second)
			lease := mustLock(t, granting(g), "a")
			g.renew(time.Now().Add(3 * time.Second))
			time.Sleep(2500 * time.Millisecond)
			g.renew(time.Now().Add(3 * time.Second))
			mustEndAfter(t, lease, 3*time.Second, ErrExpired)
		})
	})
	t.Run("expired before it was granted", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			mustEndAfter(t, mustLock(t, granting(newExpiring(-time.Second)), "a"), 0, ErrExpired)
		})
	})
	t.Run("handed over", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			l := granting(expiringHandsOver{newExpiring(time.Second), newExpiring(2 * time.Second)})
			lease := mustLock(t, l, "a")
			waiter := make(chan Lease, 1)
			go func() { waiter <- mustLock(t, l, "a") }()
			synctest.Wait()
			mustUnlock(t, lease)
			mustEndAfter(t, <-waiter, 2*time.Second, ErrExpired)
		})
	})
	t.Run("unlocked in time", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			lease := mustLock(t, granting(newExpiring(time.Second)), "a")
			mustUnlock(t, lease)
			time.Sleep(2 * time.Second)
			if cause := context.Cause(lease.Context()); errors.Is(cause, ErrLost) {
				t.Errorf("the unlocked lease ended with %v", cause)
			}
		})
	})
}

// TestFirstReasonCounts loses a lock twice.
func TestFirstReasonCounts(t *testing.T) {
	t.Parallel()
	b := newFakeBackend(func(g *fakeGrant) Grant { return g })
	lease := mustLock(t, newLocker(b), "a")
	holder := <-b.grants
	holder.lost(ErrDeleted)
	holder.lost(ErrDisconnected)
	if cause := context.Cause(lease.Context()); !errors.Is(cause, ErrDeleted) {
		t.Errorf("the lease ended with the cause %v, want %v", cause, ErrDeleted)
	}
	if err := lease.Unlock(t.Context()); !errors.Is(err, ErrDeleted) {
		t.Errorf("Unlock: %v, want %v", err, ErrDeleted)
	}
}

// watched is a grant whose Watch returns when the test closes a channel.
type watched struct {
	Grant
	began chan struct{}
	gone  chan error
}

func (g watched) Watch(ctx context.Context) error {
	close(g.began)
	select {
	case reason := <-g.gone:
		return reason
	case <-ctx.Done():
		return ctx.Err()
	}
}

// TestGrantIsWatched checks when a grant is watched, and what the end of the watch does.
func TestGrantIsWatched(t *testing.T) {
	t.Parallel()
	hold := func(t *testing.T) (Lease, watched) {
		g := watched{localGrant(1), make(chan struct{}), make(chan error)}
		return mustLock(t, granting(g), "a"), g
	}
	t.Run("deleted", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			lease, g := hold(t)
			<-g.began
			g.gone <- ErrDeleted
			mustEndAfter(t, lease, 0, ErrDeleted)
			if err := lease.Unlock(t.Context()); !errors.Is(err, ErrDeleted) {
				t.Errorf("Unlock: %v, want %v", err, ErrDeleted)
			}
		})
	})
	t.Run("unlocked while it is watched", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			lease, g := hold(t)
			<-g.began
			mustUnlock(t, lease) // the bubble's goroutines must end, so Watch's context must end
		})
	})
	t.Run("unlocked before", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			held, g := hold(t)
			time.Sleep(watchDelay / 2)
			mustUnlock(t, held)
			time.Sleep(watchDelay)
			held.(*lease).hold.watchGrant(g) // what a timer runs that fires during Unlock
			select {
			case <-g.began:
				t.Error("the grant was watched after it was released")
			default:
			}
		})
	})
}
