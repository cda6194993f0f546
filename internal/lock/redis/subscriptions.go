package redis

import (
	"container/list"
	"context"
	"errors"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// maxIdleChannels bounds the locks whose subscriptions are kept although no caller
// waits. Under contention the next waiter comes soon.
const maxIdleChannels = 64

const (
	// sendTimeout bounds a call that subscribes or pings. A waiter without a
	// subscription still asks again after maxSleep.
	sendTimeout = time.Second
	// pingInterval is the time between two pings on a connection.
	pingInterval = time.Second
	// silentPings is how many ping intervals a connection may receive nothing. Then it is replaced.
	// go-redis pings too, but does not check for answers: it notices a dead peer only if TCP
	// reports it.
	silentPings = 3
	// reconnectPause is the pause after a connection has failed.
	reconnectPause = 100 * time.Millisecond
)

// subscriptions receives the messages that wake the waiters of a Locker. Messages for all locks
// arrive on the Locker's own channel. Redisson has a channel for each lock. One connection receives
// both. In a cluster, each lock with a subscribed sharded channel has another connection, to the
// node with its slot.
//
// Each connection has a goroutine that sends and one that receives. So no caller waits for a slow
// server while it holds the mutex, and no server delays the messages of another.
type subscriptions struct {
	client       goredis.UniversalClient
	own          string // the Locker's own channel
	cluster      bool
	pingInterval time.Duration
	changed      chan struct{} // has a value if wanted has changed

	mu        sync.Mutex
	pubsub    *goredis.PubSub // nil until the first wait
	wanted    map[string]bool // the channels of pubsub that must be subscribed, or else unsubscribed
	ready     bool            // the Locker's own channel has been subscribed
	byChannel map[string]*subscription
	idle      list.List // subscriptions without waiting callers, the longest idle first
	closed    bool
	done      sync.WaitGroup
}

// subscription receives the messages for one lock.
type subscription struct {
	owner   *subscriptions
	channel string // Redisson's channel for the lock
	// notified has a value if the waiter must ask again: a message has arrived,
	// or may have been missed.
	notified chan struct{}
	fresh    bool // the subscription is new: earlier messages may have been missed
	waiters  int
	idle     *list.Element // nil while callers wait
	yield    yield
	listens  bool            // the subscription includes Redisson's channel
	sharded  *goredis.PubSub // connection to Redisson's sharded channel in a cluster; nil: none
}

func newSubscriptions(client goredis.UniversalClient, own string, cluster bool) *subscriptions {
	return &subscriptions{
		client: client, own: own, cluster: cluster, pingInterval: pingInterval, changed: make(chan struct{}, 1),
		wanted: map[string]bool{own: true}, byChannel: make(map[string]*subscription),
	}
}

// wait registers the caller as a waiter for the lock with this channel of Redisson.
// The caller must call listen, and leave in the end.
func (ss *subscriptions) wait(channel string) *subscription {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	s := ss.byChannel[channel]
	if s == nil {
		s = ss.add(channel)
	}
	if s.idle != nil {
		ss.idle.Remove(s.idle)
		s.idle = nil
	}
	s.waiters++
	return s
}

func (ss *subscriptions) add(channel string) *subscription {
	s := &subscription{owner: ss, channel: channel, notified: make(chan struct{}, 1), fresh: true}
	ss.byChannel[channel] = s
	return s
}

// listen makes the subscription receive messages on the Locker's own channel, and
// on Redisson's if foreign is true. It notifies the waiter once after a change,
// because a message may have been missed before. It does not wait for the servers.
func (s *subscription) listen(foreign bool) {
	ss := s.owner
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if ss.closed {
		return
	}
	switch {
	case foreign && !s.listens:
		s.subscribe()
	case !foreign && s.listens:
		s.unsubscribe()
	}
	switch {
	case ss.pubsub == nil:
		ss.pubsub = ss.client.Subscribe(context.Background()) // without a channel the subscription does not connect
		ss.run(ss.pubsub, ss.changed, ss.update)
	case s.fresh && !foreign:
		s.notify()
	}
	s.fresh = false
}

// subscribe begins a subscription to Redisson's channel. The caller holds the mutex.
func (s *subscription) subscribe() {
	s.listens = true
	s.owner.want(s.channel, true)
	if !s.owner.cluster {
		return
	}
	sharded := s.owner.client.SSubscribe(context.Background()) // without a channel the subscription does not connect
	s.sharded = sharded
	s.owner.run(sharded, nil, func(ctx context.Context) {
		again(func() error { return sharded.SSubscribe(ctx, s.channel) })
	})
}

// unsubscribe ends the subscription to Redisson's channel. The caller holds the
// mutex.
func (s *subscription) unsubscribe() {
	s.listens = false
	s.owner.want(s.channel, false)
	if sharded := s.sharded; sharded != nil {
		s.sharded = nil
		s.owner.done.Go(func() { _ = sharded.Close() }) // Close waits until sharded has connected
	}
}

// want makes update subscribe to the channel, or unsubscribe from it. The caller holds the mutex.
func (ss *subscriptions) want(channel string, subscribed bool) {
	ss.wanted[channel] = subscribed
	select {
	case ss.changed <- struct{}{}:
	default:
	}
}

// moved replaces the connection to a sharded channel after its slot has moved to another node. It
// does nothing if the connection is no longer in use.
func (ss *subscriptions) moved(pubsub *goredis.PubSub) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	for _, s := range ss.byChannel {
		if s.sharded == pubsub && !ss.closed {
			s.unsubscribe()
			s.subscribe()
			return
		}
	}
}

// again calls subscribe again if it fails. After a failure, go-redis may have connected
// again at once, and subscribed to all channels but those of the failed call.
func again(subscribe func() error) {
	if subscribe() != nil {
		_ = subscribe() // the channel is now among all channels, if go-redis must connect again
	}
}

// update makes the changes that are wanted. When a connection breaks, go-redis
// reconnects and subscribes to all channels again.
func (ss *subscriptions) update(ctx context.Context) {
	ss.mu.Lock()
	wanted := ss.wanted
	ss.wanted = make(map[string]bool)
	ss.mu.Unlock()
	var added, removed []string
	for channel, subscribed := range wanted {
		switch {
		case !subscribed:
			removed = append(removed, channel)
		case channel != ss.own:
			added = append(added, channel)
		}
	}
	if wanted[ss.own] {
		added = append(added, ss.own) // the last channel, see subscribed
	}
	if len(added) > 0 {
		again(func() error { return ss.pubsub.Subscribe(ctx, added...) })
	}
	if len(removed) > 0 {
		_ = ss.pubsub.Unsubscribe(ctx, removed...)
	}
}

// run calls subscribe at once and after each change, pings the server, and receives
// messages, until pubsub is closed.
func (ss *subscriptions) run(pubsub *goredis.PubSub, changed <-chan struct{}, subscribe func(context.Context)) {
	ss.done.Go(func() {
		send(subscribe)
		closed := make(chan struct{})
		ss.done.Go(func() {
			defer close(closed)
			ss.receive(pubsub)
		})
		ticker := time.NewTicker(ss.pingInterval)
		defer ticker.Stop()
		for {
			select {
			case <-changed:
				send(subscribe)
			case <-ticker.C:
				send(func(ctx context.Context) { _ = pubsub.Ping(ctx) })
			case <-closed:
				return
			}
		}
	})
}

func send(request func(context.Context)) {
	ctx, cancel := context.WithTimeout(context.Background(), sendTimeout)
	defer cancel()
	request(ctx)
}

// receive notifies the waiters until pubsub is closed.
func (ss *subscriptions) receive(pubsub *goredis.PubSub) {
	for {
		message, err := receiveOne(pubsub, silentPings*ss.pingInterval)
		if errors.Is(err, goredis.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(reconnectPause)
			if goredis.HasErrorPrefix(err, "MOVED") { // go-redis did not know the slot's node yet
				ss.moved(pubsub)
			}
		}
		switch m := message.(type) { // nil after an error
		case *goredis.Subscription:
			switch m.Kind {
			case "subscribe", "ssubscribe":
				ss.subscribed(m.Channel)
			case "sunsubscribe": // the slot has moved to another server
				ss.moved(pubsub)
			}
		case *goredis.Message:
			if m.Channel == ss.own {
				ss.wake(releaseChannel(m.Payload))
			} else {
				ss.notify(m.Channel)
			}
		}
	}
}

// receiveOne returns a message, or the answer to a ping. After an error, the next call
// connects again and subscribes to all channels.
func receiveOne(pubsub *goredis.PubSub, timeout time.Duration) (any, error) {
	// ReceiveTimeout would keep the connection after its timeout.
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return pubsub.Receive(ctx)
}

// subscribed notifies the waiters that may have missed a message on the channel. The first call
// that subscribes names the Locker's own channel last.
func (ss *subscriptions) subscribed(channel string) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	switch s := ss.byChannel[channel]; {
	case channel == ss.own:
		ss.ready = true
		for _, s := range ss.byChannel {
			s.notify()
		}
	case s != nil && ss.ready:
		s.notify()
	}
}

// wake notifies the waiter that is next after a release.
func (ss *subscriptions) wake(channel string) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if s := ss.byChannel[channel]; s != nil {
		s.yield = yield{}
		s.notify()
	}
}

func (ss *subscriptions) notify(channel string) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if s := ss.byChannel[channel]; s != nil {
		s.notify()
	}
}

// wokenTime is how long a process leaves a free lock to a waiter that it has woken in another
// process. Otherwise its own next waiter could request the lock first.
//
// foreignTime is how long it leaves the lock to the subscribers of Redisson's channel, after it has
// handed the lock over within itself. It is short, because the subscribers may be idle.
const (
	wokenTime   = 100 * time.Millisecond
	foreignTime = time.Millisecond
)

// yield makes a process leave a free lock to other processes until a time, or until one of them has
// had a later grant. The zero value does not yield.
type yield struct {
	token uint64 // token of the grant that this process has released
	until time.Time
}

// noteRelease records that the grant with this token was released, whether a waiter
// was woken, and how many subscribers of Redisson's channel received the message.
func (ss *subscriptions) noteRelease(channel string, token uint64, woken bool, receivers int64) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	s := ss.byChannel[channel]
	if s != nil && s.listens {
		receivers-- // this process is one of the receivers
	}
	left := foreignTime
	switch {
	case woken:
		left = wokenTime
	case receivers <= 0:
		return
	}
	if s == nil {
		s = ss.add(channel)
		ss.addIdle(s)
	}
	s.yield = yield{token, time.Now().Add(left)}
}

// yield returns the yield of a waiter that is about to request the lock. It drops an earlier
// notification, which the waiter no longer needs.
func (ss *subscriptions) yield(channel string) yield {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	s := ss.byChannel[channel]
	if s == nil {
		return yield{}
	}
	select {
	case <-s.notified:
	default:
	}
	if time.Now().After(s.yield.until) {
		s.yield = yield{}
	}
	return s.yield
}

func (s *subscription) notify() {
	select {
	case s.notified <- struct{}{}:
	default:
	}
}

// leave ends the caller's wait.
func (s *subscription) leave() {
	ss := s.owner
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if s.waiters--; s.waiters == 0 {
		ss.addIdle(s)
	}
}

// addIdle keeps the subscription for a later waiter. It ends the longest idle one if
// there are too many. The caller holds the mutex.
func (ss *subscriptions) addIdle(s *subscription) {
	s.idle = ss.idle.PushBack(s)
	if ss.idle.Len() <= maxIdleChannels || ss.closed {
		return
	}
	oldest := ss.idle.Remove(ss.idle.Front()).(*subscription)
	delete(ss.byChannel, oldest.channel)
	if oldest.listens {
		oldest.unsubscribe()
	}
}

// close closes the connections.
func (ss *subscriptions) close() {
	ss.mu.Lock()
	if ss.closed {
		ss.mu.Unlock()
		return
	}
	ss.closed = true
	var open []*goredis.PubSub
	if ss.pubsub != nil {
		open = append(open, ss.pubsub)
	}
	for _, s := range ss.byChannel {
		if s.sharded != nil {
			open = append(open, s.sharded)
		}
	}
	ss.mu.Unlock()
	for _, pubsub := range open {
		_ = pubsub.Close()
	}
	ss.done.Wait()
}
