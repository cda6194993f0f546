package redis

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	goredis "github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/lock/locktest"
	"github.com/holdfast-stock/holdfast/internal/store/storetest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// TestSilentConnection makes the connection of the subscription drop everything in both directions,
// as if the peer had vanished. Another connection must replace it. Both are then subscribed,
// because the server does not know that the first one is dead.
func TestSilentConnection(t *testing.T) {
	t.Parallel()
	name := "silent-" + uuid.NewString()
	server := testenv.OwnRedis(t)
	serverURL := server.URL()
	wire := testenv.NewWire(t, server.Addr())
	var (
		overWire atomic.Bool
		dialled  atomic.Int64 // number of connections over the wire
	)
	options, err := goredis.ParseURL(serverURL)
	if err != nil {
		t.Fatal(err)
	}
	options.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if overWire.Load() {
			addr = wire.Addr()
			dialled.Add(1)
		}
		return new(net.Dialer).DialContext(ctx, network, addr)
	}
	client := goredis.NewClient(options)
	t.Cleanup(func() { client.Close() })
	admin := storetest.Redis(t, serverURL)
	holder, waiter := newLocker(t, admin, Options{}), newLocker(t, client, Options{})
	waiter.backend.releases.pingInterval = 100 * time.Millisecond
	own := waiter.backend.releases.own
	receivers := func() int64 {
		return admin.PubSubNumSub(t.Context(), own).Val()[own]
	}

	if err := client.Ping(t.Context()).Err(); err != nil { // this connection does not use the wire
		t.Fatal(err)
	}
	lease := locktest.MustLock(t, holder, name)
	overWire.Store(true)
	waiting := startWaiter(t.Context(), t, waiter, name)
	pings := func() (n int) {
		_, after, _ := strings.Cut(admin.Info(t.Context(), "commandstats").Val(), "cmdstat_ping:calls=")
		_, _ = fmt.Sscan(after, &n)
		return n
	}
	testenv.Await(t, "a connection that answers pings is kept", func() bool { // a busy machine may answer late
		connections, first := dialled.Load(), pings()
		testenv.Await(t, "several pings are answered", func() bool { return pings() > first+2*silentPings })
		return dialled.Load() == connections
	})
	overWire.Store(false)
	wire.Freeze()
	testenv.Await(t, "another connection is subscribed", func() bool { return receivers() == 2 })
	locktest.MustUnlock(t, lease)
	mustBeWoken(t, waiting)
}

// TestNodeThatDoesNotAnswer makes a node of a cluster accept no connection. A waiter that
// subscribes there must not delay a waiter that uses another node.
func TestNodeThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	admin := storetest.Redis(t, testenv.RedisCluster(t)).(*goredis.ClusterClient)
	options := *admin.Options()
	var (
		slow    atomic.Pointer[string] // the node that accepts no connection
		dialled = make(chan struct{}, 100)
		accept  = make(chan struct{})
	)
	none := ""
	slow.Store(&none)
	options.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if addr == *slow.Load() {
			dialled <- struct{}{}
			<-accept
		}
		return new(net.Dialer).DialContext(ctx, network, addr)
	}
	client := goredis.NewClusterClient(&options)
	t.Cleanup(func() { client.Close() })
	waiter := newLocker(t, client, Options{})
	t.Cleanup(func() { close(accept) })

	node := func(name string) string {
		t.Helper()
		n, err := client.MasterForKey(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		return n.Options().Addr
	}
	slowName, name := "silent-node", ""
	for i := 0; name == "" || node(name) == node(slowName); i++ {
		name = fmt.Sprintf("answering-node-%d", i)
	}
	foreign := newRedisson(admin, locktest.LongLease)
	foreign.mustLock(t, slowName)
	foreign.mustLock(t, name)
	locktest.MustBeHeld(t, waiter, slowName) // the same connection is used again
	waiting := startWaiter(t.Context(), t, waiter, name)
	addr := node(slowName)
	slow.Store(&addr)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stuck := locktest.LockAsync(ctx, waiter, slowName)
	testenv.Receive(t, "the waiter subscribes", dialled)
	foreign.mustUnlock(t, name, "1")
	mustBeWoken(t, waiting)
	cancel()
	if cancelled := <-stuck; cancelled.Err == nil {
		t.Error("a lock that is held was granted")
	}
	foreign.mustUnlock(t, slowName, "1")
}

// TestSlotMoves moves the slot of a lock that Redisson holds to another node while our waiter
// listens to Redisson's sharded channel. The waiter must then listen at the other node.
func TestSlotMoves(t *testing.T) {
	t.Parallel()
	client := storetest.Redis(t, testenv.RedisCluster(t)).(*goredis.ClusterClient)
	waiter := newLocker(t, client, Options{})
	name := "moves-" + uuid.NewString()
	foreign := newRedisson(client, locktest.LongLease)
	foreign.publish = "spublish"
	foreign.mustLock(t, name)
	waiting := startWaiter(t.Context(), t, waiter, name)
	to := moveSlot(t, client, name)
	channel := releaseChannel(name)
	testenv.Await(t, "the waiter listens at the other node", func() bool {
		return to.PubSubShardNumSub(t.Context(), channel).Val()[channel] == 1
	})
	foreign.mustUnlock(t, name, "1")
	mustBeWoken(t, waiting)
}

// TestSlotHasMoved moves the slot of a lock before a waiter listens there. The waiter's client has
// not noticed the move yet.
func TestSlotHasMoved(t *testing.T) {
	t.Parallel()
	admin := storetest.Redis(t, testenv.RedisCluster(t)).(*goredis.ClusterClient)
	name := "moved-" + uuid.NewString()
	if err := admin.Set(t.Context(), name, "", time.Minute).Err(); err != nil {
		t.Fatal(err)
	}
	asked := make(chan struct{})
	tell := sync.OnceFunc(func() { close(asked) })
	options := *admin.Options()
	options.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		return telling{conn, "ssubscribe", func() error { tell(); return nil }}, err
	}
	client := goredis.NewClusterClient(&options)
	t.Cleanup(func() { client.Close() })
	if err := client.Ping(t.Context()).Err(); err != nil { // the client now knows the nodes
		t.Fatal(err)
	}
	to, channel := moveSlot(t, admin, name), releaseChannel(name)
	ss := newSubscriptions(client, wakePrefix+uuid.NewString(), true)
	defer ss.close()
	ss.wait(channel).listen(true)
	<-asked
	client.ReloadState(t.Context())
	testenv.Await(t, "the waiter listens at the other node", func() bool {
		return to.PubSubShardNumSub(t.Context(), channel).Val()[channel] == 1
	})
}

// moveSlot moves the slot of the key to another node, and returns that node.
func moveSlot(t *testing.T, client *goredis.ClusterClient, key string) (to *goredis.Client) {
	t.Helper()
	ctx := t.Context()
	from, err := client.MasterForKey(ctx, key)
	if err != nil {
		t.Fatal(err)
	}
	slot := client.ClusterKeySlot(ctx, key).Val()
	for to == nil || to.Options().Addr == from.Options().Addr {
		if to, err = client.MasterForKey(ctx, uuid.NewString()); err != nil {
			t.Fatal(err)
		}
	}
	host, port, err := net.SplitHostPort(to.Options().Addr)
	if err != nil {
		t.Fatal(err)
	}
	fromID, toID := from.ClusterMyID(ctx).Val(), to.ClusterMyID(ctx).Val()
	must := func(node *goredis.Client, args ...any) any {
		t.Helper()
		answer, err := node.Do(ctx, args...).Result()
		if err != nil {
			t.Fatalf("%v: %v", args, err)
		}
		return answer
	}
	must(to, "cluster", "setslot", slot, "importing", fromID)
	must(from, "cluster", "setslot", slot, "migrating", toID)
	keys := must(from, "cluster", "getkeysinslot", slot, 100).([]any)
	must(from, append([]any{"migrate", host, port, "", 0, 5000, "keys"}, keys...)...)
	for _, node := range []*goredis.Client{to, from} {
		must(node, "cluster", "setslot", slot, "node", toID)
	}
	return to
}

// telling is a connection that calls tell before it writes the text. The connection breaks if tell
// returns an error.
type telling struct {
	net.Conn
	text string
	tell func() error
}

func (c telling) Write(b []byte) (int, error) {
	if strings.Contains(string(b), c.text) {
		if err := c.tell(); err != nil {
			_ = c.Close()
			return 0, err
		}
	}
	return c.Conn.Write(b)
}

// TestConnectionBreaksWhileSubscribing breaks the connection in the call that subscribes
// to a second lock's channel. go-redis connects again without that channel.
func TestConnectionBreaksWhileSubscribing(t *testing.T) {
	t.Parallel()
	serverURL := testenv.Redis(t)
	options, err := goredis.ParseURL(serverURL)
	if err != nil {
		t.Fatal(err)
	}
	var broken atomic.Bool
	channel := releaseChannel("breaks-" + uuid.NewString())
	options.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		return telling{conn, channel, func() error {
			if broken.CompareAndSwap(false, true) {
				return net.ErrClosed
			}
			return nil
		}}, err
	}
	client := goredis.NewClient(options)
	t.Cleanup(func() { client.Close() })
	ss := newSubscriptions(client, wakePrefix+uuid.NewString(), false)
	defer ss.close()
	first, second := ss.wait(releaseChannel(uuid.NewString())), ss.wait(channel)
	first.listen(true)
	<-first.notified // the first waiter is subscribed
	second.listen(true)
	admin := storetest.Redis(t, serverURL)
	testenv.Await(t, "the second channel is subscribed", func() bool {
		return broken.Load() && admin.PubSubNumSub(t.Context(), channel).Val()[channel] == 1
	})
}

// TestServerIsGone makes a server accept no connection for ten seconds. A waiter that begins to
// wait must ask again at once, because it may have missed a message.
func TestServerIsGone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var dialled atomic.Int64
		client := goredis.NewClient(&goredis.Options{Addr: "192.0.2.1:6379", Dialer: func(ctx context.Context, _, _ string) (net.Conn, error) {
			if dialled.Add(1) > 1000 {
				<-ctx.Done()
			}
			return nil, net.ErrClosed
		}})
		defer client.Close()
		ss := newSubscriptions(client, wakePrefix+"gone", false)
		ss.wait("a").listen(true)
		other := ss.wait("b")
		other.listen(false)
		select {
		case <-other.notified:
		default:
			t.Error("a new waiter is not notified")
		}
		time.Sleep(10 * time.Second) // ten seconds of the bubble's time
		ss.close()
		if n := dialled.Load(); n < 10 || n > 300 {
			t.Errorf("%d attempts to connect in 10 s", n)
		}
	})
}

// TestSubscriptionAfterClose makes a caller wait after Close. No connection may be opened, because
// nothing would close it.
func TestSubscriptionAfterClose(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client := goredis.NewClient(&goredis.Options{Addr: "192.0.2.1:6379", Dialer: func(context.Context, string, string) (net.Conn, error) {
			t.Error("a connection is opened after Close")
			return nil, net.ErrClosed
		}})
		defer client.Close()
		ss := newSubscriptions(client, wakePrefix+"closed", false)
		ss.close()
		ss.wait("a").listen(true)
		synctest.Wait()
	})
}

// TestSubscriptionIsRefused makes the server refuse a subscription to a sharded channel, as it does
// for a user without the permission. The connection must be kept, because another one would be
// refused too.
func TestSubscriptionIsRefused(t *testing.T) {
	t.Parallel()
	admin := storetest.Redis(t, testenv.RedisCluster(t)).(*goredis.ClusterClient)
	options := *admin.Options()
	options.Username, options.Password = "refused-"+uuid.NewString(), "secret"
	t.Cleanup(func() {
		_ = admin.ForEachMaster(context.WithoutCancel(t.Context()), func(ctx context.Context, node *goredis.Client) error {
			return node.Do(ctx, "acl", "deluser", options.Username).Err()
		})
	})
	if err := admin.ForEachMaster(t.Context(), func(ctx context.Context, node *goredis.Client) error {
		return node.ACLSetUser(ctx, options.Username, "reset", "on", ">secret", "~*", "&*", "+@all", "-ssubscribe").Err()
	}); err != nil {
		t.Fatal(err)
	}
	var refused atomic.Int64
	next := make(chan string, 1)
	tell := func(what string) error {
		select {
		case next <- what:
		default:
		}
		return nil
	}
	options.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		var asked atomic.Bool
		asks := telling{conn, "ssubscribe", func() error {
			asked.Store(true)
			if refused.Add(1) > 1 {
				return tell("a further subscription")
			}
			return nil
		}}
		return telling{asks, "ping", func() error {
			if asked.Load() {
				return tell("a ping")
			}
			return nil
		}}, err
	}
	client := goredis.NewClusterClient(&options)
	t.Cleanup(func() { client.Close() })
	ss := newSubscriptions(client, wakePrefix+uuid.NewString(), true)
	defer ss.close()
	ss.wait(releaseChannel("refused-" + uuid.NewString())).listen(true)
	if what := <-next; what != "a ping" {
		t.Errorf("after the refusal there was %s, want a ping on the connection", what)
	}
}
