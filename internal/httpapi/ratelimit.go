package httpapi

import (
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
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

// clientAddress returns the address of the client that sent the request: the address of
// the connection, unless that is a trusted proxy. Each proxy appends the address of its
// own client to X-Forwarded-For. So the client is the last address there that does not
// belong to a trusted proxy. Addresses before that one may be forged. If a trusted proxy
// appended something else, that proxy counts as the client, and clientAddress returns
// what it appended as unusable. An IPv6 address is cut to its /64 network, because one
// client can use every address in it.
func clientAddress(r *http.Request, trusted []netip.Prefix) (client netip.Addr, unusable string) {
	peer, _ := netip.ParseAddrPort(r.RemoteAddr) // package http sets it
	client = peer.Addr().Unmap().WithZone("")
	hops := strings.Split(strings.Join(r.Header["X-Forwarded-For"], ","), ",")
	for i := len(hops) - 1; i >= 0 && within(trusted, client); i-- {
		hop, err := parseHop(strings.TrimSpace(hops[i]))
		if err != nil {
			unusable = strings.TrimSpace(hops[i])
			break
		}
		client = hop
	}
	if client.Is6() {
		client = netip.PrefixFrom(client, 64).Masked().Addr()
	}
	return client, unusable
}

// parseHop parses an address as proxies write it: 192.0.2.1, 192.0.2.1:80, 2001:db8::1,
// [2001:db8::1] or [2001:db8::1]:80.
func parseHop(text string) (netip.Addr, error) {
	address, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(text, "["), "]"))
	if err != nil {
		var withPort netip.AddrPort
		withPort, err = netip.ParseAddrPort(text)
		address = withPort.Addr()
	}
	return address.Unmap().WithZone(""), err
}

func within(networks []netip.Prefix, address netip.Addr) bool {
	return slices.ContainsFunc(networks, func(n netip.Prefix) bool { return n.Contains(address) })
}
