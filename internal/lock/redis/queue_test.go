package redis

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	goredis "github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/faults"
	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/lock/locktest"
	"github.com/holdfast-stock/holdfast/internal/store/storetest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// mustBeWoken waits until the lock is granted, and unlocks it. A waiter that is not woken gets it
// only when a lease has ended, see newLocker.
func mustBeWoken(t *testing.T, waiting <-chan locktest.Answer) {
	t.Helper()
	locktest.MustUnlock(t, locktest.MustGrant(t, waiting).Lease)
}

// startBehind starts a waiter behind others that are already in the queue. It returns when the
// waiter sleeps, after two requests: one before its subscription and one after it.
func startBehind(ctx context.Context, t *testing.T, client goredis.UniversalClient, name string) (<-chan locktest.Answer, *requestCounter) {
	t.Helper()
	return startBehindWith(ctx, t, newLocker(t, client, Options{}), name)
}

// startImpatient is startBehind for a waiter that asks again after maxSleep.
func startImpatient(t *testing.T, client goredis.UniversalClient, name string) <-chan locktest.Answer {
	t.Helper()
	waiting, _ := startBehindWith(t.Context(), t, newImpatient(t, client, Options{}), name)
	return waiting
}

func startBehindWith(ctx context.Context, t *testing.T, l *Locker, name string) (<-chan locktest.Answer, *requestCounter) {
	t.Helper()
	client := l.backend.client
	requests := &requestCounter{locker: l.backend.id, name: name}
	client.AddHook(faults.Around(requests.around))
	waiting := locktest.LockAsync(ctx, l, name)
	testenv.Await(t, "the waiter has asked twice", func() bool { return requests.n.Load() >= 2 })
	return waiting, requests
}

// addToQueue puts a waiter of another instance before all others, and returns the
// instance's ID.
func addToQueue(t *testing.T, client goredis.UniversalClient, name string) (instance string) {
	t.Helper()
	instance = uuid.NewString()
	place := time.Now().Add(-placeTTL / 2).UnixMicro()
	if err := client.ZAdd(t.Context(), queueKey(name), goredis.Z{Score: float64(place), Member: instance + ":01"}).Err(); err != nil {
		t.Fatal(err)
	}
	return instance
}

// TestACL locks as a user that may use only the keys and channels that docs/security.md names.
func TestACL(t *testing.T) {
	t.Parallel()
	server := testenv.OwnRedis(t)
	rules := []string{
		"reset", "on", ">secret", "+@all",
		"~stock:*", "~holdfast_token:*", "~holdfast_queue:*", "~holdfast_tick:*", "~holdfast_holders:*",
		"~redisson_unlock_latch:*", "~redisson_lock__channel:*", "&redisson_lock__channel:*", "&holdfast_wake:*",
	}
	if err := storetest.Redis(t, server.URL()).ACLSetUser(t.Context(), "locks", rules...).Err(); err != nil {
		t.Fatal(err)
	}
	client := storetest.Redis(t, "redis://locks:secret@"+server.Addr()+"/0")
	ours := newLocker(t, client, Options{})
	lease := locktest.MustLock(t, ours, "stock:1")
	waiting, _ := startBehind(t.Context(), t, client, "stock:1")
	if _, err := lease.(lock.Confirmer).Confirm(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := ours.RecordTick(t.Context(), "job", 1); err != nil {
		t.Error(err)
	}
	hide, err := ours.Show(t.Context(), "job", "a holder")
	if err != nil {
		t.Fatal(err)
	}
	hide(t.Context())
	locktest.MustUnlock(t, lease)
	mustBeWoken(t, waiting)
}

// TestReleaseWithoutWakeChannel releases as a user that may not publish on the
// instances' channels. The release must have all its other effects.
func TestReleaseWithoutWakeChannel(t *testing.T) {
	t.Parallel()
	const name = "no-wake-channel"
	server := testenv.OwnRedis(t)
	admin := storetest.Redis(t, server.URL())
	rules := []string{"reset", "on", ">secret", "~*", "+@all", "&redisson_lock__channel:*"}
	if err := admin.ACLSetUser(t.Context(), "locks", rules...).Err(); err != nil {
		t.Fatal(err)
	}
	redisson := admin.Subscribe(t.Context(), releaseChannel(name))
	t.Cleanup(func() { _ = redisson.Close() })
	if _, err := redisson.Receive(t.Context()); err != nil { // reads the confirmation of the subscription
		t.Fatal(err)
	}
	g := newLocker(t, storetest.Redis(t, "redis://locks:secret@"+server.Addr()+"/0"), Options{}).backend.newGrant(name, nil)
	if _, err := g.try(t.Context(), request{}); err != nil || g.token == 0 {
		t.Fatalf("token %d, %v", g.token, err)
	}
	addToQueue(t, admin, name)
	for _, what := range []string{"the release", "the release sent again"} {
		if held, err := g.release(t.Context()); !held || err != nil {
			t.Errorf("%s: %t, %v; want true", what, held, err)
		}
	}
	if _, err := redisson.ReceiveTimeout(t.Context(), testenv.Patience); err != nil {
		t.Errorf("Redisson's channel: %v", err)
	}
	locktest.MustUnlock(t, locktest.MustLock(t, newLocker(t, admin, Options{}), name))
}

// TestReleaseWakesOneWaiter lets the waiters of several instances take turns. Each
// release must wake the first in the queue and no other.
func TestReleaseWakesOneWaiter(t *testing.T) {
	t.Parallel()
	const waiters = 5
	client := storetest.Redis(t, testenv.Redis(t))
	name := "one-woken-" + uuid.NewString()
	lease := locktest.MustLock(t, newLocker(t, client, Options{}), name)
	var (
		waiting  [waiters]<-chan locktest.Answer
		requests [waiters]*requestCounter
	)
	began := time.Now()
	for i := range waiters {
		waiting[i], requests[i] = startBehind(t.Context(), t, client, name)
	}
	for i := range waiters {
		locktest.MustUnlock(t, lease)
		lease = locktest.MustGrant(t, waiting[i]).Lease
	}
	locktest.MustUnlock(t, lease)
	asks := int64(3) // the last request follows the wake-up
	// A slow machine can seem silent, and the waiter then asks again.
	asks += int64(time.Since(began) / (silentPings * pingInterval))
	for i, r := range requests {
		if n := r.n.Load(); n > asks {
			t.Errorf("waiter %d asked %d times, want at most %d", i, n, asks)
		}
	}
}

// notAsking is a hook that lets no request for a lock reach the server.
func notAsking(ctx context.Context, cmds []goredis.Cmder, run func(context.Context) error) error {
	if args := cmds[0].Args(); len(args) > 2 && args[2] == 3 { // acquire.lua has three keys
		<-ctx.Done()
		return ctx.Err()
	}
	return run(ctx)
}

// TestNextWaiterIsWoken puts a waiter before ours that does not take the lock.
func TestNextWaiterIsWoken(t *testing.T) {
	t.Parallel()
	url := testenv.Redis(t)
	client := storetest.Redis(t, url)

	t.Run("dead", func(t *testing.T) {
		t.Parallel()
		name := "next-dead-" + uuid.NewString()
		lease := locktest.MustLock(t, newLocker(t, client, Options{}), name)
		addToQueue(t, client, name)
		waiting, _ := startBehind(t.Context(), t, client, name)
		locktest.MustUnlock(t, lease)
		mustBeWoken(t, waiting)
		if n, err := client.Exists(t.Context(), queueKey(name)).Result(); err != nil || n != 0 {
			t.Errorf("EXISTS of the queue returned %d, %v", n, err)
		}
	})

	// The message is received, but no request follows.
	t.Run("stopped", func(t *testing.T) {
		t.Parallel()
		name := "next-stopped-" + uuid.NewString()
		lease := locktest.MustLock(t, newLocker(t, client, Options{}), name)
		stopped := client.Subscribe(t.Context(), wakePrefix+addToQueue(t, client, name))
		defer stopped.Close()
		if _, err := stopped.Receive(t.Context()); err != nil {
			t.Fatal(err)
		}
		waiting := startImpatient(t, client, name)
		locktest.MustUnlock(t, lease)
		if m, err := stopped.ReceiveMessage(t.Context()); err != nil || m.Payload != name {
			t.Fatalf("the first waiter received %v, %v", m, err)
		}
		locktest.MustUnlock(t, locktest.MustGrant(t, waiting).Lease)
	})

	// The waiter is cancelled between its message and its request.
	t.Run("cancelled", func(t *testing.T) {
		t.Parallel()
		name := "next-cancelled-" + uuid.NewString()
		lease := locktest.MustLock(t, newLocker(t, client, Options{}), name)
		own := storetest.Redis(t, url)
		ctx, cancel := context.WithCancel(t.Context())
		first, _ := startBehind(ctx, t, own, name)
		waiting, _ := startBehind(t.Context(), t, client, name)
		own.AddHook(faults.Around(notAsking))
		locktest.MustUnlock(t, lease)
		cancel()
		if cancelled := <-first; !errors.Is(cancelled.Err, context.Canceled) {
			t.Fatalf("Lock of the cancelled waiter: %v", cancelled.Err)
		}
		mustBeWoken(t, waiting)
	})
}

// TestWokenWaiterGoesFirst requests a lock that the same instance has just released. The release
// has woken a waiter of another instance, which has not requested the lock yet.
func TestWokenWaiterGoesFirst(t *testing.T) {
	t.Parallel()
	client := storetest.Redis(t, testenv.Redis(t))
	name := "woken-first-" + uuid.NewString()
	ours := newLocker(t, client, Options{})
	lease := locktest.MustLock(t, ours, name)
	slow := client.Subscribe(t.Context(), wakePrefix+addToQueue(t, client, name))
	defer slow.Close()
	if _, err := slow.Receive(t.Context()); err != nil {
		t.Fatal(err)
	}
	unlocking := time.Now()
	locktest.MustUnlock(t, lease)
	again := locktest.MustLock(t, ours, name)
	// The slow waiter never requests the lock, so it is granted when the waiter's time is over.
	if took := time.Since(unlocking); took < wokenTime {
		t.Errorf("granted again after %v, want at least %v", took, wokenTime)
	}
	locktest.MustUnlock(t, again)
	locktest.MustUnlock(t, locktest.MustLock(t, ours, name)) // no waiter was woken this time
}

// TestRedissonGetsATurn releases a lock for whose release a Redisson instance listens. Only a
// process that has handed the lock over within itself must leave the lock to others for a moment.
func TestRedissonGetsATurn(t *testing.T) {
	t.Parallel()
	client := storetest.Redis(t, testenv.Redis(t))
	for _, handsOver := range []bool{false, true} {
		name := "foreign-turn-" + uuid.NewString()
		redisson := client.Subscribe(t.Context(), releaseChannel(name))
		defer redisson.Close()
		if _, err := redisson.Receive(t.Context()); err != nil { // confirms the subscription
			t.Fatal(err)
		}
		g := acquired(t, newLocker(t, client, Options{}), name)
		if handsOver {
			next, err := g.HandOver(t.Context(), func(error) {})
			if err != nil {
				t.Fatal(err)
			}
			g = next.(*grant)
		}
		if err := g.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		s := g.backend.releases.byChannel[releaseChannel(name)]
		if yields := s != nil && s.yield.token == g.token; yields != handsOver {
			t.Errorf("handed over: %t, leaves the lock to others: %t", handsOver, yields)
		}
	}
}

// TestPlacesExpire checks that a request removes the expired place of a dead waiter, and that a
// waiter whose own place has expired gets a new one.
func TestPlacesExpire(t *testing.T) {
	t.Parallel()
	client := storetest.Redis(t, testenv.Redis(t))
	name := "expiring-" + uuid.NewString()
	lease := locktest.MustLock(t, newLocker(t, client, Options{}), name)
	old := time.Now().Add(-placeTTL - time.Second).UnixMicro()
	if err := client.ZAdd(t.Context(), queueKey(name), goredis.Z{Score: float64(old), Member: uuid.NewString() + ":01"}).Err(); err != nil {
		t.Fatal(err)
	}
	g := newLocker(t, client, Options{}).backend.newGrant(name, func(error) {})
	g.place = old
	if _, err := g.try(t.Context(), request{waits: true}); err != nil {
		t.Fatal(err)
	}
	queued, err := client.ZRangeWithScores(t.Context(), queueKey(name), 0, -1).Result()
	if err != nil || len(queued) != 1 || queued[0].Member != g.field || int64(queued[0].Score) != g.place || g.place <= old {
		t.Errorf("the queue has %v, %v; want %s at %d, later than %d", queued, err, g.field, g.place, old)
	}
	if left, err := client.PTTL(t.Context(), queueKey(name)).Result(); err != nil || left <= 0 || left > placeTTL {
		t.Errorf("the queue expires in %v, %v; want at most %v", left, err, placeTTL)
	}
	place := g.place
	if _, err := g.try(t.Context(), request{waits: true}); err != nil || g.place != place {
		t.Errorf("a second request has the place %d, %v; want %d as before", g.place, err, place)
	}
	g.cleanUp(t.Context())
	locktest.MustUnlock(t, lease)
	if n, err := client.Exists(t.Context(), queueKey(name)).Result(); err != nil || n != 0 {
		t.Errorf("EXISTS of the queue returned %d, %v", n, err)
	}
}

// TestEveryWaiterListensToRedisson puts a dead waiter before ours while Redisson holds the lock.
// Redisson's unlock does not wake the queue.
func TestEveryWaiterListensToRedisson(t *testing.T) {
	t.Parallel()
	client := storetest.Redis(t, testenv.Redis(t))
	name := "all-hear-" + uuid.NewString()
	foreign := newRedisson(client, locktest.LongLease)
	foreign.mustLock(t, name)
	addToQueue(t, client, name)
	waiting, _ := startBehind(t.Context(), t, client, name)
	foreign.mustUnlock(t, name, "1")
	lease := locktest.MustGrant(t, waiting).Lease
	if queued, err := client.ZRange(t.Context(), queueKey(name), 0, -1).Result(); err != nil || len(queued) != 1 {
		t.Errorf("the queue has %q, %v; want the dead waiter and not the holder", queued, err)
	}
	locktest.MustUnlock(t, lease)
}

// TestQueueIsLost deletes the queue, or everything, while two instances wait. Each
// of them must be granted the lock.
func TestQueueIsLost(t *testing.T) {
	t.Parallel()
	for _, lost := range []string{"queue", "everything"} {
		t.Run(lost, func(t *testing.T) {
			t.Parallel()
			server := testenv.OwnRedis(t)
			client := storetest.Redis(t, server.URL())
			const name = "lost-queue"
			lease := locktest.MustLock(t, newLocker(t, client, Options{}), name)
			first, second := startImpatient(t, client, name), startImpatient(t, client, name)
			if lost == "queue" {
				if n, err := client.Del(t.Context(), queueKey(name)).Result(); err != nil || n != 1 {
					t.Fatalf("DEL of the queue returned %d, %v", n, err)
				}
				locktest.MustUnlock(t, lease)
			} else {
				server.Restart() // the server has no data on disk
			}
			timeout, cancel := context.WithTimeout(t.Context(), testenv.Patience)
			defer cancel()
			for range 2 {
				var granted locktest.Answer
				select {
				case granted = <-first:
				case granted = <-second:
				case <-timeout.Done():
					t.Fatal("a waiter was not granted the lock")
				}
				if granted.Err != nil {
					t.Fatal(granted.Err)
				}
				locktest.MustUnlock(t, granted.Lease)
			}
			if err := lease.Unlock(t.Context()); lost != "queue" && err != nil && !errors.Is(err, lock.ErrLost) {
				t.Error(err)
			}
		})
	}
}
