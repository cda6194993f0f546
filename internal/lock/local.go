package lock

import (
	"context"
	"sync"
	"time"
)

// Local locks within one process. It is the mutex of the broken strategy
// `mutex`: right alone, no use between two instances.
//
// It never loses a lease, and its only errors are ErrHeld and those of the
// context.
type Local struct{ *locker }

// ReadWriter is a Locker whose locks many may hold for reading at once.
type ReadWriter interface {
	Locker
	// RLock is Lock for reading: the lock is shared with others that read, and
	// with nobody that holds it by Lock. Its leases have no token and are not
	// reentrant.
	RLock(ctx context.Context, name string) (Lease, error)
}

var _ ReadWriter = Local{}

// NewLocal returns a Locker that holds no locks.
func NewLocal() Local { return Local{newLocker(new(counter))} }

// RLock waits in the same queue as Lock: who reads does not overtake who waits
// to write.
func (l Local) RLock(ctx context.Context, name string) (Lease, error) {
	if err := ctx.Err(); err != nil {
		return nil, failed(name, err)
	}
	if err := l.queue.enter(ctx, name, nil); err != nil {
		return nil, failed(name, err)
	}
	h := &hold{locker: l.locker, key: owned{name: name}, leases: make(map[*lease]bool)}
	h.grant = reading{l.locker, name}
	return h.lease(ctx), nil
}

// reading is a grant that others share.
type reading struct {
	locker *locker
	name   string
}

func (reading) Token() uint64 { return 0 }

func (r reading) Release(context.Context) error {
	r.locker.queue.leave(r.name, nil)
	return nil
}

// counter grants everything: the Locker's queue is all that excludes. It counts
// for all names together, so that a name's tokens go on rising though the name
// was forgotten meanwhile; and from the clock on, so that they do when the
// process is started again, and a fence that outlived it is not above them.
type counter struct {
	mu   sync.Mutex
	last uint64
}

func (c *counter) Acquire(context.Context, string, bool, func()) (Grant, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = max(c.last+1, uint64(time.Now().UnixMicro()))
	return counted(c.last), nil
}

type counted uint64

func (c counted) Token() uint64 { return uint64(c) }

func (counted) Release(context.Context) error { return nil }
