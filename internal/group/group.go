// Package group gathers concurrent calls into groups and runs each group at
// once. There is no timer: a lone call runs immediately, and under load the
// next group gathers while the ones before it run, and takes in the calls that
// are about to be made when it begins.
package group

import (
	"context"
	"errors"
	"runtime"
	"sync"
)

// ErrFull is the answer to a call that finds the queue full. The call was not
// run.
var ErrFull = errors.New("the queue is full")

// ErrClosed is the answer to a call that comes after Close. The call was not
// run.
var ErrClosed = errors.New("the group is closed")

// Limits bound a Batcher. All must be at least 1.
type Limits struct {
	Size     int // calls in one group
	Parallel int // groups that run at once
	Queue    int // calls that wait
	// Weight bounds the sum of the calls' weights in one group; one call alone
	// may exceed it. 0: not bounded.
	Weight int
}

// Batcher runs calls of type T in groups. It is safe for concurrent use.
type Batcher[T any] struct {
	limits Limits
	weight func(T) int
	run    func([]T)

	mu     sync.RWMutex // held for reading while a call is queued
	closed bool
	queue  chan call[T]
	done   sync.WaitGroup
}

type call[T any] struct {
	value T
	ready chan struct{} // nil: nobody waits
}

// New starts a Batcher that hands groups to run, which leaves each call's
// answer in its value. weight may be nil. Close stops it.
func New[T any](limits Limits, weight func(T) int, run func([]T)) *Batcher[T] {
	b := &Batcher[T]{limits: limits, weight: weight, run: run, queue: make(chan call[T], limits.Queue)}
	for range limits.Parallel {
		b.done.Add(1)
		go b.work()
	}
	return b
}

// Do queues the call and waits until its group has run. If ctx ends first, Do
// returns its error and the call runs all the same.
func (b *Batcher[T]) Do(ctx context.Context, value T) error {
	ready := readies.Get().(chan struct{})
	if err := b.put(call[T]{value, ready}); err != nil {
		readies.Put(ready)
		return err
	}
	select {
	case <-ready:
		readies.Put(ready)
		return nil
	case <-ctx.Done():
		return ctx.Err() // ready is not reused: it will still be signalled
	}
}

// Send queues the call and does not wait.
func (b *Batcher[T]) Send(value T) error { return b.put(call[T]{value: value}) }

// Waiting is how many calls are queued for a group, as of a moment ago.
func (b *Batcher[T]) Waiting() int { return len(b.queue) }

// Close runs what is queued, then stops.
func (b *Batcher[T]) Close() {
	b.mu.Lock()
	if !b.closed {
		b.closed = true
		close(b.queue)
	}
	b.mu.Unlock()
	b.done.Wait()
}

// readies holds channels that nobody will signal any more.
var readies = sync.Pool{New: func() any { return make(chan struct{}, 1) }}

func (b *Batcher[T]) put(c call[T]) error {
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

func (b *Batcher[T]) work() {
	defer b.done.Done()
	var (
		calls  = make([]call[T], 0, b.limits.Size)
		values = make([]T, 0, b.limits.Size)
		held   *call[T] // did not fit into the group before
	)
	for {
		calls, values = calls[:0], values[:0]
		if held != nil {
			calls, held = append(calls, *held), nil
		} else {
			c, ok := <-b.queue
			if !ok {
				return
			}
			calls = append(calls, c)
		}
		weight := b.weigh(calls[0].value)
		// The scheduler wakes the worker before goroutines that were ready
		// before it, and the group would be the first call alone.
		runtime.Gosched()
	gather:
		for len(calls) < b.limits.Size {
			select {
			case c, ok := <-b.queue:
				if !ok {
					break gather
				}
				w := b.weigh(c.value)
				if b.limits.Weight > 0 && weight+w > b.limits.Weight {
					held = &c
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
		clear(calls) // the values are the callers', not ours to keep alive
		clear(values)
	}
}

func (b *Batcher[T]) weigh(value T) int {
	if b.weight == nil {
		return 0
	}
	return b.weight(value)
}
