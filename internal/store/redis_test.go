package store

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// openedRedis connects to Redis and closes the client when the test ends.
func openedRedis(t testing.TB, redisURL string) redis.UniversalClient {
	t.Helper()
	client, err := OpenRedis(t.Context(), redisURL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	})
	return client
}

func TestOpenRedis_SingleOptions(t *testing.T) {
	t.Parallel()
	client, _, err := redisClient("rediss://us%40er:p%2Fw@h?read_timeout=7s&max_retries=9&pool_size=3&db=4")
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	o := client.(*redis.Client).Options()
	if o.Username != "us@er" || o.Password != "p/w" || o.Addr != "h:6379" || o.DB != 4 || o.TLSConfig == nil {
		t.Errorf("user %q, password %q, address %q, db %d, TLS %v", o.Username, o.Password, o.Addr, o.DB, o.TLSConfig)
	}
	if o.MaxRetries != 0 || o.DialerRetries != 1 || !o.ContextTimeoutEnabled { // the client turns -1 into 0
		t.Errorf("%d retries, %d dials, context timeouts enabled: %v", o.MaxRetries, o.DialerRetries, o.ContextTimeoutEnabled)
	}
	if o.ReadTimeout != 7*time.Second || o.PoolSize != 3 || o.MaxActiveConns != 3 || o.DialTimeout != redisDialTimeout || o.WriteTimeout != redisTimeout {
		t.Errorf("read %v, pool %d, dial %v, write %v", o.ReadTimeout, o.PoolSize, o.DialTimeout, o.WriteTimeout)
	}
}

func TestOpenRedis_SentinelOptions(t *testing.T) {
	t.Parallel()
	client, target, err := redisClient("rediss+sentinel://u:p%40w@h1,h2:7/mine?db=3&sentinel_password=s")
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	o := client.(*redis.Client).Options()
	if o.Username != "u" || o.Password != "p@w" || o.DB != 3 || o.MaxRetries != 0 || o.DialerRetries != 1 || o.TLSConfig == nil {
		t.Errorf("user %q, password %q, db %d, %d retries, %d dials, TLS %v", o.Username, o.Password, o.DB, o.MaxRetries, o.DialerRetries, o.TLSConfig)
	}
	if !o.ContextTimeoutEnabled || o.MaxActiveConns != redisPoolSize || o.ReadTimeout != redisTimeout || o.WriteTimeout != redisTimeout {
		t.Errorf("context timeouts enabled: %v, at most %d connections, read %v, write %v", o.ContextTimeoutEnabled, o.MaxActiveConns, o.ReadTimeout, o.WriteTimeout)
	}
	if want := "Redis master mine through the Sentinels at h1:26379, h2:7"; target != want {
		t.Errorf("target %q, want %q", target, want)
	}
}

func TestOpenRedis_ClusterOptions(t *testing.T) {
	t.Parallel()
	client, _, err := redisClient("rediss+cluster://u:p@h1,[::1]:7?skip_verify=true")
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	o := client.(*redis.ClusterClient).Options()
	if want := []string{"h1:6379", "[::1]:7"}; !slices.Equal(o.Addrs, want) || o.Password != "p" || !o.TLSConfig.InsecureSkipVerify {
		t.Errorf("addresses %q, want %q; password %q; skip verify %v", o.Addrs, want, o.Password, o.TLSConfig.InsecureSkipVerify)
	}
	if o.MaxRedirects != maxRedirects || o.ClusterStateReloadInterval != slotsRefreshInterval {
		t.Errorf("%d redirects; slots are read every %v", o.MaxRedirects, o.ClusterStateReloadInterval)
	}
}

func TestOpenRedis_Unreachable(t *testing.T) {
	t.Parallel()
	address := closedPort(t)
	for _, redisURL := range []string{
		"redis://u:s3same@" + address,
		"redis+sentinel://u:s3same@" + address + "/m?sentinel_password=s3same",
		"redis+cluster://u:s3same@" + address,
	} {
		_, err := OpenRedis(t.Context(), redisURL)
		if err == nil || errors.Is(err, ErrBadURL) || !strings.Contains(err.Error(), address) || strings.Contains(err.Error(), "s3same") {
			t.Errorf("%s: error %v", Redact(redisURL), err)
		}
	}
}

// TestOpenRedis_SilentOnce opens a Redis whose first connection gives no answer.
func TestOpenRedis_SilentOnce(t *testing.T) {
	t.Parallel()
	proxy := newFaultyProxy(t, testenv.OwnRedis(t).Addr())
	proxy.silenceNext.Store(true)
	openedRedis(t, "redis://"+proxy.Addr()+"?read_timeout=200ms")
	if proxy.silenceNext.Load() {
		t.Error("no connection was silent")
	}
}

func TestOpenRedis_Password(t *testing.T) {
	t.Parallel()
	server := testenv.OwnRedis(t, "--requirepass", "p@ss/word")
	openedRedis(t, "redis://:p%40ss%2Fword@"+server.Addr())
	_, err := OpenRedis(t.Context(), "redis://:s3same@"+server.Addr())
	if err == nil || strings.Contains(err.Error(), "s3same") || !strings.Contains(err.Error(), server.Addr()) {
		t.Errorf("wrong password: error %v", err)
	}
}

// faultyProxy is a proxy in front of a Redis. While cut is set, it forwards requests and
// closes a connection as soon as an answer arrives.
type faultyProxy struct {
	testenv.Proxy
	cut         atomic.Bool
	cuts        atomic.Int64 // number of answers lost so far
	silenceNext atomic.Bool  // the next connection gets no answer
}

func newFaultyProxy(t testing.TB, redis string) *faultyProxy {
	t.Helper()
	p := &faultyProxy{}
	p.Start(t, redis, func(client, server net.Conn) {
		silent := p.silenceNext.Swap(false)
		go func() { // it ends with the connections
			defer server.Close()
			_, _ = io.Copy(server, client)
		}()
		answers := bufio.NewReader(server)
		for {
			b, err := answers.ReadByte()
			if err != nil {
				return
			}
			if silent {
				continue
			}
			if p.cut.Load() {
				p.cuts.Add(1)
				return
			}
			if _, err := client.Write([]byte{b}); err != nil {
				return
			}
		}
	})
	return p
}

// TestNoRetryDialer_Silent checks that a TLS handshake with a silent server ends. The context of a
// subscription has no deadline.
func TestNoRetryDialer_Silent(t *testing.T) {
	t.Parallel()
	listener := testenv.Listen(t)
	dialled := make(chan error, 1)
	go func() {
		_, err := noRetryDialer(new(tls.Config))(context.Background(), "tcp", listener.Addr().String())
		dialled <- err
	}()
	if err := testenv.Receive(t, "the end of the handshake", dialled); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
}

// TestLostConnection_LooksFinal checks that the client does not treat the error of a lost
// connection as one after which commands are sent again, in reads or in writes. If a pipeline was
// written in part, its first commands may have run.
func TestLostConnection_LooksFinal(t *testing.T) {
	t.Parallel()
	listener := testenv.Listen(t)
	for _, wrap := range []func(*net.TCPConn) net.Conn{
		func(c *net.TCPConn) net.Conn { return &noRetryConn{c} },
		func(c *net.TCPConn) net.Conn {
			return &noRetryTLSConn{tls.Client(c, &tls.Config{ServerName: "localhost"})}
		},
	} {
		plain, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		conn := wrap(plain.(*net.TCPConn))
		if err := plain.Close(); err != nil {
			t.Fatal(err)
		}
		for name, use := range map[string]func([]byte) (int, error){"read": conn.Read, "write": conn.Write} {
			_, err := use(make([]byte, 1))
			if lost := new(lostError); !errors.As(err, &lost) || errors.As(err, new(net.Error)) || errors.Is(err, net.ErrClosed) {
				t.Errorf("%T, %s: %v", conn, name, err)
			}
		}
	}
}

// TestOpenRedis_LostAnswerIsNotSentTwice checks that the client does not send a
// command again when its answer is lost.
func TestOpenRedis_LostAnswerIsNotSentTwice(t *testing.T) {
	t.Parallel()
	calls := map[string]func(context.Context, redis.UniversalClient) error{
		"command": func(ctx context.Context, c redis.UniversalClient) error { return c.Incr(ctx, "{n}").Err() },
		"pipeline": func(ctx context.Context, c redis.UniversalClient) error {
			_, err := c.Pipelined(ctx, func(p redis.Pipeliner) error {
				p.Incr(ctx, "{n}")
				p.Get(ctx, "{n}")
				return nil
			})
			return err
		},
		"transaction": func(ctx context.Context, c redis.UniversalClient) error {
			_, err := c.TxPipelined(ctx, func(p redis.Pipeliner) error {
				p.Incr(ctx, "{n}")
				return nil
			})
			return err
		},
		"script": func(ctx context.Context, c redis.UniversalClient) error {
			return c.Eval(ctx, "return redis.call('INCR', KEYS[1])", []string{"{n}"}).Err()
		},
	}
	test := func(t *testing.T, direct *redis.Client, proxy *faultyProxy, client redis.UniversalClient) {
		for name, call := range calls {
			t.Run(name, func(t *testing.T) {
				ctx := t.Context()
				// The lost answer may belong to a command that the client sends first on a new
				// connection. Then the tested command has not run.
				testenv.Await(t, "the answer to the command is lost", func() bool {
					// After an error, a cluster client requests the slots at the same time.
					testenv.Await(t, "the client works, and has a second connection", func() bool {
						var calls errgroup.Group
						for range 4 {
							calls.Go(func() error { return call(ctx, client) })
						}
						return calls.Wait() == nil && client.PoolStats().IdleConns > 1
					})
					if err := direct.Set(ctx, "{n}", 0, 0).Err(); err != nil {
						t.Fatal(err)
					}
					before := proxy.cuts.Load()
					proxy.cut.Store(true)
					err := call(ctx, client)
					proxy.cut.Store(false)
					if err == nil || proxy.cuts.Load() == before {
						t.Fatalf("the answer was not lost: error %v, %d cuts", err, proxy.cuts.Load()-before)
					}
					n, err := direct.Get(ctx, "{n}").Int()
					if n > 1 || err != nil {
						t.Fatalf("the command ran %d times, error %v", n, err)
					}
					return n == 1
				})
			})
		}
	}
	t.Run("single", func(t *testing.T) {
		server := testenv.OwnRedis(t)
		proxy := newFaultyProxy(t, server.Addr())
		direct := redis.NewClient(&redis.Options{Addr: server.Addr()})
		defer direct.Close()
		test(t, direct, proxy, openedRedis(t, "redis://"+proxy.Addr()))
	})
	t.Run("cluster", func(t *testing.T) {
		server := testenv.OwnRedis(t, "--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf", "--cluster-port", fmt.Sprint(testenv.Port(t)))
		direct := redis.NewClient(&redis.Options{Addr: server.Addr()})
		defer direct.Close()
		if err := direct.ClusterAddSlotsRange(t.Context(), 0, 16383).Err(); err != nil {
			t.Fatal(err)
		}
		proxy := newFaultyProxy(t, server.Addr())
		_, port, err := net.SplitHostPort(proxy.Addr())
		if err != nil {
			t.Fatal(err)
		}
		// The cluster has one node, which announces the proxy as its address.
		for setting, value := range map[string]string{"cluster-announce-ip": "127.0.0.1", "cluster-announce-port": port} {
			if err := direct.ConfigSet(t.Context(), setting, value).Err(); err != nil {
				t.Fatal(err)
			}
		}
		testenv.Await(t, "the cluster is ready and announces the proxy", func() bool {
			shards := direct.ClusterShards(t.Context()).Val()
			return len(shards) == 1 && fmt.Sprint(shards[0].Nodes[0].Port) == port &&
				strings.Contains(direct.ClusterInfo(t.Context()).Val(), "cluster_state:ok")
		})
		test(t, direct, proxy, openedRedis(t, "redis+cluster://"+proxy.Addr()))
	})
}

func TestRedisWarnings(t *testing.T) {
	t.Parallel()
	server := testenv.OwnRedis(t)
	client := openedRedis(t, server.URL())
	if got := RedisWarnings(t.Context(), client); len(got) != 0 {
		t.Errorf("warnings %q, want none", got)
	}
	if err := client.ConfigSet(t.Context(), "maxmemory-policy", "allkeys-lru").Err(); err != nil {
		t.Fatal(err)
	}
	got := RedisWarnings(t.Context(), client)
	if len(got) != 1 || !strings.Contains(got[0], "allkeys-lru") || !strings.Contains(got[0], server.Addr()) {
		t.Errorf("warnings %q, want one about the policy", got)
	}

	t.Run("cluster", func(t *testing.T) {
		cluster := testenv.OwnRedisCluster(t, 0)
		client := openedRedis(t, cluster.URL())
		node := redis.NewClient(&redis.Options{Addr: cluster.Nodes[1].Addr()})
		defer node.Close()
		if err := node.ConfigSet(t.Context(), "maxmemory-policy", "volatile-ttl").Err(); err != nil {
			t.Fatal(err)
		}
		if got := RedisWarnings(t.Context(), client); len(got) != 1 || !strings.Contains(got[0], cluster.Nodes[1].Addr()) {
			t.Errorf("warnings %q, want one about the second node", got)
		}
	})
	t.Run("embedded", func(t *testing.T) {
		if got := RedisWarnings(t.Context(), openInProcessRedis(t).Client()); len(got) != 0 {
			t.Errorf("warnings %q, want none", got)
		}
	})
}
