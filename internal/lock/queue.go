package lock

import (
	"container/list"
	"context"
	"sync"
)

// queue gives the turn for a name to one hold at a time, in the order of their requests. It keeps no
// state for a name without holders and waiters. A waiter needs no extra goroutine. The zero value is
// ready to use.
type queue struct {
	mu    sync.Mutex
	lines map[string]*line
}

// line holds the hold that has the turn for one name, and the callers that wait for it.
type line struct {
	turn    *hold     // nil: nobody has it
	waiting list.List // list of *waiter
}

// waiter is one caller that waits. The queue's mutex guards entered.
type waiter struct {
	hold    *hold
	entered bool
	woken   chan struct{} // closed when the waiter has the turn
}

// tryEnter takes the turn if that needs no waiting.
func (q *queue) tryEnter(name string, h *hold) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.tryEnterLocked(name, h)
}

func (q *queue) tryEnterLocked(name string, h *hold) bool {
	l := q.lines[name]
	if l == nil {
		if q.lines == nil {
			q.lines = make(map[string]*line)
		}
		l = new(line)
		q.lines[name] = l
	}
	if l.turn != nil {
		return false
	}
	l.turn = h
	return true
}

// enter waits for the turn, or returns ctx's error.
func (q *queue) enter(ctx context.Context, name string, h *hold) error {
	q.mu.Lock()
	if q.tryEnterLocked(name, h) {
		q.mu.Unlock()
		return nil
	}
	l := q.lines[name]
	w := &waiter{hold: h, woken: make(chan struct{})}
	element := l.waiting.PushBack(w)
	q.mu.Unlock()

	select {
	case <-w.woken:
		return nil
	case <-ctx.Done():
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if w.entered { // the caller got the turn just before ctx ended
		return nil
	}
	l.waiting.Remove(element)
	return ctx.Err()
}

// nextWaiter returns the next waiter for the name, or nil if there is none.
func (q *queue) nextWaiter(name string) *waiter {
	q.mu.Lock()
	defer q.mu.Unlock()
	if l := q.lines[name]; l != nil && l.waiting.Len() > 0 {
		return l.waiting.Front().Value.(*waiter)
	}
	return nil
}

// handOver gives the caller's turn to w, after it has called give. It does nothing and returns
// false if w no longer waits: w has given up, or got the turn when the caller lost its lease.
func (q *queue) handOver(name string, w *waiter, give func()) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.lines[name]
	if l == nil {
		return false
	}
	first := l.waiting.Front()
	if first == nil || first.Value.(*waiter) != w {
		return false
	}
	give()
	l.wake(first)
	return true
}

// leave ends the turn that enter or tryEnter gave. It does nothing if h no longer has the turn,
// because h has left before or has handed the turn over.
func (q *queue) leave(name string, h *hold) {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.lines[name]
	if l == nil || l.turn != h {
		return
	}
	l.turn = nil
	if first := l.waiting.Front(); first != nil {
		l.wake(first)
	} else {
		delete(q.lines, name)
	}
}

// wake gives the waiter the turn.
func (l *line) wake(waiting *list.Element) {
	w := l.waiting.Remove(waiting).(*waiter)
	l.turn, w.entered = w.hold, true
	close(w.woken)
}
