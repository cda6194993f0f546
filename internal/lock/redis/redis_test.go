package redis

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	goredis "github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/lock/locktest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// TestTokensRise takes away all that the server remembers of earlier tokens.
func TestTokensRise(t *testing.T) {
	t.Parallel()
	const name = "rising"
	server := testenv.OwnRedis(t)
	client := openClient(t, server.URL())
	ours := newLocker(t, client, Options{})
	tokenKey := "holdfast_token:{" + name + "}"
	var last uint64
	grant := func(after string) {
		t.Helper()
		lease := locktest.MustLock(t, ours, name)
		if lease.Token() <= last {
			t.Errorf("after %s: token %d, and before it was %d", after, lease.Token(), last)
		}
		last = lease.Token()
		if kept, err := client.Get(t.Context(), tokenKey).Uint64(); err != nil || kept != last {
			t.Errorf("after %s: the server keeps the token %d, %v, and gave %d", after, kept, err, last)
		}
		locktest.MustUnlock(t, lease)
	}
	gone := func(after string) {
		t.Helper()
		eventually(t, "the token is gone", func() bool {
			n, err := client.Exists(t.Context(), tokenKey).Result()
			return err == nil && n == 0
		})
		grant(after)
	}
	grant("the start")
	for range 20 {
		grant("a grant")
	}
	for range 3 {
		if err := client.FlushAll(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		gone("FLUSHALL")
		if n, err := client.Del(t.Context(), tokenKey).Result(); err != nil || n != 1 {
			t.Fatalf("no token was deleted: %v", err)
		}
		gone("its deletion")
		if ok, err := client.PExpire(t.Context(), tokenKey, 5*time.Millisecond).Result(); err != nil || !ok {
			t.Fatalf("no token expires: %v", err)
		}
		gone("its expiry")
	}
	before := server.PID()
	server.Restart()
	if server.PID() == before {
		t.Fatal("the server was not restarted")
	}
	grant("a restart")

	// One that is ahead of the server's clock is counted on from.
	ahead := uint64(time.Now().Add(time.Hour).UnixMicro())
	if err := client.Set(t.Context(), tokenKey, ahead, 0).Err(); err != nil {
		t.Fatal(err)
	}
	lease := locktest.MustLock(t, ours, name)
	if lease.Token() != ahead+1 {
		t.Errorf("after %d came %d", ahead, lease.Token())
	}
	locktest.MustUnlock(t, lease)
}

// TestReentryKeepsToken enters again on a context with the same owner.
func TestReentryKeepsToken(t *testing.T) {
	t.Parallel()
	client := openClient(t, testenv.Redis(t))
	name := "reentered-" + uuid.NewString()
	ours := newLocker(t, client, Options{})
	ctx := lock.WithOwner(t.Context(), uuid.NewString())
	outer, err := ours.Lock(ctx, name)
	if err != nil {
		t.Fatal(err)
	}
	inner, err := ours.Lock(ctx, name)
	if err != nil {
		t.Fatal(err)
	}
	if inner.Token() != outer.Token() {
		t.Errorf("the token was %d and is %d for the owner's second lease", outer.Token(), inner.Token())
	}
	if kept, err := client.Get(t.Context(), keyed("holdfast_token", name)).Uint64(); err != nil || kept != outer.Token() {
		t.Errorf("the server has minted %d, %v, after %d", kept, err, outer.Token())
	}
	locktest.MustUnlock(t, inner)
	refused(t, newLocker(t, client, Options{}), name)
	locktest.MustUnlock(t, outer)
	next := locktest.MustLock(t, ours, name)
	if next.Token() <= outer.Token() {
		t.Errorf("the next holder's token is %d, after %d", next.Token(), outer.Token())
	}
	locktest.MustUnlock(t, next)
}

// TestWatchdogRenews holds a lock for longer than its lease.
func TestWatchdogRenews(t *testing.T) {
	t.Parallel()
	const short = time.Second
	client := openClient(t, testenv.Redis(t))
	name := "renewed-" + uuid.NewString()
	lease := locktest.MustLock(t, newLocker(t, client, Options{Lease: short}), name)
	other := newLocker(t, client, Options{})
	for end := time.Now().Add(3 * short); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		left, err := client.PTTL(t.Context(), name).Result()
		if err != nil {
			t.Fatal(err)
		}
		if left <= 0 || left > short {
			t.Fatalf("the lock has %v left of its lease of %v", left, short)
		}
		refused(t, other, name)
	}
	if err := lease.Context().Err(); err != nil {
		t.Errorf("the lease ended: %v", context.Cause(lease.Context()))
	}
	locktest.MustUnlock(t, lease)
	if n, err := client.Exists(t.Context(), name).Result(); err != nil || n != 0 {
		t.Errorf("the watchdog has outlived the lock: %d, %v", n, err)
	}
}

// TestFixedLeaseEnds has no watchdog.
func TestFixedLeaseEnds(t *testing.T) {
	t.Parallel()
	const short = 300 * time.Millisecond
	client := openClient(t, testenv.Redis(t))
	name := "fixed-" + uuid.NewString()
	asked := time.Now()
	lease := locktest.MustLock(t, newLocker(t, client, Options{Lease: short, Fixed: true}), name)
	select {
	case <-lease.Context().Done():
	case <-time.After(5 * time.Second):
		t.Fatal("the lease does not end")
	}
	if took := time.Since(asked); took < short || took > short+time.Second {
		t.Errorf("a lease of %v ended after %v", short, took)
	}
	if cause := context.Cause(lease.Context()); !errors.Is(cause, lock.ErrLost) {
		t.Errorf("the lease ended with %v", cause)
	}
	eventually(t, "the lock is gone", func() bool {
		n, err := client.Exists(t.Context(), name).Result()
		return err == nil && n == 0
	})
	if err := lease.Unlock(t.Context()); !errors.Is(err, lock.ErrLost) {
		t.Errorf("Unlock of a lease that ended: %v", err)
	}
}

// TestLockLostWithItsKey takes the lock away from under its holder.
func TestLockLostWithItsKey(t *testing.T) {
	t.Parallel()
	client := openClient(t, testenv.Redis(t))
	name := "taken-" + uuid.NewString()
	lease := locktest.MustLock(t, newLocker(t, client, Options{Lease: 600 * time.Millisecond}), name)
	if n, err := client.Del(t.Context(), name).Result(); err != nil || n != 1 {
		t.Fatalf("there was no lock to delete: %v", err)
	}
	thief := newRedisson(client, 30*time.Second)
	thief.mustLock(t, name)
	select {
	case <-lease.Context().Done():
	case <-time.After(5 * time.Second):
		t.Fatal("the holder does not notice")
	}
	if cause := context.Cause(lease.Context()); !errors.Is(cause, lock.ErrLost) {
		t.Errorf("the lease ended with %v", cause)
	}
	if err := lease.Unlock(t.Context()); !errors.Is(err, lock.ErrLost) {
		t.Errorf("Unlock of a lost lease: %v", err)
	}
	thief.mustUnlock(t, name, "1") // neither renewing nor unlocking touched it
}

// acquired is a grant of the backend itself, whose watchdog is stopped.
func acquired(t *testing.T, client goredis.UniversalClient, name string) *grant {
	t.Helper()
	g, err := newLocker(t, client, Options{}).backend.Acquire(t.Context(), name, false, func() {})
	if err != nil {
		t.Fatal(err)
	}
	held := g.(*grant)
	held.unwatch()
	return held
}

// TestReleaseSentTwice answers the second with the first one's answer, though
// somebody else has the lock by then.
func TestReleaseSentTwice(t *testing.T) {
	t.Parallel()
	client := openClient(t, testenv.Redis(t))
	name := "released-twice-" + uuid.NewString()
	first := acquired(t, client, name)
	if held, err := first.release(t.Context()); err != nil || !held {
		t.Fatalf("release: %v, %v", held, err)
	}
	second := acquired(t, client, name)
	if held, err := first.release(t.Context()); err != nil || !held {
		t.Errorf("the same release again: %v, %v", held, err)
	}
	if held, err := client.HExists(t.Context(), name, second.field).Result(); err != nil || !held {
		t.Fatalf("the release sent twice freed another's lock: %v, %v", held, err)
	}

	// A lock that was lost stays lost.
	if n, err := client.Del(t.Context(), name).Result(); err != nil || n != 1 {
		t.Fatalf("there was no lock to delete: %v", err)
	}
	for range 2 {
		if held, err := second.release(t.Context()); err != nil || held {
			t.Errorf("release of a lock that was lost: %v, %v", held, err)
		}
	}
}

// TestAcquireSentTwice grants one lock, once.
func TestAcquireSentTwice(t *testing.T) {
	t.Parallel()
	client := openClient(t, testenv.Redis(t))
	name := "acquired-twice-" + uuid.NewString()
	g := acquired(t, client, name)
	token := g.token
	for range 3 {
		g.token = 0
		if _, err := g.try(t.Context()); err != nil {
			t.Fatal(err)
		}
		if g.token != token {
			t.Errorf("the same request was granted the token %d, and then %d", token, g.token)
		}
	}
	fields, err := client.HGetAll(t.Context(), name).Result()
	if err != nil || len(fields) != 1 || fields[g.field] != "1" {
		t.Errorf("the lock is %v, %v; it should be held once by %s", fields, err, g.field)
	}
	if kept, err := client.Get(t.Context(), keyed("holdfast_token", name)).Uint64(); err != nil || kept != token {
		t.Errorf("the server keeps the token %d, %v, and gave %d", kept, err, token)
	}
	if held, err := g.release(t.Context()); err != nil || !held {
		t.Errorf("release: %v, %v", held, err)
	}
	if n, err := client.Exists(t.Context(), name).Result(); err != nil || n != 0 {
		t.Errorf("one release did not free it: %d, %v", n, err)
	}
}

var commandCalls = regexp.MustCompile(`(?m)^cmdstat_([^:]+):calls=(\d+)`)

// TestWaiterSleeps counts what a waiter asks the server while nothing happens.
func TestWaiterSleeps(t *testing.T) {
	t.Parallel()
	server := testenv.OwnRedis(t)
	admin := goredis.NewClient(&goredis.Options{Addr: server.Addr()})
	defer admin.Close()
	holder := newLocker(t, openClient(t, server.URL()), Options{})
	waiter := newLocker(t, openClient(t, server.URL()), Options{})
	const name = "slept-for"
	lease := locktest.MustLock(t, holder, name)
	granted := lockLater(t.Context(), waiter, name)
	listens(t, waiter, name)
	if err := admin.ConfigResetStat(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second)
	info, err := admin.Info(t.Context(), "commandstats").Result()
	if err != nil {
		t.Fatal(err)
	}
	sent := 0
	for _, m := range commandCalls.FindAllStringSubmatch(info, -1) {
		switch m[1] {
		case "config|resetstat", "info":
		default:
			n, _ := strconv.Atoi(m[2])
			sent += n
		}
	}
	if sent > 3 {
		t.Errorf("the server had %d commands in a second of waiting:\n%s", sent, info)
	}
	select {
	case g := <-granted:
		t.Fatalf("it did not wait: %v", g.err)
	default:
	}
	released := time.Now()
	locktest.MustUnlock(t, lease)
	g := soon(t, granted)
	if took := g.at.Sub(released); took > 2*time.Second {
		t.Errorf("woken only after %v", took)
	}
	locktest.MustUnlock(t, g.lease)
}

// TestWaiterOutlivesItsConnections kills what a waiter listens on.
func TestWaiterOutlivesItsConnections(t *testing.T) {
	t.Parallel()
	const held = 10 * time.Second
	server := testenv.OwnRedis(t)
	admin := goredis.NewClient(&goredis.Options{Addr: server.Addr(), PoolSize: 1})
	defer admin.Close()
	waiter := newLocker(t, openClient(t, server.URL()), Options{})
	const name = "cut-off"
	holder := newRedisson(admin, held)
	holder.mustLock(t, name)
	granted := lockLater(t.Context(), waiter, name)
	listens(t, waiter, name)
	killed := func(kind string) {
		t.Helper()
		n, err := admin.ClientKillByFilter(t.Context(), "TYPE", kind, "SKIPME", "yes").Result()
		if err != nil || n == 0 {
			t.Fatalf("%d connections of type %s were killed: %v", n, kind, err)
		}
	}
	killed("pubsub")
	killed("normal")
	released := time.Now()
	holder.mustUnlock(t, name, "1")
	g := soon(t, granted)
	if took := g.at.Sub(released); took > held/2 {
		t.Errorf("granted %v after the release, and the lease was %v", took, held)
	}
	locktest.MustUnlock(t, g.lease)

	// And it hears again: this time nothing is killed.
	holder.mustLock(t, name)
	granted = lockLater(t.Context(), waiter, name)
	listens(t, waiter, name)
	released = time.Now()
	holder.mustUnlock(t, name, "1")
	g = soon(t, granted)
	if took := g.at.Sub(released); took > 2*time.Second {
		t.Errorf("afterwards it was woken only after %v", took)
	}
	locktest.MustUnlock(t, g.lease)
}

// TestIdleSubscriptionsAreBounded waits for many locks, and then for none.
func TestIdleSubscriptionsAreBounded(t *testing.T) {
	t.Parallel()
	const names = 200
	server := testenv.OwnRedis(t)
	client := openClient(t, server.URL())
	holder := newLocker(t, client, Options{})
	waiter := newLocker(t, openClient(t, server.URL()), Options{})
	channels := func() int {
		t.Helper()
		all, err := client.PubSubChannels(t.Context(), "*").Result()
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	var held []lock.Lease
	var waiting sync.WaitGroup
	for i := range names {
		name := fmt.Sprintf("idle-%d", i)
		held = append(held, locktest.MustLock(t, holder, name))
		waiting.Go(func() {
			lease, err := waiter.Lock(t.Context(), name)
			if err != nil {
				t.Error(err)
				return
			}
			if err := lease.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	eventually(t, "all waiters listen", func() bool { return channels() == names })
	for _, lease := range held {
		locktest.MustUnlock(t, lease)
	}
	waiting.Wait()
	eventually(t, "the server knows of few channels", func() bool { return channels() <= idleChannels })

	// One of those that are no longer listened to is heard of all the same.
	for _, name := range []string{"idle-0", "idle-199"} {
		lease := locktest.MustLock(t, holder, name)
		granted := lockLater(t.Context(), waiter, name)
		listens(t, waiter, name)
		released := time.Now()
		locktest.MustUnlock(t, lease)
		g := soon(t, granted)
		if took := g.at.Sub(released); took > 2*time.Second {
			t.Errorf("%s: woken only after %v", name, took)
		}
		locktest.MustUnlock(t, g.lease)
	}
}

// TestCloseEndsAllGoroutines is not parallel, so that all goroutines are its own.
func TestCloseEndsAllGoroutines(t *testing.T) {
	server := testenv.OwnRedis(t)
	before := goleak.IgnoreCurrent()
	client := goredis.NewClient(&goredis.Options{Addr: server.Addr()})
	holder, waiter := New(client, Options{Lease: 300 * time.Millisecond}), New(client, Options{})
	lease := locktest.MustLock(t, holder, "closed")
	ctx, cancel := context.WithCancel(t.Context())
	given := lockLater(ctx, waiter, "closed")
	listens(t, waiter, "closed")
	cancel()
	if g := <-given; !errors.Is(g.err, context.Canceled) {
		t.Fatalf("a waiter that was cancelled: %v", g.err)
	}
	given = lockLater(t.Context(), waiter, "closed")
	listens(t, waiter, "closed")
	locktest.MustUnlock(t, lease)
	g := soon(t, given)
	locktest.MustUnlock(t, g.lease)
	if err := errors.Join(holder.Close(), waiter.Close(), client.Close()); err != nil {
		t.Error(err)
	}
	goleak.VerifyNone(t, before)
}
