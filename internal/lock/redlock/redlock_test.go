package redlock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	goredis9 "github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/lock/locktest"
	"github.com/holdfast-stock/holdfast/internal/store"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

func TestMain(m *testing.M) {
	store.LogRedis(slog.New(slog.DiscardHandler)) // servers are killed here: every failed dial would be a line
	os.Exit(testenv.Main(m))
}

// three are the servers of one test.
type three struct {
	t       *testing.T
	servers []*testenv.RedisServer
	clients []goredis9.UniversalClient
}

func newThree(t *testing.T) *three {
	t.Helper()
	s := &three{t: t}
	for range 3 {
		server := testenv.OwnRedis(t)
		client, err := store.OpenRedis(t.Context(), server.URL())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = client.Close() })
		s.servers, s.clients = append(s.servers, server), append(s.clients, client)
	}
	return s
}

func (s *three) locker(lease time.Duration) lock.Locker {
	s.t.Helper()
	l, err := New(s.clients, lease)
	if err != nil {
		s.t.Fatal(err)
	}
	return l
}

// kill kills the first n servers.
func (s *three) kill(n int) {
	s.t.Helper()
	for i := range n {
		s.servers[i].Kill()
		if err := s.clients[i].Ping(s.t.Context()).Err(); err == nil {
			s.t.Fatal("a killed server answers")
		}
	}
}

// keys is how many servers have the lock.
func (s *three) keys(name string) (n int64) {
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

// excludes checks that two instances have one holder at a time.
func excludes(t *testing.T, one, other lock.Locker, name string) {
	t.Helper()
	lease := locktest.MustLock(t, one, name)
	if _, err := other.TryLock(t.Context(), name); !errors.Is(err, lock.ErrHeld) {
		t.Fatalf("TryLock on a held lock: %v", err)
	}
	granted := make(chan error, 1)
	var released atomic.Bool
	go func() {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		next, err := other.Lock(ctx, name)
		if err == nil {
			if !released.Load() {
				err = errors.New("two held it at once")
			}
			err = errors.Join(err, next.Unlock(ctx))
		}
		granted <- err
	}()
	time.Sleep(300 * time.Millisecond) // it asks a few times
	released.Store(true)
	locktest.MustUnlock(t, lease)
	if err := <-granted; err != nil {
		t.Fatal(err)
	}
}

func TestMinorityKilled(t *testing.T) {
	t.Parallel()
	s := newThree(t)
	one, other := s.locker(10*time.Second), s.locker(10*time.Second)
	before := locktest.MustLock(t, one, "before")
	excludes(t, one, other, "all")
	s.kill(1)
	if _, err := other.TryLock(t.Context(), "before"); !errors.Is(err, lock.ErrHeld) {
		t.Errorf("TryLock on a lock held since before: %v", err)
	}
	locktest.MustUnlock(t, before)
	excludes(t, one, other, "before")
	excludes(t, other, one, "after")

	// Eight contenders, with the server gone.
	var inside, grants atomic.Int64
	var done sync.WaitGroup
	for range 8 {
		l := s.locker(10 * time.Second)
		done.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
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
				time.Sleep(2 * time.Millisecond)
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
		t.Errorf("%d grants, and there should be 24", grants.Load())
	}
}

// refuses checks that a lock is refused, and not for a reason that would have
// the caller believe that somebody holds it or that its own time is up.
func refuses(t *testing.T, l lock.Locker, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for how, ask := range map[string]func(context.Context, string) (lock.Lease, error){"TryLock": l.TryLock, "Lock": l.Lock} {
		_, err := ask(ctx, name)
		switch {
		case err == nil:
			t.Errorf("%s grants a lock though most servers are gone", how)
		case ctx.Err() != nil:
			t.Errorf("%s does not give up: %v", how, err)
		case errors.Is(err, lock.ErrHeld), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
			t.Errorf("%s, which nobody kept waiting, answers: %v", how, err)
		}
	}
}

func TestMajorityKilled(t *testing.T) {
	t.Parallel()
	s := newThree(t)
	l := s.locker(10 * time.Second)
	s.kill(2)
	refuses(t, l, "free")
	if n, err := s.clients[2].DBSize(t.Context()).Result(); err != nil || n != 0 {
		t.Errorf("the server that is left has %d keys, %v", n, err)
	}
}

// TestMajorityFrozen has servers that take a request and do not answer.
func TestMajorityFrozen(t *testing.T) {
	t.Parallel()
	s := newThree(t)
	l := s.locker(2 * time.Second) // which has the library wait 100 ms for an answer
	for _, server := range s.servers[:2] {
		server.Stop()
		defer server.Cont()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := s.clients[0].Ping(ctx).Err(); err == nil {
		t.Fatal("a stopped server answers")
	}
	refuses(t, l, "free")
}

func TestCancelledRequest(t *testing.T) {
	t.Parallel()
	s := newThree(t)
	one, other := s.locker(20*time.Second), s.locker(20*time.Second)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for how, ask := range map[string]func(context.Context, string) (lock.Lease, error){"TryLock": one.TryLock, "Lock": one.Lock} {
		if _, err := ask(ended, "ended"); !errors.Is(err, context.Canceled) {
			t.Errorf("%s on an ended context: %v", how, err)
		}
	}
	if n := s.keys("ended"); n != 0 {
		t.Errorf("%d servers have the lock", n)
	}

	// One that waits for a holder.
	lease := locktest.MustLock(t, one, "held")
	for want, bound := range map[error]func(context.Context) (context.Context, context.CancelFunc){
		context.DeadlineExceeded: func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, 150*time.Millisecond)
		},
		context.Canceled: func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(ctx)
			time.AfterFunc(150*time.Millisecond, cancel)
			return ctx, cancel
		},
	} {
		ctx, cancel := bound(t.Context())
		if _, err := other.Lock(ctx, "held"); !errors.Is(err, want) {
			t.Errorf("a waiter whose context ended by %v: %v", want, err)
		}
		cancel()
	}
	locktest.MustUnlock(t, lease)
	if n := s.keys("held"); n != 0 {
		t.Errorf("the waiters have left the lock on %d servers", n)
	}
}

// TestCancelledRequestLeavesNothing cancels at many moments of a request. The
// lease is far longer than the test, so none ends by itself.
func TestCancelledRequestLeavesNothing(t *testing.T) {
	t.Parallel()
	s := newThree(t)
	l := s.locker(5 * time.Minute)
	cancelled := 0
	for i := range 200 {
		name := fmt.Sprintf("cancelled-%d", i)
		ctx, cancel := context.WithCancel(t.Context())
		timer := time.AfterFunc(rand.N(600*time.Microsecond), cancel)
		lease, err := l.Lock(ctx, name)
		timer.Stop()
		cancel()
		switch {
		case err == nil:
			locktest.MustUnlock(t, lease)
		case errors.Is(err, context.Canceled):
			cancelled++
		default:
			t.Errorf("a cancelled request: %v", err)
		}
		if n := s.keys(name); n != 0 {
			t.Fatalf("it has left the lock on %d servers (%v)", n, err)
		}
	}
	if cancelled == 0 {
		t.Error("no request was cancelled before it was granted")
	}

	// And while two servers hold their answers back: they have the request all
	// the same. What comes after the cancellation may be a grant.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s.servers[0].Stop()
	s.servers[1].Stop()
	type answer struct {
		lease lock.Lease
		err   error
	}
	answers := make(chan answer, 1)
	go func() {
		lease, err := l.Lock(ctx, "unanswered")
		answers <- answer{lease, err}
	}()
	eventually(t, "the third server has the lock", func() bool {
		n, err := s.clients[2].Exists(t.Context(), "unanswered").Result()
		return err == nil && n == 1
	})
	cancel()
	s.servers[0].Cont()
	s.servers[1].Cont()
	if a := <-answers; a.err == nil {
		locktest.MustUnlock(t, a.lease)
	} else if !errors.Is(a.err, context.Canceled) {
		t.Errorf("a request cancelled while the servers did not answer: %v", a.err)
	}
	if n := s.keys("unanswered"); n != 0 {
		t.Errorf("it has left the lock on %d servers", n)
	}

	// And while they answer only when the request has been given up, and is being
	// cleaned up after.
	s.servers[0].Stop()
	s.servers[1].Stop()
	ctx, cancel = context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	asked := time.Now()
	go func() {
		lease, err := l.Lock(ctx, "late")
		answers <- answer{lease, err}
	}()
	time.Sleep(700 * time.Millisecond)
	s.servers[0].Cont()
	s.servers[1].Cont()
	a := <-answers
	if !errors.Is(a.err, context.DeadlineExceeded) {
		t.Errorf("a request that ran out of time: %v", a.err)
	}
	if took := time.Since(asked); took > 3*time.Second {
		t.Errorf("a request that had 200 ms was answered after %v", took)
	}
	if n := s.keys("late"); n != 0 {
		t.Errorf("it has left the lock on %d servers", n)
	}
}

// eventually waits until ready, for ten seconds.
func eventually(t *testing.T, what string, ready func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !ready(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within 10 s: %s", what)
		}
	}
}

func TestNumberOfServers(t *testing.T) {
	t.Parallel()
	client := goredis9.NewClient(&goredis9.Options{Addr: "127.0.0.1:1"}) // nothing is sent
	defer client.Close()
	for n := range 8 {
		clients := make([]goredis9.UniversalClient, n)
		for i := range clients {
			clients[i] = client
		}
		_, err := New(clients, 0)
		if good := n >= 3 && n%2 == 1; good != (err == nil) {
			t.Errorf("%d servers: %v", n, err)
		}
	}
}

// TestLeaseLost empties a majority of the servers under a holder.
func TestLeaseLost(t *testing.T) {
	t.Parallel()
	const short = time.Second
	s := newThree(t)
	one, other := s.locker(short), s.locker(short)
	lease := locktest.MustLock(t, one, "flushed")

	// With only one of them emptied it goes on.
	if err := s.clients[2].FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-lease.Context().Done():
		t.Fatalf("a minority's loss ended the lease: %v", context.Cause(lease.Context()))
	case <-time.After(2 * short):
	}
	if _, err := other.TryLock(t.Context(), "flushed"); !errors.Is(err, lock.ErrHeld) {
		t.Errorf("after a minority's loss TryLock answers %v", err)
	}

	for _, client := range s.clients[:2] {
		if n, err := client.Exists(t.Context(), "flushed").Result(); err != nil || n != 1 {
			t.Fatalf("a server does not have the lock: %d, %v", n, err)
		}
		if err := client.FlushAll(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
	}
	lost := time.Now()
	select {
	case <-lease.Context().Done():
	case <-time.After(10 * time.Second):
		t.Fatal("the holder does not notice")
	}
	if took := time.Since(lost); took > short+time.Second {
		t.Errorf("a lease of %v ended %v after it was lost", short, took)
	}
	if cause := context.Cause(lease.Context()); !errors.Is(cause, lock.ErrLost) {
		t.Errorf("the lease ended with %v", cause)
	}
	next := locktest.MustLock(t, other, "flushed")
	servers := s.keys("flushed") // most of them, at least: a slow one is not waited for
	if err := lease.Unlock(t.Context()); !errors.Is(err, lock.ErrLost) {
		t.Errorf("Unlock of a lost lease: %v", err)
	}
	if err := next.Context().Err(); err != nil {
		t.Errorf("the next holder's lease: %v", err)
	}
	if n := s.keys("flushed"); n < servers {
		t.Errorf("the lost lease's Unlock has left the next holder %d of %d servers", n, servers)
	}
	locktest.MustUnlock(t, next)
	if n := s.keys("flushed"); n != 0 {
		t.Errorf("%d servers have the lock after its release", n)
	}
}

// TestUnlockEndsAllGoroutines is not parallel, so that all goroutines are its
// own.
func TestUnlockEndsAllGoroutines(t *testing.T) {
	var servers []*testenv.RedisServer
	for range 3 {
		servers = append(servers, testenv.OwnRedis(t))
	}
	before := goleak.IgnoreCurrent()
	var clients []goredis9.UniversalClient
	for _, server := range servers {
		clients = append(clients, goredis9.NewClient(&goredis9.Options{Addr: server.Addr()}))
	}
	l, err := New(clients, 200*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	lease := locktest.MustLock(t, l, "ended")
	time.Sleep(300 * time.Millisecond) // it is extended meanwhile
	locktest.MustUnlock(t, lease)
	for _, client := range clients {
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	}
	goleak.VerifyNone(t, before)
}
