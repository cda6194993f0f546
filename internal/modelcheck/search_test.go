// Package modelcheck searches the states that the protocol's rules allow, exhaustively.
// It contains only tests.
package modelcheck

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// step is a state that can follow another, and a description of the change. If what contains %d, n
// replaces it.
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

// search visits all states that can be reached, nearest first. It stops at the
// first state for which violation returns a text. It returns the number of states
// seen, and the steps of a shortest path to that state followed by the violation.
// The trace is nil if there is no violation.
func search[S comparable](starts []S, steps func(S, func(step[S])), violation func(S) string) (states int, trace []string) {
	seen := make(map[S]bool)
	var (
		queue  []S
		parent []int32 // index of the parent in queue
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
		if found := violation(queue[i]); found != "" {
			return len(seen), append(path(queue, parent, steps, i), found)
		}
		steps(queue[i], func(s step[S]) { visit(s.next, i) })
	}
	return len(seen), nil
}

// path returns the steps from a start to the state at index to.
func path[S comparable](queue []S, parent []int32, steps func(S, func(step[S])), to int) []string {
	var trace []string
	for i := to; parent[i] >= 0; i = int(parent[i]) {
		what := ""
		steps(queue[parent[i]], func(s step[S]) {
			if s.next == queue[i] && what == "" {
				what = s.String()
			}
		})
		trace = append(trace, what)
	}
	slices.Reverse(trace)
	return trace
}

// TestSearch searches a space that is small enough to count by hand.
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
		t.Errorf("the trace to 5 is %q, want %q", trace, want)
	}
	states, trace := search([]int{0}, steps, func(int) string { return "" })
	if states != 12 || trace != nil {
		t.Errorf("%d states and the trace %q, want 12 states and no trace", states, trace)
	}
}
