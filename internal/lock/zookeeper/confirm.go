package zookeeper

import (
	"context"
	"strings"
	"sync/atomic"
	"time"

	"github.com/holdfast-stock/holdfast/internal/lock"
)

// Confirm checks that the holder's node exists. The requests also extend the session.
// The first of them goes through the leader, because a server that is cut off from the
// leader still answers reads.
func (g *grant) Confirm(ctx context.Context) (until time.Time, err error) {
	b := g.backend
	asked := time.Now()
	var exists bool
	err = b.call(ctx, func() (err error) {
		if _, err = b.conn.Sync(g.path(g.node)); err == nil {
			exists, _, err = b.conn.Exists(g.path(g.node))
		}
		return err
	})
	switch {
	case err != nil:
		return time.Time{}, err
	case !exists:
		return time.Time{}, lock.ErrDeleted
	}
	return asked.Add(b.session.timeout()), nil
}

// call runs requests and returns their error. If ctx ends first, call returns ctx's error, and the
// requests continue, because the library cannot cancel a request.
func (b *backend) call(ctx context.Context, requests func() error) error {
	answer := make(chan error, 1)
	b.start(func() { answer <- requests() })
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// sessionTimeout is the timeout of the session, which the servers may have changed. It implements
// the library's logger, because the library reports the timeout only in a log line. It discards the
// other lines, because callers get the same information as errors and events.
type sessionTimeout struct{ milliseconds atomic.Int32 }

// timeout returns the timeout, or 0 while it is unknown. It is known before any request is
// answered.
func (t *sessionTimeout) timeout() time.Duration {
	return time.Duration(t.milliseconds.Load()) * time.Millisecond
}

func (t *sessionTimeout) Printf(format string, args ...any) {
	if !strings.HasPrefix(format, "authenticated:") || len(args) != 2 {
		return
	}
	if milliseconds, ok := args[1].(int32); ok {
		t.milliseconds.Store(milliseconds)
	}
}
