package httpapi

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestDeadlines checks that each context ends after the timeout and at most a
// hundredth of it later, whether it is shared or not.
func TestDeadlines(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const timeout = 10 * time.Second
		d := deadlines{timeout: timeout}
		first := d.context()
		for _, pause := range []time.Duration{0, 99 * time.Millisecond, time.Millisecond, 3 * time.Second, timeout} {
			time.Sleep(pause)
			ctx := d.context()
			end, ok := ctx.Deadline()
			if left := time.Until(end); !ok || left < timeout || left > timeout+timeout/100 {
				t.Errorf("%v later, a context ends after %v", pause, left)
			}
			if shared := ctx == first; shared != (pause == 0 || pause == 99*time.Millisecond) {
				t.Errorf("%v later, shared is %v", pause, shared)
			}
		}
		last := d.context()
		time.Sleep(timeout + timeout/100)
		synctest.Wait()
		if last.Err() == nil {
			t.Error("a context has not ended")
		}
	})
}
