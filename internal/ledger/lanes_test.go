package ledger

import (
	"errors"
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

// TestLanesAreFull checks that an order is refused that no lane has room for.
func TestLanesAreFull(t *testing.T) {
	ls := lanes{parked: maxQueue}
	ls.enter(&lane{skus: []stock.SKU{"a"}})
	r := recordingOf("a")
	if free := ls.admit([]*recording{r}); len(free) > 0 || !r.outcome.Refused() || !errors.Is(r.outcome.Reason(), stock.ErrBusy) {
		t.Errorf("%d recordings are free; %+v", len(free), r.outcome)
	}
}

// TestLanesKeepTheirSKUs checks that a later lane does not take a SKU from an earlier
// one: orders of the SKU wait until the earlier group ends, and none waits for the later.
func TestLanesKeepTheirSKUs(t *testing.T) {
	var ls lanes
	first, second := &lane{skus: []stock.SKU{"a"}}, &lane{skus: []stock.SKU{"a", "b"}}
	if !ls.enter(first) || !ls.enter(second) {
		t.Fatal("there is no room for two lanes")
	}
	if free := ls.admit([]*recording{recordingOf("a")}); len(free) > 0 {
		t.Error("an order did not wait for its SKU")
	}
	if freed := ls.end(second); len(freed) > 0 {
		t.Error("the later group's end freed an order that waits for the earlier one")
	}
	if free := ls.admit([]*recording{recordingOf("a"), recordingOf("b")}); len(free) != 1 {
		t.Errorf("%d orders are free after the later group, want the one of the SKU that only it had", len(free))
	}
	if freed := ls.end(first); len(freed) != 2 || ls.parked != 0 || ls.open != 0 || len(ls.of) != 0 {
		t.Errorf("%d orders were freed; left behind: %d parked, %d lanes, %d SKUs", len(freed), ls.parked, ls.open, len(ls.of))
	}
}
