package httpapi

import (
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"time"

	"github.com/gin-gonic/gin"
)

// envelope is the middleware of every request. It sets the request ID, counts and logs
// the request, and turns a panic into an error answer.
func (a *api) envelope(c *gin.Context) {
	start := time.Now()
	c.Writer.Header()[requestIDHeader] = requestIDs(c.Request.Header)
	if a.Draining() {
		c.Header("Connection", "close")
	}
	defer func() {
		v := recover()
		if v != nil {
			v = a.recoverRequest(c, v)
		}
		took, status := time.Since(start), c.Writer.Status()
		if v != nil {
			status = http.StatusInternalServerError // the client gets no answer, or only a part of it
		}
		if a.requests != nil { // requests of operators' tools are not counted
			a.requests.observe(c.Request.Context(), c.Request.Method, c.FullPath(), status, took)
		}
		a.logRequest(c, took)
		if v != nil {
			panic(v)
		}
	}()
	c.Next()
}

// jsonOnly refuses a request whose body is not declared to be JSON.
func (a *api) jsonOnly(c *gin.Context) {
	if !isJSON(c.Request) {
		a.problem(c, notJSON, "The body must be application/json, in UTF-8 and not compressed.")
		c.Abort()
	}
}

// recoverRequest answers a request that panicked with v. If part of an answer was already sent, it
// returns the value to panic with. Package http then drops the connection, so that the client does
// not mistake half an answer for a complete one.
func (a *api) recoverRequest(c *gin.Context, v any) any {
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

// logRequest logs one line for the request: at error level if it failed with
// 500, otherwise at debug level.
func (a *api) logRequest(c *gin.Context, took time.Duration) {
	level := slog.LevelDebug
	failure := c.Errors.Last()
	if failure != nil && c.Writer.Status() == http.StatusInternalServerError {
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
