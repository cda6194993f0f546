package httpapi

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/gin-gonic/gin"
)

// deadlines makes contexts that end after a timeout. Requests that start within a hundredth of the
// timeout share one context with one timer. A timer for each request would cost a fiftieth of its
// CPU time. deadlines is safe for concurrent use.
type deadlines struct {
	timeout time.Duration
	latest  atomic.Pointer[deadline]
}

// deadline is a context that requests may share until a time.
type deadline struct {
	ctx   context.Context
	until time.Time
}

// context returns a context that ends after the timeout, or up to a hundredth of it
// later.
func (d *deadlines) context() context.Context {
	now := time.Now()
	if latest := d.latest.Load(); latest != nil && now.Before(latest.until) {
		return latest.ctx
	}
	step := d.timeout / 100
	ctx, cancel := context.WithDeadline(context.Background(), now.Add(d.timeout+step))
	context.AfterFunc(ctx, cancel)
	d.latest.Store(&deadline{ctx, now.Add(step)})
	return ctx
}

// readContext returns the context of a request that changes nothing. It ends when
// the client disconnects.
func (a *api) readContext(c *gin.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(a.withID(c, c.Request.Context()), a.RequestTimeout)
}

// writeContext returns the context of a request that changes something. It does not end when the
// client disconnects, so that the work gets a known outcome.
func (a *api) writeContext(c *gin.Context) context.Context {
	return a.withID(c, a.Tracer.Carry(a.deadlines.context(), c.Request.Context()))
}
