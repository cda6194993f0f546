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
	case notAlive == nil && seconds <= 0: // the key was deleted with the session
		return time.Time{}, lock.ErrSessionExpired
	case len(key.Kvs) == 0 || key.Kvs[0].CreateRevision != g.token:
		return time.Time{}, lock.ErrDeleted
	case notAlive != nil:
		return time.Time{}, notAlive
	}
	return asked.Add(time.Duration(seconds) * time.Second), nil
}
