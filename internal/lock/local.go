package lock

import (
	"context"
	"sync"
	"time"
)

// Local locks within one process. It does not exclude other instances: it is the mutex of the
// broken strategy `mutex`.
//
// Its leases are never lost, and its only errors are ErrHeld and those of the context.
type Local struct{ *locker }

// NewLocal returns a Locker that holds no locks.
func NewLocal() Local { return Local{newLocker(new(counter))} }

// counter grants every request: only the Locker's queue excludes. It has one counter for all names,
// so that a name's tokens keep rising even if no state is kept for the name. Tokens are at least
// the clock in microseconds. So they keep rising after a restart, and a fence that has outlived the
// process accepts them.
type counter struct {
	mu   sync.Mutex
	last uint64
}

func (c *counter) Acquire(context.Context, string, bool, func(error)) (Grant, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = max(c.last+1, uint64(time.Now().UnixMicro()))
	return localGrant(c.last), nil
}

// localGrant is a grant with its token.
type localGrant uint64

func (g localGrant) Token() uint64 { return uint64(g) }

func (localGrant) Release(context.Context) error { return nil }
