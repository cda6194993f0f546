package httpapi

import (
	"net/http"
	"strings"

	"github.com/gin-gonic/gin"
)

// traced are the first elements of the paths whose requests are traced: those that need the stores.
// Traces of probes and scrapes would only hide those of orders.
var traced = map[string]bool{"orders": true, "payments": true, "stock": true}

// trace is the middleware that starts the span of a request. It runs before all others, so that
// refused requests are traced too, and log lines have the trace's ID.
func (a *api) trace(c *gin.Context) {
	route := c.FullPath() // the path itself has the SKU
	first, _, _ := strings.Cut(strings.TrimPrefix(route, "/"), "/")
	if !traced[first] {
		return
	}
	ctx, span := a.Tracer.Request(c.Request.Context(), c.Request.Header, c.Request.Method, pattern(route))
	c.Request = c.Request.WithContext(ctx)
	defer func() {
		status := c.Writer.Status()
		span.Int("http.response.status_code", status)
		if status >= http.StatusInternalServerError {
			span.Fail(http.StatusText(status))
		}
		span.End()
	}()
	c.Next()
}
