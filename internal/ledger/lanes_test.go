package ledger

import (
	"testing"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

// TestLanesEnd checks that a lane that has ended leaves nothing behind.
func TestLanesEnd(t *testing.T) {
	var ls lanes
	for range 2 * maxLanes {
		own := &lane{skus: []stock.SKU{"a", "b"}}
		if !ls.enter(own) {
			t.Fatal("there is no room for a lane")
		}
		free := ls.admit([]*recording{recordingOf("a"), recordingOf("b", "c"), recordingOf("c")})
		if len(free) != 1 || ls.parked != 2 {
			t.Errorf("%d recordings are free, %d parked", len(free), ls.parked)
		}
		if freed := ls.narrow(own, []stock.SKU{"a"}); len(freed) != 1 || ls.parked != 1 {
			t.Errorf("%d recordings were freed, %d are parked", len(freed), ls.parked)
		}
		if freed := ls.end(own); len(freed) != 1 || ls.parked != 0 || ls.open != 0 || len(ls.of) != 0 {
			t.Errorf("%d recordings were freed; left behind: %d parked, %d lanes, %d SKUs", len(freed), ls.parked, ls.open, len(ls.of))
		}
		if ls.enter(own) {
			t.Error("a lane that had ended was opened")
		}
	}
}
