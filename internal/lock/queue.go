package lock

import (
	"container/list"
	"context"
	"sync"
)

// queue lets one caller a name through at a time, or several that share it, in
// the order in which they came. It remembers nothing of a name that nobody is
// through with or waits for, and waiting costs no goroutine but the caller's.
// Its zero value is ready.
type queue struct {
	mu    sync.Mutex
	lines map[string]*line
}

// line is the callers that are through with one name, and those that wait.
type line struct {
	turn    *hold // through, and shares with nobody
	sharers int
	waiting list.List // of *waiter
}

// waiter is let through under the queue's mutex.
type waiter struct {
	hold   *hold // what it waits for; nil: it shares
	passed bool
	pass   chan struct{}
}

func (w *waiter) shared() bool { return w.hold == nil }

// free reports whether h may go through now.
func (l *line) free(h *hold) bool {
	return l.turn == nil && (h == nil || l.sharers == 0)
}

func (l *line) through(h *hold) {
	if h == nil {
		l.sharers++
	} else {
		l.turn = h
	}
}

// try lets the caller through if it need not wait. Without a hold it shares.
func (q *queue) try(name string, h *hold) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.tryLocked(name, h)
}

func (q *queue) tryLocked(name string, h *hold) bool {
	l := q.lines[name]
	if l == nil {
		if q.lines == nil {
			q.lines = make(map[string]*line)
		}
		l = new(line)
		q.lines[name] = l
	}
	if l.waiting.Len() > 0 || !l.free(h) {
		return false
	}
	l.through(h)
	return true
}

// enter waits until the caller is let through, or returns ctx's error. Without a
// hold it shares.
func (q *queue) enter(ctx context.Context, name string, h *hold) error {
	q.mu.Lock()
	if q.tryLocked(name, h) {
		q.mu.Unlock()
		return nil
	}
	l := q.lines[name]
	w := &waiter{hold: h, pass: make(chan struct{})}
	place := l.waiting.PushBack(w)
	q.mu.Unlock()

	select {
	case <-w.pass:
		return nil
	case <-ctx.Done():
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if w.passed { // in the moment of giving up
		return nil
	}
	l.waiting.Remove(place)
	q.advance(name, l) // sharers may have waited behind it
	return ctx.Err()
}

// first is the next waiter of the name, nil if there is none or it shares.
func (q *queue) first(name string) *waiter {
	q.mu.Lock()
	defer q.mu.Unlock()
	if l := q.lines[name]; l != nil && l.waiting.Len() > 0 {
		if w := l.waiting.Front().Value.(*waiter); !w.shared() {
			return w
		}
	}
	return nil
}

// hand gives h's turn to the waiter, once take has given it what h has. It
// reports false, and does nothing, if the turn is no longer h's, as after a lost
// lease, or if that waiter has given up.
func (q *queue) hand(name string, h *hold, w *waiter, take func()) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.lines[name]
	if l == nil || l.turn != h {
		return false
	}
	first := l.waiting.Front()
	if first == nil || first.Value.(*waiter) != w {
		return false
	}
	take()
	l.letThrough(first)
	return true
}

// leave ends what enter or try began. It does nothing if the turn is no longer
// h's: h left before, or has handed it over.
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

// advance lets through whoever may go now, in their order.
func (q *queue) advance(name string, l *line) {
	for first := l.waiting.Front(); first != nil; first = l.waiting.Front() {
		if !l.free(first.Value.(*waiter).hold) {
			return
		}
		l.letThrough(first)
	}
	if l.turn == nil && l.sharers == 0 {
		delete(q.lines, name)
	}
}

// letThrough ends the wait of a waiter.
func (l *line) letThrough(waiting *list.Element) {
	w := l.waiting.Remove(waiting).(*waiter)
	l.through(w.hold)
	w.passed = true
	close(w.pass)
}
