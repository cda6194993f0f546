// Package measure compares repeated measurements.
package measure

import (
	"cmp"
	"fmt"
	"iter"
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// MedianItem returns the item with the median figure. If their number is even, it returns the lower
// of the two in the middle. It panics without items.
func MedianItem[T any, F cmp.Ordered](items []T, figure func(T) F) T {
	sorted := slices.Clone(items)
	slices.SortStableFunc(sorted, func(a, b T) int { return cmp.Compare(figure(a), figure(b)) })
	return sorted[(len(sorted)-1)/2]
}

// Median returns the median figure of the items, by the rule of [MedianItem].
func Median[T any, F cmp.Ordered](items []T, figure func(T) F) F {
	return figure(MedianItem(items, figure))
}

// Sample is one measured run. A run that failed has no figures.
type Sample interface{ Failed() bool }

// Compared returns the median of a figure that compares two lists of samples round by round.
// A machine whose speed changes between rounds affects it less than the quotient of
// two medians. ok is false unless both lists have figures for every round.
func Compared[S Sample](mine, theirs []S, figure func(mine, theirs S) float64) (value float64, ok bool) {
	if len(mine) == 0 || len(mine) != len(theirs) {
		return 0, false
	}
	values := make([]float64, len(mine))
	for i := range mine {
		if mine[i].Failed() || theirs[i].Failed() {
			return 0, false
		}
		values[i] = figure(mine[i], theirs[i])
	}
	return Median(values, func(v float64) float64 { return v }), true
}

// Quantile returns a quantile between 0 and 1 of sorted figures, by the nearest rank.
// It returns 0 without figures.
func Quantile[F cmp.Ordered](sorted []F, quantile float64) (figure F) {
	if len(sorted) == 0 {
		return figure
	}
	const rounding = 1e-9 // 0.07 × 100 is a little more than 7 in floating point
	rank := int(math.Ceil(quantile*float64(len(sorted)) - rounding))
	return sorted[max(rank, 1)-1]
}

// Millis converts d to milliseconds.
func Millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// Interleaved yields every item once in each round, with the number of the round from
// 0. It shuffles each round, so that no item always follows the same other one. All
// items then share the changes in the machine's speed.
func Interleaved[T any](rounds int, items []T) iter.Seq2[int, T] {
	return func(yield func(int, T) bool) {
		for round := range rounds {
			for _, i := range rand.Perm(len(items)) {
				if !yield(round, items[i]) {
					return
				}
			}
		}
	}
}

// Target is a bound on a figure that compares two samples.
type Target[S Sample] struct {
	What    string // the figure, with its unit
	Against string // the other sample
	AtMost  bool   // Limit is an upper bound; false: a lower bound
	Limit   float64
	Figure  func(mine, theirs S) float64
}

// Verdict says in one line whether the samples keep the bound. ok is false if they cannot be compared.
func (t Target[S]) Verdict(mine, theirs []S) (text string, ok bool) {
	figure, ok := Compared(mine, theirs, t.Figure)
	met, bound := figure >= t.Limit, "at least"
	if t.AtMost {
		met, bound = figure <= t.Limit, "at most"
	}
	verdict := "MISSED"
	if met {
		verdict = "met"
	}
	return fmt.Sprintf("%s %s %g × (%s): %.2f, %s", t.What, bound, t.Limit, t.Against, figure, verdict), ok
}
