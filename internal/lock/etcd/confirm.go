package etcd

import (
	"context"
	"time"

	"github.com/holdfast-stock/holdfast/internal/lock"
)

// Confirm keeps the session's lease alive and checks that the holder's key exists.
func (g *grant) Confirm(ctx context.Context) (until time.Time, err error) {
	asked := time.Now()
	seconds, notAlive := g.session.renewOnce(ctx)
	key, err := g.backend.client.Get(ctx, g.key)
	switch {
	case err != nil:
		return time.Time{}, err
	case len(key.Kvs) == 0 || key.Kvs[0].CreateRevision != g.token:
		return time.Time{}, lock.ErrLost
	case notAlive != nil:
		return time.Time{}, notAlive
	case seconds <= 0:
		return time.Time{}, lock.ErrSessionExpired
	}
	return asked.Add(time.Duration(seconds) * time.Second), nil
}
