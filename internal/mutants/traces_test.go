//go:build mutants

package mutants

const (
	requestSpans = "internal/httpapi/trace.go"
	spans        = "internal/tracing/tracing.go"
	exporter     = "internal/tracing/otlp/otlp.go"
	gateRecord   = "internal/stock/gate/record.go"
)

// traces lists mutants of traces: of the data that may leave the service, and of the cost.
var traces = []mutant{
	{"a span is named by its path", requestSpans, "c.Request.Method, pattern(route))", "c.Request.Method, c.Request.URL.Path)", "internal/httpapi TestTraces"},
	{"a failed commit exports its error", groupCommit, `span.Fail(cmp.Or(kindOf(err), "unavailable"))`, `span.Fail(cmp.Or(err.Error(), "unavailable"))`, "internal/ledger TestGroupTrace/SQLite"},
	{"an order leads to no group", spans, "m.span.AddLink(", "_ = (", "internal/ledger TestGroupTrace/SQLite"},
	{"a queued order's record ends with its trace", gateRecord, "\tif trace != \"\" {\n\t\tb = append(append(b, ' '), trace...)\n\t}\n\treturn strconv.AppendInt(append(b, ' '), at.UnixMicro(), 10)", "\tb = strconv.AppendInt(append(b, ' '), at.UnixMicro(), 10)\n\tif trace != \"\" {\n\t\tb = append(append(b, ' '), trace...)\n\t}\n\treturn b", "internal/stock/gate TestQueuedRecord"},
	{"every failed export is logged", exporter, "f.next, f.silent = now.Add(failurePause), 0", "_ = now", "internal/tracing/otlp TestFailures"},
	{"a size that the SDK does not survive is passed on", exporter, "err == nil && (value < 1", "err == nil && false && (value < 1", "internal/tracing/otlp TestOpen_Batching"},
	{"a malformed header is logged with its value", exporter, `if a.Key == "err" {`, "line.AddAttrs(a)\n\t\tif a.Key == \"err\" {", "internal/tracing/otlp TestSDKLog"},
	{"another protocol is silent", exporter, "case !slices.Contains(protocols, protocol):", "case !slices.Contains(protocols, protocol):\n\t\treturn false, nil\n\tcase false:", "internal/tracing/otlp TestWanted"},
	{"a group fails without a kind while the database is unreachable", groupCommit, `cmp.Or(kindOf(err), "unavailable")`, `cmp.Or(kindOf(err))`, "internal/ledger TestGroupTrace/SQLite"},
	{"a transaction fails without a kind", transacting, "span.Fail(kind)", "_ = kind", "internal/ledger TestTransactionTrace"},
	{"a request that is refused has failed", requestSpans, "if status >= http.StatusInternalServerError {", "if status >= http.StatusBadRequest {", "internal/httpapi TestTraces"},
	{"the span of a request has no status", requestSpans, "span.Int(\"http.response.status_code\", status)", "", "internal/httpapi TestTraces"},
	{"background work is in the trace of its caller", spans, "trace.WithNewRoot(), ", "", "internal/tracing TestRoot"},
	{"background work begins when it ends", spans, ", trace.WithTimestamp(start))", ")", "internal/tracing TestRoot"},
	{"a list of propagators with spaces is not read", exporter, "strings.ReplaceAll(names, \" \", \"\")", "names", "internal/tracing/otlp TestOpen_Propagators"},
	{"failed exports are counted again", exporter, "f.next, f.silent = now.Add(failurePause), 0", "f.next = now.Add(failurePause)", "internal/tracing/otlp TestFailures"},
	{"a part of work without a trace begins one", spans, "if t == nil || !trace.SpanFromContext(ctx).IsRecording() {", "if t == nil {", "internal/tracing TestRoot"},
}
