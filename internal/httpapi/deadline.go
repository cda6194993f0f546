package httpapi

import (
	"context"
	"time"

	"github.com/gin-gonic/gin"
)

// deadline is a context that ends after the timeout of requests, or up to a hundredth of it later.
// Changes that start before until share it, and its timer. A timer for each of them would cost a
// fiftieth of its CPU time.
type deadline struct {
	ctx   context.Context
	until time.Time
}

// readContext returns the context of a request that changes nothing. It ends when
// the client disconnects.
func (a *api) readContext(c *gin.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(a.withID(c, c.Request.Context()), a.RequestTimeout)
}

// writeContext returns the context of a request that changes something. It does not end when the
// client disconnects, so that the work gets a known outcome.
func (a *api) writeContext(c *gin.Context) context.Context {
	now := time.Now()
	shared := a.deadline.Load()
	if shared == nil || !now.Before(shared.until) {
		step := a.RequestTimeout / 100
		ctx, cancel := context.WithDeadline(context.Background(), now.Add(a.RequestTimeout+step))
		context.AfterFunc(ctx, cancel)
		shared = &deadline{ctx, now.Add(step)}
		a.deadline.Store(shared)
	}
	return a.withID(c, a.Tracer.Carry(shared.ctx, c.Request.Context()))
}
