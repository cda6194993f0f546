package tracing_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/holdfast-stock/holdfast/internal/tracing"
)

// tracerOf returns a Tracer with the sampler, and its spans.
func tracerOf(s sdk.Sampler) (*tracing.Tracer, *tracetest.SpanRecorder) {
	spans := tracetest.NewSpanRecorder()
	return tracing.New(sdk.NewTracerProvider(sdk.WithSampler(s), sdk.WithSpanProcessor(spans)), true), spans
}

// order makes the calls of an order on its tracer.
func order(t *tracing.Tracer, h http.Header, seconds prometheus.Observer) {
	ctx, request := t.Request(context.Background(), h, "POST", "/orders")
	ctx = t.Carry(context.Background(), ctx)
	_, take := t.Start(ctx, "gate.take")
	take.End()
	tracing.Observe(ctx, seconds, time.Millisecond)
	inside, record := t.Start(ctx, "ledger.record")
	if t != nil {
		inside, group := t.Group(inside, "ledger.group", []tracing.Span{record})
		_, commit := t.Start(inside, "ledger.commit")
		commit.Int("holdfast.group.orders", 1)
		commit.End()
		group.End()
	}
	record.Text("holdfast.outcome", "committed")
	record.End()
	tracing.Observe(ctx, seconds, time.Millisecond)
	if t.Of(ctx).Recorded() {
		request.Text("holdfast.order.id", "an ID")
	}
	request.Int("http.response.status_code", 201)
	request.End()
}

func newHistogram() prometheus.Histogram {
	return prometheus.NewHistogram(prometheus.HistogramOpts{Name: "seconds", Help: "Seconds."})
}

// TestOff checks that an order without traces allocates nothing for them.
func TestOff(t *testing.T) {
	seconds := newHistogram()
	if n := testing.AllocsPerRun(100, func() { order(nil, nil, seconds) }); n != 0 {
		t.Errorf("%v allocations without traces", n)
	}
}

// TestNotSampled checks that an order that is not sampled has no spans and no exemplar,
// but that its log lines have the ID of its trace.
func TestNotSampled(t *testing.T) {
	t.Parallel()
	tracer, spans := tracerOf(sdk.ParentBased(sdk.AlwaysSample()))
	const trace = "4bf92f3577b34da6a3ce929d0e0e4736"
	h := http.Header{"Traceparent": {"00-" + trace + "-00f067aa0ba902b7-00"}}
	seconds := newHistogram()
	order(tracer, h, seconds)
	if n := len(spans.Ended()); n != 0 {
		t.Errorf("%d spans", n)
	}
	if n := exemplars(t, seconds); n != 0 {
		t.Errorf("%d exemplars", n)
	}
	ctx, _ := tracer.Request(t.Context(), h, "POST", "/orders")
	if attrs := tracing.LogAttrs(ctx); len(attrs) != 2 || attrs[0].String() != "trace_id="+trace {
		t.Errorf("the log lines have %v", attrs)
	}
	if attrs := tracing.LogAttrs(t.Context()); len(attrs) > 0 {
		t.Errorf("log lines outside traces have %v", attrs)
	}
}

// TestRoot checks that work that no request waits for has its own trace, which begins with the
// work. A part of work without a trace must have no span.
func TestRoot(t *testing.T) {
	t.Parallel()
	tracer, spans := tracerOf(sdk.AlwaysSample())
	ctx, request := tracer.Request(t.Context(), nil, "POST", "/orders")
	start := time.Now().Add(-time.Hour)
	_, root := tracer.Root(ctx, "job", start)
	root.End()
	request.End()
	if _, part := tracer.Start(t.Context(), "part"); part.Recorded() {
		t.Error("a part of work without a trace has a span")
	}
	if job := spans.Ended()[0]; job.Parent().IsValid() || !job.StartTime().Equal(start) || job.SpanContext().TraceID() == spans.Ended()[1].SpanContext().TraceID() {
		t.Errorf("the work has the parent %v, and begins at %v", job.Parent(), job.StartTime())
	}
}

// TestMalformedParent checks that a malformed traceparent header begins a new trace.
func TestMalformedParent(t *testing.T) {
	t.Parallel()
	tracer, spans := tracerOf(sdk.AlwaysSample())
	malformed := []string{
		"", "00-", "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01", "zz-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
		"ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
		"00-4BF92F3577B34DA6A3CE929D0E0E4736-00F067AA0BA902B7-01", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
		strings.Repeat("0", 16<<10),
	}
	for _, parent := range malformed {
		_, span := tracer.Request(t.Context(), http.Header{"Traceparent": {parent}}, "POST", "/orders")
		span.End()
		_, span = tracer.Continue(t.Context(), parent, "journal.commit")
		span.End()
	}
	for _, s := range spans.Ended() {
		if s.Parent().IsValid() || !s.SpanContext().IsValid() {
			t.Errorf("the parent is %v", s.Parent())
		}
	}
	if n := len(spans.Ended()); n != 2*len(malformed) {
		t.Errorf("%d spans, want %d", n, 2*len(malformed))
	}
}

// TestMalformedState checks that a malformed tracestate header does not end the trace, and that
// baggage is ignored.
func TestMalformedState(t *testing.T) {
	t.Parallel()
	tracer, spans := tracerOf(sdk.AlwaysSample())
	states := []string{"", "=", "a=1,a=2", "a=\x00", strings.Repeat("a=1,", 4<<10)}
	for _, state := range states {
		_, span := tracer.Request(t.Context(), http.Header{
			"Traceparent": {"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}, "Tracestate": {state}, "Baggage": {"buyer=u-1"},
		}, "POST", "/orders")
		span.End()
	}
	for _, s := range spans.Ended() {
		if s.Parent().SpanID().String() != "00f067aa0ba902b7" || s.SpanContext().TraceState().Len() != 0 || len(s.Attributes()) != 2 {
			t.Errorf("the parent is %v, the attributes %v", s.Parent(), s.Attributes())
		}
	}
	if n := len(spans.Ended()); n != len(states) {
		t.Errorf("%d spans, want %d", n, len(states))
	}
}

func registryOf(c prometheus.Collector) *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(c)
	return r
}

// exemplars returns the number of exemplars of the histogram.
func exemplars(t *testing.T, h prometheus.Histogram) (n int) {
	t.Helper()
	families, err := registryOf(h).Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range families[0].GetMetric()[0].GetHistogram().GetBucket() {
		if b.GetExemplar() != nil {
			n++
		}
	}
	return n
}

// BenchmarkOrder measures the cost of one order's traces, without the order: without traces,
// without sampling, and with all its spans but without their export. Each includes the two
// observations of an order, which are also measured alone.
func BenchmarkOrder(b *testing.B) {
	b.Run("observations alone", func(b *testing.B) {
		seconds := newHistogram()
		b.ReportAllocs()
		for b.Loop() {
			seconds.Observe(0.001)
			seconds.Observe(0.001)
		}
	})
	off := func() *tracing.Tracer { return nil }
	with := func(s sdk.Sampler) func() *tracing.Tracer {
		return func() *tracing.Tracer {
			return tracing.New(sdk.NewTracerProvider(sdk.WithSampler(s), sdk.WithBatcher(tracetest.NewNoopExporter())), true)
		}
	}
	for _, bm := range []struct {
		name   string
		tracer func() *tracing.Tracer
	}{
		{"off", off}, {"not sampled", with(sdk.NeverSample())}, {"on", with(sdk.AlwaysSample())},
	} {
		b.Run(bm.name, func(b *testing.B) {
			t, seconds := bm.tracer(), newHistogram()
			b.ReportAllocs()
			for b.Loop() {
				order(t, nil, seconds)
			}
		})
	}
}
