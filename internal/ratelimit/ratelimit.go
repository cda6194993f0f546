// Package ratelimit bounds how often each of many clients may do something, or how often something
// is done for each of many SKUs.
package ratelimit

import (
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"golang.org/x/time/rate"
)

// maxClients is how many clients are remembered. When there are more, the limiter forgets the
// client that has been inactive longest, which then begins with a full burst. Each client takes
// about 250 bytes.
const maxClients = 50_000

// Limiter bounds the rate of each client with a token bucket per client. A client is identified by
// a K. A Limiter is safe for concurrent use.
type Limiter[K comparable] struct {
	rate  rate.Limit
	burst int

	mu      sync.Mutex
	clients *simplelru.LRU[K, *rate.Limiter]
}

// New returns a Limiter that allows each client perSecond uses a second on average, and
// burst uses at once. Both must be greater than 0.
func New[K comparable](perSecond float64, burst int) *Limiter[K] {
	return sized[K](perSecond, burst, maxClients)
}

func sized[K comparable](perSecond float64, burst, size int) *Limiter[K] {
	clients, err := simplelru.NewLRU[K, *rate.Limiter](size, nil)
	if err != nil {
		panic(err) // New fails only if the size is not positive
	}
	return &Limiter[K]{rate: rate.Limit(perSecond), burst: burst, clients: clients}
}

// Take counts one use by the client and returns 0. If the rate is exceeded, it counts nothing and
// returns how long the client must wait.
func (l *Limiter[K]) Take(client K, now time.Time) (wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	bucket, ok := l.clients.Get(client)
	if !ok {
		bucket = rate.NewLimiter(l.rate, l.burst)
		l.clients.Add(client, bucket)
	}
	if bucket.AllowN(now, 1) {
		return 0
	}
	missing := 1 - bucket.TokensAt(now)
	return max(1, time.Duration(missing/float64(l.rate)*float64(time.Second)))
}
