package recipe

import (
	"context"
	"errors"
	"time"

	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/retry"
)

// retryPause is the pause after a request to the backend, or a job, has failed.
const retryPause = time.Second

// Lead calls work whenever this process becomes the leader: the holder of the lock of the name. One
// process of the cluster leads at a time. The end of ctx ends the candidacy.
//
// The context of work ends with ctx, or when the leadership is lost; work must then return soon.
// token is the fencing token of the leadership. If work panics, the leadership ends. After a lost
// leadership, or if the backend fails, Lead tries again. It returns ctx's error when ctx ends,
// work's error when work returns during the leadership, and lock.ErrName at once if the name is
// invalid.
func Lead(ctx context.Context, l lock.Locker, name string, work func(ctx context.Context, token uint64) error) error {
	for {
		lease, err := l.Lock(ctx, name)
		if errors.Is(err, lock.ErrName) {
			return err
		}
		if err != nil {
			if err := retry.Sleep(ctx, retryPause); err != nil {
				return err
			}
			continue
		}
		if lost, err := leadUnder(ctx, lease, work); !lost {
			return err
		}
	}
}

// leadUnder calls work and then unlocks the lease. lost reports whether the leadership
// was lost; otherwise err is work's error.
func leadUnder(ctx context.Context, lease lock.Lease, work func(ctx context.Context, token uint64) error) (lost bool, err error) {
	defer func() { // runs even after a panic
		lost = errors.Is(lease.Unlock(ctx), lock.ErrLost) // a lock that could not be freed ends with its lease
	}()
	return false, workUnder(ctx, lease, work)
}

// workUnder calls work with a context that ends with ctx or with the lease.
func workUnder(ctx context.Context, lease lock.Lease, work func(ctx context.Context, token uint64) error) error {
	working, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	held := lease.Context()
	defer context.AfterFunc(held, func() { stop(context.Cause(held)) })()
	return work(working, lease.Token())
}
