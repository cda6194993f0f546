package ledger

import (
	"errors"
	"testing"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

// TestSlowGroupsEnd checks that a slow group that has ended leaves nothing behind.
func TestSlowGroupsEnd(t *testing.T) {
	var ls slowGroups
	for range 2 * maxSlowGroups {
		own := &slowGroup{skus: []stock.SKU{"a", "b"}}
		if !ls.add(own) {
			t.Fatal("there is no room for a slow group")
		}
		free := ls.hold([]*recording{recordingOf("a"), recordingOf("b", "c"), recordingOf("c")})
		if len(free) != 1 || ls.waiting != 2 {
			t.Errorf("%d recordings are free, %d wait", len(free), ls.waiting)
		}
		if freed := ls.keepOnly(own, []stock.SKU{"a"}); len(freed) != 1 || ls.waiting != 1 {
			t.Errorf("%d recordings were freed, %d wait", len(freed), ls.waiting)
		}
		if freed := ls.remove(own); len(freed) != 1 || ls.waiting != 0 || ls.groups != 0 || len(ls.of) != 0 {
			t.Errorf("%d recordings were freed; left behind: %d waiting, %d groups, %d SKUs", len(freed), ls.waiting, ls.groups, len(ls.of))
		}
		if ls.add(own) {
			t.Error("a group that had ended became slow")
		}
	}
}

// TestSlowGroupsAreFull checks that an order is refused that there is no room for.
func TestSlowGroupsAreFull(t *testing.T) {
	ls := slowGroups{waiting: maxQueue}
	ls.add(&slowGroup{skus: []stock.SKU{"a"}})
	r := recordingOf("a")
	if free := ls.hold([]*recording{r}); len(free) > 0 || !r.outcome.Refused() || !errors.Is(r.outcome.Reason(), stock.ErrBusy) {
		t.Errorf("%d recordings are free; %+v", len(free), r.outcome)
	}
}

// TestSlowGroupsKeepTheirSKUs checks that a later slow group does not take a SKU from an earlier
// one: orders of the SKU wait until the earlier group ends, and none waits for the later.
func TestSlowGroupsKeepTheirSKUs(t *testing.T) {
	var ls slowGroups
	first, second := &slowGroup{skus: []stock.SKU{"a"}}, &slowGroup{skus: []stock.SKU{"a", "b"}}
	if !ls.add(first) || !ls.add(second) {
		t.Fatal("there is no room for two slow groups")
	}
	if free := ls.hold([]*recording{recordingOf("a")}); len(free) > 0 {
		t.Error("an order did not wait for its SKU")
	}
	if freed := ls.remove(second); len(freed) > 0 {
		t.Error("the later group's end freed an order that waits for the earlier one")
	}
	if free := ls.hold([]*recording{recordingOf("a"), recordingOf("b")}); len(free) != 1 {
		t.Errorf("%d orders are free after the later group, want the one of the SKU that only it had", len(free))
	}
	if freed := ls.remove(first); len(freed) != 2 || ls.waiting != 0 || ls.groups != 0 || len(ls.of) != 0 {
		t.Errorf("%d orders were freed; left behind: %d waiting, %d groups, %d SKUs", len(freed), ls.waiting, ls.groups, len(ls.of))
	}
}
