package measure

import (
	"slices"
	"testing"
	"time"
)

func same(n int) int { return n }

func TestMedian(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		items []int
		want  int
	}{{[]int{5}, 5}, {[]int{9, 1, 4}, 4}, {[]int{8, 2}, 2}, {[]int{4, 1, 3, 2}, 2}} {
		items := slices.Clone(test.items)
		if got := Median(items, same); got != test.want {
			t.Errorf("%v: %d, want %d", test.items, got, test.want)
		}
		if !slices.Equal(items, test.items) {
			t.Errorf("%v: the items are now %v", test.items, items)
		}
	}
}

func TestQuantile(t *testing.T) {
	t.Parallel()
	var hundred []time.Duration
	for i := range 100 {
		hundred = append(hundred, time.Duration(i+1))
	}
	for _, test := range []struct {
		sorted   []time.Duration
		quantile float64
		want     time.Duration
	}{
		{hundred, 0, 1}, {hundred, 0.07, 7}, {hundred, 0.5, 50}, {hundred, 0.99, 99}, {hundred, 0.999, 100}, {hundred, 1, 100},
		{hundred[:1], 0.99, 1}, {hundred[:3], 0.5, 2}, {nil, 0.5, 0},
	} {
		if got := Quantile(test.sorted, test.quantile); got != test.want {
			t.Errorf("%v of %d: %v, want %v", test.quantile, len(test.sorted), got, test.want)
		}
	}
}

func TestInterleaved(t *testing.T) {
	t.Parallel()
	rounds := make([][]int, 3)
	for round, item := range Interleaved(3, []int{1, 2, 3, 4}) {
		rounds[round] = append(rounds[round], item)
	}
	for round, items := range rounds {
		slices.Sort(items)
		if !slices.Equal(items, []int{1, 2, 3, 4}) {
			t.Errorf("round %d has the items %v", round, items)
		}
	}
}

func TestVerdict(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		target Target[int]
		figure float64
		want   string
	}{
		{Target[int]{What: "orders/s", Against: "b", Limit: 0.5}, 0.5, "orders/s at least 0.5 × (b): 0.50, met"},
		{Target[int]{What: "orders/s", Against: "b", Limit: 0.5}, 0.4, "orders/s at least 0.5 × (b): 0.40, MISSED"},
		{Target[int]{What: "p99", AtMost: true, Limit: 2}, 2, "p99 at most 2: 2.00, met"},
		{Target[int]{What: "p99", AtMost: true, Limit: 2}, 3, "p99 at most 2: 3.00, MISSED"},
	} {
		if got := test.target.Verdict(test.figure); got != test.want {
			t.Errorf("%q, want %q", got, test.want)
		}
	}
}
