package httpapi

import (
	"io"
	"net/http"
	"testing"
)

// withConsole adds a console that answers every request with its path.
func withConsole(c *Config) {
	c.Console = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "console "+r.URL.Path) })
}

// newConsole returns the API with a console. The OpenAPI document leaves out its paths, because
// only its page calls them.
func newConsole(changes ...func(*Config)) http.Handler {
	c := testConfig(new(fakeOrders))
	for _, change := range append(changes, withConsole) {
		change(&c)
	}
	return New(c)
}

const consoleToken = "0123456789abcdef"

// TestConsole checks who may access which part of the console.
func TestConsole(t *testing.T) {
	t.Parallel()
	withToken := func(c *Config) { c.AdminToken, c.Loopback = consoleToken, false }
	loopback := func(r *http.Request) { r.RemoteAddr, r.Host = "127.0.0.1:9", "localhost:8080" }
	for _, test := range []struct {
		name         string
		method, path string
		config       func(*Config)
		change       func(*http.Request)
		status       int
	}{
		{"the page", "GET", "/console/", withToken, nil, 200},
		{"a file of the page", "GET", "/console/assets/app.js", withToken, nil, 200},
		{"the stream without the token", "GET", "/console/stream", withToken, loopback, 401},
		{"the stream with the token", "GET", "/console/stream", withToken, authorized, 200},
		{"a token in the address", "GET", "/console/stream?token=" + consoleToken, withToken, loopback, 401},
		{"the rush without the token", "GET", "/console/rush", withToken, loopback, 401},
		{"starting a rush without the token", "POST", "/console/rush", withToken, loopback, 401},
		{"stopping a rush without the token", "DELETE", "/console/rush", withToken, loopback, 401},
		{"starting a rush with the token", "POST", "/console/rush", withToken, authorized, 200},
		{"the stream on loopback", "GET", "/console/stream", func(*Config) {}, loopback, 200},
		{"the stream by another name", "GET", "/console/stream", func(*Config) {}, func(r *http.Request) { loopback(r); r.Host = "evil.test" }, 401},
		{"the stream through a proxy", "GET", "/console/stream", func(*Config) {}, func(r *http.Request) { loopback(r); r.Header.Set("X-Forwarded-For", "1.2.3.4") }, 401},
		{"the stream for a page of another origin", "GET", "/console/stream", func(*Config) {}, func(r *http.Request) { loopback(r); r.Header.Set("Sec-Fetch-Site", "cross-site") }, 403},
		{"a rush with a body that is not JSON", "POST", "/console/rush", withToken, func(r *http.Request) { authorized(r); r.Header.Set("Content-Type", "text/plain") }, 415},
		{"a rush from a page of another origin", "POST", "/console/rush", func(*Config) {}, func(r *http.Request) { loopback(r); r.Header.Set("Sec-Fetch-Site", "cross-site") }, 403},
		{"another path", "GET", "/console/nothing", withToken, nil, 404},
		{"another method", "DELETE", "/console/", withToken, nil, 405},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r := call{method: test.method, path: test.path, body: "{}"}.request()
			if test.change != nil {
				test.change(r)
			}
			rec := serveRequest(newConsole(test.config), r)
			if rec.Code != test.status {
				t.Errorf("%d %s, want %d", rec.Code, rec.Body, test.status)
			}
			if test.status == 401 && rec.Header().Get("WWW-Authenticate") != "Bearer" {
				t.Errorf("WWW-Authenticate: %q", rec.Header().Get("WWW-Authenticate"))
			}
		})
	}
}

func authorized(r *http.Request) { r.Header.Set("Authorization", "Bearer "+consoleToken) }

// TestRoot checks that browsers are redirected from the root to the console, and that others get
// the 404 of the contract.
func TestRoot(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		path, accept string
		h            http.Handler
		status       int
	}{
		{"/", "text/html,application/xhtml+xml,*/*;q=0.8", newConsole(), 303},
		{"/console", "*/*", newConsole(), 303},
		{"/", "*/*", newConsole(), 404},
		{"/", "text/html", New(testConfig(new(fakeOrders))), 404},
		{"/console/", "text/html", New(testConfig(new(fakeOrders))), 404},
		{"/other", "text/html", newConsole(), 404},
	} {
		rec := do(test.h, call{method: "GET", path: test.path, header: http.Header{"Accept": {test.accept}}})
		if rec.Code != test.status || test.status == 303 && rec.Header().Get("Location") != "/console/" {
			t.Errorf("GET %s for %s: %d, Location %q", test.path, test.accept, rec.Code, rec.Header().Get("Location"))
		}
	}
}
