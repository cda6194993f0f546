package redis

import (
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	goredis "github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/lock/locktest"
	"github.com/holdfast-stock/holdfast/internal/store"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// The commands of Redisson's RLock as its class org.redisson.RedissonLock sends
// them (tryLockInnerAsync and unlockInnerAsync; Redisson is published under the
// Apache License 2.0).
var (
	redissonLock = goredis.NewScript(`if ((redis.call('exists', KEYS[1]) == 0) or (redis.call('hexists', KEYS[1], ARGV[2]) == 1)) then ` +
		`redis.call('hincrby', KEYS[1], ARGV[2], 1); ` +
		`redis.call('pexpire', KEYS[1], ARGV[1]); ` +
		`return nil; ` +
		`end; ` +
		`return redis.call('pttl', KEYS[1]);`)
	redissonUnlock = goredis.NewScript(`local val = redis.call('get', KEYS[3]); ` +
		`if val ~= false then ` +
		`return tonumber(val); ` +
		`end; ` +
		`if (redis.call('hexists', KEYS[1], ARGV[3]) == 0) then ` +
		`return nil; ` +
		`end; ` +
		`local counter = redis.call('hincrby', KEYS[1], ARGV[3], -1); ` +
		`if (counter > 0) then ` +
		`redis.call('pexpire', KEYS[1], ARGV[2]); ` +
		`redis.call('set', KEYS[3], 0, 'px', ARGV[5]); ` +
		`return 0; ` +
		`else ` +
		`redis.call('del', KEYS[1]); ` +
		`redis.call(ARGV[4], KEYS[2], ARGV[1]); ` +
		`redis.call('set', KEYS[3], 1, 'px', ARGV[5]); ` +
		`return 1; ` +
		`end;`)
)

// redisson is one thread of a foreign instance.
type redisson struct {
	client goredis.UniversalClient
	owner  string // UUID:threadId
	lease  time.Duration
}

func newRedisson(client goredis.UniversalClient, lease time.Duration) *redisson {
	return &redisson{client: client, owner: uuid.NewString() + ":1", lease: lease}
}

// lock asks once. Refused, it has the lock's remaining time.
func (r *redisson) lock(ctx context.Context, name string) (granted bool, remaining time.Duration, err error) {
	answer, err := redissonLock.Run(ctx, r.client, []string{name}, r.lease.Milliseconds(), r.owner).Int64()
	if errors.Is(err, goredis.Nil) {
		return true, 0, nil
	}
	return false, time.Duration(answer) * time.Millisecond, err
}

// unlock answers 1 for a lock that it freed, 0 for one that it has entered more
// often, and nil for one that it does not hold.
func (r *redisson) unlock(ctx context.Context, name string) (answer string, err error) {
	// Redisson has a new request's ID for every unlock.
	keys := []string{
		name, "redisson_lock__channel:{" + name + "}",
		"redisson_unlock_latch:{" + name + "}:" + strings.ReplaceAll(uuid.NewString(), "-", ""),
	}
	n, err := redissonUnlock.Run(ctx, r.client, keys, "0", r.lease.Milliseconds(), r.owner, "publish", 15_000).Int64()
	if errors.Is(err, goredis.Nil) {
		return "nil", nil
	}
	return strconv.FormatInt(n, 10), err
}

func (r *redisson) mustLock(t *testing.T, name string) {
	t.Helper()
	if granted, remaining, err := r.lock(t.Context(), name); err != nil || !granted {
		t.Fatalf("the foreign client was not granted the lock: %v left, %v", remaining, err)
	}
}

func (r *redisson) mustUnlock(t *testing.T, name, want string) {
	t.Helper()
	if answer, err := r.unlock(t.Context(), name); err != nil || answer != want {
		t.Fatalf("the foreign unlock answers %s, %v, and should %s", answer, err, want)
	}
}

// openClient connects as the service does.
func openClient(t *testing.T, url string) goredis.UniversalClient {
	t.Helper()
	client, err := store.OpenRedis(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func newLocker(t *testing.T, client goredis.UniversalClient, options Options) *Locker {
	t.Helper()
	l := New(client, options)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// refused checks that ours does not get a held lock.
func refused(t *testing.T, l lock.Locker, name string) {
	t.Helper()
	if lease, err := l.TryLock(t.Context(), name); !errors.Is(err, lock.ErrHeld) {
		if err == nil {
			_ = lease.Unlock(t.Context())
		}
		t.Fatalf("TryLock on a held lock: %v", err)
	}
}

// granting is a Lock under way.
type granting struct {
	lease lock.Lease
	err   error
	at    time.Time
}

func lockLater(ctx context.Context, l lock.Locker, name string) <-chan granting {
	granted := make(chan granting, 1)
	go func() {
		lease, err := l.Lock(ctx, name)
		granted <- granting{lease, err, time.Now()}
	}()
	return granted
}

// soon waits for a grant that is due, and so for far less than the lease that
// would bring it anyhow.
func soon(t *testing.T, granted <-chan granting) granting {
	t.Helper()
	select {
	case g := <-granted:
		if g.err != nil {
			t.Fatal(g.err)
		}
		return g
	case <-time.After(10 * time.Second):
		t.Fatal("not granted")
		panic("unreachable")
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

// listens waits until our waiter hears of the lock's releases.
func listens(t *testing.T, l *Locker, name string) {
	t.Helper()
	eventually(t, "the waiter listens", func() bool {
		releases := l.backend.releases
		releases.mu.Lock()
		e := releases.ears[channel(name)]
		waiting := e != nil && e.waiting > 0
		releases.mu.Unlock()
		return waiting
	})
	// It asks again once the subscription is there, and sleeps after that.
	time.Sleep(100 * time.Millisecond)
}

// topologies are the ways in which Redis is run.
var topologies = []struct {
	name string
	url  func(testenv.T) string
}{
	{"single", testenv.Redis},
	{"cluster", testenv.RedisCluster},
	{"sentinel", testenv.RedisSentinel},
}

// TestRedissonHolderExcludesOurs holds with Redisson. Its unlock wakes ours long
// before the lease would end.
func TestRedissonHolderExcludesOurs(t *testing.T) {
	t.Parallel()
	for _, topology := range topologies {
		t.Run(topology.name, func(t *testing.T) {
			t.Parallel()
			client := openClient(t, topology.url(t))
			for _, entered := range []int{1, 2} {
				name := "redisson-holds-" + uuid.NewString()
				foreign := newRedisson(client, 30*time.Second)
				ours := newLocker(t, client, Options{})
				for range entered {
					foreign.mustLock(t, name)
				}
				refused(t, ours, name)
				granted := lockLater(t.Context(), ours, name)
				listens(t, ours, name)
				for range entered - 1 { // its first unlocks free nothing
					foreign.mustUnlock(t, name, "0")
					refused(t, newLocker(t, client, Options{}), name)
				}
				select {
				case g := <-granted:
					t.Fatalf("entered %d times, it did not exclude ours: %v", entered, g.err)
				case <-time.After(100 * time.Millisecond):
				}
				released := time.Now()
				foreign.mustUnlock(t, name, "1")
				g := soon(t, granted)
				if took := g.at.Sub(released); took > 2*time.Second {
					t.Errorf("entered %d times, its unlock woke ours after %v", entered, took)
				}
				foreign.mustUnlock(t, name, "nil") // it is ours now
				locktest.MustUnlock(t, g.lease)
				foreign.mustLock(t, name)
				foreign.mustUnlock(t, name, "1")
			}
		})
	}
}

// TestOurHolderExcludesRedisson holds with ours, whose Unlock wakes Redisson.
func TestOurHolderExcludesRedisson(t *testing.T) {
	t.Parallel()
	for _, topology := range topologies {
		t.Run(topology.name, func(t *testing.T) {
			t.Parallel()
			client := openClient(t, topology.url(t))
			name := "ours-holds-" + uuid.NewString()
			foreign := newRedisson(client, 30*time.Second)
			ours := newLocker(t, client, Options{Lease: 20 * time.Second})
			lease := locktest.MustLock(t, ours, name)

			granted, remaining, err := foreign.lock(t.Context(), name)
			if err != nil || granted || remaining <= 10*time.Second || remaining > 20*time.Second {
				t.Fatalf("Redisson's lock answers %v, %v left, %v; it should be told when the lease of 20 s ends", granted, remaining, err)
			}
			foreign.mustUnlock(t, name, "nil")
			if fields, err := client.HGetAll(t.Context(), name).Result(); err != nil || len(fields) != 1 {
				t.Fatalf("after a foreigner's unlock the lock is %v, %v", fields, err)
			}
			if err := lease.Context().Err(); err != nil {
				t.Fatalf("a foreigner's unlock ended the lease: %v", err)
			}

			sub := client.Subscribe(t.Context(), "redisson_lock__channel:{"+name+"}")
			defer sub.Close()
			if _, err := sub.Receive(t.Context()); err != nil { // the subscription itself
				t.Fatal(err)
			}
			locktest.MustUnlock(t, lease)
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			message, err := sub.ReceiveMessage(ctx)
			if err != nil {
				t.Fatalf("our Unlock was not announced: %v", err)
			}
			if message.Payload != "0" { // LockPubSub.UNLOCK_MESSAGE
				t.Errorf("our Unlock was announced by %q, and Redisson waits for 0", message.Payload)
			}
			foreign.mustLock(t, name)
			foreign.mustUnlock(t, name, "1")
		})
	}
}

// TestRedissonLockExpires takes over from a Redisson instance that died.
func TestRedissonLockExpires(t *testing.T) {
	t.Parallel()
	client := openClient(t, testenv.Redis(t))
	name := "redisson-dies-" + uuid.NewString()
	dead := newRedisson(client, 700*time.Millisecond)
	ours := newLocker(t, client, Options{})
	began := time.Now()
	dead.mustLock(t, name)
	held := time.Now()
	lease := locktest.MustLock(t, ours, name)
	if took := time.Since(began); took < 690*time.Millisecond {
		t.Errorf("taken over after %v, before its lease of 700 ms ended", took)
	}
	if took := time.Since(held); took > 2700*time.Millisecond {
		t.Errorf("taken over only after %v", took)
	}
	dead.mustUnlock(t, name, "nil") // it did expire
	locktest.MustUnlock(t, lease)
}

// TestRedissonLockWithoutEnd waits for a lock that no lease ends, as a mistaken
// PERSIST leaves it, and that is removed without a word.
func TestRedissonLockWithoutEnd(t *testing.T) {
	t.Parallel()
	client := openClient(t, testenv.Redis(t))
	name := "redisson-stays-" + uuid.NewString()
	newRedisson(client, 30*time.Second).mustLock(t, name)
	if persisted, err := client.Persist(t.Context(), name).Result(); err != nil || !persisted {
		t.Fatalf("the lock still has an end: %v", err)
	}
	ours := newLocker(t, client, Options{Lease: 3 * time.Second})
	granted := lockLater(t.Context(), ours, name)
	listens(t, ours, name)
	if n, err := client.Del(t.Context(), name).Result(); err != nil || n != 1 {
		t.Fatalf("there was no lock to delete: %v", err)
	}
	select {
	case g := <-granted:
		if g.err != nil {
			t.Fatal(g.err)
		}
		locktest.MustUnlock(t, g.lease)
	case <-time.After(3 * time.Second):
		t.Fatal("not granted within a lease of its removal")
	}
}

// TestRedissonAndOursContend has eight of each enter one critical section.
func TestRedissonAndOursContend(t *testing.T) {
	t.Parallel()
	const contenders, rounds = 8, 5
	url := testenv.Redis(t)
	client := openClient(t, url)
	name := "both-contend-" + uuid.NewString()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	var inside, foreignGrants, ourGrants, refusals atomic.Int64
	section := func(grants *atomic.Int64) {
		if n := inside.Add(1); n != 1 {
			t.Errorf("%d hold the lock at once", n)
		}
		time.Sleep(2 * time.Millisecond)
		grants.Add(1)
		inside.Add(-1)
	}
	var done sync.WaitGroup
	for range contenders {
		foreign := newRedisson(client, 30*time.Second)
		done.Go(func() { // as RedissonLock.lock does
			sub := client.Subscribe(ctx, "redisson_lock__channel:{"+name+"}")
			defer sub.Close()
			if _, err := sub.Receive(ctx); err != nil {
				t.Error(err)
				return
			}
			messages := sub.Channel()
			for range rounds {
				for {
					granted, remaining, err := foreign.lock(ctx, name)
					if err != nil {
						t.Error(err)
						return
					}
					if granted {
						break
					}
					refusals.Add(1)
					select {
					case <-messages:
					case <-time.After(remaining):
					case <-ctx.Done():
						t.Error(ctx.Err())
						return
					}
				}
				section(&foreignGrants)
				if answer, err := foreign.unlock(ctx, name); err != nil || answer != "1" {
					t.Errorf("a foreign unlock answers %s, %v", answer, err)
					return
				}
			}
		})
	}
	var tokens sync.Map
	for range contenders { // each an instance, so that all eight ask the server
		ours := newLocker(t, client, Options{})
		done.Go(func() {
			for range rounds {
				lease, err := ours.Lock(ctx, name)
				if err != nil {
					t.Error(err)
					return
				}
				if _, used := tokens.LoadOrStore(lease.Token(), true); used {
					t.Errorf("token %d was given twice", lease.Token())
				}
				section(&ourGrants)
				if err := lease.Unlock(ctx); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	done.Wait()
	if foreignGrants.Load() != contenders*rounds || ourGrants.Load() != contenders*rounds {
		t.Errorf("%d foreign grants and %d of ours, each should be %d", foreignGrants.Load(), ourGrants.Load(), contenders*rounds)
	}
	if refusals.Load() == 0 {
		t.Error("nobody was refused: there was no contention")
	}
}
