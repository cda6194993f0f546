package httpapi

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/tracing"
)

// TestTraces checks the spans of requests. They must be named by the route and not by the path, and
// have the status of the answer. Only an answer of 500 or above counts as failed. Probes have no spans. The order must be placed in
// the span, even after the client has disconnected.
func TestTraces(t *testing.T) {
	t.Parallel()
	spans := tracetest.NewSpanRecorder()
	tracer := tracing.New(sdk.NewTracerProvider(sdk.WithSpanProcessor(spans)), true)
	var placed trace.SpanContext
	orders := &fakeOrders{place: func(ctx context.Context, _ order.Request) (order.Order, bool, error) {
		placed = trace.SpanContextFromContext(ctx)
		return order.Order{}, false, errors.Join(ctx.Err(), errors.New("secret"))
	}}
	h := newAPI(t, orders, func(c *Config) { c.Tracer = tracer })
	gone, leave := context.WithCancel(t.Context())
	leave()
	for _, c := range []call{
		{method: "GET", path: "/stock/secret-sku"},
		{method: "GET", path: "/stock/secret.sku/audit"},
		{method: "GET", path: "/orders/secret"},
		{method: "GET", path: "/healthz"},
		{method: "GET", path: "/readyz"},
		{method: "GET", path: "/metrics"},
		{method: "GET", path: "/secret"},
	} {
		do(h, c)
	}
	serveRequest(h, call{method: "POST", path: "/orders", body: oneLine, header: http.Header{
		"Traceparent": {"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"},
	}}.request().WithContext(gone))

	var names []string
	for _, s := range spans.Ended() {
		names = append(names, s.Name())
		if s.Status().Description != "" || strings.Contains(s.Name(), "secret") {
			t.Errorf("%s has the status %+v", s.Name(), s.Status())
		}
		var status int64
		for _, a := range s.Attributes() {
			if a.Key == "http.response.status_code" {
				status = a.Value.AsInt64()
			}
		}
		if failed := s.Status().Code == codes.Error; status == 0 || failed != (status >= http.StatusInternalServerError) {
			t.Errorf("%s was answered %d, and failed: %v", s.Name(), status, failed)
		}
	}
	if want := []string{"GET /stock/{sku}", "GET /stock/{sku}/audit", "GET /orders/{id}", "POST /orders"}; !slices.Equal(names, want) {
		t.Fatalf("the spans are %q, want %q", names, want)
	}
	place := spans.Ended()[3]
	if place.Status().Code != codes.Error || place.Parent().SpanID().String() != "00f067aa0ba902b7" || place.SpanKind() != trace.SpanKindServer {
		t.Errorf("the span of the order has the status %+v, the parent %v, the kind %v", place.Status(), place.Parent().SpanID(), place.SpanKind())
	}
	if !placed.Equal(place.SpanContext()) {
		t.Errorf("the order was placed in %v, want %v", placed, place.SpanContext())
	}
}
