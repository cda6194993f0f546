package httpapi

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

const (
	notReadyDetail = "The service is starting or stopping."
	// readyTimeout bounds /readyz, so that load balancers get an answer within
	// 2 s.
	readyTimeout     = 1500 * time.Millisecond
	storesDownDetail = "The service cannot place orders now. The log has the cause under the request ID."
)

func (a *api) routeHealth(e *gin.Engine) {
	e.GET("/healthz", a.healthz)
	e.GET("/readyz", a.readyz)
}

// healthz handles GET /healthz.
func (a *api) healthz(c *gin.Context) {
	answer(c, http.StatusOK, jsonType, gin.H{"status": "ok"})
}

// readyz handles GET /readyz.
func (a *api) readyz(c *gin.Context) {
	if a.Draining() {
		a.problem(c, unavailable, notReadyDetail)
		return
	}
	ctx, cancel := context.WithTimeout(a.withID(c, c.Request.Context()), min(readyTimeout, a.RequestTimeout))
	defer cancel()
	err := a.Ready(ctx)
	if err == nil {
		answer(c, http.StatusOK, jsonType, gin.H{"status": "ready"})
		return
	}
	a.recordFailure(c, http.StatusServiceUnavailable, "not ready", err)
	p, detail := unavailable, storesDownDetail
	if errors.Is(err, stock.ErrSuperseded) {
		p, detail = problemOf(err)
	}
	a.problem(c, p, detail)
}
