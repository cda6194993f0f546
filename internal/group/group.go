// Package group gathers concurrent calls into groups and runs each group with
// one function call. There is no timer: a single call runs immediately, and
// under load the next group gathers while the groups before it run. A group also
// includes the calls of goroutines that are ready to run when it begins.
package group

import (
	"context"
	"errors"
	"runtime"
	"sync"
)

// ErrFull is returned for a call that finds the queue full. The call does not
// run.
var ErrFull = errors.New("the queue is full")

// ErrClosed is returned for a call after Close. The call does not run.
var ErrClosed = errors.New("the group is closed")

// Limits bound a Batcher. Size, Parallel and Queue must be at least 1.
type Limits struct {
	Size     int // number of calls in one group
	Parallel int // groups that run at the same time
	Queue    int // calls that wait; New reserves memory for all, so a large T should be a pointer
	// Weight bounds the sum of the weights in one group. A group of a single call
	// may exceed it. 0 means no bound.
	Weight int
}

// Batcher runs calls of type T in groups. It is safe for concurrent use.
type Batcher[T any] struct {
	limits Limits
	weight func(T) int
	run    func([]T)

	mu     sync.RWMutex // a call holds mu for reading while it enters the queue
	closed bool
	queue  chan call[T]
	done   sync.WaitGroup
	ready  sync.Pool // pool of empty channels that no worker will signal any more
}

type call[T any] struct {
	value T
	ready chan struct{} // signalled when the group has run; nil if no caller waits
}

// New starts a Batcher that passes each group to run. run stores the answer to
// each call in its value. weight returns the weight of a call; it may be nil.
// Close stops the Batcher.
func New[T any](limits Limits, weight func(T) int, run func([]T)) *Batcher[T] {
	if weight == nil {
		weight = func(T) int { return 0 }
	}
	b := &Batcher[T]{limits: limits, weight: weight, run: run, queue: make(chan call[T], limits.Queue)}
	b.ready.New = func() any { return make(chan struct{}, 1) }
	for range limits.Parallel {
		b.done.Add(1)
		go b.work()
	}
	return b
}

// Do queues the call and waits until its group has run. If ctx ends first, Do
// returns ctx's error, and the call still runs.
func (b *Batcher[T]) Do(ctx context.Context, value T) error {
	ready := b.ready.Get().(chan struct{})
	if err := b.enqueue(call[T]{value, ready}); err != nil {
		b.ready.Put(ready)
		return err
	}
	select {
	case <-ready:
		b.ready.Put(ready)
		return nil
	case <-ctx.Done():
		return ctx.Err() // ready will still be signalled, so it is not reused
	}
}

// Send queues the call and does not wait.
func (b *Batcher[T]) Send(value T) error { return b.enqueue(call[T]{value: value}) }

// Waiting returns the number of queued calls. Under load the number is outdated
// as soon as it is returned.
func (b *Batcher[T]) Waiting() int { return len(b.queue) }

// Close runs the queued calls and then stops the Batcher. Further calls of Close
// only wait until it has stopped.
func (b *Batcher[T]) Close() {
	b.mu.Lock()
	if !b.closed {
		b.closed = true
		close(b.queue)
	}
	b.mu.Unlock()
	b.done.Wait()
}

// enqueue queues the call, or returns ErrFull or ErrClosed.
func (b *Batcher[T]) enqueue(c call[T]) error {
	b.mu.RLock()
	defer b.mu.RUnlock()
	if b.closed {
		return ErrClosed
	}
	select {
	case b.queue <- c:
		return nil
	default:
		return ErrFull
	}
}

// work runs groups until the queue is closed and empty.
func (b *Batcher[T]) work() {
	defer b.done.Done()
	var (
		calls  = make([]call[T], 0, b.limits.Size)
		values = make([]T, 0, b.limits.Size)
		next   call[T] // the first call of the next group, which was too heavy for this one
		kept   bool    // next holds a call
	)
	for {
		calls, values = calls[:0], values[:0]
		if kept {
			calls, next, kept = append(calls, next), call[T]{}, false
		} else {
			c, ok := <-b.queue
			if !ok {
				return
			}
			calls = append(calls, c)
		}
		weight := b.weight(calls[0].value)
		// The first call wakes the worker ahead of other goroutines that are
		// ready. Gosched lets those queue their calls first; otherwise the group
		// would have a single call.
		runtime.Gosched()
	gather:
		for len(calls) < b.limits.Size {
			select {
			case c, ok := <-b.queue:
				if !ok {
					break gather
				}
				w := b.weight(c.value)
				if b.limits.Weight > 0 && weight+w > b.limits.Weight {
					next, kept = c, true
					break gather
				}
				weight += w
				calls = append(calls, c)
			default:
				break gather
			}
		}
		for _, c := range calls {
			values = append(values, c.value)
		}
		b.run(values)
		for _, c := range calls {
			if c.ready != nil {
				c.ready <- struct{}{}
			}
		}
		clear(calls) // lets the callers' values be garbage collected
		clear(values)
	}
}
