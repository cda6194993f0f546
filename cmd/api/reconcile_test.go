package main

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-stock/holdfast/internal/faults"
	"github.com/holdfast-stock/holdfast/internal/store/storetest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// reconciled runs api reconcile and returns its output. It must exit with the code.
func reconciled(t *testing.T, code int, flags []string, args ...string) string {
	t.Helper()
	return ran(t, code, append(append([]string{"reconcile", "--log-level", "error"}, args...), flags...))
}

// TestReconcileOnSilentDatabase makes the database stop answering on all connections, after the
// command has connected. The command's statements may take five minutes.
func TestReconcileOnSilentDatabase(t *testing.T) {
	t.Parallel()
	flags := migrated(t, []string{"--db", testenv.Postgres(t), "--strategy", "merged"})
	wire, over := faults.NewWire(t, flags[1])
	wire.Arm(faults.Fault{Kind: faults.Hung, Nth: 1, Times: faults.Always, After: "information_schema"})
	c, err := parse([]string{"reconcile", "--db", over, "--strategy", "merged"}, nil, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
	defer cancel()
	err = reconcileOnce(ctx, c, time.Second, io.Discard, slog.New(slog.DiscardHandler))
	if err == nil || ctx.Err() != nil || !strings.Contains(err.Error(), "the server does not answer") {
		t.Errorf("it returned %v", err)
	}
}

// TestReconcile checks that api reconcile finds and repairs damage beside two instances, and does
// not take over the stock.
func TestReconcile(t *testing.T) {
	t.Parallel()
	flags := migrated(t, mariaDBAndRedis.flags(t))
	if out := reconciled(t, 1, flags); !strings.Contains(out, "no instance holds the stock; start one") {
		t.Errorf("before the first instance: %s", out)
	}
	one, two := serveHere(t, flags...), serveHere(t, flags...)
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

	db := storetest.SQL(t, flags[1])
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
