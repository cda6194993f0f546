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

// RLock takes the lock for reading. Readers share it with each other, and exclude holders that took
// it with Lock. They wait in the same queue, so readers do not overtake a waiting writer. A reader's
// lease has no token and is not reentrant.
func (l Local) RLock(ctx context.Context, name string) (Lease, error) {
	if err := CheckName(name); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, lockingError(name, err)
	}
	if err := l.queue.enter(ctx, name, nil); err != nil {
		return nil, lockingError(name, err)
	}
	h := &hold{locker: l.locker, key: holdKey{name: name}, leases: make(map[*lease]bool)}
	h.grant = readGrant{l.locker, name}
	return h.lease(ctx), nil
}

// readGrant is a grant that readers share.
type readGrant struct {
	locker *locker
	name   string
}

func (readGrant) Token() uint64 { return 0 }

func (g readGrant) Release(context.Context) error {
	g.locker.queue.leave(g.name, nil)
	return nil
}

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
