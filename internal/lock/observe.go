package lock

import (
	"context"
	"errors"
	"sync"
	"time"
)

// What is the kind of an event.
type What string

const (
	// Granted means that a request was granted, after Event.Took.
	Granted What = "granted"
	// Refused means that a request failed after Event.Took, with Event.Err.
	Refused What = "refused"
	// Released means that a lease was unlocked, Event.Took after its grant. Event.Err is Unlock's
	// error, if any.
	Released What = "released"
	// Lost means that a lease was lost, Event.Took after its grant. Event.Err wraps ErrLost and
	// tells the reason.
	Lost What = "lost"
)

// Event is something that happened to a lock.
type Event struct {
	What What
	Took time.Duration
	Err  error
}

// Observed returns a Locker that passes requests on to l and reports each event to observe. Every
// request is reported once as Granted or Refused, and every granted lease once as Released or Lost.
// A re-entry counts as a separate grant. observe may be called by several goroutines at once and
// must not block.
func Observed(l Locker, observe func(Event)) Locker { return observed{l, observe} }

type observed struct {
	inner   Locker
	observe func(Event)
}

func (o observed) Lock(ctx context.Context, name string) (Lease, error) {
	return o.request(ctx, name, o.inner.Lock)
}

func (o observed) TryLock(ctx context.Context, name string) (Lease, error) {
	return o.request(ctx, name, o.inner.TryLock)
}

func (o observed) request(ctx context.Context, name string, lock func(context.Context, string) (Lease, error)) (Lease, error) {
	asked := time.Now()
	inner, err := lock(ctx, name)
	if err != nil {
		o.observe(Event{Refused, time.Since(asked), err})
		return nil, err
	}
	granted := time.Now()
	o.observe(Event{Granted, granted.Sub(asked), nil})
	l := &observedLease{Lease: inner}
	l.end = func(what What, err error) {
		l.once.Do(func() { o.observe(Event{what, time.Since(granted), err}) })
	}
	context.AfterFunc(inner.Context(), func() {
		if reason := context.Cause(inner.Context()); errors.Is(reason, ErrLost) {
			l.end(Lost, reason)
		}
	})
	return l, nil
}

// observedLease reports how its lease ends.
type observedLease struct {
	Lease
	end  func(What, error)
	once sync.Once
}

func (l *observedLease) Unlock(ctx context.Context) error {
	err := l.Lease.Unlock(ctx)
	if errors.Is(err, ErrLost) {
		l.end(Lost, err)
	} else {
		l.end(Released, err)
	}
	return err
}
