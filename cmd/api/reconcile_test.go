package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-stock/holdfast/internal/faults"
	"github.com/holdfast-stock/holdfast/internal/reconcile"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/store"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// reconciled runs api reconcile and returns its output. It must exit with the code.
func reconciled(t *testing.T, code int, flags []string, args ...string) string {
	t.Helper()
	p := testenv.StartAPI(t, append(append([]string{"reconcile", "--log-level", "error"}, args...), flags...)...)
	if got := p.Wait(); got != code {
		t.Fatalf("reconcile %v: exit code %d, want %d: %s", args, got, code, p.Output())
	}
	return p.Output()
}

// TestReconcileOnSilentDatabase has the database fall silent, for all connections, after
// the command has connected. Its statements may take five minutes.
func TestReconcileOnSilentDatabase(t *testing.T) {
	t.Parallel()
	flags := migrated(t, []string{"--db", testenv.Postgres(t), "--strategy", "merged"})
	wire, over, err := faults.NewWire(flags[1])
	if err != nil {
		t.Fatal(err)
	}
	defer wire.Close()
	wire.Arm(faults.Fault{Kind: faults.Hung, Nth: 1, Times: faults.Always, After: "information_schema"})
	c, err := parse([]string{"reconcile", "--db", over, "--strategy", "merged"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err = reconcileOnce(ctx, c, time.Second, io.Discard, slog.New(slog.DiscardHandler))
	if err == nil || ctx.Err() != nil || !strings.Contains(err.Error(), "the server does not answer") {
		t.Errorf("it returned %v", err)
	}
}

// TestReconcile checks that api reconcile finds and repairs damage beside two
// instances, and takes nothing over.
func TestReconcile(t *testing.T) {
	t.Parallel()
	flags := migrated(t, mariaDBAndRedis.flags(t))
	one, two := testenv.API(t, flags...), testenv.API(t, flags...)
	setStock(t, one.URL(), "sound", 10)
	setStock(t, one.URL(), "damaged", 10)
	mustCall(t, 201, "POST", two.URL()+"/orders", orderBody("u-1", "damaged", 4))
	if out := reconciled(t, 0, flags); out != "SKUs compared: 2, different: 0, repaired: 0, not used since the last change of generation: 0\n" {
		t.Errorf("without damage: %s", out)
	}
	if out := reconciled(t, 1, flags, "--strategy", "merged"); !strings.Contains(out, "merged") || !strings.Contains(out, "lua") {
		t.Errorf("with another strategy: %s", out)
	}
	mustCall(t, 201, "POST", one.URL()+"/orders", orderBody("u-1", "damaged", 1))

	db, err := store.OpenSQL(t.Context(), flags[1])
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := db.DB().Exec("UPDATE stock SET available = available + 3 WHERE sku = 'damaged'").Error; err != nil {
		t.Fatal(err)
	}
	if out := reconciled(t, 1, flags); !strings.Contains(out, "damaged") || !strings.Contains(out, "ledger +3") ||
		strings.Contains(out, "sound") || !strings.Contains(out, "SKUs with differences: 1; reconcile --repair") {
		t.Errorf("with damage: %s", out)
	}
	out, _, _ := strings.Cut(reconciled(t, 1, flags, "--json"), "api:")
	var document struct {
		Findings []struct {
			SKU             string
			Held, Available int64
			Differences     []struct {
				Kind        string
				Least, Most int64
			}
		}
		Compared, Different, Repaired int
	}
	if err := json.Unmarshal([]byte(out), &document); err != nil || document.Compared != 2 || document.Different != 1 || len(document.Findings) != 1 {
		t.Fatalf("%v: %s", err, out)
	}
	if f := document.Findings[0]; f.SKU != "damaged" || f.Held != 5 || f.Available != 8 || f.Differences[0].Kind != "ledger" || f.Differences[0].Least != 3 {
		t.Errorf("%+v", f)
	}
	if out := reconciled(t, 0, flags, "--repair"); !strings.Contains(out, "; repaired\nSKUs compared: 2, different: 1, repaired: 1") {
		t.Errorf("with --repair: %s", out)
	}
	reconciled(t, 0, flags)
	mustCall(t, 201, "POST", one.URL()+"/orders", orderBody("u-2", "damaged", 5))
	mustCall(t, 409, "POST", two.URL()+"/orders", orderBody("u-2", "damaged", 1))
}

// twinAuditor has the findings of an audit.
type twinAuditor struct {
	found []reconcile.Finding
	err   error
}

func (a twinAuditor) AuditAll(_ context.Context, o reconcile.AuditOptions) (s reconcile.AuditSummary, err error) {
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

// TestPrintAudit checks the table, the JSON and the error of an audit.
func TestPrintAudit(t *testing.T) {
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
	for _, test := range []struct {
		name  string
		found []reconcile.Finding
		c     config
		err   error
		want  string
		fails string
	}{
		{"nothing differs", nil, config{}, nil, "SKUs compared: 12, different: 0, repaired: 0, not used since the last change of generation: 3\n", ""},
		{"nothing differs, as JSON", nil, config{json: true}, nil, "{\"findings\":[],\n\"compared\":12,\"different\":0,\"repaired\":0,\"not_adopted\":3}\n", ""},
		{"a table", []reconcile.Finding{ledger, gate, claims, lost, segment}, config{}, nil, `
SKU                       TOTAL       HELD     LEDGER       GATE  IN FLIGHT   RECORDED UNDELIVERED  DIFFERENCES
a                             0          0          0          -          -          -           0  ledger -3; repaired
b                            10          1          9          7          2          -           4  gate +5 to +9
c                             0          0          0          -          -          -           0  wrong claims: 2; not repaired: no connection
d                             0          0          0          7          2          1           0  in flight +1 without a record
e                             0          0          0          -          -          -           0  gate not filled, changed in every reading, segments 3 -
SKUs compared: 12, different: 5, repaired: 1, not used since the last change of generation: 3
`, "SKUs with differences: 4; reconcile --repair"},
		{"JSON", []reconcile.Finding{ledger, gate}, config{json: true, repair: true}, nil, `
{"findings":[
{"sku":"a","total":0,"held":0,"available":0,"undelivered":0,"gate":null,"recorded":null,"differences":[{"kind":"ledger","least":-3,"most":-3}],"repaired":true},
{"sku":"b","total":10,"held":1,"available":9,"undelivered":4,"gate":{"available":7,"in_flight":2},"recorded":null,"differences":[{"kind":"gate","least":5,"most":9}],"repaired":false}],
"compared":12,"different":2,"repaired":1,"not_adopted":3}
`, "SKUs that could not be repaired: 1"},
		{"a failure", nil, config{}, io.ErrUnexpectedEOF, "SKUs compared: 12, different: 0, repaired: 0, not used since the last change of generation: 3\n", io.ErrUnexpectedEOF.Error()},
	} {
		t.Run(test.name, func(t *testing.T) {
			var out bytes.Buffer
			err := printAudit(t.Context(), twinAuditor{test.found, test.err}, test.c, &out, slog.New(slog.DiscardHandler))
			if got, want := out.String(), strings.TrimPrefix(test.want, "\n"); got != want {
				t.Errorf("printed\n%s\nwant\n%s", got, want)
			}
			if (err == nil) != (test.fails == "") || err != nil && !strings.Contains(err.Error(), test.fails) {
				t.Errorf("error %v, want %q", err, test.fails)
			}
		})
	}
}
