package httpapi

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"time"

	"github.com/gin-gonic/gin"
)

// requestIDHeader is X-Request-ID as package http spells it.
const requestIDHeader = "X-Request-Id"

// envelope is around every request: it names it, logs it, and keeps a panic
// from ending more than the request.
func (a *api) envelope(c *gin.Context) {
	start := time.Now()
	c.Writer.Header()[requestIDHeader] = requestIDs(c.Request.Header)
	if a.Draining() {
		c.Header("Connection", "close")
	}
	defer func() {
		v := recover()
		if v != nil {
			v = a.recovered(c, v)
		}
		a.logRequest(c, time.Since(start))
		if v != nil {
			panic(v)
		}
	}()
	c.Next()
}

// recovered answers a request that panicked. Where that is too late, it
// returns what makes package http drop the connection without a word: the
// client must not take half an answer for a whole one.
func (a *api) recovered(c *gin.Context, v any) any {
	if v == http.ErrAbortHandler {
		return v
	}
	a.Log.ErrorContext(a.withID(c, c.Request.Context()), "a request panicked",
		"panic", fmt.Sprint(v), "stack", string(debug.Stack()))
	if c.Writer.Written() {
		return http.ErrAbortHandler
	}
	for name := range c.Writer.Header() {
		if name != requestIDHeader {
			delete(c.Writer.Header(), name)
		}
	}
	a.problem(c, internal, internalDetail)
	return nil
}

// logRequest writes the request's line: at the error level if the service
// failed, else at the debug level.
func (a *api) logRequest(c *gin.Context, took time.Duration) {
	level := slog.LevelDebug
	failure := c.Errors.Last()
	if failure != nil && c.Writer.Status() != http.StatusServiceUnavailable {
		level = slog.LevelError
	}
	if !a.Log.Enabled(c.Request.Context(), level) {
		return
	}
	attrs := []slog.Attr{
		slog.String("method", c.Request.Method),
		slog.String("path", c.Request.URL.Path),
		slog.Int("status", c.Writer.Status()),
		slog.Int("bytes", max(0, c.Writer.Size())),
		slog.Float64("seconds", took.Seconds()),
	}
	if failure != nil {
		attrs = append(attrs, slog.Any("error", failure.Err))
	}
	a.Log.LogAttrs(a.withID(c, c.Request.Context()), level, "request", attrs...)
}

// fail answers a request that the service refused, and logs what went wrong.
func (a *api) fail(c *gin.Context, err error) {
	p, detail := problemOf(err)
	a.failed(c, p.about().status, "refusing requests as "+string(p), err)
	a.problem(c, p, detail, concerning(err))
}

// failed leaves the cause of a failure for the request's line in the log. The
// cause of a 503 gets a line of its own with the message; that a read failed
// because the client hung up is no failure.
func (a *api) failed(c *gin.Context, status int, message string, err error) {
	if status < http.StatusInternalServerError {
		return
	}
	_ = c.Error(err)
	if ctx := c.Request.Context(); status == http.StatusServiceUnavailable && ctx.Err() == nil {
		a.Log.LogAttrs(a.withID(c, ctx), slog.LevelWarn, message, slog.Any("error", err))
	}
}

// reading is the context of a request that changes nothing: it ends with the
// client's patience.
func (a *api) reading(c *gin.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(a.withID(c, c.Request.Context()), a.RequestTimeout)
}

// changing is the context of a request whose outcome must be known: it
// outlives the client's connection.
func (a *api) changing(c *gin.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(a.withID(c, context.WithoutCancel(c.Request.Context())), a.RequestTimeout)
}

func (a *api) withID(c *gin.Context, ctx context.Context) context.Context {
	return withRequestID(ctx, c.Writer.Header()[requestIDHeader][0])
}
