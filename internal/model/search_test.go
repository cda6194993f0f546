// Package model searches the state spaces of the protocol's rules exhaustively.
// It has tests only.
package model

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// step is a state that can follow another, and what happened in between. The
// number replaces the verb in what.
type step[S comparable] struct {
	next S
	what string
	n    int
}

func (s step[S]) String() string {
	if strings.Contains(s.what, "%d") {
		return fmt.Sprintf(s.what, s.n)
	}
	return s.what
}

// search visits every state that can be reached, nearest first. It ends at the
// first state of which wrong says something. It returns how many states it has
// seen and the shortest way to the wrong one, which ends with what is wrong;
// nil if there is none.
func search[S comparable](starts []S, steps func(S, func(step[S])), wrong func(S) string) (states int, trace []string) {
	seen := make(map[S]bool)
	var (
		queue  []S
		parent []int32
	)
	visit := func(s S, from int) {
		if !seen[s] {
			seen[s] = true
			queue, parent = append(queue, s), append(parent, int32(from))
		}
	}
	for _, s := range starts {
		visit(s, -1)
	}
	for i := 0; i < len(queue); i++ {
		if is := wrong(queue[i]); is != "" {
			return len(seen), append(way(queue, parent, steps, i), is)
		}
		steps(queue[i], func(s step[S]) { visit(s.next, i) })
	}
	return len(seen), nil
}

// way is what happened on the way to the state at index to.
func way[S comparable](queue []S, parent []int32, steps func(S, func(step[S])), to int) []string {
	var happened []string
	for i := to; parent[i] >= 0; i = int(parent[i]) {
		what := ""
		steps(queue[parent[i]], func(s step[S]) {
			if s.next == queue[i] && what == "" {
				what = s.String()
			}
		})
		happened = append(happened, what)
	}
	slices.Reverse(happened)
	return happened
}

// TestSearch searches a space small enough to be counted by hand.
func TestSearch(t *testing.T) {
	t.Parallel()
	steps := func(n int, emit func(step[int])) {
		if n < 10 {
			emit(step[int]{n + 1, "add one to %d", n})
			emit(step[int]{n + 2, "add two", n})
		}
	}
	_, trace := search([]int{0}, steps, func(n int) string {
		if n == 5 {
			return "five"
		}
		return ""
	})
	if want := []string{"add one to 0", "add two", "add two", "five"}; !slices.Equal(trace, want) {
		t.Errorf("the way to 5 is %q, not %q", trace, want)
	}
	states, trace := search([]int{0}, steps, func(int) string { return "" })
	if states != 12 || trace != nil {
		t.Errorf("%d states and the trace %q, not 12 and none", states, trace)
	}
}
