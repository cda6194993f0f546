package lock

import (
	"context"
	"sync"
	"time"
)

// Bounds of Leftovers.
const (
	// maxLeftovers is how many locks may wait to be freed. Further ones end with their
	// leases.
	maxLeftovers = 1024
	// leftoverPause is the pause after servers did not answer.
	leftoverPause = 200 * time.Millisecond
)

// Leftovers removes locks that failed requests have left on the servers of a backend, once the
// servers answer again. Otherwise such a lock, which nobody holds, would be refused to all until
// its lease ends. The zero value is ready to use. It is safe for concurrent use.
type Leftovers struct {
	mu      sync.Mutex
	pending []leftover
	stop    context.CancelFunc // nil: nothing is pending
	closed  bool
	running sync.WaitGroup
}

type leftover struct {
	until  time.Time
	free   func(ctx context.Context) (found bool, err error)
	absent bool // free has once found nothing to remove
}

// Add calls free in the background until it has removed the leftover, the leftover ends by itself
// at the time until, or Close is called. It makes one call at a time, each bounded to 3 s.
//
// If free finds nothing, it is called once more, because a frozen server that resumes runs the
// requests it has received in any order.
func (l *Leftovers) Add(until time.Time, free func(ctx context.Context) (found bool, err error)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || len(l.pending) >= maxLeftovers { // the call under way may have returned one more
		return
	}
	l.pending = append(l.pending, leftover{until: until, free: free})
	if l.stop == nil {
		ctx, stop := context.WithCancel(context.Background())
		l.stop = stop
		l.running.Go(func() { l.run(ctx) })
	}
}

// Close ends all calls and waits for the one under way.
func (l *Leftovers) Close() {
	l.mu.Lock()
	l.closed, l.pending = true, nil
	if l.stop != nil {
		l.stop()
	}
	l.mu.Unlock()
	l.running.Wait()
}

func (l *Leftovers) run(ctx context.Context) {
	for {
		next, ok := l.next()
		if !ok {
			return
		}
		call, cancel := context.WithTimeout(ctx, releaseTimeout)
		found, err := next.free(call)
		cancel()
		if err == nil && (found || next.absent) {
			continue
		}
		next.absent = err == nil
		l.mu.Lock()
		if !l.closed {
			l.pending = append(l.pending, next) // the other leftovers may be on a server that answers
		}
		l.mu.Unlock()
		select {
		case <-time.After(leftoverPause):
		case <-ctx.Done():
		}
	}
}

// next removes and returns the first leftover that has not ended. If there is none, the
// next Add calls run again.
func (l *Leftovers) next() (next leftover, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.pending) > 0 {
		next, l.pending = l.pending[0], l.pending[1:]
		if time.Now().Before(next.until) {
			return next, true
		}
	}
	if l.stop != nil {
		l.stop()
		l.stop = nil
	}
	return leftover{}, false
}
