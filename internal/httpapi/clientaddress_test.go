package httpapi

import (
	"net/netip"
	"testing"
)

// TestClientAddress checks that only trusted proxies can name another address, and
// that a client cannot choose one.
func TestClientAddress(t *testing.T) {
	t.Parallel()
	trusted := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("2001:db8:1::/48")}
	for _, tt := range []struct {
		name, remote string
		forwarded    []string
		want         string
		unusable     string
	}{
		{"no proxy", "192.0.2.1:4711", nil, "192.0.2.1", ""},
		{"a claim without a proxy", "192.0.2.1:4711", []string{"198.51.100.7"}, "192.0.2.1", ""},
		{"a claim to be a proxy", "192.0.2.1:4711", []string{"198.51.100.7, 10.0.0.1"}, "192.0.2.1", ""},
		{"a proxy", "10.0.0.1:4711", []string{"192.0.2.1"}, "192.0.2.1", ""},
		{"a claim through a proxy", "10.0.0.1:4711", []string{"198.51.100.7, 192.0.2.1"}, "192.0.2.1", ""},
		{"a claim in a header of its own", "10.0.0.1:4711", []string{"198.51.100.7", "192.0.2.1"}, "192.0.2.1", ""},
		{"two proxies", "10.0.0.1:4711", []string{"198.51.100.7,192.0.2.1,10.1.2.3"}, "192.0.2.1", ""},
		{"a proxy that names nobody", "10.0.0.1:4711", nil, "10.0.0.1", ""},
		{"a proxy's own request", "10.0.0.1:4711", []string{"10.0.0.9"}, "10.0.0.9", ""},
		{"no address", "10.0.0.1:4711", []string{"192.0.2.1, unknown"}, "10.0.0.1", "unknown"},
		{"an address with a port", "10.0.0.1:4711", []string{"192.0.2.1:80"}, "192.0.2.1", ""},
		{"two proxies, with ports", "10.0.0.1:4711", []string{"198.51.100.7:1, 192.0.2.1:80, 10.1.2.3:4711"}, "192.0.2.1", ""},
		{"IPv6 with a port", "10.0.0.1:4711", []string{"[2001:db8:7:8:9::1]:80"}, "2001:db8:7:8::", ""},
		{"IPv6 in brackets", "10.0.0.1:4711", []string{"[2001:db8:7:8:9::1]"}, "2001:db8:7:8::", ""},
		{"IPv4 in IPv6 with a port", "10.0.0.1:4711", []string{"[::ffff:192.0.2.1]:80"}, "192.0.2.1", ""},
		{"a name with a port", "10.0.0.1:4711", []string{"host:80"}, "10.0.0.1", "host:80"},
		{"a port that is none", "10.0.0.1:4711", []string{"192.0.2.1:http"}, "10.0.0.1", "192.0.2.1:http"},
		{"an empty header", "10.0.0.1:4711", []string{""}, "10.0.0.1", ""},
		{"IPv6", "[2001:db8:7:8:9::1]:4711", nil, "2001:db8:7:8::", ""},
		{"another address of the network", "[2001:db8:7:8:ffff::2]:4711", nil, "2001:db8:7:8::", ""},
		{"a proxy over IPv6", "[2001:db8:1::1]:4711", []string{"192.0.2.1"}, "192.0.2.1", ""},
		{"IPv4 in IPv6", "[::ffff:10.0.0.1]:4711", []string{"::ffff:192.0.2.1"}, "192.0.2.1", ""},
	} {
		r := call{method: "GET", path: "/"}.request()
		r.RemoteAddr = tt.remote
		r.Header["X-Forwarded-For"] = tt.forwarded
		got, unusable := clientAddress(r, trusted)
		if got.String() != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
		if unusable != tt.unusable {
			t.Errorf("%s: %q is unusable, want %q", tt.name, unusable, tt.unusable)
		}
	}
}
