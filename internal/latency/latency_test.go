package latency

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// quantile returns the estimate of Quantile for a histogram.
func quantile(h *dto.Histogram, q float64) float64 {
	var (
		bounds []float64
		below  []uint64
	)
	for _, b := range h.GetBucket() {
		bounds, below = append(bounds, b.GetUpperBound()), append(below, b.GetCumulativeCount())
	}
	return Quantile(q, h.GetSampleCount(), bounds, below)
}

// TestQuantiles checks that p50 and p99 are near the true values for durations between 50 µs and 10
// s.
func TestQuantiles(t *testing.T) {
	t.Parallel()
	for typical := 60 * time.Microsecond; typical < 2*time.Second; typical = typical * 5 / 4 {
		h := prometheus.NewHistogram(Options("h_seconds", "H."))
		const n = 1000
		took := make([]float64, n)
		for i := range took { // p99 is about four times p50
			d := time.Duration(float64(typical) * math.Exp(0.6*math.Sqrt2*math.Erfinv(2*(float64(i)+0.5)/n-1)))
			took[i] = d.Seconds()
			h.Observe(d.Seconds())
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

// TestOptions checks that additional bounds do not change the options of other histograms.
func TestOptions(t *testing.T) {
	t.Parallel()
	longer := Options("a_seconds", "A.", 30, 60).Buckets
	if n := len(Options("b_seconds", "B.").Buckets); n != len(longer)-2 || !slices.IsSorted(longer) || longer[len(longer)-1] != 60 {
		t.Errorf("%d buckets, and %v", n, longer)
	}
}

func TestQuantile(t *testing.T) {
	t.Parallel()
	inf := math.Inf(1)
	for _, test := range []struct {
		q      float64
		count  uint64
		bounds []float64
		below  []uint64
		want   float64
	}{
		{0.5, 0, []float64{1, 2}, []uint64{0, 0}, 0},
		{0.5, 10, []float64{1, 2}, []uint64{0, 10}, 1.5},
		{0.25, 10, []float64{1, 2}, []uint64{5, 10}, 0.5},
		{1, 10, []float64{1, 2, 4}, []uint64{5, 10, 10}, 2},
		{0.99, 10, []float64{1, 2}, []uint64{5, 5}, 2},          // observations above all bounds
		{0.99, 10, []float64{1, 2, inf}, []uint64{5, 5, 10}, 2}, // the same, with a bucket above the bounds
		{0.5, 4, []float64{1, 2, 3, inf}, []uint64{1, 1, 4, 4}, 2 + 1.0/3},
	} {
		if got := Quantile(test.q, test.count, test.bounds, test.below); math.Abs(got-test.want) > 1e-9 {
			t.Errorf("%+v: %v", test, got)
		}
	}
}
