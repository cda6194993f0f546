package httpapi

import (
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/gin-gonic/gin"
)

// client identifies a client to the rate limit: by the buyer of a valid token, or else by
// the address.
type client struct {
	buyer   string
	address netip.Addr
}

// unlimited has the routes without a limit. The operators' tools must work at any load. A browser
// requests the console's page and its files all at once and without a token.
var unlimited = []string{"/healthz", "/readyz", "/metrics", consolePath, consoleAssets}

// limit refuses a request of a client that sends too many. Administrators may send
// any number; a wrong token counts for the client's address, so that guesses are
// limited too.
func (a *api) limit(c *gin.Context) {
	token, _ := bearerToken(c.Request.Header)
	if a.auth.isAdmin(token) || slices.Contains(unlimited, c.FullPath()) {
		return
	}
	from := client{buyer: a.caller(c).buyer}
	if from.buyer == "" {
		var unusable string
		if from.address, unusable = clientAddress(c.Request, a.TrustedProxies); unusable != "" {
			a.Log.WarnContext(c.Request.Context(), "a trusted proxy's X-Forwarded-For does not end in an address; its clients share one rate limit",
				"proxy", from.address, "value", unusable)
		}
	}
	wait := a.limits.Take(from, time.Now())
	if wait == 0 {
		return
	}
	c.Writer.Header()["Retry-After"] = []string{strconv.FormatInt(int64((wait+time.Second-1)/time.Second), 10)}
	a.problem(c, rateLimited, "The client sends too many requests. Nothing was done; try again.")
	c.Abort()
}
