package redis

import (
	"container/list"
	"context"
	"errors"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// idleChannels is how many channels that nobody waits on are still listened to:
// under contention the next waiter comes soon.
const idleChannels = 64

// subscribeTimeout bounds how long a waiter waits for its subscription. Without
// one it still wakes when the holder's lease should be over.
const subscribeTimeout = time.Second

// listener hears of releases, on one connection for all locks of a Locker.
type listener struct {
	client goredis.UniversalClient

	mu     sync.Mutex
	pubsub *goredis.PubSub // nil: not needed yet
	ears   map[string]*ear
	idle   list.List // of *ear that nobody waits on, the longest first
	closed bool
	done   sync.WaitGroup
}

// ear is one channel. heard has a value when something was heard of since, a
// subscription included: what happened before that may have been missed.
type ear struct {
	listener *listener
	channel  string
	heard    chan struct{}
	waiting  int
	idle     *list.Element
	yield    time.Time // until then other processes go first
}

func newListener(client goredis.UniversalClient) *listener {
	return &listener{client: client, ears: make(map[string]*ear)}
}

// listen returns the channel's ear. An ear that is new hears of its own
// subscription first.
func (l *listener) listen(ctx context.Context, channel string) *ear {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.ears[channel]
	if e == nil {
		e = &ear{listener: l, channel: channel, heard: make(chan struct{}, 1)}
		l.ears[channel] = e
		l.subscribe(ctx, channel)
	} else {
		e.notify() // what came since the caller last asked may be forgotten
	}
	if e.idle != nil {
		l.idle.Remove(e.idle)
		e.idle = nil
	}
	e.waiting++
	return e
}

// subscribe asks for the channel's messages. If that fails the connection is
// made again, and all of its channels subscribed to. l.mu is held.
func (l *listener) subscribe(ctx context.Context, channel string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), subscribeTimeout)
	defer cancel()
	if l.pubsub != nil {
		_ = l.pubsub.Subscribe(ctx, channel)
		return
	}
	l.pubsub = l.client.Subscribe(ctx, channel)
	messages := l.pubsub.ChannelWithSubscriptions()
	l.done.Go(func() {
		for m := range messages {
			switch m := m.(type) {
			case *goredis.Subscription:
				l.hear(m.Channel)
			case *goredis.Message:
				l.hear(m.Channel)
			}
		}
	})
}

// yieldFor is how long a process that has passed a lock on within itself, and
// then released it, leaves it to others that wait: they hear of it later than
// its own next waiter would ask.
const yieldFor = time.Millisecond

// released notes how many heard of a release.
func (l *listener) released(channel string, heard int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.ears[channel]; e != nil && heard > 1 { // this listener is one of them
		e.yield = time.Now().Add(yieldFor)
	}
}

// yield lets other processes go first, if any waited at the last release.
func (l *listener) yield(ctx context.Context, channel string) {
	l.mu.Lock()
	var wait time.Duration
	if e := l.ears[channel]; e != nil {
		wait = time.Until(e.yield)
	}
	l.mu.Unlock()
	if wait <= 0 {
		return
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

func (l *listener) hear(channel string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.ears[channel]; e != nil {
		e.notify()
	}
}

func (e *ear) notify() {
	select {
	case e.heard <- struct{}{}:
	default:
	}
}

// leave says that the caller waits no longer.
func (e *ear) leave() {
	l := e.listener
	l.mu.Lock()
	defer l.mu.Unlock()
	if e.waiting--; e.waiting > 0 {
		return
	}
	e.idle = l.idle.PushBack(e)
	if l.idle.Len() <= idleChannels || l.closed {
		return
	}
	oldest := l.idle.Remove(l.idle.Front()).(*ear)
	delete(l.ears, oldest.channel)
	ctx, cancel := context.WithTimeout(context.Background(), subscribeTimeout)
	defer cancel()
	_ = l.pubsub.Unsubscribe(ctx, oldest.channel)
}

// close ends the connection.
func (l *listener) close() error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return errors.New("closed already")
	}
	l.closed = true
	pubsub := l.pubsub
	l.mu.Unlock()
	if pubsub == nil {
		return nil
	}
	err := pubsub.Close()
	l.done.Wait()
	return err
}
