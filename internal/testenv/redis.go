package testenv

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/redis/go-redis/v9"
)

// What runs the Redis servers, and how to get it.
var (
	redisServer   = missing{"redis-server", "redis-server", "HOLDFAST_TEST_REDIS"}
	redisCLI      = missing{"redis-cli", "redis-server redis-tools", "HOLDFAST_TEST_REDIS_CLUSTER"}
	redisSentinel = missing{"redis-server", "redis-server", "HOLDFAST_TEST_REDIS_SENTINEL"}
)

// Redis returns the URL of a Redis that all tests of the process share. Nobody
// may empty it.
func Redis(t T) string {
	t.Helper()
	return sharedURL(t, "HOLDFAST_TEST_REDIS", "Redis", func() (string, error) {
		s, err := startRedis(redisServer)
		if err != nil {
			return "", err
		}
		return s.URL(), nil
	})
}

// RedisCluster returns the URL of a cluster of three masters that all tests of
// the process share.
func RedisCluster(t T) string {
	t.Helper()
	return sharedURL(t, "HOLDFAST_TEST_REDIS_CLUSTER", "Redis Cluster", func() (string, error) {
		c, err := startCluster(0)
		if err != nil {
			return "", err
		}
		return c.URL(), nil
	})
}

// RedisSentinel returns the URL of a master with a replica and three Sentinels,
// called mymaster, that all tests of the process share.
func RedisSentinel(t T) string {
	t.Helper()
	return sharedURL(t, "HOLDFAST_TEST_REDIS_SENTINEL", "Redis Sentinel", func() (string, error) {
		r, err := startRing()
		if err != nil {
			return "", err
		}
		return r.URL(), nil
	})
}

// sharedURL is what the variable names, or else the URL of the server that the
// first call starts.
func sharedURL(t T, variable, kind string, start func() (string, error)) string {
	t.Helper()
	if url := os.Getenv(variable); url != "" {
		return url
	}
	url, err := shared(&here, kind, start)
	check(t, kind, err)
	return url
}

// RedisServer is one redis-server. It keeps nothing on disk.
type RedisServer struct {
	Server
	port *port
}

// OwnRedis starts a Redis for this test, with further arguments.
func OwnRedis(t T, args ...string) *RedisServer {
	t.Helper()
	s, err := startRedis(redisServer, args...)
	check(t, "Redis", err)
	t.Cleanup(s.end)
	return s
}

// Addr is host:port.
func (s *RedisServer) Addr() string { return s.port.addr() }

// URL is as --redis takes it.
func (s *RedisServer) URL() string { return "redis://" + s.Addr() + "/0" }

func (s *RedisServer) end() {
	s.process.end()
	s.port.release()
}

func startRedis(program missing, args ...string) (*RedisServer, error) {
	path, err := lookPath(program)
	if err != nil {
		return nil, err
	}
	port, err := newPort()
	if err != nil {
		return nil, err
	}
	folder, err := here.newFolder("redis")
	if err != nil {
		return nil, err
	}
	args = append([]string{
		path, "--port", fmt.Sprint(port.number), "--bind", "127.0.0.1", "--dir", folder,
		"--save", "", "--appendonly", "no", "--repl-diskless-sync-delay", "0",
	}, args...)
	s := &RedisServer{port: port, Server: newServer("Redis", folder, args)}
	s.answers = func(ctx context.Context) error { return ping(ctx, s.Addr()) }
	return s, s.start()
}

// ping asks a server whether it is there. One that wants a password is.
func ping(ctx context.Context, addr string) error {
	client := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1})
	defer client.Close()
	err := client.Ping(ctx).Err()
	if redis.HasErrorPrefix(err, "NOAUTH") {
		return nil
	}
	return err
}

// RedisClusterServers are the nodes of one cluster.
type RedisClusterServers struct {
	// Nodes are the masters, and after them a replica of each where there are
	// any.
	Nodes []*RedisServer
}

// OwnRedisCluster starts a cluster of three masters, each with so many
// replicas, for this test.
func OwnRedisCluster(t T, replicas int) *RedisClusterServers {
	t.Helper()
	c, err := startCluster(replicas)
	check(t, "Redis Cluster", err)
	t.Cleanup(func() {
		for _, node := range c.Nodes {
			node.end()
		}
	})
	return c
}

// URL is as --redis takes it.
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
		bus, err := newPort() // its default would be beyond the ports that are ours
		if err != nil {
			return nil, err
		}
		node, err := startRedis(redisServer, "--cluster-port", fmt.Sprint(bus.number),
			"--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf", "--cluster-node-timeout", "1000")
		if err != nil {
			return nil, err
		}
		c.Nodes = append(c.Nodes, node)
		create = append(create, node.Addr())
	}
	create = append(create, "--cluster-replicas", fmt.Sprint(replicas), "--cluster-yes")
	if out, err := exec.Command(cli, create...).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("redis-cli --cluster create: %w: %s", err, out)
	}
	for _, node := range c.Nodes {
		err := await(startLimit, func(ctx context.Context) error {
			client := redis.NewClient(&redis.Options{Addr: node.Addr()})
			defer client.Close()
			if info := client.ClusterInfo(ctx).Val(); !strings.Contains(info, "cluster_state:ok") {
				return fmt.Errorf("the cluster is not ready: %s", info)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return c, nil
}

// RedisSentinels are a master called mymaster, its replica, and three Sentinels
// that watch them.
type RedisSentinels struct {
	Master, Replica *RedisServer
	Sentinels       []*RedisServer
}

// OwnRedisSentinel starts a master, a replica and three Sentinels for this
// test. A master that is gone for half a second is replaced.
func OwnRedisSentinel(t T) *RedisSentinels {
	t.Helper()
	r, err := startRing()
	check(t, "Redis Sentinel", err)
	t.Cleanup(func() {
		for _, s := range append(r.Sentinels, r.Master, r.Replica) {
			s.end()
		}
	})
	return r
}

// URL is as --redis takes it.
func (r *RedisSentinels) URL() string {
	var addrs []string
	for _, s := range r.Sentinels {
		addrs = append(addrs, s.Addr())
	}
	return "redis+sentinel://" + strings.Join(addrs, ",") + "/mymaster"
}

// Detach has the replica follow nobody that is there, so that it misses what is
// written from now on and, once the master is killed, brings back a stale past.
// (One that is merely stopped would catch up from its socket.) When it returns
// the master has lost its replica. The Sentinels reattach it if they have the
// time: write, and kill the master, at once.
func (r *RedisSentinels) Detach() {
	ctx, cancel := context.WithTimeout(context.Background(), goneLimit)
	defer cancel()
	replica := redis.NewClient(&redis.Options{Addr: r.Replica.Addr()})
	defer replica.Close()
	must(replica.ReplicaOf(ctx, "127.0.0.1", "1").Err())
	master := redis.NewClient(&redis.Options{Addr: r.Master.Addr()})
	defer master.Close()
	must(await(goneLimit, func(ctx context.Context) error {
		info, err := master.Info(ctx, "replication").Result()
		if err == nil && !strings.Contains(info, "connected_slaves:0") {
			err = fmt.Errorf("the master still has its replica: %s", info)
		}
		return err
	}))
}

func startRing() (*RedisSentinels, error) {
	r := &RedisSentinels{}
	var err error
	if r.Master, err = startRedis(redisServer); err != nil {
		return nil, err
	}
	if r.Replica, err = startRedis(redisServer, "--replicaof", fmt.Sprintf("127.0.0.1 %d", r.Master.port.number)); err != nil {
		return nil, err
	}
	for range 3 {
		s, err := startSentinel(r.Master)
		if err != nil {
			return nil, err
		}
		r.Sentinels = append(r.Sentinels, s)
	}
	for _, s := range r.Sentinels {
		if err := await(startLimit, func(ctx context.Context) error { return quorum(ctx, s.Addr()) }); err != nil {
			return nil, err
		}
	}
	return r, nil
}

func startSentinel(master *RedisServer) (*RedisServer, error) {
	path, err := lookPath(redisSentinel)
	if err != nil {
		return nil, err
	}
	port, err := newPort()
	if err != nil {
		return nil, err
	}
	folder, err := here.newFolder("sentinel")
	if err != nil {
		return nil, err
	}
	conf := filepath.Join(folder, "sentinel.conf")
	text := fmt.Sprintf(`port %d
bind 127.0.0.1
dir %s
sentinel monitor mymaster 127.0.0.1 %d 2
sentinel down-after-milliseconds mymaster 500
sentinel failover-timeout mymaster 3000
`, port.number, folder, master.port.number)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		return nil, err
	}
	s := &RedisServer{port: port, Server: newServer("Sentinel", folder, []string{path, conf, "--sentinel"})}
	s.answers = func(ctx context.Context) error { return ping(ctx, s.Addr()) }
	return s, s.start()
}

// quorum asks a Sentinel whether all three see the master, and its replica.
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
