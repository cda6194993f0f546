package reconcile

import (
	"context"
	"slices"
	"testing"

	"go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/holdfast-stock/holdfast/internal/ledger"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/tracing"
)

// TestTraces checks that a step of a job has a separate trace if it did some work or failed.
// Otherwise, or if it was stopped, it must have none.
func TestTraces(t *testing.T) {
	t.Parallel()
	spans := tracetest.NewSpanRecorder()
	l := newLedger(&ownerRow{})
	r := newReconciler(nil, l)
	r.tracer = tracing.New(sdk.NewTracerProvider(sdk.WithSpanProcessor(spans)), true)
	e := &expiry{Reconciler: r}
	steps := []struct {
		done    ledger.Expiry
		err     error
		stopped bool
	}{{}, {done: ledger.Expiry{Expired: 2, Failed: 1}}, {err: errUnreachable}, {err: errUnreachable, stopped: true}}
	for _, s := range steps {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		if s.stopped {
			cancel()
		}
		l.expire = func(ledger.Job, int) (ledger.Expiry, error) { return s.done, s.err }
		if _, err := e.step(ctx, ledger.Job{}); (err == nil) != (s.err == nil) {
			t.Fatal(err)
		}
	}
	ended := spans.Ended()
	if len(ended) != 2 {
		t.Fatalf("%d spans, want 2", len(ended))
	}
	for n, want := range []struct {
		count  int64
		status codes.Code
	}{{3, codes.Unset}, {0, codes.Error}} {
		s := ended[n]
		var count int64
		for _, a := range s.Attributes() {
			if a.Key == "holdfast.job.count" {
				count = a.Value.AsInt64()
			}
		}
		if s.Name() != "job.expiry" || s.Parent().IsValid() || count != want.count || s.Status().Code != want.status || s.Status().Description != "" {
			t.Errorf("span %d: %s, parent %v, count %d, status %+v", n+1, s.Name(), s.Parent().IsValid(), count, s.Status())
		}
	}
}

// TestTraces_Names checks that each kind of background work has a trace.
func TestTraces_Names(t *testing.T) {
	t.Parallel()
	spans := tracetest.NewSpanRecorder()
	r, gate, l := started(t, &ownerRow{})
	l.outbox = []stock.Change{{SKU: "a", Number: 1}}
	gate.scan = func(context.Context, string) ([]stock.Take, string, error) { return nil, "", errUnreachable }
	r.tracer = tracing.New(sdk.NewTracerProvider(sdk.WithSpanProcessor(spans)), true)
	l.rows["a"] = ledger.StockRow{SKU: "a"} // the gate has no count of it
	_, scanErr := r.recoverNext(t.Context(), "")
	_, deliverErr := r.deliverAll(t.Context())
	_, compareErr := r.compareNext(t.Context())
	if scanErr == nil || deliverErr != nil || compareErr != nil {
		t.Fatal(scanErr, deliverErr, compareErr)
	}
	var names []string
	for _, s := range spans.Ended() {
		names = append(names, s.Name())
	}
	if !slices.Equal(names, []string{"recovery", "job.outbox", "job.drift"}) {
		t.Errorf("traces of %q", names)
	}
}
