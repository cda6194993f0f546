package httpapi

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

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
