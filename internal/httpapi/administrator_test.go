package httpapi

import (
	"net/http"
	"strings"
	"testing"
)

const adminToken = "0123456789abcdef"

// adminCase is an administrator's call.
type adminCase struct {
	name   string
	config func(*Config)
	host   string // empty means localhost
	remote string // empty means loopback
	header http.Header
	says   string // part of the reason for a refusal; empty: the call is allowed
}

func (a adminCase) request() *http.Request {
	r := call{method: "PUT", path: "/stock/10001", body: goodStock, header: a.header}.request()
	if a.host != "" {
		r.Host = a.host
	}
	if a.remote != "" {
		r.RemoteAddr = a.remote
	}
	return r
}

// TestAdministration checks that, without a token, an administrator's call must
// come from this machine, name it as its Host and not come through a proxy. The
// answer gives the reason for a refusal.
func TestAdministration(t *testing.T) {
	withToken := func(c *Config) { c.AdminToken = adminToken }
	public := func(c *Config) { c.AdminToken, c.Loopback = adminToken, false }
	reachable := func(c *Config) { c.Loopback = false }
	tests := []adminCase{
		{name: "this machine"},
		{name: "another machine", remote: "10.0.0.7:4711", says: "another machine"},
		{name: "another machine over IPv6", remote: "[2001:db8::1]:4711", says: "another machine"},
		{name: "a listener that is not on loopback", config: reachable, says: "other machines can reach"},
		{name: "no token where one is needed", config: withToken, says: "bearer token"},
		{name: "a wrong token", config: withToken, header: http.Header{"Authorization": {"Bearer 0123456789abcdeg"}}, says: "not the administrator's"},
		{name: "another scheme", config: withToken, header: http.Header{"Authorization": {"Basic " + adminToken}}, says: "as Bearer"},
		{name: "the token, from anywhere by any name", config: public, host: "shop.example", remote: "10.0.0.7:4711",
			header: http.Header{"Authorization": {"Bearer " + adminToken}, "X-Forwarded-For": {"10.0.0.8"}, "Via": {"1.1 proxy"}}},
	}
	for _, host := range []string{"localhost", "LOCALHOST:1", "127.0.0.1", "127.0.0.1:8080", "127.1.2.3:80", "[::1]", "[::1]:8080", "[::ffff:127.0.0.1]:8080"} {
		tests = append(tests, adminCase{name: "host " + host, host: host})
	}
	for _, host := range []string{"evil.test", "evil.test:8080", "localhost.evil.test", "127.0.0.1.evil.test:8080", "10.0.0.1:8080", "0.0.0.0:8080", "[::1].evil.test", "[::]:8080", "localhost:80:80", "[::1%25evil]:80", "-"} {
		tests = append(tests, adminCase{name: "host " + host, host: host, says: "Host"})
	}
	for _, name := range []string{"Forwarded", "Via", "X-Real-Ip", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Forwarded-Anything"} {
		tests = append(tests, adminCase{name: name, header: http.Header{name: {""}}, says: name})
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var changes []func(*Config)
			if tt.config != nil {
				changes = append(changes, tt.config)
			}
			orders := new(fakeOrders)
			rec := serveRequest(newAPI(t, orders, changes...), tt.request())
			if tt.says == "" {
				if rec.Code != http.StatusOK || orders.asked != 1 {
					t.Errorf("refused: %d %s", rec.Code, rec.Body)
				}
				return
			}
			if rec.Code != http.StatusUnauthorized || orders.asked != 0 || rec.Header().Get("WWW-Authenticate") != "Bearer" {
				t.Errorf("not refused: %d %v", rec.Code, rec.Header())
			}
			if !strings.Contains(rec.Body.String(), tt.says) {
				t.Errorf("does not say %q: %s", tt.says, rec.Body)
			}
			if strings.Contains(rec.Body.String(), adminToken) {
				t.Errorf("the answer contains the token: %s", rec.Body)
			}
		})
	}
	// An order needs no administrator.
	r := call{method: "POST", path: "/orders", body: oneLine}.request()
	r.Host, r.RemoteAddr = "shop.example", "10.0.0.7:4711"
	if rec := serveRequest(newAPI(t, new(fakeOrders)), r); rec.Code != http.StatusCreated {
		t.Errorf("an order from another machine: %d %s", rec.Code, rec.Body)
	}
}
