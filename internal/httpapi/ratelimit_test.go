package httpapi

import (
	"log/slog"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestUnusableForward uses a trusted proxy that does not send the addresses of its clients, which
// then share one limit. The log must name the proxy.
func TestUnusableForward(t *testing.T) {
	t.Parallel()
	for forwarded, warns := range map[string]bool{"192.0.2.1:80": false, "": false, "192.0.2.1, unknown": true} {
		log := new(logBuffer)
		c := testConfig(new(fakeOrders))
		c.RateLimit, c.RateBurst = 1, 2
		c.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("10.0.0.1/32")}
		loggingTo(log, slog.LevelWarn)(&c)
		r := call{method: "GET", path: "/stock", header: http.Header{"X-Forwarded-For": {forwarded}}}.request()
		r.RemoteAddr = "10.0.0.1:4711"
		serveRequest(New(c), r)
		if text := log.String(); strings.Contains(text, "X-Forwarded-For") != warns || strings.Contains(text, "proxy=10.0.0.1 value=unknown") != warns {
			t.Errorf("%q is logged as: %s", forwarded, text)
		}
	}
}

// TestRateLimit checks who counts as one client, and which calls do not count. No time passes in
// the bubble.
func TestRateLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limited := func(c *Config) {
			withTokens(c)
			c.RateLimit, c.RateBurst = 0.8, 2 // one request in 1.25 s
			c.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("10.0.0.1/32")}
		}
		bearer := func(token string) http.Header { return http.Header{"Authorization": {"Bearer " + token}} }
		from := func(address string, h http.Header) call {
			return call{method: "GET", path: "/stock", header: http.Header{"X-Forwarded-For": {address}, "Authorization": h["Authorization"]}}
		}
		one, two := bearer(tokenOf(t, "u-1", time.Hour)), bearer(tokenOf(t, "u-2", time.Hour))
		expired := func(buyer string) http.Header { return bearer(tokenOf(t, buyer, -time.Hour)) }
		const many = 5
		for _, tt := range []struct {
			name  string
			calls []call // calls sent in turn, by a trusted proxy
			want  int    // number of calls that are answered
		}{
			{"an address", []call{from("192.0.2.1", nil)}, 2},
			{"two addresses", []call{from("192.0.2.1", nil), from("192.0.2.2", nil)}, 4},
			{"one that claims to be many", []call{from("192.0.2.8,192.0.2.1", nil), from("192.0.2.9,192.0.2.1", nil)}, 2},
			{"a buyer with two addresses", []call{from("192.0.2.1", one), from("192.0.2.2", one)}, 2},
			{"two buyers with one address", []call{from("192.0.2.1", one), from("192.0.2.1", two)}, 4},
			{"wrong tokens", []call{from("192.0.2.1", bearer("x")), from("192.0.2.1", bearer("y"))}, 2},
			{"expired tokens", []call{from("192.0.2.1", expired("u-1")), from("192.0.2.1", expired("u-2"))}, 2},
			{"administrators", []call{from("192.0.2.1", bearer(adminToken))}, many},
			{"guesses of the admin token", []call{{method: "PUT", path: "/stock/1", header: bearer("0123456789abcdeg"), body: goodStock}}, 2},
			{"unknown paths", []call{{method: "GET", path: "/nowhere"}}, 2},
			{"health", []call{{method: "GET", path: "/healthz"}, {method: "GET", path: "/readyz"}, {method: "GET", path: "/metrics"}}, 3 * many},
			{"the console's page", []call{{method: "GET", path: "/console/"}, {method: "GET", path: "/console/assets/app.js"}}, 2 * many},
			{"the console's figures", []call{{method: "GET", path: "/console/stream"}, {method: "GET", path: "/console/rush"}}, 2},
		} {
			c := testConfig(new(fakeOrders))
			limited(&c)
			c.Console = http.NotFoundHandler()
			h := New(c)
			answered := 0
			for range many {
				for _, one := range tt.calls {
					r := one.request()
					r.RemoteAddr = "10.0.0.1:4711"
					rec := serveRequest(h, r)
					if rec.Code != http.StatusTooManyRequests {
						answered++
						continue
					}
					if rec.Header().Get("Retry-After") != "2" || !strings.Contains(rec.Body.String(), "/problems/rate-limited") {
						t.Errorf("%s: %v %s", tt.name, rec.Header(), rec.Body)
					}
				}
			}
			if answered != tt.want {
				t.Errorf("%s: %d of %d requests are answered, want %d", tt.name, answered, many*len(tt.calls), tt.want)
			}
		}

		// Every limited call documents the answer, which newAPI checks.
		h := newAPI(t, new(fakeOrders), limited)
		for range 2 {
			do(h, call{"GET", "/strategies", one, ""})
		}
		for _, c := range []call{
			{"POST", "/orders", one, oneLine}, {"GET", "/orders", one, ""}, {"GET", "/orders/x", one, ""}, {"POST", "/orders/x/cancel", one, ""},
			{"POST", "/orders/x/pay", one, goodPayment}, {"POST", "/orders/x/refund", one, goodRefund}, {"GET", "/payments", one, ""},
			{"POST", "/payments/x/refunded", one, ""}, {"GET", "/stock", one, ""}, {"GET", "/stock/1", one, ""}, {"PUT", "/stock/1", one, goodStock},
			{"GET", "/stock/1/audit", one, ""}, {"GET", "/strategies", one, ""}, {"GET", "/openapi.yaml", one, ""},
		} {
			if rec := do(h, c); rec.Code != http.StatusTooManyRequests {
				t.Errorf("%s %s: %d", c.method, c.path, rec.Code)
			}
		}
	})
}
