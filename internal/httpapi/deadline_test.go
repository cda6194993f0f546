package httpapi

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gin-gonic/gin"
)

// TestDeadlines checks that each context ends after the timeout and at most a
// hundredth of it later, whether it is shared or not.
func TestDeadlines(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const timeout = 10 * time.Second
		c, _ := gin.CreateTestContext(httptest.NewRecorder())
		c.Request = httptest.NewRequest(http.MethodPost, "/orders", nil)
		c.Header(requestIDHeader, "r-1")
		a := &api{Config: Config{RequestTimeout: timeout}}
		shared := func() context.Context { return a.writeContext(c).(*identified).Context }
		first := shared()
		for _, pause := range []time.Duration{0, 99 * time.Millisecond, time.Millisecond, 3 * time.Second, timeout} {
			time.Sleep(pause)
			ctx := shared()
			end, ok := ctx.Deadline()
			if left := time.Until(end); !ok || left < timeout || left > timeout+timeout/100 {
				t.Errorf("%v later, a context ends after %v", pause, left)
			}
			if same := ctx == first; same != (pause == 0 || pause == 99*time.Millisecond) {
				t.Errorf("%v later, shared is %v", pause, same)
			}
		}
		last := shared()
		time.Sleep(timeout + timeout/100)
		synctest.Wait()
		if last.Err() == nil {
			t.Error("a context has not ended")
		}
	})
}
