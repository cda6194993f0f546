package latency

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// quantile returns a quantile of a histogram as Prometheus estimates it: interpolated
// within its bucket.
func quantile(h *dto.Histogram, q float64) float64 {
	rank, below, lower := q*float64(h.GetSampleCount()), 0.0, 0.0
	for _, b := range h.GetBucket() {
		if n := float64(b.GetCumulativeCount()); n >= rank {
			return lower + (b.GetUpperBound()-lower)*(rank-below)/(n-below)
		}
		below, lower = float64(b.GetCumulativeCount()), b.GetUpperBound()
	}
	return math.Inf(1)
}

// TestQuantiles checks that p50 and p99 are near the truth for work of any length
// between 50 µs and 10 s.
func TestQuantiles(t *testing.T) {
	t.Parallel()
	for typical := 60 * time.Microsecond; typical < 2*time.Second; typical = typical * 5 / 4 {
		h := prometheus.NewHistogram(Options("h_seconds", "H."))
		const n = 1000
		took := make([]float64, n)
		for i := range took { // p99 is about four times p50
			d := time.Duration(float64(typical) * math.Exp(0.6*math.Sqrt2*math.Erfinv(2*(float64(i)+0.5)/n-1)))
			took[i] = d.Seconds()
			Observe(t.Context(), h, d)
		}
		slices.Sort(took)
		var m dto.Metric
		if err := h.Write(&m); err != nil {
			t.Fatal(err)
		}
		bound := 1.35
		if typical > 25*time.Millisecond {
			bound = 1.6
		}
		for _, q := range []float64{0.5, 0.99} {
			truth, estimate := took[int(q*n)-1], quantile(m.GetHistogram(), q)
			if ratio := max(truth/estimate, estimate/truth); ratio > bound {
				t.Errorf("typical %v: the quantile %v is %.6f s, estimated as %.6f s", typical, q, truth, estimate)
			}
		}
	}
}

// TestOptions checks that bounds beyond the common ones do not reach other histograms.
func TestOptions(t *testing.T) {
	t.Parallel()
	longer := Options("a_seconds", "A.", 30, 60).Buckets
	if n := len(Options("b_seconds", "B.").Buckets); n != len(longer)-2 || !slices.IsSorted(longer) || longer[len(longer)-1] != 60 {
		t.Errorf("%d buckets, and %v", n, longer)
	}
}
