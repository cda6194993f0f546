package load

import (
	"context"
	"sync"
	"time"

	"github.com/holdfast-stock/holdfast/internal/retry"
)

// FailurePause is how long a client waits after a failure before its next order.
const FailurePause = 10 * time.Millisecond

// Crowd is the closed load: each client sends one request after the other and waits for its
// answers, so a slow service slows its own load. Client i calls act(i, 0), act(i, 1) and so on
// until act returns false or ctx ends. It pauses in between for as long as act returns. done is
// closed when all clients have finished.
func Crowd(ctx context.Context, clients int, act func(client, n int) (pause time.Duration, more bool)) (done <-chan struct{}) {
	var all sync.WaitGroup
	for i := range clients {
		all.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				pause, more := act(i, n)
				if !more || pause > 0 && retry.Sleep(ctx, pause) != nil {
					return
				}
			}
		})
	}
	finished := make(chan struct{})
	go func() {
		all.Wait()
		close(finished)
	}()
	return finished
}

// Arrivals is the open load: requests arrive at a constant rate, however long the answers
// take, so a slow service does not slow its own load.
type Arrivals struct {
	Rate  int           // arrivals per second
	Count int           // number of arrivals
	Limit time.Duration // time after which no more requests are sent; remaining arrivals are dropped
	// MaxUnderWay bounds the requests under way. Further arrivals wait for one to end.
	MaxUnderWay int
}

// Drive calls prepare for each arrival, one after the other, and calls the returned functions
// concurrently. Each gets the time at which it was due, since start. Drive returns after all of
// them. The first arrival is due at the start.
func (a Arrivals) Drive(ctx context.Context, start time.Time, prepare func(n int) (send func(due time.Duration))) {
	var all sync.WaitGroup
	defer all.Wait()
	places := make(chan struct{}, a.MaxUnderWay)
	ctx, cancel := context.WithDeadline(ctx, start.Add(a.Limit))
	defer cancel()
	for n := range a.Count {
		due := time.Duration(n) * time.Second / time.Duration(a.Rate)
		if wait := time.Until(start.Add(due)); wait > 0 && retry.Sleep(ctx, wait) != nil {
			return
		}
		select {
		case <-ctx.Done():
			return
		case places <- struct{}{}:
		}
		if ctx.Err() != nil { // select may choose either case if ctx has ended and places is free
			return
		}
		send := prepare(n)
		all.Go(func() {
			defer func() { <-places }()
			send(due)
		})
	}
}
