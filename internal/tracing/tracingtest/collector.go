// Package tracingtest has a collector of traces for tests.
package tracingtest

import (
	"compress/gzip"
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// Span is a span that the collector received. IDs are in hexadecimal; Parent is empty if there is
// none.
type Span struct {
	Service           string // service.name of the resource
	Name              string
	Trace, ID, Parent string
	Server            bool
	Failed            bool
	Attributes        map[string]string
	Links             []string // IDs of the linked spans
}

// Collector receives traces over HTTP, in protobuf. It is safe for concurrent use.
type Collector struct {
	URL string // URL of the server, for OTEL_EXPORTER_OTLP_ENDPOINT

	mu     sync.Mutex
	spans  []Span
	bodies strings.Builder
}

// NewCollector starts a collector, which ends with the test.
func NewCollector(t testing.TB) *Collector {
	c := new(Collector)
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/traces", func(w http.ResponseWriter, r *http.Request) {
		if err := c.receive(r); err != nil {
			t.Errorf("the collector got no traces: %v", err)
			w.WriteHeader(http.StatusBadRequest)
		}
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	c.URL = server.URL
	return c
}

func (c *Collector) receive(r *http.Request) error {
	body := io.Reader(r.Body)
	if r.Header.Get("Content-Encoding") == "gzip" {
		unzipped, err := gzip.NewReader(r.Body)
		if err != nil {
			return err
		}
		body = unzipped
	}
	data, err := io.ReadAll(body)
	if err != nil {
		return err
	}
	var request collector.ExportTraceServiceRequest
	if err := proto.Unmarshal(data, &request); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.bodies.Write(data)
	for _, resource := range request.GetResourceSpans() {
		service := attributesOf(resource.GetResource().GetAttributes())["service.name"]
		for _, scope := range resource.GetScopeSpans() {
			for _, s := range scope.GetSpans() {
				c.spans = append(c.spans, spanOf(service, s))
			}
		}
	}
	return nil
}

func spanOf(service string, s *otlp.Span) Span {
	span := Span{
		Service: service, Name: s.GetName(),
		Trace: hex.EncodeToString(s.GetTraceId()), ID: hex.EncodeToString(s.GetSpanId()), Parent: hex.EncodeToString(s.GetParentSpanId()),
		Server:     s.GetKind() == otlp.Span_SPAN_KIND_SERVER,
		Failed:     s.GetStatus().GetCode() == otlp.Status_STATUS_CODE_ERROR,
		Attributes: attributesOf(s.GetAttributes()),
	}
	for _, link := range s.GetLinks() {
		span.Links = append(span.Links, hex.EncodeToString(link.GetSpanId()))
	}
	return span
}

func attributesOf(list []*common.KeyValue) map[string]string {
	attributes := make(map[string]string, len(list))
	for _, a := range list {
		switch v := a.GetValue().GetValue().(type) {
		case *common.AnyValue_StringValue:
			attributes[a.GetKey()] = v.StringValue
		default:
			attributes[a.GetKey()] = strings.TrimPrefix(a.GetValue().String(), "int_value:")
		}
	}
	return attributes
}

// Spans returns the spans received so far.
func (c *Collector) Spans() []Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.spans)
}

// Contains reports whether the text was received, in any field of any span.
func (c *Collector) Contains(text string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.Contains(c.bodies.String(), text)
}
