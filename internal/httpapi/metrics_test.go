package httpapi

import (
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// series returns the values of the counters, and the number of observations of the
// histograms, by the metric's name and its labels.
func series(t *testing.T, g prometheus.Gatherer) map[string]float64 {
	t.Helper()
	families, err := g.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := make(map[string]float64)
	for _, family := range families {
		for _, m := range family.GetMetric() {
			name := family.GetName()
			for _, label := range m.GetLabel() {
				name += " " + label.GetValue()
			}
			values[name] = m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return values
}

// TestRequests checks which series each request changes: only those of its route and status,
// whatever path and method the client sends.
func TestRequests(t *testing.T) {
	t.Parallel()
	const id = "/orders/01990a3c-9b8e-7c31-a5d2-3f6f0e7a1b22"
	for _, test := range []struct {
		name    string
		call    call
		changes string // labels of the changed counter
	}{
		{"an order", call{method: "POST", path: "/orders", body: oneLine}, "POST /orders 201"},
		{"bad input", call{method: "POST", path: "/orders", body: "{"}, "POST /orders 400"},
		{"another type of body", call{method: "POST", path: "/orders", body: "a", header: http.Header{"Content-Type": {"text/plain"}}}, "POST /orders 415"},
		{"an ID in the path", call{method: "GET", path: id}, "GET /orders/{id} 200"},
		{"a guessed token", call{method: "PUT", path: "/stock/a", body: "{}", header: http.Header{"Authorization": {"Bearer guess"}}}, "PUT /stock/{sku} 401"},
		{"another origin", call{method: "POST", path: "/orders", body: oneLine, header: http.Header{"Sec-Fetch-Site": {"cross-site"}}}, "POST /orders 403"},
		{"an unknown path", call{method: "GET", path: "/admin.php"}, "unknown 404"},
		{"an unknown method", call{method: "BREW", path: "/orders"}, "unknown 405"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			registry := prometheus.NewRegistry()
			c := testConfig(new(fakeOrders))
			c.Registry, c.AdminToken = registry, "secret"
			h := New(c)
			before := series(t, registry)
			h.ServeHTTP(httptest.NewRecorder(), test.call.request())
			label, status := test.changes[:len(test.changes)-4], test.changes[len(test.changes)-3:]
			want := map[string]float64{
				"holdfast_http_requests_total " + test.changes:                1,
				"holdfast_http_request_seconds " + status[:1] + "xx " + label: 1,
			}
			after := series(t, registry)
			changed := make(map[string]float64)
			for name, value := range after {
				if value != 0 {
					changed[name] = value
				}
				if _, known := before[name]; !known {
					t.Errorf("%s was not there from the start", name)
				}
			}
			if !maps.Equal(changed, want) {
				t.Errorf("changed %v, want %v", changed, want)
			}
		})
	}
}

// TestRequests_OtherStatus checks that a status that only package http sends is counted too. A request
// whose connection is dropped in the middle of the answer does not count as answered.
func TestRequests_OtherStatus(t *testing.T) {
	t.Parallel()
	for want, metrics := range map[string]http.HandlerFunc{
		"304": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotModified) },
		"500": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte("half an ans"))
			panic("broken")
		},
	} {
		registry := prometheus.NewRegistry()
		c := testConfig(new(fakeOrders))
		c.Registry, c.Metrics = registry, metrics
		func() {
			defer func() {
				if dropped := recover() != nil; dropped != (want == "500") {
					t.Errorf("%s: the connection is dropped: %v", want, dropped)
				}
			}()
			New(c).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/metrics", nil))
		}()
		got := series(t, registry)
		if got["holdfast_http_requests_total GET /metrics "+want] != 1 || got["holdfast_http_requests_total GET /metrics 200"] != 0 {
			t.Errorf("%s is counted as %v", want, got)
		}
	}
}

// TestRequests_EveryDocumentedAnswer checks that every route of the OpenAPI document has its series
// from the start, under its documented name. It leaves out 431, which package http answers before
// the API sees the request.
func TestRequests_EveryDocumentedAnswer(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	c := testConfig(new(fakeOrders))
	c.Registry = registry
	New(c)
	got := series(t, registry)
	for path, item := range loadDocument(t).Paths.Map() {
		for method, operation := range item.Operations() {
			for status := range operation.Responses.Map() {
				if name := "holdfast_http_requests_total " + method + " " + path + " " + status; status != "default" && status != "431" && !has(got, name) {
					t.Errorf("%s is not there", name)
				}
			}
		}
	}
	for name := range got {
		if strings.ContainsAny(name, ":*") {
			t.Errorf("%s is not written like the OpenAPI document", name)
		}
	}
}

func has(values map[string]float64, name string) bool {
	_, known := values[name]
	return known
}

// BenchmarkObserve measures the cost of counting and timing one request.
func BenchmarkObserve(b *testing.B) {
	c := testConfig(new(fakeOrders))
	a := &api{Config: c}
	a.engine()
	b.ReportAllocs()
	for b.Loop() {
		a.requests.observe(b.Context(), "POST", "/orders", 201, 4000000)
	}
}
