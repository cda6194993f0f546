package gate

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/store"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// kinds has the kinds of Redis that the gates run on.
var kinds = []string{"Redis", "Cluster", "Sentinel", "InProcess"}

// thoroughly returns all kinds in a thorough run, and otherwise the named ones.
func thoroughly(named ...string) []string {
	if testenv.Thorough() {
		return kinds
	}
	return named
}

// clients has one client for each kind of Redis. All tests of the program share them, because every
// gate has its own keys.
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
		defer func() { c.close = append(c.close, server.Close) }() // closed after the server's client
		url = unhurried(server.URL())                              // miniredis runs scripts slowly, and slower with the race detector
	}
	client, err := store.OpenRedis(context.Background(), url)
	if err != nil {
		return nil, err
	}
	c.close = append(c.close, client.Close)
	return client, nil
}

// unhurried returns the URL with timeouts that are long enough for a busy machine.
func unhurried(url string) string {
	separator := "?"
	if strings.Contains(url, "?") {
		separator = "&"
	}
	return url + separator + "read_timeout=2m&write_timeout=2m"
}

func (c *clients) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, close := range c.close {
		_ = close()
	}
}

// counted is a gate with its counter. The other types are the same for one type of gate.
type (
	counted struct {
		*Counter
		Gate
	}
	countedScript struct {
		*Counter
		*Script
	}
	countedReadWrite struct {
		*Counter
		*ReadWrite
	}
	countedSegmented struct {
		*Counter
		*Segmented
	}
	countedQueue struct {
		*Counter
		*Queue
	}
)

func (g countedScript) any() counted    { return counted{g.Counter, g.Script} }
func (g countedReadWrite) any() counted { return counted{g.Counter, g.ReadWrite} }
func (g countedSegmented) any() counted { return counted{g.Counter, g.Segmented} }
func (g countedQueue) any() counted     { return counted{g.Counter, g.Queue} }

// counter0 returns a counter with generation 0 loaded. A new counter uses generation 0,
// and the small epochs of the tests belong to it.
func counter0(client redis.UniversalClient, ledger uuid.UUID, layout Layout) *Counter {
	c := NewCounter(client, ledger, layout)
	load0(c)
	return c
}

func load0(c *Counter) {
	if err := c.Load(context.Background(), 0); err != nil {
		panic(err)
	}
}

func script0(client redis.UniversalClient, ledger uuid.UUID) countedScript {
	c := counter0(client, ledger, Layout{})
	return countedScript{c, NewScript(c)}
}

func readWrite0(client redis.UniversalClient, ledger uuid.UUID) countedReadWrite {
	return readWriteIn(client, ledger, Layout{})
}

func readWriteIn(client redis.UniversalClient, ledger uuid.UUID, layout Layout) countedReadWrite {
	c := counter0(client, ledger, layout)
	return countedReadWrite{c, NewReadWrite(c)}
}

// locked0 returns a gate under fenced locks of the locker.
func locked0(client redis.UniversalClient, ledger uuid.UUID, locker waitingLocker) countedReadWrite {
	return readWriteIn(client, ledger, Layout{Locks: NewLocks(locker, lockWait, true)})
}

// mutex0 returns a gate under its own mutex.
func mutex0(client redis.UniversalClient, ledger uuid.UUID) countedReadWrite {
	return readWriteIn(client, ledger, Layout{Locks: NewLocks(lock.NewLocal(), lockWait, false)})
}

// segmented0 returns a gate of segments. Its gathers run one at a time under locks of the
// locker.
func segmented0(client redis.UniversalClient, ledger uuid.UUID, segments int, gatherers lock.Locker) countedSegmented {
	c := counter0(client, ledger, Layout{Segments: segments})
	return countedSegmented{c, NewSegmented(c, NewScript(c), sharedLocker{gatherers})}
}

// segmentedLocked0 returns a gate of segments under fenced locks of the locker.
func segmentedLocked0(client redis.UniversalClient, ledger uuid.UUID, segments int, locker, gatherers lock.Locker) countedSegmented {
	c := counter0(client, ledger, Layout{Segments: segments, Locks: NewLocks(locker, lockWait, true)})
	return countedSegmented{c, NewSegmented(c, NewReadWrite(c), sharedLocker{gatherers})}
}
