package httpapi

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/holdfast-stock/holdfast/internal/latency"
	"github.com/holdfast-stock/holdfast/internal/tracing"
)

// requests counts and times the requests that the API answers. Its labels come from
// the table of routes, never from a request, so that the number of series is bounded.
// It is safe for concurrent use.
type requests struct {
	total   *prometheus.CounterVec
	seconds *prometheus.HistogramVec
	routes  map[route]*answers
	unknown *answers // requests without a route
}

// route is a route as gin knows it.
type route struct{ method, path string }

// answers are the series of one route. They are looked up once, at the start.
type answers struct {
	label    string
	byStatus map[int]prometheus.Counter
	byClass  [6]prometheus.Observer // by the first digit of the status
}

// unknownRoute is the label of requests whose path or method has no route.
const unknownRoute = "unknown"

// classes are the classes of status that the API answers.
var classes = []int{2, 4, 5}

// newRequests registers the metrics of requests. Every route has all statuses from the
// start, so that the first answer of a kind shows as an increase.
func newRequests(r prometheus.Registerer, routes gin.RoutesInfo) *requests {
	auto := promauto.With(r)
	m := &requests{
		total: auto.NewCounterVec(prometheus.CounterOpts{
			Name: "holdfast_http_requests_total", Help: "Requests by route and status of the answer.",
		}, []string{"route", "status"}),
		seconds: auto.NewHistogramVec(
			latency.Options("holdfast_http_request_seconds", "Time from the headers of a request to the end of its answer, by route and class of status (2xx, 4xx, 5xx)."),
			[]string{"route", "class"}),
		routes: make(map[route]*answers),
	}
	for _, known := range routes {
		m.routes[route{known.Method, known.Path}] = m.answersOf(known.Method + " " + pattern(known.Path))
	}
	m.unknown = m.answersOf(unknownRoute)
	return m
}

// pattern returns a path of gin as package http and the OpenAPI document write it:
// /orders/{id} instead of /orders/:id.
func pattern(path string) string {
	parts := strings.Split(path, "/")
	for i, part := range parts {
		if part != "" && (part[0] == ':' || part[0] == '*') {
			parts[i] = "{" + part[1:] + "}"
		}
	}
	return strings.Join(parts, "/")
}

// answersOf makes the series of a route.
func (m *requests) answersOf(label string) *answers {
	a := &answers{label: label, byStatus: make(map[int]prometheus.Counter)}
	for _, status := range []int{http.StatusOK, http.StatusCreated, http.StatusAccepted} {
		a.byStatus[status] = m.counter(label, status)
	}
	for _, def := range definitions {
		a.byStatus[def.status] = m.counter(label, def.status)
	}
	for _, class := range classes {
		a.byClass[class] = m.seconds.WithLabelValues(label, strconv.Itoa(class)+"xx")
	}
	return a
}

func (m *requests) counter(label string, status int) prometheus.Counter {
	return m.total.WithLabelValues(label, strconv.Itoa(status))
}

// observe counts a request that was answered with the status. An empty path means that the request
// has no route.
func (m *requests) observe(ctx context.Context, method, path string, status int, took time.Duration) {
	a := m.routes[route{method, path}]
	if a == nil {
		a = m.unknown
	}
	count := a.byStatus[status]
	if count == nil { // package http answers with a status that the service never uses, for example to a range
		count = m.counter(a.label, status)
	}
	count.Inc()
	if class := status / 100; class < len(a.byClass) && a.byClass[class] != nil {
		tracing.Observe(ctx, a.byClass[class], took)
	}
}
