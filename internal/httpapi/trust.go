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

// authority decides which requests are an administrator's.
type authority struct {
	token    [sha256.Size]byte // its hash
	needed   bool
	loopback bool
}

func newAuthority(token string, loopback bool) authority {
	return authority{token: sha256.Sum256([]byte(token)), needed: token != "", loopback: loopback}
}

// objection says why r is not an administrator's request; "" means that it is.
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
	return "Without an administrator's token set, this call is answered only to this machine itself, and " + reason + "."
}

// tokenObjection takes the same time for every wrong token, whatever its
// length.
func (a authority) tokenObjection(h http.Header) string {
	given := h["Authorization"]
	if len(given) == 0 {
		return "This call needs the administrator's bearer token."
	}
	scheme, token, _ := strings.Cut(given[0], " ")
	if len(given) > 1 || !strings.EqualFold(scheme, "Bearer") {
		return "Authorization must be given once, as Bearer and the administrator's token."
	}
	hash := sha256.Sum256([]byte(strings.TrimLeft(token, " ")))
	if subtle.ConstantTimeCompare(hash[:], a.token[:]) != 1 {
		return "The bearer token is not the administrator's."
	}
	return ""
}

// isLoopback reports whether an address, with or without a port, names this
// machine: localhost, 127.0.0.0/8 or ::1, which needs brackets before a port.
// A name that resolves to one of them does not count: the owner of the name
// decides what it resolves to.
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
	return err == nil && ip.Zone() == "" && ip.Unmap().IsLoopback()
}

// forwardedBy returns the name of a header that only proxies add, or "".
func forwardedBy(h http.Header) string {
	for name := range h {
		switch {
		case name == "Forwarded", name == "Via", name == "X-Real-Ip", strings.HasPrefix(name, "X-Forwarded-"):
			return name
		}
	}
	return ""
}

// sameOrigin refuses a request that changes something and that a browser sends
// for a page of another origin. Requests without a route are left to the
// handlers of 404 and 405.
func (a *api) sameOrigin(c *gin.Context) {
	if c.FullPath() == "" || a.origins.Check(c.Request) == nil {
		return
	}
	a.problem(c, crossOrigin, "A page of another origin sent this request. Nothing was done.")
	c.Abort()
}
