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

// line is those who are through with one name, and those who wait.
type line struct {
	alone   bool // one is through that shares with nobody
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

// free reports whether someone may go through now.
func (l *line) free(shared bool) bool {
	return !l.alone && (shared || l.sharers == 0) && l.waiting.Len() == 0
}

func (l *line) through(shared bool) {
	if shared {
		l.sharers++
	} else {
		l.alone = true
	}
}

// try lets the caller through if it need not wait.
func (q *queue) try(name string, shared bool) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.tryLocked(name, shared)
}

func (q *queue) tryLocked(name string, shared bool) bool {
	l := q.lines[name]
	if l == nil {
		if q.lines == nil {
			q.lines = make(map[string]*line)
		}
		l = new(line)
		q.lines[name] = l
	}
	if !l.free(shared) {
		return false
	}
	l.through(shared)
	return true
}

// enter waits until the caller is let through, or returns ctx's error. Without a
// hold it shares.
func (q *queue) enter(ctx context.Context, name string, h *hold) error {
	q.mu.Lock()
	if q.tryLocked(name, h == nil) {
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

// hand lets the next waiter through in the caller's stead, after take has given
// it what the caller has. It reports false, and does nothing, if that waiter has
// given up.
func (q *queue) hand(name string, w *waiter, take func()) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.lines[name]
	if l == nil { // the caller's lease was lost meanwhile, and its turn with it
		return false
	}
	first := l.waiting.Front()
	if first == nil || first.Value.(*waiter) != w {
		return false
	}
	take()
	l.waiting.Remove(first)
	w.passed = true
	close(w.pass)
	return true
}

// leave ends what enter or try began.
func (q *queue) leave(name string, shared bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.leaveLocked(name, shared)
}

func (q *queue) leaveLocked(name string, shared bool) {
	l := q.lines[name]
	if shared {
		l.sharers--
	} else {
		l.alone = false
	}
	q.advance(name, l)
}

// advance lets through whoever may go now, in their order.
func (q *queue) advance(name string, l *line) {
	for first := l.waiting.Front(); first != nil; first = l.waiting.Front() {
		w := first.Value.(*waiter)
		if l.alone || !w.shared() && l.sharers > 0 {
			return
		}
		l.waiting.Remove(first)
		l.through(w.shared())
		w.passed = true
		close(w.pass)
	}
	if !l.alone && l.sharers == 0 {
		delete(q.lines, name)
	}
}
