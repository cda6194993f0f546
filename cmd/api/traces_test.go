package main

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-stock/holdfast/internal/tracing/tracingtest"
)

// parent is the trace of the callers of these tests.
const (
	parentTrace = "4bf92f3577b34da6a3ce929d0e0e4736"
	parentSpan  = "00f067aa0ba902b7"
)

// traced starts the service, and a collector to which it exports its traces.
func traced(t *testing.T, flags ...string) (*service, *tracingtest.Collector) {
	t.Helper()
	collector := tracingtest.NewCollector(t)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.URL)
	t.Setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
	t.Setenv("OTEL_SERVICE_NAME", "shop")
	return serveHere(t, append([]string{"--log-level", "debug"}, flags...)...), collector
}

// stop stops the service, which exports its last traces.
func stop(t *testing.T, api *service) {
	t.Helper()
	api.Interrupt()
	if code := api.Wait(); code != 0 {
		t.Fatalf("exit code %d: %s", code, api.Output())
	}
}

// child returns the only span of that name below the parent.
func child(t *testing.T, spans []tracingtest.Span, parent, name string) tracingtest.Span {
	t.Helper()
	var found []tracingtest.Span
	for _, s := range spans {
		if s.Parent == parent && s.Name == name {
			found = append(found, s)
		}
	}
	if len(found) != 1 {
		t.Fatalf("%d spans %s below %s in %+v", len(found), name, parent, spans)
	}
	return found[0]
}

// inTrace returns the spans of the trace.
func inTrace(spans []tracingtest.Span, trace string) []tracingtest.Span {
	return slices.DeleteFunc(slices.Clone(spans), func(s tracingtest.Span) bool { return s.Trace != trace })
}

// TestTraces reads the trace of an order back from a collector. The caller's trace must continue
// through gate, group and ledger, and contain neither the SKUs nor the buyer. The histograms and
// the log must name the trace.
func TestTraces(t *testing.T) {
	api, collector := traced(t)
	const sku, buyer, key = "secret-sku", "secret-buyer", "secret-key"
	mustCall(t, 201, "PUT", api.URL()+"/stock/"+sku, `{"kind":"product","total":1}`)
	place := func(trace, key string, want int) string {
		return string(mustCall(t, want, "POST", api.URL()+"/orders", orderBody(buyer, sku, 1),
			"Idempotency-Key", key, "traceparent", "00-"+trace+"-"+parentSpan+"-01"))
	}
	var order struct{ ID string }
	if err := json.Unmarshal([]byte(place(parentTrace, key, 201)), &order); err != nil {
		t.Fatal(err)
	}
	// Scrape before the next order, because a bucket keeps only the last exemplar.
	metrics := string(mustCall(t, 200, "GET", api.URL()+"/metrics", "", "Accept", "application/openmetrics-text; version=1.0.0"))
	soldOut := strings.Repeat("5", 32)
	place(soldOut, key+"-2", 409)
	mustCall(t, 200, "GET", api.URL()+"/stock/"+sku, "")
	mustCall(t, 404, "GET", api.URL()+"/stock/"+sku+"-unknown", "")
	mustCall(t, 200, "POST", api.URL()+"/orders/"+order.ID+"/pay", `{"payment_id":"secret-payment"}`)
	plain := string(mustCall(t, 200, "GET", api.URL()+"/metrics", ""))
	stop(t, api)

	all := collector.Spans()
	spans := inTrace(all, parentTrace)
	server := child(t, spans, parentSpan, "POST /orders")
	if !server.Server || server.Failed || server.Service != "shop" || server.Attributes["http.response.status_code"] != "201" ||
		server.Attributes["holdfast.order.id"] != order.ID || server.Attributes["holdfast.order.result"] != "accepted" {
		t.Errorf("the request's span is %+v", server)
	}
	if take := child(t, spans, server.ID, "gate.take"); take.Attributes["holdfast.outcome"] != "taken" {
		t.Errorf("the take's span is %+v", take)
	}
	record := child(t, spans, server.ID, "ledger.record")
	group := child(t, spans, record.ID, "ledger.group")
	commit := child(t, spans, group.ID, "ledger.commit")
	if record.Attributes["holdfast.outcome"] != "committed" || !slices.Equal(record.Links, []string{group.ID}) {
		t.Errorf("the recording's span is %+v, the group's ID %s", record, group.ID)
	}
	if commit.Failed || commit.Attributes["holdfast.group.orders"] != "1" || commit.Attributes["db.system.name"] != "sqlite" {
		t.Errorf("the commit's span is %+v", commit)
	}

	spans = inTrace(all, soldOut)
	server = child(t, spans, parentSpan, "POST /orders")
	take := child(t, spans, server.ID, "gate.take")
	if server.Failed || take.Failed || server.Attributes["holdfast.order.result"] != "sold_out" || take.Attributes["holdfast.outcome"] != "sold_out" {
		t.Errorf("sold out: %+v, %+v", server, take)
	}
	for _, name := range []string{"PUT /stock/{sku}", "GET /stock/{sku}", "POST /orders/{id}/pay", "ledger.transaction"} {
		if !slices.ContainsFunc(all, func(s tracingtest.Span) bool { return s.Name == name }) {
			t.Errorf("no span %s", name)
		}
	}
	for _, s := range all {
		if strings.Contains(s.Name, "readyz") || strings.Contains(s.Name, "metrics") {
			t.Errorf("a span of a probe: %+v", s)
		}
	}

	for _, secret := range []string{"secret", "SELECT", "INSERT", "UPDATE", "stock WHERE"} {
		if collector.Contains(secret) {
			t.Errorf("the collector got %q", secret)
		}
	}
	for _, histogram := range []string{"holdfast_http_request_seconds_bucket", "holdfast_gate_take_seconds_bucket", "holdfast_ledger_record_seconds_bucket"} {
		if !hasExemplar(metrics, histogram, parentTrace) {
			t.Errorf("%s has no exemplar of the trace:\n%s", histogram, metrics)
		}
	}
	if strings.Contains(plain, parentTrace) {
		t.Error("the plain text format has exemplars, which it does not allow")
	}
	if !logged(t, api.Output(), "/orders", parentTrace) {
		t.Errorf("no log line of the order's request has its trace:\n%s", api.Output())
	}
}

// hasExemplar reports whether a bucket of the histogram has an exemplar of the trace.
func hasExemplar(metrics, histogram, trace string) bool {
	for line := range strings.Lines(metrics) {
		if strings.HasPrefix(line, histogram) && strings.Contains(line, `trace_id="`+trace+`"`) {
			return true
		}
	}
	return false
}

// logged reports whether the log has a line for a request to the path in the trace.
func logged(t *testing.T, output, path, trace string) bool {
	t.Helper()
	for line := range strings.Lines(output) {
		var entry struct {
			Msg, Path      string
			Trace, Request string
		}
		var raw map[string]any
		if json.Unmarshal([]byte(line), &raw) != nil {
			continue // this line is part of the banner
		}
		entry.Msg, _ = raw["msg"].(string)
		entry.Path, _ = raw["path"].(string)
		entry.Trace, _ = raw["trace_id"].(string)
		entry.Request, _ = raw["request_id"].(string)
		if entry.Msg == "request" && entry.Path == path && entry.Trace == trace && entry.Request != "" && raw["span_id"] != nil {
			return true
		}
	}
	return false
}

// TestTraces_Queued checks that the trace of a queued order continues at its consumer.
func TestTraces_Queued(t *testing.T) {
	api, collector := traced(t, "--strategy", "async")
	var order struct{ ID string }
	answer := mustCall(t, 202, "POST", api.URL()+"/orders", orderBody("u-1", "10001", 1), "traceparent", "00-"+parentTrace+"-"+parentSpan+"-01")
	if err := json.Unmarshal(answer, &order); err != nil {
		t.Fatal(err)
	}
	waitStatus(t, api.URL(), order.ID, "pending")
	stop(t, api)

	spans := inTrace(collector.Spans(), parentTrace)
	server := child(t, spans, parentSpan, "POST /orders")
	consumer := child(t, spans, child(t, spans, server.ID, "gate.take").ID, "journal.commit")
	if consumer.Attributes["holdfast.outcome"] != "committed" || consumer.Attributes["holdfast.order.id"] != order.ID {
		t.Errorf("the consumer's span is %+v", consumer)
	}
	record := child(t, spans, consumer.ID, "ledger.record")
	child(t, spans, child(t, spans, record.ID, "ledger.group").ID, "ledger.commit")
}

// TestTraces_OtherProtocol checks that an unsupported protocol causes a warning, and that the
// service serves without traces.
func TestTraces_OtherProtocol(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
	api, collector := traced(t)
	mustCall(t, http.StatusCreated, "POST", api.URL()+"/orders", orderBody("u-1", "10001", 1))
	stop(t, api)
	if !strings.Contains(api.Output(), `OTEL_EXPORTER_OTLP_PROTOCOL: \"grpc\" is not one of`) {
		t.Errorf("no warning:\n%s", api.Output())
	}
	if spans := collector.Spans(); len(spans) > 0 {
		t.Errorf("exported %+v", spans)
	}
}
