package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/faults"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// watched is a running WatchRedis.
type watched struct {
	calls atomic.Int64 // number of calls of changed
	asked atomic.Int64 // number of identity requests that were answered or failed
}

// watchRedis runs WatchRedis until the test ends. It returns once a master was asked.
func watchRedis(t testing.TB, client redis.UniversalClient, every time.Duration) *watched {
	t.Helper()
	w := new(watched)
	if c, ok := client.(*redis.ClusterClient); ok {
		c.OnNewNode(func(node *redis.Client) { node.AddHook(faults.Around(w.countQuestions)) })
		_ = c.ForEachShard(t.Context(), func(_ context.Context, node *redis.Client) error {
			node.AddHook(faults.Around(w.countQuestions))
			return nil
		})
	} else {
		client.AddHook(faults.Around(w.countQuestions))
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		WatchRedis(ctx, client, every, func() { w.calls.Add(1) })
	}()
	t.Cleanup(func() {
		cancel()
		testenv.Receive(t, "WatchRedis returns after its context has ended", done)
	})
	testenv.Await(t, "the first poll has run", func() bool { return w.asked.Load() > 0 })
	return w
}

// countQuestions is a hook that counts the commands that ask for the identity of a server.
func (w *watched) countQuestions(ctx context.Context, cmds []redis.Cmder, run func(context.Context) error) error {
	err := run(ctx)
	if cmds[0].Name() == "info" {
		w.asked.Add(1)
	}
	return err
}

// waitPoll waits until a poll that begins now, or later, and its consequences have ended.
func (w *watched) waitPoll(t testing.TB) {
	t.Helper()
	const masters = 3 // maximum number of masters
	after := w.asked.Load() + masters + masters
	testenv.Await(t, "another poll has run", func() bool { return w.asked.Load() > after })
}

// checkNoCalls fails the test if changed is called during a few polls.
func (w *watched) checkNoCalls(t testing.TB) {
	t.Helper()
	before := w.calls.Load()
	for range 2 {
		w.waitPoll(t)
	}
	if n := w.calls.Load() - before; n != 0 {
		t.Fatalf("changed was called %d times without a change", n)
	}
}

const (
	// pollInterval is the interval of WatchRedis in most tests.
	pollInterval = 100 * time.Millisecond
)

func TestWatchRedis_Restart(t *testing.T) {
	t.Parallel()
	server := testenv.OwnRedis(t)
	w := watchRedis(t, openedRedis(t, server.URL()), pollInterval)
	w.checkNoCalls(t)
	for n := int64(1); n <= 2; n++ {
		server.Kill()
		w.checkNoCalls(t) // an unreachable server does not count as changed
		server.Restart()
		testenv.Await(t, "the restart is noticed", func() bool { return w.calls.Load() == n })
		w.checkNoCalls(t)
	}
}

// TestWatchRedis_PollsAfterReconnect polls once an hour, so only the client's new
// connection can reveal the restart.
func TestWatchRedis_PollsAfterReconnect(t *testing.T) {
	t.Parallel()
	server := testenv.OwnRedis(t)
	client := openedRedis(t, server.URL())
	w := watchRedis(t, client, time.Hour)
	server.Kill()
	server.Restart()
	testenv.Await(t, "the restart is noticed", func() bool {
		_ = client.Ping(t.Context()).Err() // reconnects, as the gate's calls do
		return w.calls.Load() == 1
	})
}

func TestWatchRedis_RoleChanges(t *testing.T) {
	t.Parallel()
	server, other := testenv.OwnRedis(t), testenv.OwnRedis(t)
	client := openedRedis(t, server.URL())
	w := watchRedis(t, client, pollInterval)
	w.checkNoCalls(t)
	host, port, _ := strings.Cut(other.Addr(), ":")
	if err := client.SlaveOf(t.Context(), host, port).Err(); err != nil {
		t.Fatal(err)
	}
	testenv.Await(t, "the demotion is noticed", func() bool { return w.calls.Load() >= 1 })
	testenv.Await(t, "the replica is in sync", func() bool {
		return strings.Contains(client.Info(t.Context(), "replication").Val(), "master_link_status:up")
	})
	before := w.calls.Load()
	if err := client.SlaveOf(t.Context(), "NO", "ONE").Err(); err != nil {
		t.Fatal(err)
	}
	testenv.Await(t, "the promotion is noticed", func() bool { return w.calls.Load() > before })
}

func TestWatchRedis_UnreachableAtFirst(t *testing.T) {
	t.Parallel()
	server := testenv.OwnRedis(t)
	client := openedRedis(t, server.URL())
	server.Kill()
	w := watchRedis(t, client, pollInterval)
	w.checkNoCalls(t)
	server.Restart()
	testenv.Await(t, "the server's first answer is noticed", func() bool { return w.calls.Load() == 1 })
}

func TestWatchRedis_SentinelFailover(t *testing.T) {
	t.Parallel()
	servers := testenv.OwnRedisSentinel(t)
	client := openedRedis(t, servers.URL())
	w := watchRedis(t, client, pollInterval)
	w.checkNoCalls(t)
	infoBefore := client.Info(t.Context(), "server").Val()

	servers.Master.Kill()
	testenv.Await(t, "the client writes to the new master", func() bool {
		return client.Set(t.Context(), "k", "v", 0).Err() == nil
	})
	if after := client.Info(t.Context(), "server").Val(); field(after, "run_id") == field(infoBefore, "run_id") {
		t.Fatal("no failover happened")
	}
	testenv.Await(t, "the failover is noticed", func() bool { return w.calls.Load() >= 1 })
	before := w.calls.Load()
	servers.Master.Restart() // the old master returns as a replica, so no master changes
	w.checkNoCalls(t)
	if w.calls.Load() != before {
		t.Error("the return of the old master counts as a change")
	}
}

// field returns a field of the text of INFO.
func field(text, name string) string {
	_, rest, _ := strings.Cut(text, name+":")
	value, _, _ := strings.Cut(rest, "\r\n")
	return value
}

func TestWatchRedis_Cluster(t *testing.T) {
	t.Parallel()
	cluster := testenv.OwnRedisCluster(t, 1)
	nodes := cluster.Nodes
	client := openedRedis(t, cluster.URL())
	w := watchRedis(t, client, pollInterval)
	w.checkNoCalls(t)
	ctx := t.Context()

	nodes[0].Kill() // the first three nodes are the masters
	testenv.Await(t, "every slot is served again", func() bool {
		for i := range 32 {
			if client.Set(ctx, fmt.Sprint("key", i), i, 0).Err() != nil {
				return false
			}
		}
		return true
	})
	testenv.Await(t, "the failover is noticed", func() bool { return w.calls.Load() >= 1 })
	waitAgreed(t, nodes[1:])
	w.waitPoll(t) // until then, the client may ask a node that has not noticed the failover yet
	w.checkNoCalls(t)

	nodes[0].Restart()   // the node keeps the role of a master until the others answer
	waitAgreed(t, nodes) // true once the others have told the node that it is a replica
	w.waitPoll(t)
	w.checkNoCalls(t)
	before := w.calls.Load()

	nodes[1].Kill() // the master restarts, or its replica takes over first: both are changes
	nodes[1].Restart()
	testenv.Await(t, "the restart or failover is noticed", func() bool { return w.calls.Load() > before })
}

// TestWatchRedis_MasterLeaves checks that a master that has moved its slots to others counts as a
// change. It becomes a replica and keeps its scripts. So if this master is promoted later, it can
// run the generation that was current when it left, although it lacks writes.
func TestWatchRedis_MasterLeaves(t *testing.T) {
	t.Parallel()
	cluster, ctx := testenv.OwnRedisCluster(t, 1), t.Context() // a master's first replica changes its replication ID
	for _, node := range cluster.Nodes {
		if err := openedRedis(t, "redis://"+node.Addr()).ConfigSet(ctx, "cluster-node-timeout", "60000").Err(); err != nil { // no failover
			t.Fatal(err)
		}
	}
	waitAgreed(t, cluster.Nodes)
	w := watch{client: openedRedis(t, cluster.URL()), timeout: time.Minute}
	w.poll(ctx)
	giver, taker := openedRedis(t, "redis://"+cluster.Nodes[2].Addr()), openedRedis(t, "redis://"+cluster.Nodes[0].Addr())
	for _, s := range giver.ClusterSlots(ctx).Val() {
		if s.Nodes[0].Addr != cluster.Nodes[2].Addr() {
			continue
		}
		for _, command := range [][]any{
			{"cluster", "delslotsrange", s.Start, s.End}, {"cluster", "addslotsrange", s.Start, s.End}, {"cluster", "bumpepoch"},
		} {
			if err := taker.Do(ctx, command...).Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
	testenv.Await(t, "every node knows two masters, and the third is a replica", func() bool {
		for _, node := range cluster.Nodes {
			owners := make(map[string]bool)
			for _, s := range openedRedis(t, "redis://"+node.Addr()).ClusterSlots(ctx).Val() {
				owners[s.Nodes[0].Addr] = true
			}
			if len(owners) != 2 {
				return false
			}
		}
		return field(giver.Info(ctx, "replication").Val(), "role") == "slave"
	})
	if !w.poll(ctx) {
		t.Error("the loss of a master is no change")
	}
	if w.poll(ctx) {
		t.Error("the loss of a master is a change twice")
	}
}

// waitAgreed waits until each of the nodes knows the same three masters that serve.
func waitAgreed(t testing.TB, nodes []*testenv.RedisServer) {
	t.Helper()
	testenv.Await(t, "all nodes know the same masters", func() bool {
		var first string
		for _, node := range nodes {
			client := redis.NewClient(&redis.Options{Addr: node.Addr()})
			text, err := client.ClusterNodes(t.Context()).Result()
			_ = client.Close()
			if err != nil {
				return false
			}
			var masters []string
			for line := range strings.Lines(text) {
				if f := strings.Fields(line); strings.Contains(f[2], "master") && !strings.Contains(f[2], "fail") && len(f) > 8 {
					masters = append(masters, f[0])
				}
			}
			slices.Sort(masters)
			known := strings.Join(masters, " ")
			if first = cmp.Or(first, known); len(masters) != 3 || known != first {
				return false
			}
		}
		return true
	})
}

// TestWatchRedis_Unanswered checks that a master that did not answer for a while, and is unchanged,
// does not count as changed. Otherwise a slow answer would make every count stale.
func TestWatchRedis_Unanswered(t *testing.T) {
	t.Parallel()
	w := watch{client: openedRedis(t, testenv.Redis(t))}
	for n, poll := range []struct {
		timeout time.Duration // 0: no answer comes in time
		differs bool
	}{{0, false}, {time.Minute, true}, {time.Minute, false}, {0, false}, {time.Minute, false}} {
		w.timeout = poll.timeout
		if differs := w.poll(t.Context()); differs != poll.differs {
			t.Errorf("poll %d: differs %v, want %v", n+1, differs, poll.differs)
		}
	}
}

// TestWatchRedis_Dials checks that new connections do not wait for a poll, and that failed ones
// cause none.
func TestWatchRedis_Dials(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		connected := make(chan struct{}, 1)
		var refused error
		dial := dialHook{connected}.DialHook(func(context.Context, string, string) (net.Conn, error) { return nil, refused })
		refused = syscall.ECONNREFUSED
		if _, err := dial(t.Context(), "tcp", "redis:1"); !errors.Is(err, refused) || len(connected) != 0 {
			t.Errorf("%v, %d signals after a failed connection", err, len(connected))
		}
		refused = nil
		dialled := make(chan struct{})
		go func() {
			defer close(dialled)
			for range 3 {
				if _, err := dial(t.Context(), "tcp", "redis:1"); err != nil {
					t.Error(err)
				}
			}
		}()
		synctest.Wait()
		if len(connected) != 1 {
			t.Errorf("%d signals after connections, want 1", len(connected))
		}
		select {
		case <-dialled:
			return
		default:
			t.Error("a connection waits for the poll")
		}
		for range 2 {
			<-connected
		}
		<-dialled
	})
}

// TestWatchRedis_NoRunID checks that the restart of a server without a run ID is noticed by its
// replication ID.
func TestWatchRedis_NoRunID(t *testing.T) {
	t.Parallel()
	server := testenv.OwnRedis(t)
	client := openedRedis(t, server.URL())
	client.AddHook(faults.Around(func(ctx context.Context, cmds []redis.Cmder, run func(context.Context) error) error {
		err := run(ctx)
		for _, cmd := range cmds {
			if info, ok := cmd.(*redis.StringCmd); ok {
				info.SetVal(strings.ReplaceAll(info.Val(), "run_id:", "other_id:"))
			}
		}
		return err
	}))
	w := watch{client: client, timeout: time.Minute}
	w.poll(t.Context())
	if w.poll(t.Context()) {
		t.Error("a server that goes on counts as changed")
	}
	server.Kill()
	server.Restart()
	testenv.Await(t, "the restart is noticed", func() bool { return w.poll(t.Context()) })
}

// TestWatchRedis_InProcess checks that a server without a run ID does not count as changed.
func TestWatchRedis_InProcess(t *testing.T) {
	t.Parallel()
	watchRedis(t, openInProcessRedis(t).Client(), pollInterval).checkNoCalls(t)
}
