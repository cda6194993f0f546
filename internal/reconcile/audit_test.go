package reconcile

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/holdfast-stock/holdfast/internal/ledger"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// wrongLedger has wrong claims, sorted by SKU.
type wrongLedger struct {
	*fakeLedger
	wrong []ledger.Claim
}

func (l wrongLedger) WrongClaims(_ context.Context, skus []stock.SKU, limit int) (page []ledger.Claim, err error) {
	for _, c := range l.wrong {
		if slices.Contains(skus, c.SKU) && len(page) < limit {
			page = append(page, c)
		}
	}
	return page, nil
}

// TestWrongClaims_Pages checks that wrong claims are read in pages. Each is listed once, and those of
// every SKU are found.
func TestWrongClaims_Pages(t *testing.T) {
	t.Parallel()
	var l wrongLedger
	var counts []ledger.Count
	for _, of := range []struct {
		sku    stock.SKU
		claims int
	}{{"a", maxWrongClaims - 1}, {"b", 2}, {"c", 1}} { // the first page ends within b
		counts = append(counts, ledger.Count{StockRow: ledger.StockRow{SKU: of.sku, BuyerLimit: 1}})
		for n := range of.claims {
			l.wrong = append(l.wrong, ledger.Claim{SKU: of.sku, Buyer: fmt.Sprint("buyer-", n), Claimed: 1})
		}
	}
	l.fakeLedger = newLedger(&ownerRow{})
	r := newReconciler(nil, l)
	found, err := r.wrongClaims(t.Context(), counts)
	if a, b, c := len(found["a"]), len(found["b"]), len(found["c"]); err != nil || a != maxWrongClaims-1 || b != 1 || c != 1 {
		t.Errorf("found %d claims on a, %d on b, %d on c, %v", a, b, c, err)
	}
}

// TestCompareGate_Changed checks that a gate's count proves nothing if units were added to the stock row
// while it was read.
func TestCompareGate_Changed(t *testing.T) {
	t.Parallel()
	row := ledger.Count{StockRow: ledger.StockRow{SKU: "a", Total: 10, Available: 10, Epoch: 1, Changes: 1}}
	added := row
	added.Total, added.Available, added.Changes = 15, 15, 2
	f := Finding{Count: added, Level: stock.Level{SKU: "a", Filled: true, Epoch: 1, Available: 15}}
	if f.compareGate(row, nil); len(f.Differences) != 1 || f.Differences[0].Kind != Unsteady {
		t.Errorf("found %+v", f.Differences)
	}
}
