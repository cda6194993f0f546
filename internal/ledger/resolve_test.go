package ledger

import (
	"testing"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/ledger/cutter"
	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/store/storetest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// resolve resolves the take and checks that its outcome is want.
func resolve(t *testing.T, l *Ledger, take stock.Take, want string) {
	t.Helper()
	if o := l.Resolve(t.Context(), take.Deduction); o.Kind() != want {
		t.Errorf("resolved as %+v; want %v", o, want)
	}
}

// TestResolve checks that the void order of a resolved take keeps a later take from using the ID. A
// committed order, or a missing answer, must never be resolved as refused. The row of a refused
// order names a take that did not cut its units.
func TestResolve(t *testing.T) {
	t.Parallel()
	eachDatabase(t, testenv.Chosen(databases, "SQLite", "PostgreSQL"), func(t *testing.T, d *database) {
		l := d.open(t, cutter.Merged())
		sku := fresh("resolve")
		lay(t, l, sku, 10)
		take := takeOf(sku)
		resolve(t, l, take, "refused")
		resolve(t, l, take, "refused")
		_, out := l.Record(t.Context(), take)
		if found, ok := out.Duplicate(); !ok || found.Status != order.Void {
			t.Errorf("recording a void order: %+v", out)
		}
		if o, err := l.Order(t.Context(), take.OrderID); err != nil || o.Status != order.Void {
			t.Errorf("the void order is %+v, %v", o, err)
		}

		take = takeOf(sku)
		mustRecord(t, l, take)
		resolve(t, l, take, "committed")
		another := take
		another.TakeID = uuid.New()
		resolve(t, l, another, "refused")

		take = takeOf(sku)
		if o := l.RecordRefusal(t.Context(), take); !o.Refused() {
			t.Fatal(o)
		}
		resolve(t, l, take, "refused")

		closed := storetest.SQL(t, d.url)
		if err := closed.Close(); err != nil {
			t.Fatal(err)
		}
		unreachable := openOn(t, closed.Ledger(), cutter.Merged())
		resolve(t, unreachable, take, "unknown")
		resolve(t, unreachable, takeOf(sku), "unknown")
		d.atRest(t, sku, 1)
	})
}
