package gate

import (
	"context"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/store"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// kinds of Redis that the gates run on.
var kinds = []string{"Redis", "Cluster", "Sentinel", "InProcess"}

// clients are the clients of the test program, one a kind. Tests share them:
// every gate has keys of its own.
type clients struct {
	mu     sync.Mutex
	opened map[string]redis.UniversalClient
	close  []func() error
}

var shared clients

// client returns the client of the kind's servers.
func (c *clients) client(t testing.TB, kind string) redis.UniversalClient {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if client, ok := c.opened[kind]; ok {
		return client
	}
	client, err := c.open(t, kind)
	if err == nil {
		err = loadTestScripts(client)
	}
	if err != nil {
		t.Fatal(err)
	}
	if c.opened == nil {
		c.opened = make(map[string]redis.UniversalClient)
	}
	c.opened[kind] = client
	return client
}

func (c *clients) open(t testing.TB, kind string) (redis.UniversalClient, error) {
	var url string
	switch kind {
	case "Redis":
		url = testenv.Redis(t)
	case "Cluster":
		url = testenv.RedisCluster(t)
	case "Sentinel":
		url = testenv.RedisSentinel(t)
	case "InProcess":
		server, err := store.OpenInProcessRedis(context.Background())
		if err != nil {
			return nil, err
		}
		c.close = append(c.close, server.Close)
		return server.Client(), nil
	}
	client, err := store.OpenRedis(context.Background(), url)
	if err != nil {
		return nil, err
	}
	c.close = append(c.close, client.Close)
	return client, nil
}

func (c *clients) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, close := range c.close {
		_ = close()
	}
}

// connect opens a client of one server, for another process or another test.
func connect(addr string) (redis.UniversalClient, error) {
	client, err := store.OpenRedis(context.Background(), "redis://"+addr)
	if err != nil {
		return nil, err
	}
	return client, loadTestScripts(client)
}

// loadTestScripts loads generation 0, to which the small epochs of the tests
// belong, and under which a gate runs that was not told another.
func loadTestScripts(client redis.UniversalClient) error {
	c := newCounts(client, uuid.New())
	return c.Load(context.Background(), 0)
}
