package redis_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync"
	"time"

	"github.com/holdfast-stock/holdfast/internal/lock/redis"
	"github.com/holdfast-stock/holdfast/internal/store"
)

// errStale is returned for a token that is older than the fence.
var errStale = errors.New("stale fencing token")

// account is data behind a fence. A lock can only advise its callers; the fence
// decides which of them may write.
type account struct {
	mu      sync.Mutex
	fence   uint64 // greatest token that has read the balance
	balance int
}

// read returns the balance and raises the fence to the token.
func (a *account) read(token uint64) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if token < a.fence {
		return 0, errStale
	}
	a.fence = token
	return a.balance, nil
}

// write stores the balance. Its token must equal the fence.
func (a *account) write(token uint64, balance int) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if token != a.fence {
		return errStale
	}
	a.balance = balance
	return nil
}

// A holder that pauses for longer than its lease cannot know that another holder has taken the
// lock. Its fencing token is stale by then, and the fence refuses its write.
func Example_fence() {
	ctx := context.Background()
	server, err := store.OpenInProcessRedis(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	// Two instances of a service. Nothing renews a fixed lease, just as nothing
	// renews the lease of a process that is paused.
	options := redis.Options{Lease: 50 * time.Millisecond, Fixed: true}
	paused, next := redis.New(server.Client(), options), redis.New(server.Client(), options)
	defer paused.Close()
	defer next.Close()
	shared := &account{balance: 100}

	old, err := paused.Lock(ctx, "account")
	if err != nil {
		log.Fatal(err)
	}
	seen, err := shared.read(old.Token())
	if err != nil {
		log.Fatal(err)
	}

	// The holder pauses here, until its lease has ended and another instance has
	// been granted the lock.
	lease, err := next.Lock(ctx, "account")
	if err != nil {
		log.Fatal(err)
	}
	balance, err := shared.read(lease.Token())
	if err != nil {
		log.Fatal(err)
	}

	// The paused holder continues, and writes what it computed before the pause.
	fmt.Println("the old token is smaller:", old.Token() < lease.Token())
	fmt.Println("write with the old token:", shared.write(old.Token(), seen-1))
	fmt.Println("write with the new token:", shared.write(lease.Token(), balance-1))
	fmt.Println("balance:", shared.balance)
	// Output:
	// the old token is smaller: true
	// write with the old token: stale fencing token
	// write with the new token: <nil>
	// balance: 99
}
