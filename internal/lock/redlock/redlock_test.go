package redlock

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	goredis9 "github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/holdfast-stock/holdfast/internal/faults"
	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/lock/locktest"
	"github.com/holdfast-stock/holdfast/internal/store"
	"github.com/holdfast-stock/holdfast/internal/store/storetest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

func TestMain(m *testing.M) {
	store.LogRedis(slog.New(slog.DiscardHandler)) // the tests kill servers: every failed dial would be logged
	os.Exit(testenv.Main(m))
}

// servers are three Redis servers of one test.
type servers struct {
	t       *testing.T
	servers []*testenv.RedisServer
	clients []goredis9.UniversalClient
}

func startServers(t *testing.T) *servers {
	t.Helper()
	s := &servers{t: t}
	for range 3 {
		server := testenv.OwnRedis(t)
		client := storetest.Redis(t, server.URL())
		s.servers, s.clients = append(s.servers, server), append(s.clients, client)
	}
	return s
}

func (s *servers) locker(lease time.Duration) *Locker {
	s.t.Helper()
	l, err := New(s.clients, lease)
	if err != nil {
		s.t.Fatal(err)
	}
	return l
}

// kill kills the first n servers.
func (s *servers) kill(n int) {
	s.t.Helper()
	for i := range n {
		s.servers[i].Kill()
		if err := s.clients[i].Ping(s.t.Context()).Err(); err == nil {
			s.t.Fatal("a killed server answers PING")
		}
	}
}

// holding returns how many servers have the lock's key.
func (s *servers) holding(name string) (n int64) {
	s.t.Helper()
	for _, client := range s.clients {
		found, err := client.Exists(context.WithoutCancel(s.t.Context()), name).Result()
		if err != nil {
			s.t.Fatal(err)
		}
		n += found
	}
	return n
}

// mustLockSoon takes the lock although its lease is so short that a busy machine may answer too
// late.
func mustLockSoon(t *testing.T, l lock.Locker, name string) lock.Lease {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
	defer cancel()
	for {
		lease, err := l.Lock(ctx, name)
		if err == nil {
			return lease
		}
		if ctx.Err() != nil {
			t.Fatal(err)
		}
	}
}

// mustExclude checks that other gets a lock that one holds only after one has released it.
func mustExclude(t *testing.T, one, other lock.Locker, name string) {
	t.Helper()
	lease := locktest.MustLock(t, one, name)
	locktest.MustBeHeld(t, other, name)
	waiting := locktest.LockAsync(t.Context(), other, name)
	locktest.MustWait(t, waiting) // long enough for a few requests
	locktest.MustUnlock(t, lease)
	locktest.MustUnlock(t, locktest.MustGrant(t, waiting).Lease)
}

// mustFail checks that Lock and TryLock fail. Their errors must not mean that the lock is held, or
// that the caller's time is over.
func mustFail(t *testing.T, l lock.Locker, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
	defer cancel()
	for method, call := range map[string]func(context.Context, string) (lock.Lease, error){"TryLock": l.TryLock, "Lock": l.Lock} {
		_, err := call(ctx, name)
		switch {
		case err == nil:
			t.Errorf("%s granted a lock without a majority of the servers", method)
		case ctx.Err() != nil:
			t.Errorf("%s has not returned: %v", method, err)
		case errors.Is(err, lock.ErrHeld), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
			t.Errorf("%s of a free lock: %v", method, err)
		}
	}
}

// TestServersKilled first kills a minority of the servers: locks must still exclude. Then it kills
// a majority: no lock may be granted.
func TestServersKilled(t *testing.T) {
	t.Parallel()
	s := startServers(t)
	one, other := s.locker(locktest.LongLease), s.locker(locktest.LongLease)
	before := locktest.MustLock(t, one, "before")
	mustExclude(t, one, other, "all")
	s.kill(1)
	locktest.MustBeHeld(t, other, "before")
	locktest.MustUnlock(t, before)
	mustExclude(t, one, other, "before")
	mustExclude(t, other, one, "after")

	// Another contender has the lock on one server, so the two that answer disagree.
	if err := s.clients[1].Set(t.Context(), "divided", "another", 0).Err(); err != nil {
		t.Fatal(err)
	}
	locktest.MustBeHeld(t, one, "divided")

	// Eight contenders, while the server is down.
	var inside, grants atomic.Int64
	var done sync.WaitGroup
	for range 8 {
		l := s.locker(locktest.LongLease)
		done.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 3*testenv.Patience)
			defer cancel()
			for range 3 {
				lease, err := l.Lock(ctx, "contended")
				if err != nil {
					t.Error(err)
					return
				}
				if n := inside.Add(1); n != 1 {
					t.Errorf("%d hold the lock at once", n)
				}
				testenv.Dither() // stands for the holder's work, during which nobody else may hold the lock
				grants.Add(1)
				inside.Add(-1)
				if err := lease.Unlock(ctx); err != nil {
					t.Error(err)
				}
			}
		})
	}
	done.Wait()
	if grants.Load() != 24 {
		t.Errorf("%d grants, want 24", grants.Load())
	}

	s.kill(2)
	mustFail(t, one, "free")
	if n, err := s.clients[2].Exists(t.Context(), "free").Result(); err != nil || n != 0 {
		t.Errorf("EXISTS of the remaining server: %d, %v; want 0", n, err)
	}
}

// TestMajorityFrozen stops two servers, so that they accept requests but do not
// answer.
func TestMajorityFrozen(t *testing.T) {
	t.Parallel()
	s := startServers(t)
	l := s.locker(2 * time.Second) // with this lease, the library waits 100 ms for an answer
	for _, server := range s.servers[:2] {
		server.Stop()
		defer server.Cont()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := s.clients[0].Ping(ctx).Err(); err == nil {
		t.Fatal("a stopped server answers PING")
	}
	mustFail(t, l, "free")

	l, hooks := s.faulty(2 * time.Second)
	for _, h := range hooks[:2] {
		h.Arm(faults.Fault{Kind: faults.Hung, Nth: 1, Times: faults.Always}) // until the library's own deadline
	}
	mustFail(t, l, "free")
}

func TestNumberOfServers(t *testing.T) {
	t.Parallel()
	client := goredis9.NewClient(&goredis9.Options{Addr: "127.0.0.1:1"}) // New sends no request
	defer client.Close()
	for n := range 8 {
		clients := make([]goredis9.UniversalClient, n)
		for i := range clients {
			clients[i] = client
		}
		l, err := New(clients, 0)
		if valid := n >= 3 && n%2 == 1; valid != (err == nil) || valid && l.backend.lease != lock.DefaultLease {
			t.Errorf("New with %d servers: %+v, %v", n, l, err)
		}
	}
}

// TestMinorityEmptied deletes the data of one server during a lease. The lease must be renewed.
// Then the others lose their data too, and Confirm and Release must report that.
func TestMinorityEmptied(t *testing.T) {
	t.Parallel()
	s := startServers(t)
	acquired, err := s.locker(locktest.LongLease).backend.Acquire(t.Context(), "flushed", true, nil)
	if err != nil {
		t.Fatal(err)
	}
	g := acquired.(*grant)
	until := g.Until()
	if left := time.Until(until); left <= locktest.LongLease/2 {
		t.Errorf("a lease of %v ends after %v", locktest.LongLease, left)
	}
	s.flush(2, 3)
	if !g.renew(t.Context()) || !g.Until().After(until) {
		t.Errorf("the lease was not renewed: it ended at %v, and now at %v", until, g.Until())
	}
	locktest.MustBeHeld(t, s.locker(locktest.LongLease), "flushed")
	s.flush(0, 3)
	if _, err := g.Confirm(t.Context()); !errors.Is(err, lock.ErrDeleted) {
		t.Errorf("Confirm of a deleted lock: %v, want %v", err, lock.ErrDeleted)
	}
	if err := g.Release(t.Context()); !errors.Is(err, lock.ErrDeleted) {
		t.Errorf("Release of a deleted lock: %v, want %v", err, lock.ErrDeleted)
	}
}

// TestMajorityEmptied deletes the data of two servers during a lease. The lease
// must end with ErrLost, and its Unlock must not free the next holder's lock.
func TestMajorityEmptied(t *testing.T) {
	t.Parallel()
	s := startServers(t)
	one, other := s.locker(2*time.Second), s.locker(locktest.LongLease)
	lease := mustLockSoon(t, one, "flushed")
	s.flush(0, 2)
	locktest.MustBeLost(t, lease)
	testenv.Await(t, "the third server's key has expired", func() bool { return s.holding("flushed") == 0 })
	next := locktest.MustLock(t, other, "flushed")
	servers := s.holding("flushed") // the number is two or three, because the library does not wait for a slow third server
	if err := lease.Unlock(t.Context()); !errors.Is(err, lock.ErrLost) {
		t.Errorf("Unlock of a lost lease: %v", err)
	}
	if err := next.Context().Err(); err != nil {
		t.Errorf("the next holder's lease ended: %v", err)
	}
	if n := s.holding("flushed"); n < servers {
		t.Errorf("after the lost lease's Unlock, %d of %d servers have the next holder's key", n, servers)
	}
	locktest.MustUnlock(t, next)
	if n := s.holding("flushed"); n != 0 {
		t.Errorf("after the last Unlock, %d servers have the lock's key", n)
	}
}

// flush deletes the data of servers[from:to].
func (s *servers) flush(from, to int) {
	s.t.Helper()
	for _, client := range s.clients[from:to] {
		if err := client.FlushAll(s.t.Context()).Err(); err != nil {
			s.t.Fatal(err)
		}
	}
}

// TestUnlockEndsAllGoroutines is not parallel, so that no other test's goroutines
// run.
func TestUnlockEndsAllGoroutines(t *testing.T) {
	var servers []*testenv.RedisServer
	for range 3 {
		servers = append(servers, testenv.OwnRedis(t))
	}
	before := goleak.IgnoreCurrent()
	var clients []goredis9.UniversalClient
	for _, server := range servers {
		client, err := store.OpenRedis(t.Context(), server.URL())
		if err != nil {
			t.Fatal(err)
		}
		clients = append(clients, client)
	}
	l, err := New(clients, 6*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	lease := mustLockSoon(t, l, "ended")
	// A server that answers late may never get the key, so the key of any of the three counts.
	remaining := func() (all [3]time.Duration) {
		for i, client := range clients {
			left, err := client.PTTL(t.Context(), "ended").Result()
			if err != nil {
				t.Fatal(err)
			}
			all[i] = left
		}
		return all
	}
	last := remaining()
	testenv.Await(t, "the lease is renewed", func() bool {
		before := last
		last = remaining()
		for i := range last {
			if before[i] > 0 && last[i] > before[i] {
				return true
			}
		}
		return false
	})
	locktest.MustUnlock(t, lease)
	for _, client := range clients {
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	}
	locktest.MustEndGoroutines(t, before)
}
