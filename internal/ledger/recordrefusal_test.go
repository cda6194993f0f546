package ledger

import (
	"testing"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/ledger/cutter"
	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
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
		record := func(take stock.Take) {
			t.Helper()
			if _, out := l.Record(t.Context(), take); !out.Committed() {
				t.Fatal(out)
			}
		}
		for _, test := range []struct {
			name string
			row  func(take stock.Take) // creates the existing row with the order's ID
			out  string
			want order.Status
		}{
			{"no row", func(stock.Take) {}, "refused", order.TurnedDown},
			{"turned down before", func(take stock.Take) { l.RecordRefusal(t.Context(), take) }, "refused", order.TurnedDown},
			{"void", func(take stock.Take) { resolve(t, l, take, "refused") }, "refused", order.TurnedDown},
			{"committed", record, "committed", order.Pending},
			{"another take's order", func(take stock.Take) {
				take.TakeID = uuid.New()
				record(take)
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
		tx, err := d.sql.Ledger().Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback()
		void := order.Order{ID: take.OrderID, TakeID: uuid.New(), Buyer: take.Buyer, Status: order.Void, Strategy: "lua", CreatedAt: Now()}
		if err := insertOrder(t.Context(), tx, &void); err != nil {
			t.Fatal(err)
		}
		done := make(chan order.Outcome, 1)
		go func() { done <- l.RecordRefusal(t.Context(), take) }()
		testenv.Await(t, "RecordRefusal waits for the void order", func() bool {
			if _, err := tx.Exec(t.Context(), "UPDATE orders SET version = 0 WHERE id = ?", tx.Dialect().UUID(void.ID)); err != nil {
				t.Fatal(err) // the server ends a transaction that stays idle
			}
			return d.waiting(t) > 0
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

// waiting returns the number of sessions of the database that wait for a lock.
func (d *database) waiting(t *testing.T) (n int) {
	t.Helper()
	query := "SELECT count(*) FROM pg_locks WHERE NOT granted AND pid IN (SELECT pid FROM pg_stat_activity WHERE datname = current_database())"
	if d.sql.Ledger().Dialect() == sqltx.MySQL {
		// In this test only a lock can make a statement run for 50 ms.
		query = `SELECT count(*) FROM information_schema.processlist
			WHERE db = database() AND id <> connection_id() AND command IN ('Query', 'Execute') AND time_ms > 50`
	}
	if err := d.sql.Ledger().QueryRow(t.Context(), []any{&n}, query); err != nil {
		t.Fatal(err)
	}
	return n
}
