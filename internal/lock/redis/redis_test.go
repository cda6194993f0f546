package redis

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/google/uuid"
	goredis "github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/lock/locktest"
	"github.com/holdfast-stock/holdfast/internal/store/storetest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// TestTokensRise deletes, in several ways, the stored data of earlier tokens.
func TestTokensRise(t *testing.T) {
	t.Parallel()
	const name = "rising"
	server := testenv.OwnRedis(t)
	client := storetest.Redis(t, server.URL())
	ours := newLocker(t, client, Options{})
	key := "holdfast_token:{" + name + "}"
	var last uint64
	grant := func(after string) {
		t.Helper()
		lease := locktest.MustLock(t, ours, name)
		if lease.Token() <= last {
			t.Errorf("after %s: token %d was followed by token %d", after, last, lease.Token())
		}
		last = lease.Token()
		if kept, err := client.Get(t.Context(), key).Uint64(); err != nil || kept != last {
			t.Errorf("after %s: the server stores the token %d, %v, want %d", after, kept, err, last)
		}
		locktest.MustUnlock(t, lease)
	}
	grantWithoutToken := func(after string) {
		t.Helper()
		testenv.Await(t, "the server stores no token", func() bool {
			n, err := client.Exists(t.Context(), key).Result()
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
		grantWithoutToken("FLUSHALL")
		if n, err := client.Del(t.Context(), key).Result(); err != nil || n != 1 {
			t.Fatalf("the token was not deleted: %v", err)
		}
		grantWithoutToken("its deletion")
		if ok, err := client.PExpire(t.Context(), key, 5*time.Millisecond).Result(); err != nil || !ok {
			t.Fatalf("the token has no expiry: %v", err)
		}
		grantWithoutToken("its expiry")
	}
	before := server.PID()
	server.Restart()
	if server.PID() == before {
		t.Fatal("the server was not restarted")
	}
	grant("a restart")

	// A token ahead of the server's clock is incremented.
	ahead := uint64(time.Now().Add(time.Hour).UnixMicro())
	if err := client.Set(t.Context(), key, ahead, 0).Err(); err != nil {
		t.Fatal(err)
	}
	for last = ahead; last < ahead+2; last++ {
		lease := locktest.MustLock(t, ours, name)
		if lease.Token() != last+1 {
			t.Errorf("token %d was followed by token %d, want %d", last, lease.Token(), last+1)
		}
		locktest.MustUnlock(t, lease)
	}
}

// TestWatchdogRenews holds a lock until it has been renewed twice, and checks it all the time.
func TestWatchdogRenews(t *testing.T) {
	t.Parallel()
	const short = 6 * time.Second
	client := storetest.Redis(t, testenv.Redis(t))
	name := "renewed-" + uuid.NewString()
	lease := locktest.MustLock(t, newLocker(t, client, Options{Lease: short}), name)
	other := newLocker(t, client, Options{})
	last, renewals := short, 0
	testenv.Await(t, "the lease is renewed twice", func() bool {
		left, err := client.PTTL(t.Context(), name).Result()
		if err != nil {
			t.Fatal(err)
		}
		if left <= 0 || left > short {
			t.Fatalf("%v remain of a lease of %v", left, short)
		}
		if left > last {
			renewals++
		}
		last = left
		locktest.MustBeHeld(t, other, name)
		return renewals == 2
	})
	if err := lease.Context().Err(); err != nil {
		t.Errorf("the lease ended: %v", context.Cause(lease.Context()))
	}
	locktest.MustUnlock(t, lease)
	if n, err := client.Exists(t.Context(), name).Result(); err != nil || n != 0 {
		t.Errorf("after Unlock, EXISTS returned %d, %v", n, err)
	}
}

// TestFixedLeaseEnds holds a lock that is not renewed.
func TestFixedLeaseEnds(t *testing.T) {
	t.Parallel()
	const short = 300 * time.Millisecond
	client := storetest.Redis(t, testenv.Redis(t))
	name := "fixed-" + uuid.NewString()
	asked := time.Now()
	lease := locktest.MustLock(t, newLocker(t, client, Options{Lease: short, Fixed: true}), name)
	if left := client.PTTL(t.Context(), name).Val(); left > short {
		t.Errorf("%v remain of a lease of %v", left, short)
	}
	locktest.MustBeLost(t, lease)
	if took := time.Since(asked); took < short {
		t.Errorf("a lease of %v ended after %v", short, took)
	}
	testenv.Await(t, "the lock has expired", func() bool {
		n, err := client.Exists(t.Context(), name).Result()
		return err == nil && n == 0
	})
	if err := lease.Unlock(t.Context()); !errors.Is(err, lock.ErrLost) {
		t.Errorf("Unlock of a lease that has ended: %v", err)
	}
}

// TestShortLeaseIsRefused requests the shortest lease and shorter ones, and lists a text with these
// leases.
func TestShortLeaseIsRefused(t *testing.T) {
	t.Parallel()
	client := storetest.Redis(t, testenv.Redis(t))
	for length, valid := range map[time.Duration]bool{-time.Second: false, 9 * time.Millisecond: false, 10 * time.Millisecond: true} {
		l, name := newLocker(t, client, Options{Lease: length}), "short-"+uuid.NewString()
		lease, err := l.TryLock(t.Context(), name)
		if (err == nil) != valid || errors.Is(err, lock.ErrHeld) {
			t.Errorf("a lease of %v: %v", length, err)
			continue // Show would panic
		}
		if err == nil {
			_ = lease.Unlock(t.Context()) // the lease may have expired
		}
		hide, err := l.Show(t.Context(), name, "a text")
		if (err == nil) != valid {
			t.Errorf("a list with a lease of %v: %v", length, err)
		}
		if err == nil {
			hide(t.Context())
		}
	}
}

// TestConfirmFixedLease confirms a fixed lease whose remaining time on the server is shorter than
// its length. The server must not extend it.
func TestConfirmFixedLease(t *testing.T) {
	t.Parallel()
	const left = 10 * time.Second
	client := storetest.Redis(t, testenv.Redis(t))
	name := "confirmed-" + uuid.NewString()
	asked := time.Now()
	lease := locktest.MustLock(t, newLocker(t, client, Options{Lease: time.Minute, Fixed: true}), name)
	granted := time.Now()
	if err := client.PExpire(t.Context(), name, left).Err(); err != nil {
		t.Fatal(err)
	}
	until, err := lease.(lock.Confirmer).Confirm(t.Context())
	if err != nil || until.Before(asked.Add(time.Minute)) || until.After(granted.Add(time.Minute)) {
		t.Errorf("Confirm: %v, %v; want a minute after the request", until, err)
	}
	if now, err := client.PTTL(t.Context(), name).Result(); err != nil || now > left {
		t.Errorf("the server keeps the lock for %v, %v; want at most %v", now, err, left)
	}
	if err := client.Del(t.Context(), name).Err(); err != nil {
		t.Fatal(err)
	}
	if _, err := lease.(lock.Confirmer).Confirm(t.Context()); !errors.Is(err, lock.ErrDeleted) {
		t.Errorf("Confirm of a deleted lock: %v, want %v", err, lock.ErrDeleted)
	}
	_ = lease.Unlock(t.Context())
}

// TestLockLostWithItsKey deletes a held lock, and takes it with Redisson. The
// holder must notice.
func TestLockLostWithItsKey(t *testing.T) {
	t.Parallel()
	client := storetest.Redis(t, testenv.Redis(t))
	name := "taken-" + uuid.NewString()
	lease := locktest.MustLock(t, newLocker(t, client, Options{Lease: 4500 * time.Millisecond}), name)
	if n, err := client.Del(t.Context(), name).Result(); err != nil || n != 1 {
		t.Fatalf("the lock was not deleted: %v", err)
	}
	next := newRedisson(client, locktest.LongLease)
	next.mustLock(t, name)
	locktest.MustBeLost(t, lease)
	if err := lease.Unlock(t.Context()); !errors.Is(err, lock.ErrDeleted) {
		t.Errorf("Unlock of a lost lease: %v, want %v", err, lock.ErrDeleted)
	}
	next.mustUnlock(t, name, "1") // neither the watchdog nor Unlock has changed the other holder's lock
}

// acquired returns a grant of the Locker. Its watchdog is stopped.
func acquired(t *testing.T, l *Locker, name string) *grant {
	t.Helper()
	g, err := l.backend.Acquire(t.Context(), name, false, func(error) {})
	if err != nil {
		t.Fatal(err)
	}
	held := g.(*grant)
	held.stopWatchdog()
	return held
}

// TestReleaseSentTwice sends a release again after another holder has taken the lock. The release
// must get its first answer, and must not free the other's lock.
func TestReleaseSentTwice(t *testing.T) {
	t.Parallel()
	client := storetest.Redis(t, testenv.Redis(t))
	name := "released-twice-" + uuid.NewString()
	first := acquired(t, newLocker(t, client, Options{}), name)
	if held, err := first.release(t.Context()); err != nil || !held {
		t.Fatalf("release: %v, %v", held, err)
	}
	second := acquired(t, newLocker(t, client, Options{}), name)
	if held, err := first.release(t.Context()); err != nil || !held {
		t.Errorf("the second release: %v, %v", held, err)
	}
	if held, err := client.HExists(t.Context(), name, second.field).Result(); err != nil || !held {
		t.Fatalf("after the second release, HEXISTS of the next holder's field returned %v, %v", held, err)
	}

	// A confirmation tells why a lock is lost, and its release returns the same answer each time.
	if n, err := client.Del(t.Context(), name).Result(); err != nil || n != 1 {
		t.Fatalf("the lock was not deleted: %v", err)
	}
	if _, err := second.Confirm(t.Context()); !errors.Is(err, lock.ErrDeleted) {
		t.Errorf("Confirm of a deleted lock: %v, want %v", err, lock.ErrDeleted)
	}
	for range 2 {
		if held, err := second.release(t.Context()); err != nil || held {
			t.Errorf("release of a lock that was lost: %v, %v", held, err)
		}
	}
}

// TestAcquireSentTwice sends the same request four times, and its handover twice. Each must be
// granted one lock with one token, which one release frees.
func TestAcquireSentTwice(t *testing.T) {
	t.Parallel()
	client := storetest.Redis(t, testenv.Redis(t))
	name := "acquired-twice-" + uuid.NewString()
	g := acquired(t, newLocker(t, client, Options{}), name)
	token := g.token
	for range 3 {
		g.token = 0
		if _, err := g.try(t.Context(), request{}); err != nil {
			t.Fatal(err)
		}
		if g.token != token {
			t.Errorf("the same request was granted the token %d and then %d", token, g.token)
		}
	}
	fields, err := client.HGetAll(t.Context(), name).Result()
	if err != nil || len(fields) != 1 || fields[g.field] != "1" {
		t.Errorf("the lock has the fields %v, %v; want %s: 1", fields, err, g.field)
	}
	if kept, err := client.Get(t.Context(), tokenKey(name)).Uint64(); err != nil || kept != token {
		t.Errorf("the server stores the token %d, %v, want %d", kept, err, token)
	}
	next := g.backend.newGrant(name, func(error) {})
	for range 2 { // as go-redis does with a handover that has no answer
		token, next.token = next.token, 0
		if _, err := next.try(t.Context(), request{from: g.field}); err != nil || next.token <= g.token || token != 0 && next.token != token {
			t.Errorf("the handover of token %d was granted the tokens %d and %d, %v", g.token, token, next.token, err)
		}
	}
	if held, err := next.release(t.Context()); err != nil || !held {
		t.Errorf("release: %v, %v", held, err)
	}
	if n, err := client.Exists(t.Context(), name).Result(); err != nil || n != 0 {
		t.Errorf("after one release, EXISTS returned %d, %v", n, err)
	}
}

var commandCalls = regexp.MustCompile(`(?m)^cmdstat_([^:]+):calls=(\d+)`)

// TestWaiterSleeps counts the commands that the server receives while a waiter waits. Its
// pings, one a second, are the clock.
func TestWaiterSleeps(t *testing.T) {
	t.Parallel()
	server := testenv.OwnRedis(t)
	admin := goredis.NewClient(&goredis.Options{Addr: server.Addr()})
	defer admin.Close()
	holder := newLocker(t, storetest.Redis(t, server.URL()), Options{})
	waiter := newImpatient(t, storetest.Redis(t, server.URL()), Options{})
	const name = "slept-for"
	lease := locktest.MustLock(t, holder, name)
	waiting := startWaiter(t.Context(), t, waiter, name)
	if err := admin.ConfigResetStat(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	sent := make(map[string]int)
	testenv.Await(t, "the waiter has sent two pings", func() bool {
		info, err := admin.Info(t.Context(), "commandstats").Result()
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range commandCalls.FindAllStringSubmatch(info, -1) {
			sent[m[1]], _ = strconv.Atoi(m[2])
		}
		return sent["ping"] >= 2
	})
	delete(sent, "config|resetstat")
	delete(sent, "info")
	all := 0
	for _, n := range sent {
		all += n
	}
	if all > 15*sent["ping"] || sent["evalsha"] > sent["ping"] {
		t.Errorf("the waiter asks more than once a second: the server received %v", sent)
	}
	locktest.MustWait(t, waiting)
	locktest.MustUnlock(t, lease)
	locktest.MustUnlock(t, locktest.MustGrant(t, waiting).Lease)
}

// TestWaiterOutlivesItsConnections kills all connections of a waiter.
func TestWaiterOutlivesItsConnections(t *testing.T) {
	t.Parallel()
	server := testenv.OwnRedis(t)
	admin := goredis.NewClient(&goredis.Options{Addr: server.Addr(), PoolSize: 1})
	defer admin.Close()
	waiter := newLocker(t, storetest.Redis(t, server.URL()), Options{})
	const name = "cut-off"
	holder := newRedisson(admin, locktest.LongLease)
	holder.mustLock(t, name)
	waiting := startWaiter(t.Context(), t, waiter, name)
	kill := func(kind string) {
		t.Helper()
		n, err := admin.ClientKillByFilter(t.Context(), "TYPE", kind, "SKIPME", "yes").Result()
		if err != nil || n == 0 {
			t.Fatalf("CLIENT KILL killed %d connections of type %s: %v", n, kind, err)
		}
	}
	kill("pubsub")
	kill("normal")
	holder.mustUnlock(t, name, "1")
	mustBeWoken(t, waiting)

	// The new connection works, because nothing is killed this time.
	holder.mustLock(t, name)
	waiting = startWaiter(t.Context(), t, waiter, name)
	holder.mustUnlock(t, name, "1")
	mustBeWoken(t, waiting)
}

// TestIdleSubscriptionsAreBounded waits for 200 locks at once. Afterwards only few
// of their channels may stay subscribed.
func TestIdleSubscriptionsAreBounded(t *testing.T) {
	t.Parallel()
	const names = 200
	server := testenv.OwnRedis(t)
	client := storetest.Redis(t, server.URL())
	holder := newLocker(t, client, Options{})
	waiter := newLocker(t, storetest.Redis(t, server.URL()), Options{})
	channels := func() int {
		t.Helper()
		all, err := client.PubSubChannels(t.Context(), "*").Result()
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	var held []lock.Lease
	var waiting []<-chan locktest.Answer
	for i := range names {
		name := fmt.Sprintf("idle-%d", i)
		held = append(held, locktest.MustLock(t, holder, name))
		waiting = append(waiting, locktest.LockAsync(t.Context(), waiter, name))
	}
	testenv.Await(t, "all waiters have subscribed", func() bool { return channels() == names+1 }) // the channels of the locks, and the Locker's own channel
	for i, lease := range held {
		locktest.MustUnlock(t, lease)
		mustBeWoken(t, waiting[i])
	}
	testenv.Await(t, "few channels are subscribed", func() bool { return channels() <= maxIdleChannels+1 })

	// A waiter on an unsubscribed channel is woken as well.
	for _, name := range []string{"idle-0", "idle-199"} {
		lease := locktest.MustLock(t, holder, name)
		waiting := startWaiter(t.Context(), t, waiter, name)
		locktest.MustUnlock(t, lease)
		mustBeWoken(t, waiting)
	}
}

// TestCloseEndsAllGoroutines is not parallel, so that no other test's goroutines
// run.
func TestCloseEndsAllGoroutines(t *testing.T) {
	server := testenv.OwnRedis(t)
	before := goleak.IgnoreCurrent()
	client := goredis.NewClient(&goredis.Options{Addr: server.Addr()})
	holder, waiter := New(client, Options{}), New(client, Options{})
	lease := locktest.MustLock(t, holder, "closed")
	ctx, cancel := context.WithCancel(t.Context())
	waiting := startWaiter(ctx, t, waiter, "closed")
	cancel()
	if cancelled := <-waiting; !errors.Is(cancelled.Err, context.Canceled) {
		t.Fatalf("Lock of a cancelled waiter: %v", cancelled.Err)
	}
	waiting = startWaiter(t.Context(), t, waiter, "closed")
	locktest.MustUnlock(t, lease)
	locktest.MustUnlock(t, locktest.MustGrant(t, waiting).Lease)
	if err := errors.Join(holder.Close(), waiter.Close(), client.Close()); err != nil {
		t.Error(err)
	}
	locktest.MustBeClosed(t, &holder.backend.leftovers)
	locktest.MustEndGoroutines(t, before)
}

// TestListOutlivesShortLease checks that an instance with a short lease does not make the
// texts of an instance with a long lease expire.
func TestListOutlivesShortLease(t *testing.T) {
	t.Parallel()
	const name = "listed"
	client := storetest.Redis(t, testenv.OwnRedis(t).URL())
	for _, lease := range []time.Duration{time.Minute, time.Second} {
		hide, err := newLocker(t, client, Options{Lease: lease}).Show(t.Context(), name, "a text")
		if err != nil {
			t.Fatal(err)
		}
		defer hide(t.Context())
	}
	if left, err := client.PTTL(t.Context(), shownKey(name)).Result(); err != nil || left < 50*time.Second {
		t.Errorf("the list expires in %v (%v), want about a minute", left, err)
	}
}
