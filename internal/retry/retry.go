// Package retry makes the pauses between tries.
package retry

import (
	"context"
	"math/rand/v2"
	"time"
)

// Jitter returns a random pause. Its upper bound is first for try 1, and doubles with
// every further try up to 32 times first.
func Jitter(first time.Duration, try int) time.Duration { return rand.N(first << min(try-1, 5)) }

// Sleep waits for d. If ctx ends first, it returns ctx's error.
func Sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Wait waits before the next try of a request or a transaction, up to 128 ms, or until ctx
// ends.
func Wait(ctx context.Context, try int) { _ = Sleep(ctx, Jitter(4*time.Millisecond, try)) }
