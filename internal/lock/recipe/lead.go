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

// Lead calls work whenever this process becomes the leader: the holder of the lock of
// the name. One process of the cluster leads at a time. ctx ends the candidacy.
//
// The context of work ends with ctx, or when the leadership is lost; work must then
// return soon. token is the fencing token of the leadership. If work panics, the
// leadership ends. After a lost leadership, or if the backend fails, Lead tries again. It
// returns lock.ErrName at once. Otherwise it returns when ctx ends, with ctx's error, or
// when work returns while it leads, with work's error.
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
	defer func() { // also after a panic
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
