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

// run is a sample with one figure. A negative one means that the run failed.
type run float64

func (r run) Failed() bool { return r < 0 }

func TestVerdict(t *testing.T) {
	t.Parallel()
	quotient := func(mine, theirs run) float64 { return float64(mine / theirs) }
	for _, test := range []struct {
		target       Target[run]
		mine, theirs []run
		want         string // empty: not comparable
	}{
		{Target[run]{What: "orders/s", Against: "b", Limit: 0.5}, []run{6, 3, 1}, []run{10, 5, 10}, "orders/s at least 0.5 × (b): 0.60, met"}, // a quotient of medians is 0.3
		{Target[run]{What: "orders/s", Against: "b", Limit: 0.5}, []run{1}, []run{2}, "orders/s at least 0.5 × (b): 0.50, met"},
		{Target[run]{What: "orders/s", Against: "b", Limit: 0.5}, []run{2}, []run{5}, "orders/s at least 0.5 × (b): 0.40, MISSED"},
		{Target[run]{What: "p99", Against: "b", AtMost: true, Limit: 2}, []run{2}, []run{1}, "p99 at most 2 × (b): 2.00, met"},
		{Target[run]{What: "p99", Against: "b", AtMost: true, Limit: 2}, []run{3}, []run{1}, "p99 at most 2 × (b): 3.00, MISSED"},
		{Target[run]{}, []run{1, -1}, []run{1, 1}, ""},
		{Target[run]{}, []run{1, 1}, []run{1, -1}, ""},
		{Target[run]{}, []run{1, 1}, []run{1}, ""},
		{Target[run]{}, nil, nil, ""},
	} {
		test.target.Figure = quotient
		if got, ok := test.target.Verdict(test.mine, test.theirs); ok != (test.want != "") || ok && got != test.want {
			t.Errorf("%v and %v: %q, %v, want %q", test.mine, test.theirs, got, ok, test.want)
		}
	}
}
