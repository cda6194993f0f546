package stock

import (
	"errors"
	"testing"
)

// TestRenew checks that a new epoch is above the others and within its generation.
func TestRenew(t *testing.T) {
	t.Parallel()
	const g Generation = 3
	first, last := g.Epochs()
	for _, tt := range []struct {
		epochs []int64
		want   int64 // 0: ErrLaterGeneration
	}{
		{nil, first + 1},
		{[]int64{first - 1, 0}, first + 1},
		{[]int64{first + 7, first + 2}, first + 8},
		{[]int64{last - 1}, last},
		{[]int64{last}, 0},
		{[]int64{first + 1, last + 1}, 0},
	} {
		got, err := g.Renew(tt.epochs...)
		if got != tt.want || errors.Is(err, ErrLaterGeneration) != (tt.want == 0) || err == nil && GenerationOf(got) != g {
			t.Errorf("%v: %d, %v, want %d", tt.epochs, got, err, tt.want)
		}
	}
}
