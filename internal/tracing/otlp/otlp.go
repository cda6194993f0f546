// Package otlp exports traces to a collector over HTTP, configured by the environment variables of
// OpenTelemetry.
package otlp

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/uuid"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"

	"github.com/holdfast-stock/holdfast/internal/tracing"
)

const (
	// flushTimeout bounds the export of the last spans when the service stops.
	flushTimeout = 2 * time.Second
	// failurePause is the shortest time between two log lines about failed exports.
	failurePause = time.Minute
)

// Traces exports spans in the background, from a queue that drops them when it is full.
// A nil *Traces exports none. It is safe for concurrent use.
type Traces struct {
	exporter *otlptrace.Exporter
	provider *sdk.TracerProvider
	tracer   *tracing.Tracer
	log      *slog.Logger

	flushTimeout time.Duration // bounds Close
}

// Open starts to export traces of this version of the service, if the environment of the process
// enables it. Otherwise it returns nil. An invalid setting is a warning in the log, because traces
// must not keep the service from selling.
//
// Open sets the error handler and the logger of package otel, which has one of each for the
// process.
func Open(ctx context.Context, version string, log *slog.Logger) *Traces {
	on, err := wanted(os.Getenv) // the SDK also reads its settings from the environment
	if err != nil {
		log.Warn("no traces are exported", "error", err)
	}
	if !on {
		return nil
	}
	otel.SetErrorHandler(&failures{log: log})
	otel.SetLogger(logr.FromSlogHandler(sdkLog{log.Handler()}))
	exporter, err := otlptracehttp.New(ctx)
	if err != nil {
		log.Warn("no traces are exported", "error", err)
		return nil
	}
	batches, err := batching(os.Getenv)
	if err != nil {
		log.Warn("a setting of OpenTelemetry is not used", "error", err)
	}
	provider := sdk.NewTracerProvider(sdk.WithBatcher(exporter, batches...), sdk.WithResource(describe(version)))
	return &Traces{
		exporter: exporter, provider: provider, tracer: tracing.New(provider, propagates(os.Getenv)),
		log: log, flushTimeout: flushTimeout,
	}
}

// batching returns options that replace unusable settings of the queue. With such a setting the SDK
// would panic, or would use a processor all the time to look for spans. The error names the first
// of them.
func batching(getenv func(string) string) ([]sdk.BatchSpanProcessorOption, error) {
	for _, setting := range []struct {
		name string
		most int
	}{
		{"OTEL_BSP_SCHEDULE_DELAY", 3_600_000}, // in milliseconds
		{"OTEL_BSP_MAX_QUEUE_SIZE", 1 << 20},
		{"OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 1 << 20},
	} {
		// The SDK itself reports values that are not numbers.
		if value, err := strconv.Atoi(getenv(setting.name)); err == nil && (value < 1 || value > setting.most) {
			// The SDK derives one size from the other, so one of them cannot be replaced alone.
			return []sdk.BatchSpanProcessorOption{
				sdk.WithBatchTimeout(sdk.DefaultScheduleDelay * time.Millisecond),
				sdk.WithMaxQueueSize(sdk.DefaultMaxQueueSize), sdk.WithMaxExportBatchSize(sdk.DefaultMaxExportBatchSize),
			}, fmt.Errorf("%s: %d is not between 1 and %d; the delay and both sizes are the defaults", setting.name, value, setting.most)
		}
	}
	return nil, nil
}

// describe returns the service's attributes from the environment, and defaults. It leaves out
// attributes of the process, because the command line may contain passwords.
func describe(version string) *resource.Resource {
	ours := resource.NewSchemaless(
		attribute.String("service.name", "holdfast"),
		attribute.String("service.version", version),
		attribute.String("service.instance.id", uuid.NewString()))
	described, err := resource.Merge(resource.Default(), ours)
	if err == nil {
		described, err = resource.Merge(described, resource.Environment())
	}
	if err != nil { // the resources have different schema URLs, which a later version of the SDK may cause
		otel.Handle(err)
		return ours
	}
	return described
}

// Tracer returns the tracer that starts spans, or nil if traces are off.
func (t *Traces) Tracer() *tracing.Tracer {
	if t == nil {
		return nil
	}
	return t.tracer
}

// Close exports the remaining spans, for at most two seconds. Spans that end later are dropped.
func (t *Traces) Close() {
	if t == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), t.flushTimeout)
	defer cancel()
	if err := t.provider.Shutdown(ctx); err != nil {
		_ = t.exporter.Shutdown(context.WithoutCancel(ctx)) // interrupts the export under way
		t.log.Warn("the last traces were not exported", "error", err)
	}
}

// endpoints are the variables that name the collector. The first one that is set counts.
var endpoints = []string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"}

// protocols are the protocols that the exporter supports.
var protocols = []string{"", "http/protobuf", "http/json"}

// wanted reports whether the environment enables traces. The error says why enabled traces
// cannot be exported.
func wanted(getenv func(string) string) (bool, error) {
	exporter := getenv("OTEL_TRACES_EXPORTER")
	endpoint, _ := first(getenv, endpoints...)
	protocol, protocolName := first(getenv, "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
	switch {
	case strings.EqualFold(getenv("OTEL_SDK_DISABLED"), "true"), exporter == "none", exporter == "" && endpoint == "":
		return false, nil
	case exporter != "" && exporter != "otlp":
		return false, fmt.Errorf("OTEL_TRACES_EXPORTER: %q is not one of otlp, none", exporter)
	case !slices.Contains(protocols, protocol):
		return false, fmt.Errorf("%s: %q is not one of http/protobuf, http/json; collectors listen for these on port 4318", protocolName, protocol)
	}
	for _, name := range endpoints {
		if value := getenv(name); value != "" && !isEndpoint(value) {
			// The value is not shown, because it may contain a password.
			return false, fmt.Errorf("%s: not a URL such as http://collector:4318", name)
		}
	}
	return true, nil
}

func isEndpoint(s string) bool {
	u, err := url.Parse(s)
	return err == nil && u.Host != "" && (u.Scheme == "http" || u.Scheme == "https")
}

// first returns the first of the variables that is set, and its name.
func first(getenv func(string) string, names ...string) (value, name string) {
	for _, name = range names {
		if value = strings.TrimSpace(getenv(name)); value != "" {
			break
		}
	}
	return value, name
}

// propagates reports whether the trace of a caller is continued. Baggage is not passed on, although
// it is a default too, because the service makes no calls that could carry it.
func propagates(getenv func(string) string) bool {
	names := getenv("OTEL_PROPAGATORS")
	return names == "" || slices.Contains(strings.Split(strings.ReplaceAll(names, " ", ""), ","), "tracecontext")
}

// failures logs why spans are lost, at most once a minute. It is safe for concurrent
// use.
type failures struct {
	log *slog.Logger

	mu     sync.Mutex
	next   time.Time // when the next line may be written
	silent int       // failures since the last line
}

// Handle implements otel.ErrorHandler.
func (f *failures) Handle(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now := time.Now(); now.After(f.next) {
		f.log.Warn("tracing failed", "error", err, "failures", f.silent+1)
		f.next, f.silent = now.Add(failurePause), 0
		return
	}
	f.silent++
}

// sdkLog logs the errors that the SDK finds in the environment. It leaves out the values, because
// that of a malformed OTEL_EXPORTER_OTLP_HEADERS may be a token.
type sdkLog struct{ slog.Handler }

// Enabled implements slog.Handler.
func (sdkLog) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelWarn }

// Handle implements slog.Handler.
func (h sdkLog) Handle(ctx context.Context, r slog.Record) error {
	line := slog.NewRecord(r.Time, slog.LevelWarn, "a setting of OpenTelemetry is not used: "+r.Message, r.PC)
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "err" {
			line.AddAttrs(slog.Attr{Key: "error", Value: a.Value})
		}
		return true
	})
	return h.Handler.Handle(ctx, line)
}

// WithAttrs implements slog.Handler.
func (h sdkLog) WithAttrs([]slog.Attr) slog.Handler { return h }

// WithGroup implements slog.Handler.
func (h sdkLog) WithGroup(string) slog.Handler { return h }
