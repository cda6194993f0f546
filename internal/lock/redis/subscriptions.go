package redis

import (
	"container/list"
	"context"
	"errors"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// maxIdleChannels bounds the channels that stay subscribed although no caller
// waits on them. Under contention the next waiter comes soon.
const maxIdleChannels = 64

// subscribeTimeout bounds the call that subscribes. A waiter without a
// subscription still wakes when the holder's lease should have ended.
const subscribeTimeout = time.Second

// subscriptions receives the release messages of all locks of a Locker on one
// connection.
type subscriptions struct {
	client goredis.UniversalClient

	mu        sync.Mutex
	pubsub    *goredis.PubSub // nil until the first subscription
	byChannel map[string]*subscription
	idle      list.List // of *subscription that no caller waits on, the longest idle first
	closed    bool
	done      sync.WaitGroup
}

// subscription is the subscription to one channel.
type subscription struct {
	owner   *subscriptions
	channel string
	// notified has a value if, since the last receive from it, a message has
	// arrived or the subscription was established. Messages from before that may
	// have been missed.
	notified   chan struct{}
	waiters    int
	idle       *list.Element // nil while callers wait
	yieldUntil time.Time     // other processes go first until then
}

func newSubscriptions(client goredis.UniversalClient) *subscriptions {
	return &subscriptions{client: client, byChannel: make(map[string]*subscription)}
}

// wait registers the caller as a waiter on the channel. A new subscription is
// notified once it is established. The caller must call leave.
func (ss *subscriptions) wait(ctx context.Context, channel string) *subscription {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	s := ss.byChannel[channel]
	if s == nil {
		s = &subscription{owner: ss, channel: channel, notified: make(chan struct{}, 1)}
		ss.byChannel[channel] = s
		ss.subscribe(ctx, channel)
	} else {
		s.notify() // a message may have arrived since the caller last asked for the lock
	}
	if s.idle != nil {
		ss.idle.Remove(s.idle)
		s.idle = nil
	}
	s.waiters++
	return s
}

// subscribe subscribes to the channel. If that fails, go-redis reconnects and
// subscribes to all channels again. The caller holds ss.mu.
func (ss *subscriptions) subscribe(ctx context.Context, channel string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), subscribeTimeout)
	defer cancel()
	if ss.pubsub != nil {
		_ = ss.pubsub.Subscribe(ctx, channel)
		return
	}
	ss.pubsub = ss.client.Subscribe(ctx, channel)
	messages := ss.pubsub.ChannelWithSubscriptions()
	ss.done.Go(func() {
		for m := range messages {
			switch m := m.(type) {
			case *goredis.Subscription:
				ss.notify(m.Channel)
			case *goredis.Message:
				ss.notify(m.Channel)
			}
		}
	})
}

// yieldTime is how long a process waits before it asks again for a lock that it
// has handed over within itself and then released. Its own next waiter could
// otherwise ask before the message reaches other processes.
const yieldTime = time.Millisecond

// noteRelease records that the lock was released, and how many subscribers
// received the message.
func (ss *subscriptions) noteRelease(channel string, receivers int64) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if s := ss.byChannel[channel]; s != nil && receivers > 1 { // one of them is ss itself
		s.yieldUntil = time.Now().Add(yieldTime)
	}
}

// yield lets other processes ask first if any of them received the last release
// message.
func (ss *subscriptions) yield(ctx context.Context, channel string) {
	ss.mu.Lock()
	var wait time.Duration
	if s := ss.byChannel[channel]; s != nil {
		wait = time.Until(s.yieldUntil)
	}
	ss.mu.Unlock()
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

func (ss *subscriptions) notify(channel string) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if s := ss.byChannel[channel]; s != nil {
		s.notify()
	}
}

func (s *subscription) notify() {
	select {
	case s.notified <- struct{}{}:
	default:
	}
}

// leave ends the caller's wait. It unsubscribes the longest idle channel if too
// many are idle.
func (s *subscription) leave() {
	ss := s.owner
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if s.waiters--; s.waiters > 0 {
		return
	}
	s.idle = ss.idle.PushBack(s)
	if ss.idle.Len() <= maxIdleChannels || ss.closed {
		return
	}
	oldest := ss.idle.Remove(ss.idle.Front()).(*subscription)
	delete(ss.byChannel, oldest.channel)
	ctx, cancel := context.WithTimeout(context.Background(), subscribeTimeout)
	defer cancel()
	_ = ss.pubsub.Unsubscribe(ctx, oldest.channel)
}

// close closes the connection.
func (ss *subscriptions) close() error {
	ss.mu.Lock()
	if ss.closed {
		ss.mu.Unlock()
		return errors.New("the locker is already closed")
	}
	ss.closed = true
	pubsub := ss.pubsub
	ss.mu.Unlock()
	if pubsub == nil {
		return nil
	}
	err := pubsub.Close()
	ss.done.Wait()
	return err
}
