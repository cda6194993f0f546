package ledger

import (
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

func sameOrder(a, b order.Order) bool {
	return a.ID == b.ID && a.TakeID == b.TakeID && a.Buyer == b.Buyer && a.Status == b.Status && a.Strategy == b.Strategy &&
		a.CreatedAt.Equal(b.CreatedAt) && a.ExpiresAt.Equal(b.ExpiresAt) && slices.Equal(a.Lines, b.Lines)
}

// TestExpiryIsKept checks orders that are inserted together when only one of them expires.
func TestExpiryIsKept(t *testing.T) {
	t.Parallel()
	eachDatabase(t, testenv.Chosen(databases, "SQLite", "PostgreSQL"), func(t *testing.T, d *database) {
		db := d.sql.Ledger()
		written := make([]*order.Order, 3)
		ids := make([]uuid.UUID, len(written))
		for n := range written {
			ids[n] = uuid.New()
			written[n] = &order.Order{
				ID: ids[n], TakeID: uuid.New(), Buyer: "buyer-1", Status: order.Pending,
				Lines: takeOf(fresh("expiring")).Lines, Strategy: "lua", CreatedAt: Now(),
			}
		}
		written[1].ExpiresAt = Now().Add(15 * time.Minute)
		err := db.Transact(t.Context(), func(tx *sqltx.Tx) error {
			_, err := tx.ExecAll(t.Context(), inserts(db.Dialect(), idLiteral(ids[0]), written...)...)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		found, err := readOrders(t.Context(), db, ids)
		if err != nil {
			t.Fatal(err)
		}
		for n, want := range written {
			if got := found[ids[n]]; got == nil || !sameOrder(*got, *want) {
				t.Errorf("wrote %+v, found %+v", want, got)
			}
		}
	})
}
