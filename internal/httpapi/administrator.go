package httpapi

import (
	"crypto/sha256"
	"crypto/subtle"
	"net"
	"net/http"
	"net/netip"
	"strings"

	"github.com/gin-gonic/gin"
)

// authority decides which requests come from an administrator.
type authority struct {
	token    [sha256.Size]byte // the hash of the admin token
	needed   bool              // a token is set
	loopback bool              // only this machine can reach the listener
}

func newAuthority(token string, loopback bool) authority {
	return authority{token: sha256.Sum256([]byte(token)), needed: token != "", loopback: loopback}
}

// objection returns the reason why r is not an administrator's request, or "" if
// it is one.
func (a authority) objection(r *http.Request) string {
	if a.needed {
		return a.tokenObjection(r.Header)
	}
	reason := ""
	switch {
	case !a.loopback:
		reason = "the service listens on an address that other machines can reach"
	case !isLoopback(r.RemoteAddr):
		reason = "it comes from another machine"
	case !isLoopback(r.Host):
		reason = "its Host is not a loopback address"
	case forwardedBy(r.Header) != "":
		reason = "it was forwarded (" + forwardedBy(r.Header) + ")"
	default:
		return ""
	}
	return "No admin token is set, so this call must come from the same machine, but " + reason + "."
}

// tokenObjection is objection for a service with a token.
func (a authority) tokenObjection(h http.Header) string {
	switch token, ok := bearerToken(h); {
	case len(h["Authorization"]) == 0:
		return "This call needs the administrator's bearer token."
	case !ok:
		return "Authorization must be given only once, as Bearer and the administrator's token."
	case !a.isAdmin(token):
		return "The bearer token is not the administrator's."
	}
	return ""
}

// isAdmin reports whether an admin token is set, and token equals it. It compares hashes, which
// takes the same time for every wrong token.
func (a authority) isAdmin(token string) bool {
	hash := sha256.Sum256([]byte(token))
	return a.needed && subtle.ConstantTimeCompare(hash[:], a.token[:]) == 1
}

// bearerToken returns the bearer token of a request. ok is false if there is none, or
// the header is repeated or of another scheme.
func bearerToken(h http.Header) (token string, ok bool) {
	given := h["Authorization"]
	if len(given) != 1 {
		return "", false
	}
	scheme, token, _ := strings.Cut(given[0], " ")
	return strings.TrimLeft(token, " "), strings.EqualFold(scheme, "Bearer")
}

// isLoopback reports whether an address names this machine: localhost, 127.0.0.0/8 or ::1. A port
// may follow; an IPv6 address then needs brackets. Other names do not count, even if they resolve
// to such an address: the owner of a name can change its address.
func isLoopback(address string) bool {
	host := address
	if h, _, err := net.SplitHostPort(address); err == nil {
		host = h
	} else if strings.HasPrefix(host, "[") && strings.HasSuffix(host, "]") {
		host = host[1 : len(host)-1]
	}
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Zone() == "" && ip.IsLoopback()
}

// forwardedBy returns the name of a header that only proxies add, or "" if there
// is none.
func forwardedBy(h http.Header) string {
	for name := range h {
		switch {
		case name == "Forwarded", name == "Via", name == "X-Real-Ip", strings.HasPrefix(name, "X-Forwarded-"):
			return name
		}
	}
	return ""
}

// sameOrigin refuses a state-changing request that a browser sends for a page of
// another origin. Requests without a route go on to the handlers of 404 and 405.
func (a *api) sameOrigin(c *gin.Context) {
	if c.FullPath() == "" || a.origins.Check(c.Request) == nil {
		return
	}
	a.problem(c, crossOrigin, "A page of another origin sent this request. Nothing was done.")
	c.Abort()
}

// ownPages refuses a request that a browser sends for a page of another origin, even if it changes
// nothing. The page cannot read the answer, but each request costs the service work.
func (a *api) ownPages(c *gin.Context) {
	switch c.Request.Header.Get("Sec-Fetch-Site") {
	case "", "none", "same-origin": // not a browser, the browser's user, or a page of the service
		return
	}
	a.problem(c, crossOrigin, "A page of another origin sent this request. Nothing was done.")
	c.Abort()
}

// adminOnly refuses a request that does not come from an administrator.
func (a *api) adminOnly(c *gin.Context) {
	if objection := a.auth.objection(c.Request); objection != "" {
		c.Header("WWW-Authenticate", "Bearer")
		a.problem(c, unauthorized, objection)
		c.Abort()
	}
}
