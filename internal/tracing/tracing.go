// Package tracing starts the spans of a trace: of a request, of its parts, of a group of orders and
// of background work. It depends only on the API of OpenTelemetry. Package otlp exports the spans.
//
// Traces leave the protected stores. So a span must not contain a SKU, a buyer, a key, a statement
// or the text of an error, which may quote any of them. Names and attributes are constants, numbers
// and order IDs.
package tracing

import (
	"context"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// scope is the instrumentation scope of all spans.
const scope = "github.com/holdfast-stock/holdfast"

// Tracer starts spans. A nil *Tracer starts none, and each of its methods then costs one comparison
// and no allocation. It is safe for concurrent use.
type Tracer struct {
	tracer     trace.Tracer
	propagator propagation.TraceContext
	propagate  bool
}

// New returns a Tracer of the provider. propagate says that the trace in a caller's traceparent
// header is continued.
func New(p trace.TracerProvider, propagate bool) *Tracer {
	return &Tracer{tracer: p.Tracer(scope), propagate: propagate}
}

// Request starts the span of an HTTP request. route is the pattern of the path, not
// the path, which may contain a SKU.
func (t *Tracer) Request(ctx context.Context, h http.Header, method, route string) (context.Context, Span) {
	if t == nil {
		return ctx, Span{}
	}
	if t.propagate {
		ctx = t.propagator.Extract(ctx, propagation.HeaderCarrier(h))
	}
	return t.begin(ctx, method+" "+route, trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(
		attribute.String("http.request.method", method), attribute.String("http.route", route)))
}

// Start starts the span of a part of the work that ctx belongs to. It starts none if that work is
// not recorded.
func (t *Tracer) Start(ctx context.Context, name string) (context.Context, Span) {
	if t == nil || !trace.SpanFromContext(ctx).IsRecording() {
		return ctx, Span{}
	}
	return t.begin(ctx, name)
}

// Group starts the span of work that is done for several traces at once. The span is a child in the
// first of them that is recorded, so that a group of one order is in the trace of the order. The
// span and those of the other callers are linked in both directions.
func (t *Tracer) Group(ctx context.Context, name string, members []Span) (context.Context, Span) {
	if t == nil {
		return ctx, Span{}
	}
	var (
		first trace.Span
		links []trace.Link
	)
	for _, m := range members {
		switch {
		case !m.Recorded():
		case first == nil:
			first = m.span
		default:
			links = append(links, trace.Link{SpanContext: m.span.SpanContext()})
		}
	}
	if first == nil {
		return ctx, Span{}
	}
	ctx, group := t.begin(trace.ContextWithSpan(ctx, first), name, trace.WithLinks(links...))
	group.Int("holdfast.group.orders", len(members))
	for _, m := range members {
		if m.Recorded() {
			m.span.AddLink(trace.Link{SpanContext: group.span.SpanContext()})
		}
	}
	return ctx, group
}

// Root starts a separate trace, for work that no request waits for. Its spans begin at start, which
// may lie in the past. So the caller can decide after the work whether to record it.
func (t *Tracer) Root(ctx context.Context, name string, start time.Time) (context.Context, Span) {
	if t == nil {
		return ctx, Span{}
	}
	return t.begin(ctx, name, trace.WithNewRoot(), trace.WithTimestamp(start))
}

// Parent returns the trace of ctx as a traceparent header, for later work in another process. It is
// empty if ctx belongs to no trace.
func (t *Tracer) Parent(ctx context.Context) string {
	if t == nil || !trace.SpanContextFromContext(ctx).IsValid() {
		return ""
	}
	carrier := make(propagation.MapCarrier, 1)
	t.propagator.Inject(ctx, carrier)
	return carrier.Get("traceparent")
}

// Continue starts the span of work that belongs to the trace of an earlier request. parent is the
// result of Parent for that request. Continue begins a new trace if parent is empty or malformed.
func (t *Tracer) Continue(ctx context.Context, parent, name string) (context.Context, Span) {
	if t == nil {
		return ctx, Span{}
	}
	ctx = t.propagator.Extract(ctx, propagation.MapCarrier{"traceparent": parent})
	return t.begin(ctx, name, trace.WithSpanKind(trace.SpanKindConsumer))
}

func (t *Tracer) begin(ctx context.Context, name string, options ...trace.SpanStartOption) (context.Context, Span) {
	ctx, span := t.tracer.Start(ctx, name, options...)
	if !span.IsRecording() { // ctx still names the trace
		return ctx, Span{}
	}
	return ctx, Span{span}
}

// Of returns the span that ctx belongs to, so that attributes can be added to it.
func (t *Tracer) Of(ctx context.Context) Span {
	if t == nil {
		return Span{}
	}
	if span := trace.SpanFromContext(ctx); span.IsRecording() {
		return Span{span}
	}
	return Span{}
}

// Carry returns a context that ends with to and belongs to the traced work of from.
func (t *Tracer) Carry(to, from context.Context) context.Context {
	if t == nil {
		return to
	}
	return trace.ContextWithSpan(to, trace.SpanFromContext(from))
}

// Observe adds a duration to a histogram of seconds, with an exemplar that names the trace of
// ctx if it is sampled.
func Observe(ctx context.Context, histogram prometheus.Observer, took time.Duration) {
	span := trace.SpanContextFromContext(ctx)
	if !span.IsSampled() {
		histogram.Observe(took.Seconds())
		return
	}
	histogram.(prometheus.ExemplarObserver).ObserveWithExemplar(took.Seconds(), prometheus.Labels{
		"trace_id": span.TraceID().String(), "span_id": span.SpanID().String(),
	})
}

// Span is one part of a trace. The methods of the zero Span, which is not recorded, do
// nothing. It is safe for concurrent use.
type Span struct{ span trace.Span }

// Recorded reports whether the span is recorded. Call it before you compute a costly attribute.
func (s Span) Recorded() bool { return s.span != nil }

// Text sets an attribute. value must be a constant or an order's ID: see the package
// comment.
func (s Span) Text(name, value string) {
	if s.span != nil {
		s.span.SetAttributes(attribute.String(name, value))
	}
}

// Int sets an attribute.
func (s Span) Int(name string, value int) {
	if s.span != nil {
		s.span.SetAttributes(attribute.Int(name, value))
	}
}

// Fail marks the span as failed. kind names the cause, and must be one of few constants.
func (s Span) Fail(kind string) {
	if s.span != nil {
		s.span.SetAttributes(attribute.String("error.type", kind))
		s.span.SetStatus(codes.Error, "")
	}
}

// End ends the span. After it, the other methods do nothing.
func (s Span) End() {
	if s.span != nil {
		s.span.End()
	}
}
