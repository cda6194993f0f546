package protocol

import (
	"slices"
	"testing"
	"time"

	"github.com/holdfast-stock/holdfast/internal/store/storetest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// TestPatroni kills the primary of two nodes that Patroni manages, and its Patroni, during a sale.
// Patroni must promote the synchronous standby, the instances must follow, and no accepted order
// may be lost.
func TestPatroni(t *testing.T) {
	t.Parallel()
	if !testenv.Thorough() {
		t.Log("only in a thorough run: TestStandby and TestSeveralHosts have the same parts")
		return
	}
	primary, standby := testenv.OwnPatroni(t)
	both := severalHosts(t, primary.URL(), standby.URL())
	sku, crowd := startSale(t, both)
	if standby.AcceptsWrites(t.Context()) {
		t.Fatal("there are two primaries")
	}
	killed := time.Now()
	primary.Kill()
	testenv.Await(t, "Patroni promotes the standby", func() bool { return standby.AcceptsWrites(t.Context()) })
	crowd.awaitMore(t, "sales resume")
	accepted := crowd.leave()
	promoted := standby.Promoted()
	resumed := slices.IndexFunc(crowd.times, promoted.Before)
	t.Logf("promoted %v after the kill; the first order was accepted %v later", promoted.Sub(killed), crowd.times[resumed].Sub(promoted))
	checkFailover(t, sku, storetest.SQL(t, standby.URL()), accepted)
}
