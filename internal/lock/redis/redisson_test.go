package redis

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	goredis "github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/faults"
	"github.com/holdfast-stock/holdfast/internal/lock/locktest"
	"github.com/holdfast-stock/holdfast/internal/store/storetest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// The scripts of Redisson's RLock, as the methods tryLockInnerAsync and
// unlockInnerAsync of its class org.redisson.RedissonLock send them. Redisson is
// published under the Apache License 2.0.
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

// redisson acts as one thread of a Redisson instance.
type redisson struct {
	client  goredis.UniversalClient
	owner   string // UUID:threadId
	lease   time.Duration
	publish string // command that publishes a release
}

func newRedisson(client goredis.UniversalClient, lease time.Duration) *redisson {
	return &redisson{client: client, owner: uuid.NewString() + ":1", lease: lease, publish: "publish"}
}

// lock makes one request. If the lock is held, it returns the lock's remaining time.
func (r *redisson) lock(ctx context.Context, name string) (granted bool, remaining time.Duration, err error) {
	answer, err := redissonLock.Run(ctx, r.client, []string{name}, r.lease.Milliseconds(), r.owner).Int64()
	if errors.Is(err, goredis.Nil) {
		return true, 0, nil
	}
	return false, time.Duration(answer) * time.Millisecond, err
}

// lockWaiting repeats the request until it is granted the lock, as RedissonLock.lock does. After a
// refusal it waits for a message or for the end of the remaining time. It returns the number of
// refusals.
func (r *redisson) lockWaiting(ctx context.Context, name string, messages <-chan *goredis.Message) (refusals int64, err error) {
	for {
		granted, remaining, err := r.lock(ctx, name)
		if granted || err != nil {
			return refusals, err
		}
		refusals++
		expiry := time.NewTimer(remaining)
		select {
		case <-messages:
		case <-expiry.C:
		case <-ctx.Done():
			return refusals, ctx.Err()
		}
		expiry.Stop()
	}
}

// unlock returns 1 if it freed the lock, 0 if the lock was entered more than once and is still
// held, and nil if another owner holds it.
func (r *redisson) unlock(ctx context.Context, name string) (answer string, err error) {
	// Redisson makes a new request ID for every unlock.
	keys := []string{
		name, "redisson_lock__channel:{" + name + "}",
		"redisson_unlock_latch:{" + name + "}:" + strings.ReplaceAll(uuid.NewString(), "-", ""),
	}
	n, err := redissonUnlock.Run(ctx, r.client, keys, "0", r.lease.Milliseconds(), r.owner, r.publish, 15_000).Int64()
	if errors.Is(err, goredis.Nil) {
		return "nil", nil
	}
	return strconv.FormatInt(n, 10), err
}

func (r *redisson) mustLock(t *testing.T, name string) {
	t.Helper()
	if granted, remaining, err := r.lock(t.Context(), name); err != nil || !granted {
		t.Fatalf("Redisson was not granted the lock: %v remain, error %v", remaining, err)
	}
}

func (r *redisson) mustUnlock(t *testing.T, name, want string) {
	t.Helper()
	if answer, err := r.unlock(t.Context(), name); err != nil || answer != want {
		t.Fatalf("Redisson's unlock returned %s, %v, want %s", answer, err, want)
	}
}

// newLocker returns a Locker whose waiters repeat their request only if they are woken, or when the
// holder's lease should have ended.
func newLocker(t *testing.T, client goredis.UniversalClient, options Options) *Locker {
	t.Helper()
	l := newImpatient(t, client, options)
	l.backend.maxSleep = time.Hour
	return l
}

// newImpatient returns a Locker like New, whose waiters repeat their request after maxSleep.
func newImpatient(t *testing.T, client goredis.UniversalClient, options Options) *Locker {
	t.Helper()
	options.Lease = cmp.Or(options.Lease, locktest.LongLease)
	l := New(client, options)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// requestCounter counts the answered requests of one Locker for one lock.
type requestCounter struct {
	locker string // ID of the Locker
	name   string
	n      atomic.Int64
}

// around is the hook of the client.
func (c *requestCounter) around(ctx context.Context, cmds []goredis.Cmder, run func(context.Context) error) error {
	err := run(ctx)
	// EVALSHA hash 3 NAME TOKEN QUEUE FIELD …, as acquire.lua is called
	if args := cmds[0].Args(); err == nil && len(args) > 6 && args[2] == 3 && args[3] == c.name {
		if field, ok := args[6].(string); ok && strings.HasPrefix(field, c.locker+":") {
			c.n.Add(1)
		}
	}
	return err
}

// startWaiter calls Lock for a held lock, and returns when the waiter sleeps. If the waiter has the
// first place in the queue, it makes a request, subscribes, and makes another. It makes only one
// request if its Locker has subscribed to both channels before.
func startWaiter(ctx context.Context, t *testing.T, l *Locker, name string) <-chan locktest.Answer {
	t.Helper()
	requests := &requestCounter{locker: l.backend.id, name: name}
	l.backend.client.AddHook(faults.Around(requests.around))
	asks := int64(2)
	if l.backend.releases.listens(name) {
		asks = 1
	}
	answers := locktest.LockAsync(ctx, l, name)
	testenv.Await(t, "the waiter has asked", func() bool { return requests.n.Load() >= asks })
	return answers
}

// listens reports whether Redisson's releases of the lock are received.
func (ss *subscriptions) listens(name string) bool {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	s := ss.byChannel[releaseChannel(name)]
	return s != nil && s.listens
}

// topologies are the ways in which Redis can be deployed. In a cluster of Redis 7
// or later, Redisson publishes releases on sharded channels.
var topologies = []struct {
	name    string
	url     func(testenv.T) string
	sharded bool
}{
	{"single", testenv.Redis, false},
	{"cluster", testenv.RedisCluster, false},
	{"sharded", testenv.RedisCluster, true},
	{"sentinel", testenv.RedisSentinel, false},
}

// TestRedissonHolderExcludesOurs holds the lock with Redisson, entered once and
// twice. Redisson's last unlock must wake our waiter long before the lease ends.
func TestRedissonHolderExcludesOurs(t *testing.T) {
	t.Parallel()
	for _, topology := range topologies {
		t.Run(topology.name, func(t *testing.T) {
			t.Parallel()
			client := storetest.Redis(t, topology.url(t))
			for _, entered := range []int{1, 2} {
				name := "redisson-holds-" + uuid.NewString()
				foreign := newRedisson(client, locktest.LongLease)
				if topology.sharded {
					foreign.publish = "spublish"
				}
				ours := newLocker(t, client, Options{})
				for range entered {
					foreign.mustLock(t, name)
				}
				locktest.MustBeHeld(t, ours, name)
				waiting := startWaiter(t.Context(), t, ours, name)
				for range entered - 1 { // only the last unlock frees the lock
					foreign.mustUnlock(t, name, "0")
					locktest.MustBeHeld(t, newLocker(t, client, Options{}), name)
				}
				locktest.MustWait(t, waiting)
				foreign.mustUnlock(t, name, "1")
				granted := locktest.MustGrant(t, waiting)
				foreign.mustUnlock(t, name, "nil") // our Locker has the lock now
				locktest.MustUnlock(t, granted.Lease)
				foreign.mustLock(t, name)
				foreign.mustUnlock(t, name, "1")
			}
		})
	}
}

// TestOurHolderExcludesRedisson holds the lock with our Locker. Its Unlock must
// wake Redisson's waiters.
func TestOurHolderExcludesRedisson(t *testing.T) {
	t.Parallel()
	for _, topology := range topologies {
		t.Run(topology.name, func(t *testing.T) {
			t.Parallel()
			client := storetest.Redis(t, topology.url(t))
			name := "ours-holds-" + uuid.NewString()
			foreign := newRedisson(client, locktest.LongLease)
			const leaseTime = time.Minute
			ours := newLocker(t, client, Options{Lease: leaseTime})
			lease := locktest.MustLock(t, ours, name)

			granted, remaining, err := foreign.lock(t.Context(), name)
			if err != nil || granted || remaining <= leaseTime/2 || remaining > leaseTime {
				t.Fatalf("Redisson's lock returned %v, %v remain, error %v; want the remaining time of the lease of %v", granted, remaining, err, leaseTime)
			}
			foreign.mustUnlock(t, name, "nil")
			if fields, err := client.HGetAll(t.Context(), name).Result(); err != nil || len(fields) != 1 {
				t.Fatalf("after Redisson's unlock the lock has the fields %v, %v; want one", fields, err)
			}
			if err := lease.Context().Err(); err != nil {
				t.Fatalf("Redisson's unlock ended our lease: %v", err)
			}

			subscribe := client.Subscribe
			if topology.sharded {
				subscribe = client.SSubscribe
			}
			sub := subscribe(t.Context(), "redisson_lock__channel:{"+name+"}")
			defer sub.Close()
			if _, err := sub.Receive(t.Context()); err != nil { // confirms the subscription
				t.Fatal(err)
			}
			locktest.MustUnlock(t, lease)
			ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
			defer cancel()
			message, err := sub.ReceiveMessage(ctx)
			if err != nil {
				t.Fatalf("our Unlock published no message: %v", err)
			}
			if message.Payload != "0" { // LockPubSub.UNLOCK_MESSAGE
				t.Errorf("our Unlock published %q, and Redisson waits for 0", message.Payload)
			}
			foreign.mustLock(t, name)
			foreign.mustUnlock(t, name, "1")
		})
	}
}

// TestRedissonLockExpires takes the lock after a Redisson instance has died.
func TestRedissonLockExpires(t *testing.T) {
	t.Parallel()
	client := storetest.Redis(t, testenv.Redis(t))
	name := "redisson-dies-" + uuid.NewString()
	dead := newRedisson(client, 700*time.Millisecond)
	ours := newLocker(t, client, Options{})
	began := time.Now()
	dead.mustLock(t, name)
	lease := locktest.MustLock(t, ours, name) // only the end of the lease wakes the waiter
	if took := time.Since(began); took < 690*time.Millisecond {
		t.Errorf("granted after %v, before the lease of 700 ms ended", took)
	}
	dead.mustUnlock(t, name, "nil") // the lock of the dead instance has expired
	locktest.MustUnlock(t, lease)
}

// TestRedissonLockWithoutExpiry waits for a lock that has no expiry, as after a
// mistaken PERSIST. The lock is then deleted, and no message is published.
func TestRedissonLockWithoutExpiry(t *testing.T) {
	t.Parallel()
	client := storetest.Redis(t, testenv.Redis(t))
	name := "redisson-stays-" + uuid.NewString()
	newRedisson(client, locktest.LongLease).mustLock(t, name)
	if persisted, err := client.Persist(t.Context(), name).Result(); err != nil || !persisted {
		t.Fatalf("the lock still has an expiry: %v", err)
	}
	ours := newImpatient(t, client, Options{})
	waiting := startWaiter(t.Context(), t, ours, name)
	if n, err := client.Del(t.Context(), name).Result(); err != nil || n != 1 {
		t.Fatalf("there was no lock to delete: %v", err)
	}
	locktest.MustUnlock(t, locktest.MustGrant(t, waiting).Lease) // before the end of a lease
}

// contention is a critical section that Redisson and our Lockers contend for.
type contention struct {
	t      *testing.T
	name   string // name of the lock
	rounds int    // grants to each contender

	inside   atomic.Int64
	refusals atomic.Int64 // refusals of Redisson
	tokens   sync.Map     // tokens of our leases
}

// enter is the critical section.
func (c *contention) enter(grants *atomic.Int64) {
	if n := c.inside.Add(1); n != 1 {
		c.t.Errorf("%d hold the lock at once", n)
	}
	testenv.Dither() // stands for the section's work, during which no other may enter
	grants.Add(1)
	c.inside.Add(-1)
}

func (c *contention) redisson(ctx context.Context, r *redisson, grants *atomic.Int64) error {
	sub := r.client.Subscribe(ctx, "redisson_lock__channel:{"+c.name+"}")
	defer sub.Close()
	if _, err := sub.Receive(ctx); err != nil { // confirms the subscription
		return err
	}
	messages := sub.Channel()
	for range c.rounds {
		refused, err := r.lockWaiting(ctx, c.name, messages)
		c.refusals.Add(refused)
		if err != nil {
			return err
		}
		c.enter(grants)
		if answer, err := r.unlock(ctx, c.name); err != nil || answer != "1" {
			return fmt.Errorf("Redisson's unlock returned %s, %v, want 1", answer, err)
		}
	}
	return nil
}

func (c *contention) ours(ctx context.Context, l *Locker, grants *atomic.Int64) error {
	for range c.rounds {
		lease, err := l.Lock(ctx, c.name)
		if err != nil {
			return err
		}
		if _, used := c.tokens.LoadOrStore(lease.Token(), true); used {
			c.t.Errorf("token %d was granted twice", lease.Token())
		}
		c.enter(grants)
		if err := lease.Unlock(ctx); err != nil {
			return err
		}
	}
	return nil
}

// TestRedissonAndOursContend lets eight instances of Redisson and eight of ours enter one critical
// section.
func TestRedissonAndOursContend(t *testing.T) {
	t.Parallel()
	const contenders, rounds = 8, 5
	client := storetest.Redis(t, testenv.Redis(t))
	c := &contention{t: t, name: "both-contend-" + uuid.NewString(), rounds: rounds}
	ctx, cancel := context.WithTimeout(t.Context(), 3*testenv.Patience)
	defer cancel()
	var foreignGrants, ourGrants atomic.Int64
	var done sync.WaitGroup
	for range contenders {
		foreign, ours := newRedisson(client, locktest.LongLease), newImpatient(t, client, Options{})
		done.Go(func() {
			if err := c.redisson(ctx, foreign, &foreignGrants); err != nil {
				t.Error(err)
			}
		})
		done.Go(func() {
			if err := c.ours(ctx, ours, &ourGrants); err != nil {
				t.Error(err)
			}
		})
	}
	done.Wait()
	if foreignGrants.Load() != contenders*rounds || ourGrants.Load() != contenders*rounds {
		t.Errorf("%d grants to Redisson and %d to ours, want %d each", foreignGrants.Load(), ourGrants.Load(), contenders*rounds)
	}
	if c.refusals.Load() == 0 {
		t.Error("no request was refused: there was no contention")
	}
}
