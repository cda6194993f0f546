package findings

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-stock/holdfast/internal/reconcile"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// fakeAuditor has the findings of an audit.
type fakeAuditor struct {
	found []reconcile.Finding
	err   error
}

func (a fakeAuditor) AuditAll(_ context.Context, o reconcile.AuditOptions) (s reconcile.AuditSummary, err error) {
	for _, f := range a.found {
		if err := o.Report(f); err != nil {
			return s, err
		}
		s.Different++
		if f.Repaired {
			s.Repaired++
		}
	}
	s.Compared, s.NotAdopted = 12, 3
	o.Progress(s.Compared)
	return s, a.err
}

// TestPrint checks the table, the JSON and the error of an audit.
func TestPrint(t *testing.T) {
	t.Parallel()
	recorded := int64(1)
	plus := func(kind reconcile.Kind, least, most int64) []reconcile.Difference {
		return []reconcile.Difference{{Kind: kind, Least: least, Most: most}}
	}
	level := stock.Level{Filled: true, Available: 7, InFlight: 2}
	var ledger, gate, claims, lost, segment reconcile.Finding
	ledger.Count.SKU, ledger.Differences, ledger.Repaired = "a", plus(reconcile.LedgerDiffers, -3, -3), true
	gate.Count.SKU, gate.Level, gate.Differences = "b", level, plus(reconcile.GateDiffers, 5, 9)
	gate.Count.Total, gate.Count.Held, gate.Count.Available, gate.Count.Undelivered = 10, 1, 9, 4
	claims.Count.SKU, claims.Differences = "c", plus(reconcile.ClaimsDiffer, 2, 2)
	claims.Err = errors.New("no connection")
	lost.Count.SKU, lost.Level, lost.Recorded = "d", level, &recorded
	lost.Differences = plus(reconcile.Unrecorded, 1, 1)
	segment.Count.SKU, segment.Segments = "e", []stock.Level{{Filled: true, Available: 3}, {}}
	segment.Differences = append(plus(reconcile.NotFilled, 0, 0), plus(reconcile.Unsteady, 0, 0)...)
	refilled := gate
	refilled.Repaired = true
	for _, test := range []struct {
		name  string
		found []reconcile.Finding
		o     Options
		err   error
		want  string
		fails string
	}{
		{"nothing differs", nil, Options{}, nil, "SKUs compared: 12, different: 0, repaired: 0, not used since the last change of generation: 3\n", ""},
		{"nothing differs, as JSON", nil, Options{JSON: true}, nil, "{\"findings\":[],\n\"compared\":12,\"different\":0,\"repaired\":0,\"not_adopted\":3}\n", ""},
		{"a table", []reconcile.Finding{ledger, gate, claims, lost, segment}, Options{}, nil, `
SKU                       TOTAL       HELD     LEDGER       GATE  IN FLIGHT   RECORDED UNDELIVERED  DIFFERENCES
a                             0          0          0          -          -          -           0  ledger -3; repaired
b                            10          1          9          7          2          -           4  gate +5 to +9
c                             0          0          0          -          -          -           0  wrong claims: 2; not repaired: no connection
d                             0          0          0          7          2          1           0  in flight +1 without a record
e                             0          0          0          -          -          -           0  gate not filled, changed in every reading, segments 3 -
SKUs compared: 12, different: 5, repaired: 1, not used since the last change of generation: 3
`, "SKUs with differences: 4; reconcile --repair"},
		{"JSON", []reconcile.Finding{ledger, refilled, claims}, Options{JSON: true, Repair: true}, nil, `
{"findings":[
{"sku":"a","total":0,"held":0,"available":0,"undelivered":0,"gate":null,"recorded":null,"differences":[{"kind":"ledger","least":-3,"most":-3}],"repaired":true},
{"sku":"b","total":10,"held":1,"available":9,"undelivered":4,"gate":{"available":7,"in_flight":2},"recorded":null,"differences":[{"kind":"gate","least":5,"most":9}],"repaired":true},
{"sku":"c","total":0,"held":0,"available":0,"undelivered":0,"gate":null,"recorded":null,"differences":[{"kind":"claims","least":2,"most":2}],"repaired":false,"error":"no connection"}],
"compared":12,"different":3,"repaired":2,"not_adopted":3}
`, "SKUs that could not be repaired: 1"},
		{"segments as JSON", []reconcile.Finding{segment}, Options{JSON: true}, nil, `
{"findings":[
{"sku":"e","total":0,"held":0,"available":0,"undelivered":0,"gate":null,"recorded":null,"segments":[{"available":3,"in_flight":0},null],"differences":[{"kind":"not-filled","least":0,"most":0},{"kind":"unsteady","least":0,"most":0}],"repaired":false}],
"compared":12,"different":1,"repaired":0,"not_adopted":3}
`, "SKUs with differences: 1; reconcile --repair"},
		{"a failure", nil, Options{}, io.ErrUnexpectedEOF, "SKUs compared: 12, different: 0, repaired: 0, not used since the last change of generation: 3\n", io.ErrUnexpectedEOF.Error()},
	} {
		t.Run(test.name, func(t *testing.T) {
			var out bytes.Buffer
			err := Print(t.Context(), fakeAuditor{test.found, test.err}, test.o, &out, slog.New(slog.DiscardHandler))
			if got, want := out.String(), strings.TrimPrefix(test.want, "\n"); got != want {
				t.Errorf("printed\n%s\nwant\n%s", got, want)
			}
			if (err == nil) != (test.fails == "") || err != nil && !strings.Contains(err.Error(), test.fails) {
				t.Errorf("error %v, want %q", err, test.fails)
			}
		})
	}
}

// auditFunc is an audit.
type auditFunc func(o reconcile.AuditOptions) error

func (a auditFunc) AuditAll(_ context.Context, o reconcile.AuditOptions) (reconcile.AuditSummary, error) {
	return reconcile.AuditSummary{}, a(o)
}

// TestPrint_AtOnce checks that a finding is printed before the audit continues.
func TestPrint_AtOnce(t *testing.T) {
	t.Parallel()
	for _, o := range []Options{{}, {JSON: true}} {
		var out bytes.Buffer
		err := Print(t.Context(), auditFunc(func(audit reconcile.AuditOptions) error {
			for _, sku := range []stock.SKU{"sku-1", "sku-2"} {
				var f reconcile.Finding
				f.Count.SKU = sku
				if err := audit.Report(f); err != nil || !strings.Contains(out.String(), string(sku)) {
					t.Errorf("%+v: after %s was found, %q is printed, %v", o, sku, out.String(), err)
				}
			}
			return nil
		}), o, &out, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Error(err)
		}
	}
}

// full refuses every write.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, io.ErrShortWrite }

// TestPrint_NoOutput checks that an audit whose output cannot be written fails.
func TestPrint_NoOutput(t *testing.T) {
	t.Parallel()
	for _, found := range [][]reconcile.Finding{nil, {{}}} {
		if err := Print(t.Context(), fakeAuditor{found: found}, Options{}, full{}, slog.New(slog.DiscardHandler)); !errors.Is(err, io.ErrShortWrite) {
			t.Errorf("%d findings: %v", len(found), err)
		}
	}
}

// TestPrint_Progress checks that the progress of an audit is logged, but not after each page.
func TestPrint_Progress(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		err := Print(t.Context(), auditFunc(func(audit reconcile.AuditOptions) error {
			for page := range 12 {
				time.Sleep(progressPause / 5) // in a bubble
				audit.Progress(100 * (page + 1))
			}
			return nil
		}), Options{}, io.Discard, slog.New(slog.NewTextHandler(&log, nil)))
		if n := strings.Count(log.String(), "comparing stock"); err != nil || n != 2 || !strings.Contains(log.String(), "skus=1000") {
			t.Errorf("%d lines of %s, %v", n, log.String(), err)
		}
	})
}
