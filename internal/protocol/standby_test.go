package protocol

import (
	"testing"

	"github.com/holdfast-stock/holdfast/internal/store/storetest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// TestStandby checks that with a synchronous standby, no order is accepted that only the primary
// has, so that a failover loses none.
func TestStandby(t *testing.T) {
	t.Parallel()
	primary, standby := testenv.OwnPostgresPair(t)
	s := newShop(t, primary.URL())
	i := s.open(t, settings{strategy: "merged"})
	defer i.Close()
	sku := newSKU("standby")
	const units = 100_000
	addStock(t, i, sku, units)

	crowd := startCrowd(t, sku, i)
	crowd.awaitMore(t, "orders are accepted")
	standby.Stop()
	testenv.Await(t, "a commit waits for the standby", func() bool {
		var n int
		err := s.sql.DB().Raw("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query_start < now() - interval '1 second'").Row().Scan(&n)
		return err == nil && n > 0
	})
	before, _ := crowd.counts()
	testenv.Await(t, "the request is answered", func() bool {
		accepted, unknown := crowd.counts()
		return unknown > 0 || accepted > before
	})
	if after, _ := crowd.counts(); after != before {
		t.Errorf("%d orders were accepted without the standby", after-before)
	}
	primary.Kill()
	accepted := crowd.leave()
	standby.Cont()
	standby.Promote()
	if lost := missingOrders(t, storetest.SQL(t, standby.URL()), accepted); lost > 0 {
		t.Errorf("the failover lost %d of %d accepted orders", lost, len(accepted))
	}
}
