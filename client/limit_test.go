package client_test

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-stock/holdfast/client"
)

// watcher sends requests and records their keys and the statuses of their answers.
type watcher struct {
	mu       sync.Mutex
	keys     []string
	statuses []int
	limited  func() // called after an answer 429
}

func (w *watcher) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.keys = append(w.keys, r.Header.Get("Idempotency-Key"))
	w.statuses = append(w.statuses, response.StatusCode)
	if w.limited != nil && response.StatusCode == http.StatusTooManyRequests {
		w.limited()
	}
	return response, nil
}

// TestRateLimited calls a service that admits one request a second. A refused call waits as long as
// the service asks, and then its order is placed once. A call that may not wait that long returns
// the refusal at once, and has changed nothing.
func TestRateLimited(t *testing.T) {
	t.Parallel()
	shop, err := openLimited(false, 1000, 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = shop.Close() })
	// place places orders until one is refused at first. That should be the second one, but the
	// machine may need more than a second between two orders.
	place := func(t *testing.T, ctx context.Context, w *watcher, options ...client.Option) (client.Placed, error) {
		t.Helper()
		c := newClient(t, shop.server.URL, append(options, client.WithHTTPClient(&http.Client{Transport: w}))...)
		for {
			w.keys, w.statuses = nil, nil
			placed, err := c.Place(ctx, one("u-1"))
			if slices.Contains(w.statuses, http.StatusTooManyRequests) {
				return placed, err
			}
			if err != nil {
				t.Fatalf("%v after %v", err, w.statuses)
			}
		}
	}
	t.Run("Waits", func(t *testing.T) {
		w := new(watcher)
		begin := time.Now()
		w.limited = func() { begin = time.Now() }
		placed, err := place(t, t.Context(), w)
		if err != nil || placed.Replayed || placed.Status != client.OrderPending {
			t.Errorf("%+v %v after %v", placed, err, w.statuses)
		}
		if took := time.Since(begin); took < time.Second {
			t.Errorf("tried again %v after the refusal, which asked for a second", took)
		}
		for _, key := range w.keys {
			if key != placed.Key {
				t.Errorf("sent the keys %v", w.keys)
			}
		}
	})
	for name, option := range map[string]client.Option{
		"LongerThanTheLongestPause": client.WithMaxPause(500 * time.Millisecond),
		"NoRetries":                 client.WithTries(1),
	} {
		t.Run(name, func(t *testing.T) {
			w := new(watcher)
			_, err := place(t, t.Context(), w, option)
			p, ok := errors.AsType[*client.Problem](err)
			if !ok || !errors.Is(err, client.RateLimited) || p.RetryAfter != time.Second || len(w.statuses) != 1 {
				t.Errorf("%v after %v", err, w.statuses)
			}
			if _, open := errors.AsType[*client.UnknownOutcome](err); open {
				t.Errorf("%v leaves the outcome open", err)
			}
		})
	}
	t.Run("ContextEnds", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		w := &watcher{limited: func() { time.AfterFunc(50*time.Millisecond, cancel) }}
		if _, err := place(t, ctx, w); !errors.Is(err, context.Canceled) || len(w.statuses) != 1 {
			t.Errorf("%v after %v", err, w.statuses)
		}
	})
}
