package retry

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// TestWait checks that a wait before the next try is short, and ends with its context.
func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended, end := context.WithCancel(t.Context())
		end()
		var longest time.Duration
		for try := 1; try < 20; try++ {
			start := time.Now()
			Wait(ended, try)
			if took := time.Since(start); took > 0 {
				t.Errorf("try %d: waited %v for nothing", try, took)
			}
			Wait(t.Context(), try)
			took := time.Since(start)
			if took > 128*time.Millisecond {
				t.Errorf("try %d: waited %v", try, took)
			}
			longest = max(longest, took)
		}
		if longest <= 4*time.Millisecond {
			t.Errorf("no wait was longer than that of the first try can be: %v", longest)
		}
	})
}
