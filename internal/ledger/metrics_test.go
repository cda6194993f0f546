package ledger

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/holdfast-stock/holdfast/internal/ledger/cutter"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// transactions returns the number of transactions in the metric, and whether they took any time.
func transactions(t *testing.T, h prometheus.Histogram) (count uint64, took bool) {
	t.Helper()
	var m dto.Metric
	if err := h.Write(&m); err != nil {
		t.Fatal(err)
	}
	return m.GetHistogram().GetSampleCount(), m.GetHistogram().GetSampleSum() > 0
}

// TestTransactionIsMeasured checks that a transaction is measured if it commits, and if it
// is rolled back.
func TestTransactionIsMeasured(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases, func(t *testing.T, d *database) {
		l := d.open(t, cutter.Merged())
		sku := fresh("hot")
		lay(t, l, sku, 1)
		for i, committed := range []bool{true, false} {
			before, _ := transactions(t, l.metrics.transaction)
			if _, out := l.Record(t.Context(), takeOf(sku)); out.Committed() != committed {
				t.Fatalf("order %d: %v", i, out.Reason())
			}
			testenv.Await(t, "its transaction is measured", func() bool { // measured after the order is answered
				after, took := transactions(t, l.metrics.transaction)
				return after > before && took
			})
		}
		if groups, _ := transactions(t, l.metrics.groupSize); groups != 2 {
			t.Errorf("%d groups were counted, want 2", groups)
		}
	})
}
