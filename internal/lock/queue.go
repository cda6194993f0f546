package lock

import (
	"container/list"
	"context"
	"sync"
)

// queue gives the turn for a name to one hold at a time, or to several callers that share it, in
// the order of their requests. It keeps no state for a name without holders and waiters. A waiter
// needs no extra goroutine. The zero value is ready to use.
type queue struct {
	mu    sync.Mutex
	lines map[string]*line
}

// line holds the callers that have the turn for one name, and the callers that wait for it.
type line struct {
	turn    *hold // the hold that has the turn alone, or nil
	sharers int
	waiting list.List // list of *waiter
}

// waiter is one caller that waits. The queue's mutex guards entered.
type waiter struct {
	hold    *hold // nil: the waiter shares the turn
	entered bool
	woken   chan struct{} // closed when the waiter has the turn
}

func (w *waiter) shared() bool { return w.hold == nil }

// isFree reports whether h can have the turn now. A nil h shares it.
func (l *line) isFree(h *hold) bool {
	return l.turn == nil && (h == nil || l.sharers == 0)
}

func (l *line) setTurn(h *hold) {
	if h == nil {
		l.sharers++
	} else {
		l.turn = h
	}
}

// tryEnter takes the turn if that needs no waiting. A nil h shares the turn.
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
	if l.waiting.Len() > 0 || !l.isFree(h) {
		return false
	}
	l.setTurn(h)
	return true
}

// enter waits for the turn, or returns ctx's error. A nil h shares the turn.
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
	q.advance(name, l) // callers that share the turn may have waited behind the caller
	return ctx.Err()
}

// nextWaiter returns the next waiter for the name. It returns nil if there is
// none, or if that waiter shares the turn.
func (q *queue) nextWaiter(name string) *waiter {
	q.mu.Lock()
	defer q.mu.Unlock()
	if l := q.lines[name]; l != nil && l.waiting.Len() > 0 {
		if w := l.waiting.Front().Value.(*waiter); !w.shared() {
			return w
		}
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
	switch {
	case h == nil:
		l.sharers--
	case l != nil && l.turn == h:
		l.turn = nil
	default:
		return
	}
	q.advance(name, l)
}

// advance wakes, in order, the waiters that can have the turn now.
func (q *queue) advance(name string, l *line) {
	for first := l.waiting.Front(); first != nil; first = l.waiting.Front() {
		if !l.isFree(first.Value.(*waiter).hold) {
			return
		}
		l.wake(first)
	}
	if l.turn == nil && l.sharers == 0 {
		delete(q.lines, name)
	}
}

// wake gives the waiter the turn.
func (l *line) wake(waiting *list.Element) {
	w := l.waiting.Remove(waiting).(*waiter)
	l.setTurn(w.hold)
	w.entered = true
	close(w.woken)
}
