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

// watched runs WatchRedis until the test ends and counts its calls.
func watched(t testing.TB, client redis.UniversalClient, every time.Duration) *atomic.Int64 {
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
			t.Error("WatchRedis does not end with its context")
		}
	})
	return &calls
}

// quiet fails the test if changed is called while some looks pass.
func quiet(t testing.TB, calls *atomic.Int64, every time.Duration) {
	t.Helper()
	before := calls.Load()
	ticks := time.NewTicker(every)
	defer ticks.Stop()
	for range 5 {
		<-ticks.C
	}
	if n := calls.Load() - before; n != 0 {
		t.Fatalf("called %d times though nothing happened", n)
	}
}

const often = 100 * time.Millisecond

func TestWatchRedis_Restart(t *testing.T) {
	server := testenv.OwnRedis(t)
	calls := watched(t, openedRedis(t, server.URL()), often)
	quiet(t, calls, often)
	for n := int64(1); n <= 2; n++ {
		server.Kill()
		quiet(t, calls, often) // out of reach is not changed yet
		server.Restart()
		eventually(t, 10*time.Second, "the restart is seen", func() bool { return calls.Load() == n })
		quiet(t, calls, often)
	}
}

// Between two looks far apart, a new connection is what gives a restart away.
func TestWatchRedis_LooksAtOnceAfterAReconnect(t *testing.T) {
	server := testenv.OwnRedis(t)
	client := openedRedis(t, server.URL())
	calls := watched(t, client, time.Hour)
	eventually(t, 5*time.Second, "the first look is over", func() bool {
		return strings.Contains(client.Info(t.Context(), "commandstats").Val(), "cmdstat_info:calls=")
	})
	server.Kill()
	server.Restart()
	eventually(t, 10*time.Second, "the restart is seen", func() bool {
		_ = client.Ping(t.Context()).Err() // as the gate's calls do
		return calls.Load() == 1
	})
}

func TestWatchRedis_RoleChanges(t *testing.T) {
	server, other := testenv.OwnRedis(t), testenv.OwnRedis(t)
	client := openedRedis(t, server.URL())
	calls := watched(t, client, often)
	quiet(t, calls, often)
	host, port, _ := strings.Cut(other.Addr(), ":")
	if err := client.SlaveOf(t.Context(), host, port).Err(); err != nil {
		t.Fatal(err)
	}
	eventually(t, 10*time.Second, "the demotion is seen", func() bool { return calls.Load() >= 1 })
	eventually(t, 10*time.Second, "the replica is in step", func() bool {
		return strings.Contains(client.Info(t.Context(), "replication").Val(), "master_link_status:up")
	})
	seen := calls.Load()
	if err := client.SlaveOf(t.Context(), "NO", "ONE").Err(); err != nil {
		t.Fatal(err)
	}
	eventually(t, 10*time.Second, "the promotion is seen", func() bool { return calls.Load() > seen })
}

func TestWatchRedis_UnreachableAtFirst(t *testing.T) {
	server := testenv.OwnRedis(t)
	client := openedRedis(t, server.URL())
	server.Kill()
	calls := watched(t, client, often)
	quiet(t, calls, often)
	server.Restart()
	eventually(t, 10*time.Second, "the server is seen", func() bool { return calls.Load() == 1 })
}

func TestWatchRedis_SentinelFailover(t *testing.T) {
	ring := testenv.OwnRedisSentinel(t)
	ringURL, nodes := ring.URL(), []*testenv.RedisServer{ring.Master, ring.Replica}
	client := openedRedis(t, ringURL)
	calls := watched(t, client, often)
	quiet(t, calls, often)
	before := client.Info(t.Context(), "server").Val()

	nodes[0].Kill()
	eventually(t, 30*time.Second, "the client writes to the new master", func() bool {
		return client.Set(t.Context(), "k", "v", 0).Err() == nil
	})
	if after := client.Info(t.Context(), "server").Val(); field(after, "run_id") == field(before, "run_id") {
		t.Fatal("no failover happened")
	}
	eventually(t, 10*time.Second, "the failover is seen", func() bool { return calls.Load() >= 1 })
	seen := calls.Load()
	nodes[0].Restart() // it comes back as a replica, which is none of our business
	quiet(t, calls, often)
	if calls.Load() != seen {
		t.Error("the old master's return counts as a change")
	}
}

func field(text, name string) string {
	_, rest, _ := strings.Cut(text, name+":")
	value, _, _ := strings.Cut(rest, "\r\n")
	return value
}

func TestWatchRedis_Cluster(t *testing.T) {
	cluster := testenv.OwnRedisCluster(t, 1)
	clusterURL, nodes := cluster.URL(), cluster.Nodes
	client := openedRedis(t, clusterURL)
	calls := watched(t, client, often)
	quiet(t, calls, often)
	ctx := t.Context()

	nodes[0].Kill() // one of the first three, which are the masters
	eventually(t, 60*time.Second, "every slot is served again", func() bool {
		for i := range 32 {
			if client.Set(ctx, fmt.Sprint("key", i), i, 0).Err() != nil {
				return false
			}
		}
		return true
	})
	eventually(t, 10*time.Second, "the failover is seen", func() bool { return calls.Load() >= 1 })
	quiet(t, calls, often)

	nodes[0].Restart() // comes back as a replica
	quiet(t, calls, often)
	seen := calls.Load()

	nodes[1].Kill() // a master restarts before anyone takes its place, or another does: either is a change
	nodes[1].Restart()
	eventually(t, 60*time.Second, "the restart is seen", func() bool { return calls.Load() > seen })
}

func TestWatchRedis_EmbeddedIsNotWatched(t *testing.T) {
	quiet(t, watched(t, inProcess(t).Client(), often), often)
}
