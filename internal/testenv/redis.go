package testenv

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// The programs of the Redis servers.
var (
	redisServer   = dependency{"redis-server", "redis-server", "HOLDFAST_TEST_REDIS"}
	redisCLI      = dependency{"redis-cli", "redis-server redis-tools", "HOLDFAST_TEST_REDIS_CLUSTER"}
	redisSentinel = dependency{"redis-server", "redis-server", "HOLDFAST_TEST_REDIS_SENTINEL"}
)

// Redis returns the URL of a Redis that all tests of the process share. A test
// must not empty it.
func Redis(t T) string {
	t.Helper()
	return sharedURL(t, "HOLDFAST_TEST_REDIS", "Redis", func() (*RedisServer, error) { return startRedis() }, (*RedisServer).URL)
}

// RedisCluster returns the URL of a cluster of three masters that all tests of
// the process share.
func RedisCluster(t T) string {
	t.Helper()
	return sharedURL(t, "HOLDFAST_TEST_REDIS_CLUSTER", "Redis Cluster",
		func() (*RedisClusterServers, error) { return startCluster(0) }, (*RedisClusterServers).URL)
}

// RedisSentinel returns the URL of a master named mymaster, with a replica and
// three Sentinels, that all tests of the process share.
func RedisSentinel(t T) string {
	t.Helper()
	return sharedURL(t, "HOLDFAST_TEST_REDIS_SENTINEL", "Redis Sentinel",
		func() (*RedisSentinels, error) { return startSentinelGroup(false) }, (*RedisSentinels).URL)
}

// sharedURL returns the value of the variable. If the variable is not set, it
// returns the URL of the shared server, which the first call starts.
func sharedURL[S any](t T, variable, kind string, start func() (S, error), url func(S) string) string {
	t.Helper()
	if url := os.Getenv(variable); url != "" {
		return url
	}
	server, err := shared(&env, kind, start)
	check(t, kind, err)
	return url(server)
}

// RedisServer is a redis-server. It keeps nothing on disk.
type RedisServer struct{ Server }

// OwnRedis starts a Redis for this test, with these additional arguments.
func OwnRedis(t T, args ...string) *RedisServer {
	t.Helper()
	return own(t, "Redis", func() (*RedisServer, error) { return startRedis(args...) })
}

// OwnRedlock starts three independent Redis servers for this test, and returns their addresses for
// the flag --redlock.
func OwnRedlock(t T) string {
	t.Helper()
	return OwnRedis(t).Addr() + "," + OwnRedis(t).Addr() + "," + OwnRedis(t).Addr()
}

// URL returns the server's URL for the flag --redis.
func (s *RedisServer) URL() string { return "redis://" + s.Addr() + "/0" }

func startRedis(args ...string) (*RedisServer, error) {
	path, err := lookPath(redisServer)
	if err != nil {
		return nil, err
	}
	folder, port, err := env.newPlace("redis", nil)
	if err != nil {
		return nil, err
	}
	args = append([]string{
		path, "--port", fmt.Sprint(port.number), "--bind", "127.0.0.1", "--dir", folder,
		"--save", "", "--appendonly", "no", "--repl-diskless-sync-delay", "0",
	}, args...)
	s := &RedisServer{newServer("Redis", folder, args, port)}
	s.answers = func(ctx context.Context) error { return ping(ctx, s.Addr()) }
	return s, s.start()
}

// ping returns nil if the server answers. A server that asks for a password
// answers too.
func ping(ctx context.Context, addr string) error {
	client := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1})
	defer client.Close()
	err := client.Ping(ctx).Err()
	if redis.HasErrorPrefix(err, "NOAUTH") {
		return nil
	}
	return err
}

// deadAfter returns how long a server may not answer before its cluster, or the Sentinels, consider
// it dead. If the test lets a server fail, this is as long as a test can wait. Otherwise it is much
// longer, because a healthy server on a busy machine may not answer for a second.
func deadAfter(fails bool) time.Duration {
	if fails {
		return 3 * time.Second
	}
	return time.Minute
}

// RedisClusterServers are the nodes of one cluster.
type RedisClusterServers struct {
	// Nodes are the three masters followed by their replicas.
	Nodes []*RedisServer
}

// OwnRedisCluster starts a cluster for this test: three masters, each with this
// number of replicas.
func OwnRedisCluster(t T, replicas int) *RedisClusterServers {
	t.Helper()
	return own(t, "Redis Cluster", func() (*RedisClusterServers, error) { return startCluster(replicas) })
}

func (c *RedisClusterServers) end() {
	for _, node := range c.Nodes {
		node.end()
	}
}

// URL returns the cluster's URL for the flag --redis.
func (c *RedisClusterServers) URL() string {
	var addrs []string
	for _, node := range c.Nodes[:3] {
		addrs = append(addrs, node.Addr())
	}
	return "redis+cluster://" + strings.Join(addrs, ",")
}

func startCluster(replicas int) (*RedisClusterServers, error) {
	cli, err := lookPath(redisCLI)
	if err != nil {
		return nil, err
	}
	c := &RedisClusterServers{}
	create := []string{"--cluster", "create"}
	for range 3 + 3*replicas {
		bus, err := newPort() // the default bus port, port+10000, is in the range of outgoing connections
		if err != nil {
			return nil, err
		}
		node, err := startRedis("--cluster-port", fmt.Sprint(bus.number),
			"--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf", "--cluster-node-timeout", "1000")
		if err != nil {
			return nil, err
		}
		node.ports = append(node.ports, bus)
		c.Nodes = append(c.Nodes, node)
		create = append(create, node.Addr())
	}
	// A short timeout speeds up the creation of a cluster; the final timeout is set afterwards.
	create = append(create, "--cluster-replicas", fmt.Sprint(replicas), "--cluster-yes")
	if out, err := exec.Command(cli, create...).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("redis-cli --cluster create: %w: %s", err, out)
	}
	for _, node := range c.Nodes {
		err := await(maxStart, func(ctx context.Context) error {
			client := redis.NewClient(&redis.Options{Addr: node.Addr()})
			defer client.Close()
			if info := client.ClusterInfo(ctx).Val(); !strings.Contains(info, "cluster_state:ok") {
				return fmt.Errorf("the cluster is not ready: %s", info)
			}
			return client.ConfigSet(ctx, "cluster-node-timeout", fmt.Sprint(deadAfter(replicas > 0).Milliseconds())).Err()
		})
		if err != nil {
			return nil, err
		}
	}
	return c, nil
}

// RedisSentinels are a master named mymaster, its replica, and three Sentinels
// that monitor them.
type RedisSentinels struct {
	Master, Replica *RedisServer
	Sentinels       []*RedisServer
}

// OwnRedisSentinel starts a master, a replica and three Sentinels for this test.
// The Sentinels replace a master that has not answered for three seconds.
func OwnRedisSentinel(t T) *RedisSentinels {
	t.Helper()
	return own(t, "Redis Sentinel", func() (*RedisSentinels, error) { return startSentinelGroup(true) })
}

func (r *RedisSentinels) end() {
	for _, s := range append(r.Sentinels, r.Master, r.Replica) {
		s.end()
	}
}

// URL returns the URL of the master through the Sentinels, for the flag --redis.
func (r *RedisSentinels) URL() string {
	var addrs []string
	for _, s := range r.Sentinels {
		addrs = append(addrs, s.Addr())
	}
	return "redis+sentinel://" + strings.Join(addrs, ",") + "/mymaster"
}

// Detach makes the replica replicate from an address where no server listens. The replica then
// misses all later writes. They are lost if the master is killed and the replica promoted. (A
// replica that is only stopped would read them from its socket.) When Detach returns, the master
// has lost its replica. The Sentinels reattach the replica after a while, so write and kill the
// master at once.
func (r *RedisSentinels) Detach() {
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	replica := redis.NewClient(&redis.Options{Addr: r.Replica.Addr()})
	defer replica.Close()
	must(replica.ReplicaOf(ctx, "127.0.0.1", "1").Err())
	master := redis.NewClient(&redis.Options{Addr: r.Master.Addr()})
	defer master.Close()
	must(await(Patience, func(ctx context.Context) error {
		info, err := master.Info(ctx, "replication").Result()
		if err == nil && !strings.Contains(info, "connected_slaves:0") {
			err = fmt.Errorf("the replica is still connected to the master: %s", info)
		}
		return err
	}))
}

// startSentinelGroup starts a master, a replica and Sentinels. If fails is true, the test
// lets the master fail.
func startSentinelGroup(fails bool) (*RedisSentinels, error) {
	r := &RedisSentinels{}
	var err error
	if r.Master, err = startRedis(); err != nil {
		return nil, err
	}
	if r.Replica, err = startRedis("--replicaof", fmt.Sprintf("127.0.0.1 %d", r.Master.ports[0].number)); err != nil {
		return nil, err
	}
	for range 3 {
		s, err := startSentinel(r.Master, deadAfter(fails))
		if err != nil {
			return nil, err
		}
		r.Sentinels = append(r.Sentinels, s)
	}
	for _, s := range r.Sentinels {
		if err := await(maxStart, func(ctx context.Context) error { return quorum(ctx, s.Addr()) }); err != nil {
			return nil, err
		}
	}
	return r, nil
}

func startSentinel(master *RedisServer, patience time.Duration) (*RedisServer, error) {
	path, err := lookPath(redisSentinel)
	if err != nil {
		return nil, err
	}
	folder, port, err := env.newPlace("sentinel", nil)
	if err != nil {
		return nil, err
	}
	conf := filepath.Join(folder, "sentinel.conf")
	text := fmt.Sprintf(`port %d
bind 127.0.0.1
dir %s
sentinel monitor mymaster 127.0.0.1 %d 2
sentinel down-after-milliseconds mymaster %d
sentinel failover-timeout mymaster 3000
`, port.number, folder, master.ports[0].number, patience.Milliseconds())
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		return nil, err
	}
	s := &RedisServer{newServer("Sentinel", folder, []string{path, conf, "--sentinel"}, port)}
	s.answers = func(ctx context.Context) error { return ping(ctx, s.Addr()) }
	return s, s.start()
}

// quorum returns nil if the Sentinel reports three usable Sentinels and one replica
// that is in sync.
func quorum(ctx context.Context, addr string) error {
	client := redis.NewSentinelClient(&redis.Options{Addr: addr})
	defer client.Close()
	ok, err := client.CkQuorum(ctx, "mymaster").Result()
	if err != nil {
		return err
	}
	replicas, err := client.Replicas(ctx, "mymaster").Result()
	if err != nil {
		return err
	}
	if !strings.HasPrefix(ok, "OK 3") || len(replicas) != 1 || replicas[0]["master-link-status"] != "ok" {
		return fmt.Errorf("the Sentinels are not ready: %s, replicas %v", ok, replicas)
	}
	return nil
}
