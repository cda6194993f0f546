package protocol

import (
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// claimed returns how many units of the SKU the buyers hold.
func (s *shop) claimed(t *testing.T, sku stock.SKU) (units int64) {
	t.Helper()
	if err := s.sql.DB().Raw("SELECT COALESCE(SUM(units), 0) FROM claims WHERE sku = ?", string(sku)).Row().Scan(&units); err != nil {
		t.Fatal(err)
	}
	return units
}

// TestLimitOnASoldSKU checks that units that were sold before the limit was set count towards it,
// except returned ones. An administrator must still be able to remove stock.
func TestLimitOnASoldSKU(t *testing.T) {
	t.Parallel()
	eachDatabase(t, withServer(1), func(t *testing.T, s *shop) {
		i := s.open(t, settings{strategy: "lua"})
		sku, other := newSKU("limited"), newSKU("other")
		sell(t, i, stock.Setting{SKU: sku, Total: 20})
		sell(t, i, stock.Setting{SKU: other, Total: 20})
		buy := func(units int64) order.Order {
			t.Helper()
			return mustPlace(t, i, request(stock.Line{SKU: other, Quantity: 3}, stock.Line{SKU: sku, Quantity: units}))
		}
		buy(1) // stays pending
		paid, kept, restocked, cancelled := buy(1), buy(1), buy(2), buy(2)
		for _, o := range []order.Order{paid, kept, restocked} {
			if _, err := i.Pay(t.Context(), o.ID, o.ID.String()); err != nil {
				t.Fatal(err)
			}
		}
		for _, refund := range []struct {
			id      uuid.UUID
			restock bool
		}{{kept.ID, false}, {restocked.ID, true}} {
			if _, err := i.Refund(t.Context(), refund.id, refund.restock); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := i.Cancel(t.Context(), cancelled.ID, ""); err != nil {
			t.Fatal(err)
		}
		sell(t, i, stock.Setting{SKU: sku, Total: 20, BuyerLimit: new(int64(4))})
		if got := s.claimed(t, sku); got != 3 {
			t.Errorf("%d units are claimed, want 3", got)
		}
		mustRefuse(t, i, request(stock.Line{SKU: sku, Quantity: 2}), stock.ErrBuyerLimit)
		last := mustPlace(t, i, oneUnit(sku))
		mustRefuse(t, i, oneUnit(sku), stock.ErrBuyerLimit)

		sell(t, i, stock.Setting{SKU: sku, Total: 9, OpensAt: new(time.Now().Add(time.Hour))}) // does not change the limit
		if _, _, err := i.SetStock(t.Context(), stock.Setting{SKU: sku, Kind: stock.Product, Total: 3, BuyerLimit: new(int64(0))}); !errors.Is(err, stock.ErrBelowSold) {
			t.Errorf("a total below what is sold: %v", err)
		}
		if st, err := i.Stock(t.Context(), sku); err != nil || st.Total != 9 || st.BuyerLimit != 4 || st.OpensAt.IsZero() || !st.ClosesAt.IsZero() {
			t.Errorf("the stock is %+v, %v", st, err)
		}
		if _, _, err := i.SetStock(t.Context(), stock.Setting{SKU: sku, Kind: stock.Product, Total: 9, ClosesAt: new(time.Now())}); !errors.Is(err, stock.ErrHours) {
			t.Errorf("a SKU that closes before it opens: %v", err)
		}
		if _, err := i.Cancel(t.Context(), last.ID, ""); err != nil {
			t.Fatal(err)
		}
		if got := s.claimed(t, sku); got != 3 {
			t.Errorf("%d units are claimed after an order was cancelled, want 3", got)
		}
		sell(t, i, stock.Setting{SKU: sku, Total: 9, BuyerLimit: new(int64(0)), OpensAt: new(time.Time)})
		if got := s.claimed(t, sku); got != 0 {
			t.Errorf("%d units are claimed without a limit", got)
		}
		mustPlace(t, i, request(stock.Line{SKU: sku, Quantity: 6}))
	})
}
