package httpapi

import (
	"net/http"
	"net/http/pprof"
	"strconv"

	"github.com/gin-gonic/gin"
)

// NewOps returns the handler of a listener for operators: health, metrics and profiles. Profiles
// are for administrators. c.AdminToken and c.Loopback describe this listener, not that of the API.
// It is safe for concurrent use.
func NewOps(c Config) http.Handler {
	a := build(c)
	e := a.bareEngine()
	a.routeHealth(e)
	a.routeOps(e)
	return e
}

func (a *api) routeOps(e *gin.Engine) {
	e.GET("/metrics", gin.WrapH(a.Metrics))
	e.GET("/debug/pprof/*name", a.adminOnly, a.ownPages, a.profile)
}

// maxProfile is the length of the longest profile, in seconds. Package pprof extends the time limit
// of the connection by any length that a request asks for.
const maxProfile = 60

// profile handles GET /debug/pprof/. It does not serve the command line, which may
// contain passwords.
func (a *api) profile(c *gin.Context) {
	if seconds, _ := strconv.ParseFloat(c.Query("seconds"), 64); seconds > maxProfile {
		a.problem(c, invalid, invalidDetail, extras{Errors: []fieldError{{"seconds", "must be at most 60"}}})
		return
	}
	switch c.Param("name") {
	case "/profile":
		pprof.Profile(c.Writer, c.Request)
	case "/trace":
		pprof.Trace(c.Writer, c.Request)
	case "/cmdline", "/symbol":
		a.notFound(c)
	default:
		pprof.Index(c.Writer, c.Request)
	}
}
