package store

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// watchRedis runs WatchRedis until the test ends and returns how often it has
// called changed.
func watchRedis(t testing.TB, client redis.UniversalClient, every time.Duration) *atomic.Int64 {
	t.Helper()
	var calls atomic.Int64
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		WatchRedis(ctx, client, every, func() { calls.Add(1) })
	}()
	t.Cleanup(func() {
		cancel()
		select {
		case <-done:
		case <-time.After(5 * time.Second):
			t.Error("WatchRedis did not return after its context ended")
		}
	})
	return &calls
}

// checkNoCalls fails the test if changed is called during five polls.
func checkNoCalls(t testing.TB, calls *atomic.Int64) {
	t.Helper()
	before := calls.Load()
	ticks := time.NewTicker(pollInterval)
	defer ticks.Stop()
	for range 5 {
		<-ticks.C
	}
	if n := calls.Load() - before; n != 0 {
		t.Fatalf("changed was called %d times without a change", n)
	}
}

// pollInterval is the interval of WatchRedis in most tests.
const pollInterval = 100 * time.Millisecond

func TestWatchRedis_Restart(t *testing.T) {
	server := testenv.OwnRedis(t)
	calls := watchRedis(t, openedRedis(t, server.URL()), pollInterval)
	checkNoCalls(t, calls)
	for n := int64(1); n <= 2; n++ {
		server.Kill()
		checkNoCalls(t, calls) // an unreachable server does not count as changed
		server.Restart()
		eventually(t, 10*time.Second, "the restart is noticed", func() bool { return calls.Load() == n })
		checkNoCalls(t, calls)
	}
}

// TestWatchRedis_PollsAfterReconnect polls once an hour, so only the client's new
// connection can reveal the restart.
func TestWatchRedis_PollsAfterReconnect(t *testing.T) {
	server := testenv.OwnRedis(t)
	client := openedRedis(t, server.URL())
	calls := watchRedis(t, client, time.Hour)
	eventually(t, 5*time.Second, "the first poll has run", func() bool {
		return strings.Contains(client.Info(t.Context(), "commandstats").Val(), "cmdstat_info:calls=")
	})
	server.Kill()
	server.Restart()
	eventually(t, 10*time.Second, "the restart is noticed", func() bool {
		_ = client.Ping(t.Context()).Err() // reconnects, as the gate's calls do
		return calls.Load() == 1
	})
}

func TestWatchRedis_RoleChanges(t *testing.T) {
	server, other := testenv.OwnRedis(t), testenv.OwnRedis(t)
	client := openedRedis(t, server.URL())
	calls := watchRedis(t, client, pollInterval)
	checkNoCalls(t, calls)
	host, port, _ := strings.Cut(other.Addr(), ":")
	if err := client.SlaveOf(t.Context(), host, port).Err(); err != nil {
		t.Fatal(err)
	}
	eventually(t, 10*time.Second, "the demotion is noticed", func() bool { return calls.Load() >= 1 })
	eventually(t, 10*time.Second, "the replica is in sync", func() bool {
		return strings.Contains(client.Info(t.Context(), "replication").Val(), "master_link_status:up")
	})
	before := calls.Load()
	if err := client.SlaveOf(t.Context(), "NO", "ONE").Err(); err != nil {
		t.Fatal(err)
	}
	eventually(t, 10*time.Second, "the promotion is noticed", func() bool { return calls.Load() > before })
}

func TestWatchRedis_UnreachableAtFirst(t *testing.T) {
	server := testenv.OwnRedis(t)
	client := openedRedis(t, server.URL())
	server.Kill()
	calls := watchRedis(t, client, pollInterval)
	checkNoCalls(t, calls)
	server.Restart()
	eventually(t, 10*time.Second, "the server's first answer is noticed", func() bool { return calls.Load() == 1 })
}

func TestWatchRedis_SentinelFailover(t *testing.T) {
	servers := testenv.OwnRedisSentinel(t)
	client := openedRedis(t, servers.URL())
	calls := watchRedis(t, client, pollInterval)
	checkNoCalls(t, calls)
	infoBefore := client.Info(t.Context(), "server").Val()

	servers.Master.Kill()
	eventually(t, 30*time.Second, "the client writes to the new master", func() bool {
		return client.Set(t.Context(), "k", "v", 0).Err() == nil
	})
	if after := client.Info(t.Context(), "server").Val(); field(after, "run_id") == field(infoBefore, "run_id") {
		t.Fatal("no failover happened")
	}
	eventually(t, 10*time.Second, "the failover is noticed", func() bool { return calls.Load() >= 1 })
	before := calls.Load()
	servers.Master.Restart() // it comes back as a replica: no master changes
	checkNoCalls(t, calls)
	if calls.Load() != before {
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
	cluster := testenv.OwnRedisCluster(t, 1)
	nodes := cluster.Nodes
	client := openedRedis(t, cluster.URL())
	calls := watchRedis(t, client, pollInterval)
	checkNoCalls(t, calls)
	ctx := t.Context()

	nodes[0].Kill() // the first three nodes are the masters
	eventually(t, 60*time.Second, "every slot is served again", func() bool {
		for i := range 32 {
			if client.Set(ctx, fmt.Sprint("key", i), i, 0).Err() != nil {
				return false
			}
		}
		return true
	})
	eventually(t, 10*time.Second, "the failover is noticed", func() bool { return calls.Load() >= 1 })
	checkNoCalls(t, calls)

	nodes[0].Restart() // comes back as a replica
	checkNoCalls(t, calls)
	before := calls.Load()

	nodes[1].Kill() // the master restarts, or its replica takes over first: both are changes
	nodes[1].Restart()
	eventually(t, 60*time.Second, "the restart or failover is noticed", func() bool { return calls.Load() > before })
}

func TestWatchRedis_EmbeddedIsNotWatched(t *testing.T) {
	checkNoCalls(t, watchRedis(t, openInProcessRedis(t).Client(), pollInterval))
}
