package ledger

import (
	"testing"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/ledger/cutter"
	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// TestRecordRefusal checks which rows the row of a refused order may replace, and which rows
// prevent it.
func TestRecordRefusal(t *testing.T) {
	t.Parallel()
	eachDatabase(t, testenv.Chosen(databases, "SQLite", "MariaDB"), func(t *testing.T, d *database) {
		l := d.open(t, cutter.Merged())
		sku := fresh("down")
		lay(t, l, sku, 10)
		for _, test := range []struct {
			name string
			row  func(take stock.Take) // creates the existing row with the order's ID
			out  string
			want order.Status
		}{
			{"no row", func(stock.Take) {}, "refused", order.TurnedDown},
			{"turned down before", func(take stock.Take) { l.RecordRefusal(t.Context(), take) }, "refused", order.TurnedDown},
			{"void", func(take stock.Take) { resolve(t, l, take, "refused") }, "refused", order.TurnedDown},
			{"committed", func(take stock.Take) { mustRecord(t, l, take) }, "committed", order.Pending},
			{"another take's order", func(take stock.Take) {
				take.TakeID = uuid.New()
				mustRecord(t, l, take)
			}, "refused", order.Pending},
		} {
			take := takeOf(sku)
			row, err := l.Row(t.Context(), sku)
			if err != nil {
				t.Fatal(err)
			}
			take.Receipt = stock.Receipt{{Epoch: row.Epoch}}
			test.row(take)
			if out := l.RecordRefusal(t.Context(), take); out.Kind() != test.out {
				t.Errorf("%s: %+v", test.name, out)
			}
			if o, err := l.Order(t.Context(), take.OrderID); err != nil || o.Status != test.want {
				t.Errorf("%s: %+v, %v", test.name, o, err)
			}
		}
		d.atRest(t, sku, 2)
	})
}

// TestRecordRefusal_VoidMeanwhile lets a void order be committed after RecordRefusal has found none
// to replace. The row of the refused order must still replace it.
func TestRecordRefusal_VoidMeanwhile(t *testing.T) {
	t.Parallel()
	eachDatabase(t, testenv.Chosen(servers, "PostgreSQL"), func(t *testing.T, d *database) {
		l := d.open(t, cutter.Merged())
		take := takeOf("void")
		tx := begin(t, d.sql.Ledger())
		void := order.Order{ID: take.OrderID, TakeID: uuid.New(), Buyer: take.Buyer, Status: order.Void, Strategy: "lua", CreatedAt: Now()}
		if err := insertOrder(t.Context(), tx, &void); err != nil {
			t.Fatal(err)
		}
		done := make(chan order.Outcome, 1)
		go func() { done <- l.RecordRefusal(t.Context(), take) }()
		testenv.Await(t, "RecordRefusal waits for the void order", func() bool {
			exec(t, tx, "UPDATE orders SET version = 0 WHERE id = ?", tx.Dialect().UUID(void.ID)) // the server ends a transaction that stays idle
			return d.lockWaits(t) > 0
		})
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		if out := testenv.Receive(t, "the refusal", done); !out.Refused() {
			t.Errorf("%+v", out)
		}
		if o, err := l.Order(t.Context(), take.OrderID); err != nil || o.Status != order.TurnedDown || o.TakeID != take.TakeID {
			t.Errorf("%+v, %v", o, err)
		}
	})
}
