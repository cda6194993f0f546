package reconcile

import (
	"testing"

	"github.com/holdfast-stock/holdfast/internal/ledger"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// TestGateDifference checks that the bounds include 0 whatever orders do between the
// readings of a sound SKU, and that they show damage.
func TestGateDifference(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name                       string
		before, undelivered, after int64 // the ledger's available and outbox
		gate, inFlight             int64
		least, most                int64
	}{
		{"at rest", 7, 0, 7, 7, 0, 0, 0},
		{"in flight, not committed", 7, 0, 7, 5, 2, -2, 0},
		{"in flight, committed", 5, 0, 5, 5, 2, 0, 2},
		{"sold before the gate was read", 7, 0, 5, 5, 0, -2, 0},
		{"taken before the gate was read, committed after it", 7, 0, 5, 5, 2, -2, 2},
		{"sold after the gate was read", 7, 0, 5, 7, 0, 0, 2},
		{"an addition that was delivered", 17, 10, 17, 17, 0, 0, 10},
		{"an addition that was not delivered", 17, 10, 17, 7, 0, -10, 0},
		{"sold below none without the guard", -3, 0, -5, 0, 0, 0, 0},
		{"too many", 7, 0, 7, 10, 0, 3, 3},
		{"too few", 7, 0, 7, 5, 0, -2, -2},
		{"too few, with units in flight", 7, 0, 7, 3, 2, -4, -2},
		{"too many, while units are sold", 7, 0, 6, 12, 2, 5, 8},
		{"too many in flight only", 7, 0, 7, 7, 3, 0, 3},
		{"fewer than none in flight", 7, 0, 7, 7, -3, 0, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			before := ledger.Count{StockRow: ledger.StockRow{Available: test.before}, Undelivered: test.undelivered}
			after := ledger.Count{StockRow: ledger.StockRow{Available: test.after}}
			least, most := gateDifference(before, stock.Level{Available: test.gate, InFlight: test.inFlight}, after)
			if least != test.least || most != test.most {
				t.Errorf("from %d to %d, want from %d to %d", least, most, test.least, test.most)
			}
		})
	}
}
