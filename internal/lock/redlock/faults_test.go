package redlock

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	goredis9 "github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/faults"
	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/lock/address"
	"github.com/holdfast-stock/holdfast/internal/lock/locktest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// faulty returns a Locker, and the hooks that can make its requests to the servers fail. The
// requests also pass through the other hooks.
func (s *servers) faulty(lease time.Duration, others ...goredis9.Hook) (l *Locker, hooks [3]faults.Hook) {
	s.t.Helper()
	var clients []goredis9.UniversalClient
	for i, server := range s.servers {
		client := goredis9.NewClient(&goredis9.Options{Addr: server.Addr(), MaxRetries: -1})
		s.t.Cleanup(func() { _ = client.Close() })
		hooks[i] = faults.NewHook()
		client.AddHook(hooks[i])
		for _, h := range others {
			client.AddHook(h)
		}
		clients = append(clients, client)
	}
	l, err := New(clients, lease)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = l.Close() })
	return l, hooks
}

// acquireUnwatched takes the lock "a". The grant is renewed only when the test does so.
func acquireUnwatched(t *testing.T, l *Locker) *grant {
	t.Helper()
	acquired, err := l.backend.Acquire(t.Context(), "a", true, nil)
	if err != nil {
		t.Fatal(err)
	}
	g := acquired.(*grant)
	g.stopWatching()
	g.watching.Wait()
	return g
}

// TestUnansweredRequests loses the answers of a majority to the requests for a lock, to a
// confirmation, to a release, and to the clean-up.
func TestUnansweredRequests(t *testing.T) {
	t.Parallel()
	s := startServers(t)
	l, hooks := s.faulty(locktest.LongLease)             // keys that are left behind must not expire during the test
	locktest.MustUnlock(t, locktest.MustLock(t, l, "a")) // the clients are connected after this
	arm := func(faulty ...faults.Fault) {
		for _, h := range hooks[:2] {
			h.Arm(faulty...)
		}
	}
	mustBeFree := func(what string) {
		t.Helper()
		testenv.Await(t, "nothing is left after "+what, func() bool { return s.holding("a") == 0 })
	}
	for what, kinds := range map[string][]faults.Fault{
		"requests":               {{Kind: faults.Lost, Nth: 1}},
		"requests and clean-ups": {{Kind: faults.Lost, Nth: 1}, {Kind: faults.Refused, Nth: 2, Times: 3}},
	} {
		for method, request := range map[string]func(context.Context, string) (lock.Lease, error){"Lock": l.Lock, "TryLock": l.TryLock} {
			arm(kinds...)
			if _, err := request(t.Context(), "a"); err == nil || errors.Is(err, lock.ErrHeld) || errors.Is(err, lock.ErrLost) {
				t.Errorf("%s without answers to %s: %v", method, what, err)
			}
			mustBeFree(what)
		}
	}

	arm()
	lease := locktest.MustLock(t, l, "a")
	arm(faults.Fault{Kind: faults.Refused, Nth: 1, Times: 2})
	if _, err := lease.(lock.Confirmer).Confirm(t.Context()); err == nil || errors.Is(err, lock.ErrLost) {
		t.Errorf("Confirm without answers: %v", err)
	}
	arm()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := lease.(lock.Confirmer).Confirm(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("Confirm on a context that has ended: %v", err)
	}
	if err := s.clients[1].Del(t.Context(), "a").Err(); err != nil {
		t.Fatal(err)
	}
	hooks[0].Arm(faults.Fault{Kind: faults.Refused, Nth: 1, Times: 2}) // so one server has the lock, and another may have it
	if _, err := lease.(lock.Confirmer).Confirm(t.Context()); err == nil || errors.Is(err, lock.ErrLost) {
		t.Errorf("Confirm by one of two servers that answer: %v", err)
	}
	arm()
	if until, err := lease.(lock.Confirmer).Confirm(t.Context()); err != nil || time.Until(until) <= locktest.LongLease/2 {
		t.Errorf("Confirm: for %v, %v", time.Until(until), err)
	}
	arm(faults.Fault{Kind: faults.Refused, Nth: 1, Times: 2})
	if err := lease.Unlock(t.Context()); err == nil || errors.Is(err, lock.ErrLost) {
		t.Errorf("Unlock without answers: %v", err)
	}
	mustBeFree("Unlock")

	closed := s.locker(locktest.LongLease)
	if err := closed.Close(); err != nil {
		t.Error(err)
	}
	locktest.MustBeClosed(t, &closed.backend.leftovers)
}

// TestUnansweredRenewals makes renewals fail: the first ones, or all of them.
func TestUnansweredRenewals(t *testing.T) {
	t.Parallel()
	s := startServers(t)
	l, hooks := s.faulty(15 * time.Second) // a renewal pauses for a thirtieth of the lease after a failure
	for _, times := range []int{2, faults.Always} {
		g := acquireUnwatched(t, l)
		first := g.Until()
		for _, h := range hooks {
			h.Arm(faults.Fault{Kind: faults.Refused, Nth: 1, Times: times})
		}
		if times == faults.Always {
			first = time.Now().Add(time.Second) // so that the test need not wait for the end
			g.until = first
		}
		if renewed, want := g.renew(t.Context()), times != faults.Always; renewed != want || g.Until().After(first) != want {
			t.Errorf("renewed: %v, by %v", renewed, g.Until().Sub(first))
		}
		for _, h := range hooks {
			h.Disarm()
		}
		_ = g.Release(t.Context()) // the lock may have expired or not
	}
}

// TestLateRenewal ends the lease, by the holder's clock, before the servers' answers to a renewal
// arrive. The holder has learned of the end, so the lease must not continue.
func TestLateRenewal(t *testing.T) {
	t.Parallel()
	var late atomic.Bool // requests run after the lease
	s := startServers(t)
	l, _ := s.faulty(lock.DefaultLease, faults.Around(func(ctx context.Context, _ []goredis9.Cmder, run func(context.Context) error) error {
		if late.Load() {
			<-ctx.Done()
		}
		return run(context.WithoutCancel(ctx))
	}))
	g := acquireUnwatched(t, l)
	until := time.Now().Add(100 * time.Millisecond)
	g.until = until
	late.Store(true)
	if g.renew(t.Context()) || !g.Until().Equal(until) {
		t.Errorf("the lease ends %v later than the holder was told", g.Until().Sub(until))
	}
	late.Store(false)
	if err := g.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestCleanUpIsBounded checks that the requests of a clean-up have a deadline even if their caller
// has none.
func TestCleanUpIsBounded(t *testing.T) {
	t.Parallel()
	s := startServers(t)
	var cleaning atomic.Bool
	l, _ := s.faulty(lock.DefaultLease, faults.Around(func(ctx context.Context, cmds []goredis9.Cmder, run func(context.Context) error) error {
		if _, bounded := ctx.Deadline(); cleaning.Load() && !bounded {
			t.Errorf("%s has no deadline", cmds[0].Name())
		}
		return run(ctx)
	}))
	g := acquireUnwatched(t, l)
	cleaning.Store(true)
	l.backend.cleanUp(t.Context(), g.mutex)
	if n := s.holding("a"); n != 0 {
		t.Errorf("%d servers have the lock", n)
	}
}

// TestReleaseDuringRenewal releases a lock whose renewal has no answer yet. The renewal must have
// been cancelled before the release.
func TestReleaseDuringRenewal(t *testing.T) {
	t.Parallel()
	s := startServers(t)
	var (
		held     atomic.Bool
		mu       sync.Mutex
		renewals []context.Context // contexts of the renewals
	)
	l, _ := s.faulty(6*time.Second, faults.Around(func(ctx context.Context, cmds []goredis9.Cmder, run func(context.Context) error) error {
		if !held.Load() {
			return run(ctx)
		}
		mu.Lock()
		if renews := len(cmds[0].Args()) == 6; renews { // unlike a release, it has a length of the lease
			renewals = append(renewals, ctx)
			mu.Unlock()
			<-ctx.Done()
			return ctx.Err()
		}
		defer mu.Unlock()
		if slices.ContainsFunc(renewals, func(r context.Context) bool { return r.Err() == nil }) {
			t.Error("the lock is released during a renewal")
		}
		return run(ctx)
	}))
	g, err := l.backend.Acquire(t.Context(), "a", true, nil)
	if err != nil {
		t.Fatal(err)
	}
	held.Store(true)
	testenv.Await(t, "a server is asked for a renewal", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(renewals) > 0
	})
	if err := g.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestEndOfAPause ends the context of a waiter while the waiter pauses. It must not make another
// request.
func TestEndOfAPause(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int64
		// The hook answers like a server on which somebody else holds the lock. No request is sent.
		held := faults.Around(func(_ context.Context, cmds []goredis9.Cmder, _ func(context.Context) error) error {
			asked.Add(1)
			if cmd, ok := cmds[0].(*goredis9.Cmd); ok { // a script
				cmd.SetVal(int64(0))
			}
			return nil
		})
		var clients []goredis9.UniversalClient
		for range 3 {
			client := goredis9.NewClient(&goredis9.Options{Addr: "192.0.2.1:6379"})
			defer client.Close()
			client.AddHook(held)
			clients = append(clients, client)
		}
		l, err := New(clients, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		ctx, cancel := context.WithCancel(t.Context())
		waiting := locktest.LockAsync(ctx, l, "a")
		synctest.Wait() // until the waiter pauses
		before := asked.Load()
		cancel()
		if a := <-waiting; !errors.Is(a.Err, context.Canceled) {
			t.Errorf("Lock: %v, want %v", a.Err, context.Canceled)
		}
		if n := asked.Load(); before == 0 || n != before {
			t.Errorf("%d requests before the end of the context, and %d in all", before, n)
		}
	})
}

// TestCheckAddress checks valid and invalid addresses.
func TestCheckAddress(t *testing.T) {
	t.Parallel()
	for text, valid := range map[string]bool{
		"a:1,b:2,c:3": true, "": false, "a:1,b:2": false, "u:p@a:1,b:2,c:3": false, "a:1,b:2,c:3/path": false,
	} {
		err := CheckAddress(text)
		if _, parsing := address.Parse(text); (err == nil) != valid || parsing != nil && err.Error() != parsing.Error() {
			t.Errorf("%q: %v", text, err)
		}
	}
}
