package httpapi

import (
	"net/http"
	"strings"
	"testing"
)

// TestOps checks which paths the operators' listener serves, that the API then does not serve them,
// and who may read profiles.
func TestOps(t *testing.T) {
	public := func(c *Config) { c.AdminToken, c.Loopback = adminToken, false }
	separate := func(c *Config) { public(c); c.SeparateOps = true }
	token := http.Header{"Authorization": {"Bearer " + adminToken}}
	const heap = "/debug/pprof/heap?debug=1"
	for _, tt := range []struct {
		name   string
		ops    bool // send the request to the operators' listener
		config func(*Config)
		path   string
		header http.Header
		status int
		says   string
	}{
		{"metrics of the API", false, public, "/metrics", nil, 200, "holdfast_orders_total"},
		{"metrics of the API beside a listener for operators", false, separate, "/metrics", nil, 404, "not-found"},
		{"profiles of the API, with the token", false, public, heap, token, 200, "heap profile"},
		{"profiles of the API, without", false, public, heap, nil, 401, "unauthorized"},
		{"profiles of the API, from this machine", false, nil, heap, nil, 200, "heap profile"},
		{"profiles of the API, through a proxy", false, nil, heap, http.Header{"X-Forwarded-For": {"192.0.2.1"}}, 401, "forwarded"},
		{"profiles of the API beside a listener for operators", false, separate, heap, token, 404, "not-found"},
		{"health of the API beside a listener for operators", false, separate, "/readyz", nil, 200, "ready"},
		{"metrics", true, separate, "/metrics", nil, 200, "holdfast_orders_total"},
		{"health", true, separate, "/healthz", nil, 200, "ok"},
		{"readiness", true, separate, "/readyz", nil, 200, "ready"},
		{"profiles", true, separate, heap, token, 200, "heap profile"},
		{"profiles without the token", true, separate, heap, nil, 401, "unauthorized"},
		{"profiles from this machine", true, nil, heap, nil, 200, "heap profile"},
		{"profiles for a page of another site", true, nil, heap, http.Header{"Sec-Fetch-Site": {"cross-site"}}, 403, "cross-origin"},
		{"profiles of the API for a page of another port", false, nil, heap, http.Header{"Sec-Fetch-Site": {"same-site"}}, 403, "cross-origin"},
		{"profiles for a page of the listener", true, nil, heap, http.Header{"Sec-Fetch-Site": {"same-origin"}}, 200, "heap profile"},
		{"profiles for the user of a browser", true, nil, heap, http.Header{"Sec-Fetch-Site": {"none"}}, 200, "heap profile"},
		{"the list of profiles", true, nil, "/debug/pprof/", nil, 200, "goroutine"},
		{"a profile that does not exist", true, nil, "/debug/pprof/none", nil, 404, "Unknown profile"},
		{"a short trace", true, nil, "/debug/pprof/trace?seconds=0.01", nil, 200, "go 1."},
		{"a long trace", true, nil, "/debug/pprof/trace?seconds=60.5", nil, 422, "at most 60"},
		{"an endless trace", true, nil, "/debug/pprof/trace?seconds=Inf", nil, 422, "at most 60"},
		{"a long difference", false, public, "/debug/pprof/heap?seconds=99999", token, 422, "at most 60"},
		{"the command line", true, nil, "/debug/pprof/cmdline", nil, 404, "not-found"},
		{"orders", true, nil, "/orders?buyer_id=u-1", nil, 404, "not-found"},
		{"stock", true, nil, "/stock", nil, 404, "not-found"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := testConfig(new(fakeOrders))
			if tt.config != nil {
				tt.config(&c)
			}
			h := New(c)
			if tt.ops {
				h = NewOps(c)
			}
			rec := do(h, call{method: "GET", path: tt.path, header: tt.header})
			body := rec.Body.String()
			if rec.Code != tt.status || !strings.Contains(body, tt.says) || tt.status != 200 && strings.Contains(body, "heap profile") {
				t.Errorf("%d %.300s, want %d with %q", rec.Code, rec.Body, tt.status, tt.says)
			}
		})
	}
}
