package ledger

import (
	"context"
	"errors"
	"slices"
	"testing"

	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/holdfast-stock/holdfast/internal/faults"
	"github.com/holdfast-stock/holdfast/internal/ledger/cutter"
	"github.com/holdfast-stock/holdfast/internal/ledger/cutter/cuttertest"
	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/testenv"
	"github.com/holdfast-stock/holdfast/internal/tracing"
)

// errorType returns the kind of failure that the span names, or "".
func errorType(span sdk.ReadOnlySpan) string {
	for _, a := range span.Attributes() {
		if a.Key == "error.type" {
			return a.Value.AsString()
		}
	}
	return ""
}

// TestGroupTrace checks the spans of a group. The group's span is a child in the first recorded
// order's trace. Every recorded order is linked to it, and it to the others. Each try to commit is
// a span that names its failure without the error's text.
func TestGroupTrace(t *testing.T) {
	t.Parallel()
	sqlite := slices.DeleteFunc(slices.Clone(databases), func(d testenv.Database) bool { return d.Name != "SQLite" })
	eachDatabase(t, sqlite, func(t *testing.T, d *database) {
		failures := []error{errors.Join(cutter.ErrConflict, errors.New("secret")), nil, errors.New("secret")} // by try
		l := d.open(t, cuttertest.WithCut(cutter.ForUpdate(), func(ctx context.Context, tx *sqltx.Tx, _ []stock.Take, cut cuttertest.Cut) ([]cutter.Decision, error) {
			err := failures[0]
			if failures = failures[1:]; err != nil {
				return nil, err
			}
			return cut(ctx, tx)
		}))
		sku := fresh("traced")
		lay(t, l, sku, 3)
		spans := tracetest.NewSpanRecorder()
		l.tracer = tracing.New(sdk.NewTracerProvider(sdk.WithSpanProcessor(spans)), true)

		rs := []*recording{recordingOf(sku), recordingOf(sku), recordingOf(sku)}
		for _, r := range rs[1:] { // the first order is not sampled
			ctx, request := l.tracer.Request(t.Context(), nil, "POST", "/orders")
			_, r.span = l.tracer.Start(ctx, "ledger.record")
			request.End()
		}
		l.recordGroup(append(slices.Clone(rs), repeatOf(rs[0])), new(slowGroup)) // the repeat is tried last
		for _, r := range rs {
			r.span.End()
		}

		ended := make(map[string][]sdk.ReadOnlySpan)
		for _, s := range spans.Ended() {
			ended[s.Name()] = append(ended[s.Name()], s)
		}
		groups, records, commits := ended["ledger.group"], ended["ledger.record"], ended["ledger.commit"]
		if len(groups) != 1 || len(records) != 2 || len(commits) != 3 {
			t.Fatalf("%d groups, %d recordings, %d commits", len(groups), len(records), len(commits))
		}
		group := groups[0]
		if group.Parent().SpanID() != records[0].SpanContext().SpanID() {
			t.Errorf("the group's parent is %v, want the first recording", group.Parent().SpanID())
		}
		if links := group.Links(); len(links) != 1 || links[0].SpanContext.SpanID() != records[1].SpanContext().SpanID() {
			t.Errorf("the group's links are %+v, want the second recording", links)
		}
		for n, r := range records {
			if links := r.Links(); len(links) != 1 || !links[0].SpanContext.Equal(group.SpanContext()) {
				t.Errorf("the links of recording %d are %+v, want the group", n+1, links)
			}
		}
		for n, want := range []string{"conflict", "", "unavailable"} {
			if kind := errorType(commits[n]); kind != want || commits[n].Status().Description != "" || commits[n].Parent().SpanID() != group.SpanContext().SpanID() {
				t.Errorf("commit %d: error %q, status %+v, want %q", n+1, kind, commits[n].Status(), want)
			}
		}
		d.atRest(t, sku, 3)
	})
}

// TestTransactionTrace checks that each try of a transaction is a span that names a failure of the
// database, and not a refusal.
func TestTransactionTrace(t *testing.T) {
	t.Parallel()
	s := openTemplate(t).copy(t)
	spans := tracetest.NewSpanRecorder()
	s.l.tracer = tracing.New(sdk.NewTracerProvider(sdk.WithSpanProcessor(spans)), true)
	ctx, request := s.l.tracer.Request(t.Context(), nil, "POST", "/orders")
	s.faults.Arm(faults.Fault{Kind: faults.LockTimeout, Nth: 1, Only: "BEGIN"})
	if _, err := s.l.Beat(ctx); err != nil {
		t.Error(err)
	}
	s.faults.Disarm()
	if err := s.l.RaiseGeneration(ctx, Owner{}, Owner{}); !errors.Is(err, stock.ErrRowChanged) {
		t.Error(err)
	}
	request.End()
	var kinds []string
	for _, span := range spans.Ended() {
		if span.Name() == "ledger.transaction" {
			kinds = append(kinds, errorType(span))
		}
	}
	if want := []string{"retryable", "", ""}; !slices.Equal(kinds, want) {
		t.Errorf("failures %q, want %q", kinds, want)
	}
}
