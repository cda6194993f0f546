package ledger

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/holdfast-stock/holdfast/internal/ledger/cutter"
	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// TestSlowGroupsEnd checks that a slow group that has ended leaves no entry behind.
func TestSlowGroupsEnd(t *testing.T) {
	var ls slowGroups
	for range 2 * maxSlowGroups {
		ls.remove(&slowGroup{skus: []stock.SKU{"c"}}) // was never slow
		own := new(slowGroup)
		if !ls.add(own, []stock.SKU{"a", "b"}) {
			t.Fatal("there is no room for a slow group")
		}
		free := ls.hold([]*recording{recordingOf("a"), recordingOf("0", "b"), recordingOf("c")})
		if len(free) != 1 || ls.waiting != 2 {
			t.Errorf("%d recordings are free, %d wait", len(free), ls.waiting)
		}
		if freed := ls.keepOnly(own, []stock.SKU{"b"}); len(freed) != 1 || ls.waiting != 1 {
			t.Errorf("%d recordings were freed, %d wait", len(freed), ls.waiting)
		}
		if freed := ls.remove(own); len(freed) != 1 || ls.waiting != 0 || ls.groups != 0 || len(ls.of) != 0 {
			t.Errorf("%d recordings were freed; left behind: %d waiting, %d groups, %d SKUs", len(freed), ls.waiting, ls.groups, len(ls.of))
		}
		if ls.add(own, nil) {
			t.Error("a group that had ended became slow")
		}
	}
}

// TestSlowGroupsAreFull checks that an order is refused if there is no room for it.
func TestSlowGroupsAreFull(t *testing.T) {
	ls := slowGroups{waiting: maxQueue}
	ls.add(new(slowGroup), []stock.SKU{"a"})
	r := recordingOf("a")
	if free := ls.hold([]*recording{r}); len(free) > 0 || !r.outcome.Refused() || !errors.Is(r.outcome.Reason(), stock.ErrBusy) {
		t.Errorf("%d recordings are free; %+v", len(free), r.outcome)
	}
}

// TestSlowGroups_LockedSKUsOnly checks that a group whose locked SKUs are known before it becomes
// slow holds only these.
func TestSlowGroups_LockedSKUsOnly(t *testing.T) {
	var ls slowGroups
	own := new(slowGroup)
	if freed := ls.keepOnly(own, []stock.SKU{"a"}); len(freed) > 0 || !ls.add(own, []stock.SKU{"a", "b"}) {
		t.Fatalf("%d recordings were freed, or the group cannot become slow", len(freed))
	}
	if free := ls.hold([]*recording{recordingOf("a"), recordingOf("b")}); len(free) != 1 || free[0].take.Lines[0].SKU != "b" {
		t.Errorf("%d orders are free, want the one whose SKU is not locked", len(free))
	}
}

// TestSlowGroupsKeepTheirSKUs checks that a later slow group does not take over a SKU from an
// earlier one. Orders of the SKU must wait until the earlier group ends, and not for the later one.
func TestSlowGroupsKeepTheirSKUs(t *testing.T) {
	var ls slowGroups
	first, second := new(slowGroup), new(slowGroup)
	if !ls.add(first, []stock.SKU{"a"}) || !ls.add(second, []stock.SKU{"a", "b"}) {
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

// heldPlan is a cutter whose plans fail. Plan waits for the channel of the SKU in held, if any.
type heldPlan struct {
	cutter.Cutter
	held map[stock.SKU]chan struct{}
}

func (c heldPlan) Plan(_ context.Context, _ *sqltx.DB, _ stock.Generation, takes []stock.Take) (cutter.Plan, error) {
	sku := takes[0].Lines[0].SKU
	if held := c.held[sku]; held != nil {
		<-held
	}
	return cutter.Plan{}, fmt.Errorf("no plan for %d of %s", len(takes), sku)
}

// inHeldGroups runs the test in a bubble, with a ledger that allows one group under way besides
// slow ones, and its metrics. held has the channels that hold the groups of each SKU.
func inHeldGroups(t *testing.T, skus int, test func(t *testing.T, l *Ledger, metrics prometheus.Gatherer, names []stock.SKU, held map[stock.SKU]chan struct{})) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var names []stock.SKU
		held := make(map[stock.SKU]chan struct{})
		for n := range skus {
			names = append(names, stock.SKU('a'+rune(n)))
			held[names[n]] = make(chan struct{})
		}
		metrics := prometheus.NewRegistry()
		l := New(nil, Options{Cutter: heldPlan{held: held}, Group: 8, Parallel: 1, Log: slog.New(slog.DiscardHandler), Metrics: metrics})
		test(t, l, metrics, names, held)
		l.Close()
	})
}

// begins reports whether a transaction for the recording has begun, once all goroutines are
// blocked.
func begins(r *recording) bool {
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.begun
}

// TestSlowGroupsAreOvertaken checks that later groups do not wait for a slow group, unless too many
// groups are slow. Each order must get the answer of its own group.
func TestSlowGroupsAreOvertaken(t *testing.T) {
	t.Parallel()
	inHeldGroups(t, maxSlowGroups+2, func(t *testing.T, l *Ledger, metrics prometheus.Gatherer, skus []stock.SKU, held map[stock.SKU]chan struct{}) {
		var rs []*recording
		for n, sku := range skus {
			r := recordingOf(sku)
			rs = append(rs, r)
			l.submit(r)
			if want := n <= maxSlowGroups; begins(r) != want {
				t.Errorf("order %d has begun: %v, want %v", n+1, !want, want)
			}
			time.Sleep(2 * slowAfter)
		}
		families, err := metrics.Gather()
		if queue := slices.IndexFunc(families, func(f *dto.MetricFamily) bool { return f.GetName() == "holdfast_ledger_queue_orders" }); err != nil || families[queue].GetMetric()[0].GetGauge().GetValue() != 1 {
			t.Errorf("the metrics do not show the order that waits: %v, %v", families, err)
		}
		second := recordingOf(skus[0])
		l.submit(second)
		close(held[skus[maxSlowGroups]]) // releases the group that took the last place
		if last := rs[maxSlowGroups+1]; !begins(last) {
			t.Error("the last order has not begun after the one that it waited for")
		}
		for _, sku := range skus {
			if sku != skus[maxSlowGroups] {
				close(held[sku])
			}
		}
		synctest.Wait()
		for _, r := range append(rs, second) {
			select {
			case <-r.done:
			default:
				t.Fatalf("the order of %s has no answer", r.take.Lines[0].SKU)
			}
			if want := fmt.Sprintf("no plan for 1 of %s", r.take.Lines[0].SKU); !strings.Contains(fmt.Sprint(r.outcome.Reason()), want) {
				t.Errorf("the order of %s is answered %v", r.take.Lines[0].SKU, r.outcome.Reason())
			}
		}
	})
}

// TestSlowGroupsAreClosed checks that Close waits for a slow group, and that an order that waits
// for the group is refused then.
func TestSlowGroupsAreClosed(t *testing.T) {
	t.Parallel()
	inHeldGroups(t, 1, func(t *testing.T, l *Ledger, _ prometheus.Gatherer, skus []stock.SKU, held map[stock.SKU]chan struct{}) {
		first, second := recordingOf(skus[0]), recordingOf(skus[0])
		l.submit(first)
		time.Sleep(2 * slowAfter)
		l.submit(second)
		synctest.Wait()
		closed := make(chan struct{})
		go func() {
			l.Close()
			close(closed)
		}()
		synctest.Wait()
		select {
		case <-closed:
			t.Error("Close did not wait for a slow group")
		default:
		}
		close(held[skus[0]])
		<-closed
		if <-first.done; !strings.Contains(fmt.Sprint(first.outcome.Reason()), "no plan for 1 of a") {
			t.Errorf("%v", first.outcome.Reason())
		}
		if <-second.done; !second.outcome.Refused() || !errors.Is(second.outcome.Reason(), stock.ErrBusy) {
			t.Errorf("%s, %v", second.outcome.Kind(), second.outcome.Reason())
		}
	})
}

// TestQueuedGroupsAreClosed checks that Close waits for a group that begins after Close, even if
// the group is slow.
func TestQueuedGroupsAreClosed(t *testing.T) {
	t.Parallel()
	inHeldGroups(t, 2, func(t *testing.T, l *Ledger, _ prometheus.Gatherer, skus []stock.SKU, held map[stock.SKU]chan struct{}) {
		l.submit(recordingOf(skus[0]))
		synctest.Wait()
		queued := recordingOf(skus[1])
		l.submit(queued)
		closed := make(chan struct{})
		go func() {
			l.Close()
			close(closed)
		}()
		synctest.Wait()
		close(held[skus[0]])
		time.Sleep(2 * slowAfter)
		select {
		case <-closed:
			t.Error("Close did not wait for a group that was queued")
		default:
		}
		close(held[skus[1]])
		<-closed
		<-queued.done
	})
}
