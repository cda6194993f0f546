package otlp

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/holdfast-stock/holdfast/internal/testenv"
	"github.com/holdfast-stock/holdfast/internal/tracing/tracingtest"
)

// open opens the traces that the environment asks for.
func open(t *testing.T, variables ...string) (*Traces, *testenv.Buffer) {
	t.Helper()
	for i := 0; i < len(variables); i += 2 {
		t.Setenv(variables[i], variables[i+1])
	}
	l := new(testenv.Buffer)
	traces := Open(t.Context(), "v1", slog.New(slog.NewTextHandler(l, nil)))
	t.Cleanup(traces.Close)
	return traces, l
}

// TestWanted checks when traces are exported, and which settings are refused.
func TestWanted(t *testing.T) {
	t.Parallel()
	const endpoint, url = "OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318"
	for _, test := range []struct {
		name      string
		variables map[string]string
		on        bool
		err       string
	}{
		{"nothing set", nil, false, ""},
		{"another endpoint", map[string]string{"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": url}, false, ""},
		{"endpoint", map[string]string{endpoint: url}, true, ""},
		{"endpoint of traces", map[string]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": url + "/x"}, true, ""},
		{"exporter", map[string]string{"OTEL_TRACES_EXPORTER": "otlp"}, true, ""},
		{"disabled", map[string]string{endpoint: url, "OTEL_SDK_DISABLED": "TRUE"}, false, ""},
		{"no exporter", map[string]string{endpoint: url, "OTEL_TRACES_EXPORTER": "none"}, false, ""},
		{"another exporter", map[string]string{endpoint: url, "OTEL_TRACES_EXPORTER": "zipkin"}, false, `OTEL_TRACES_EXPORTER: "zipkin"`},
		{"protobuf", map[string]string{endpoint: url, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, true, ""},
		{"gRPC", map[string]string{endpoint: url, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, false, `OTEL_EXPORTER_OTLP_PROTOCOL: "grpc"`},
		{"gRPC for metrics only", map[string]string{endpoint: url, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf"}, true, ""},
		{"gRPC without an endpoint", map[string]string{"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, false, ""},
		{"no scheme", map[string]string{endpoint: "collector:4318"}, false, endpoint},
		{"not a URL", map[string]string{endpoint: "http://u:pass word@%zz"}, false, endpoint},
	} {
		on, err := wanted(func(name string) string { return test.variables[name] })
		if on != test.on || (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
			t.Errorf("%s: %v, %v", test.name, on, err)
		}
		if err != nil && strings.Contains(err.Error(), "pass word") {
			t.Errorf("%s: the error has the URL: %v", test.name, err)
		}
	}
}

// TestOpen checks what a trace says about the service, and that the environment's sampler decides.
func TestOpen(t *testing.T) {
	c := tracingtest.NewCollector(t)
	traces, log := open(t, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", c.URL+"/v1/traces",
		"OTEL_RESOURCE_ATTRIBUTES", "service.version=v7,deployment.environment.name=test",
		"OTEL_TRACES_SAMPLER", "parentbased_always_off", "OTEL_EXPORTER_OTLP_HEADERS", "secret-token")
	sampled := http.Header{"Traceparent": {"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}}
	for _, h := range []http.Header{{}, sampled} {
		_, span := traces.Tracer().Request(t.Context(), h, "GET", "/orders")
		span.End()
	}
	traces.Close()
	spans := c.Spans()
	if len(spans) != 1 || spans[0].Service != "holdfast" || spans[0].Parent != "00f067aa0ba902b7" {
		t.Errorf("the collector got %+v", spans)
	}
	for _, text := range []string{"v7", "deployment.environment.name", "service.instance.id"} {
		if !c.Contains(text) {
			t.Errorf("the collector got no %s", text)
		}
	}
	if text := log.String(); !strings.Contains(text, "parse headers") || strings.Contains(text, "secret-token") {
		t.Errorf("about malformed headers, the log says %s", text)
	}
}

// TestOpen_Propagators checks that a caller's trace is continued unless OTEL_PROPAGATORS leaves that out.
func TestOpen_Propagators(t *testing.T) {
	for propagators, want := range map[string]string{
		"": "00f067aa0ba902b7", "none": "", "baggage": "", "baggage, tracecontext": "00f067aa0ba902b7",
	} {
		c := tracingtest.NewCollector(t)
		traces, _ := open(t, "OTEL_EXPORTER_OTLP_ENDPOINT", c.URL, "OTEL_PROPAGATORS", propagators)
		h := http.Header{"Traceparent": {"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}}
		_, span := traces.Tracer().Request(t.Context(), h, "GET", "/orders")
		span.End()
		traces.Close()
		if spans := c.Spans(); len(spans) != 1 || spans[0].Parent != want {
			t.Errorf("%q: the collector got %+v", propagators, spans)
		}
	}
}

// TestOpen_Batching checks that a size or a delay with which the SDK would panic causes a warning,
// and that traces are still exported.
func TestOpen_Batching(t *testing.T) {
	for _, name := range []string{"OTEL_BSP_SCHEDULE_DELAY", "OTEL_BSP_MAX_QUEUE_SIZE", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE"} {
		for _, value := range []string{"-5", "0", "1000000000000000000"} {
			t.Run(name+"="+value, func(t *testing.T) {
				c := tracingtest.NewCollector(t)
				traces, log := open(t, "OTEL_EXPORTER_OTLP_ENDPOINT", c.URL, name, value)
				_, span := traces.Tracer().Request(t.Context(), nil, "GET", "/orders")
				span.End()
				traces.Close()
				if spans := c.Spans(); len(spans) != 1 || !strings.Contains(log.String(), name) {
					t.Errorf("the collector got %+v, the log says %s", spans, log)
				}
			})
		}
	}
	if options, err := batching(func(string) string { return "1" }); len(options) != 0 || err != nil {
		t.Errorf("allowed settings are replaced: %v", err)
	}
}

// TestCollectorAway checks that a collector that accepts no traces delays neither the work nor the
// end of the service. One collector accepts connections and does not answer, and another asks the
// client to retry later.
func TestCollectorAway(t *testing.T) {
	listener := testenv.Listen(t)
	t.Run("Silent", func(t *testing.T) { checkAway(t, "http://"+listener.Addr().String()) })

	overloaded := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "30")
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	defer overloaded.Close()
	t.Run("Overloaded", func(t *testing.T) { checkAway(t, overloaded.URL) })
}

func checkAway(t *testing.T, endpoint string) {
	t.Helper()
	// An export may take an hour, so a caller that waited for it would not return.
	traces, log := open(t, "OTEL_EXPORTER_OTLP_ENDPOINT", endpoint, "OTEL_BSP_SCHEDULE_DELAY", "1", "OTEL_EXPORTER_OTLP_TIMEOUT", "3600000")
	traces.flushTimeout = 50 * time.Millisecond
	const spans = 5_000 // more than twice the queue
	work, closing := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(closing)
		for range spans {
			_, span := traces.Tracer().Request(t.Context(), nil, "GET", "/orders")
			span.End()
		}
		close(work)
		traces.Close()
	}()
	testenv.Receive(t, "the work ends", work)
	testenv.Receive(t, "Close returns", closing)
	if text := log.String(); !strings.Contains(text, "the last traces were not exported") {
		t.Errorf("the log does not say that spans are lost: %s", text)
	}
}

// TestFailures checks that failed exports do not fill the log.
func TestFailures(t *testing.T) {
	t.Parallel()
	l := new(testenv.Buffer)
	f := &failures{log: slog.New(slog.NewTextHandler(l, nil))}
	for range 100 {
		f.Handle(errors.New("connection refused"))
	}
	for range 2 {
		f.next = time.Now().Add(-time.Second)
		f.Handle(errors.New("connection refused"))
	}
	if text := l.String(); strings.Count(text, "\n") != 3 || !strings.Contains(text, "failures=100") || strings.Count(text, "failures=1\n") != 2 {
		t.Errorf("logged %s", text)
	}
}

// TestSDKLog checks that the SDK's reports are logged without the values that they quote, and only
// from the level of warnings.
func TestSDKLog(t *testing.T) {
	t.Parallel()
	l := new(testenv.Buffer)
	sdk := logr.FromSlogHandler(sdkLog{slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug})}.WithAttrs(nil))
	sdk.Error(errors.New("missing '='"), "parse headers", "input", "secret")
	sdk.V(4).Info("TracerProvider created", "config", "secret")
	if text := l.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "missing '='") || strings.Contains(text, "secret") {
		t.Errorf("logged %s", text)
	}
	if (sdkLog{slog.DiscardHandler}).Enabled(context.Background(), slog.LevelInfo) {
		t.Error("the SDK's information is logged")
	}
}
