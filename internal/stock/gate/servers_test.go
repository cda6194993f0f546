package gate

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/store"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// kinds has the kinds of Redis that the gates run on.
var kinds = []string{"Redis", "Cluster", "Sentinel", "InProcess"}

// clients has one client for each kind of Redis. All tests of the program share
// them, because every gate has keys of its own.
type clients struct {
	mu     sync.Mutex
	opened map[string]redis.UniversalClient
	close  []func() error
}

var shared clients

// client returns the client for the kind. It starts the servers on the first call.
func (c *clients) client(t testing.TB, kind string) redis.UniversalClient {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if client, ok := c.opened[kind]; ok {
		return client
	}
	client, err := c.open(t, kind)
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
		url = unhurried(testenv.Redis(t))
	case "Cluster":
		url = testenv.RedisCluster(t)
	case "Sentinel":
		url = testenv.RedisSentinel(t)
	case "InProcess":
		server, err := store.OpenInProcessRedis(context.Background())
		if err != nil {
			return nil, err
		}
		defer func() { c.close = append(c.close, server.Close) }() // after its client
		url = unhurried(server.URL())                              // it runs scripts slowly, and slower with the race detector
	}
	client, err := store.OpenRedis(context.Background(), url)
	if err != nil {
		return nil, err
	}
	c.close = append(c.close, client.Close)
	return client, nil
}

// unhurried returns the URL with timeouts that a busy machine keeps.
func unhurried(url string) string {
	separator := "?"
	if strings.Contains(url, "?") {
		separator = "&"
	}
	return url + separator + "read_timeout=20s&write_timeout=20s"
}

func (c *clients) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, close := range c.close {
		_ = close()
	}
}

// connect opens another client of one server.
func connect(addr string) (redis.UniversalClient, error) {
	return store.OpenRedis(context.Background(), "redis://"+addr)
}

// script0 returns a gate with generation 0 loaded. A new gate uses generation 0, and
// the small epochs of the tests belong to it.
func script0(client redis.UniversalClient, ledger uuid.UUID) *Script {
	g := NewScript(client, ledger)
	load0(&g.counts)
	return g
}

// readWrite0 returns a gate with generation 0 loaded.
func readWrite0(client redis.UniversalClient, ledger uuid.UUID) *ReadWrite {
	g := NewReadWrite(client, ledger)
	load0(&g.counts)
	return g
}

func load0(c *counts) {
	if err := c.Load(context.Background(), 0); err != nil {
		panic(err)
	}
}
