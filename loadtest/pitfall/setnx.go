package pitfall

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/lock/flawed"
	redislock "github.com/holdfast-stock/holdfast/internal/lock/redis"
)

// The leases of the experiments. Short leases run out, long leases do not.
const (
	shortLease = 200 * time.Millisecond
	longLease  = 30 * time.Second
)

// lockName is the lock of all experiments.
const lockName = "lock:10001"

// setNX returns the pitfalls of a lock made with SETNX.
func setNX() []Pitfall {
	return []Pitfall{
		{
			Name: "no-expiry", Title: "SETNX without an expiry", TitleChinese: "SETNX 不设过期时间",
			Versions: []Version{
				{Title: "SETNX, work, DEL", TitleChinese: "SETNX，工作，DEL", Flawed: true, Needs: Redis, Run: noExpiry},
				{Title: "SET NX PX: the lock expires", TitleChinese: "SET NX PX：锁会到期", Needs: Redis, Run: expiryInOneCall},
			},
		},
		{
			Name: "expiry-second-call", Title: "SETNX, then EXPIRE in a second call", TitleChinese: "先 SETNX，再用第二条命令 EXPIRE",
			Versions: []Version{
				{Title: "SETNX, then PEXPIRE", TitleChinese: "先 SETNX，再 PEXPIRE", Flawed: true, Needs: Redis, Run: expirySecondCall},
				{Title: "SET NX PX: one call", TitleChinese: "SET NX PX：一条命令", Needs: Redis, Run: expiryInOneCall},
			},
		},
		{
			Name: "getset-timestamp", Title: "SETNX with a timestamp, and GETSET", TitleChinese: "SETNX 存时间戳，再用 GETSET 抢占",
			Versions: []Version{
				{Title: "the lock ends when a client's clock says so", TitleChinese: "由客户端的时钟判断锁是否到期", Flawed: true, Needs: Redis, Run: endByClientClock},
				{Title: "SET NX PX: the server's clock decides for all", TitleChinese: "SET NX PX：统一由服务器的时钟判断", Needs: Redis, Run: endByServerClock},
			},
		},
		{
			Name: "unchecked-delete", Title: "Released without an owner check", TitleChinese: "释放锁时不检查所有者",
			Versions: []Version{
				{Title: "DEL, without asking who holds the lock", TitleChinese: "不管锁是谁的，直接 DEL", Flawed: true, Needs: Redis, Run: uncheckedDelete},
				{Title: "a script that compares the owner and deletes", TitleChinese: "用脚本比较所有者并删除", Needs: Redis, Run: lateUnlock},
			},
		},
		{
			Name: "get-then-delete", Title: "Owner compared with GET, then DEL", TitleChinese: "先 GET 比较所有者，再 DEL",
			Versions: []Version{
				{Title: "GET, compare, DEL", TitleChinese: "GET，比较，DEL", Flawed: true, Needs: Redis, Run: getThenDelete},
				{Title: "a script that compares and deletes in one step", TitleChinese: "用脚本一步完成比较与删除", Needs: Redis, Run: lateUnlock},
			},
		},
		{
			Name: "shared-owner", Title: "Owner kept in a field that threads share", TitleChinese: "所有者放在线程共享的字段里",
			Versions: []Version{
				{Title: "one owner field for all threads", TitleChinese: "所有线程共用一个 owner 字段", Flawed: true, Needs: Redis, Run: sharedOwner},
				{Title: "a new owner for each grant", TitleChinese: "每次授予都有新的所有者", Needs: Redis, Run: lateUnlock},
			},
		},
	}
}

func noExpiry(ctx context.Context, s *Stage) Damage {
	key := s.key(lockName)
	_, err := flawed.SetNX(ctx, s.redis(ctx, "A"), key)
	s.check(err)
	s.at("A", "is killed before it deletes the key")
	return s.waitForDead(ctx, key, askSetNX)
}

func askSetNX(ctx context.Context, client redis.UniversalClient, key string) (bool, error) {
	return flawed.SetNX(ctx, client, key)
}

func expirySecondCall(ctx context.Context, s *Stage) Damage {
	key, killed := s.key(lockName), errors.New("killed")
	_, err := flawed.SetNXThenExpire(ctx, s.redis(ctx, "A"), key, shortLease, func() error {
		s.at("A", "is killed before it sends PEXPIRE")
		return killed
	})
	if !errors.Is(err, killed) {
		s.check(err)
	}
	return s.waitForDead(ctx, key, askSetNX)
}

func expiryInOneCall(ctx context.Context, s *Stage) Damage {
	key := s.key(lockName)
	_, err := flawed.SetOwner(ctx, s.redis(ctx, "A"), key, "A", shortLease)
	s.check(err)
	s.at("A", "is killed before it deletes the key")
	return s.waitForDead(ctx, key, func(ctx context.Context, client redis.UniversalClient, key string) (bool, error) {
		return flawed.SetOwner(ctx, client, key, "B", shortLease)
	})
}

func endByClientClock(ctx context.Context, s *Stage) Damage {
	key, shop, now := s.key(lockName), s.openShop(), time.Now()
	_, err := flawed.SetEnd(ctx, s.redis(ctx, "A"), key, now, longLease)
	s.check(err)
	seenByA := shop.read("A")
	s.at("B", "has a clock that is a minute ahead")
	locked, err := flawed.SetEnd(ctx, s.redis(ctx, "B"), key, now.Add(time.Minute), longLease)
	s.check(err)
	if locked {
		s.at("B", "reads an end that has passed, and replaced it first: it has the lock")
		shop.sell("B", shop.read("B"))
	}
	shop.sell("A", seenByA)
	return shop.damage()
}

func endByServerClock(ctx context.Context, s *Stage) Damage {
	name, shop := s.key(lockName), s.openShop()
	a := s.redisLocker(ctx, "A", redislock.Options{Lease: longLease})
	b := s.redisLocker(ctx, "B", redislock.Options{Lease: longLease})
	leaseA := a.lock(ctx, name)
	seenByA := shop.read("A")
	s.at("B", "has a clock that is a minute ahead")
	b.mustBeHeld(ctx, name)
	shop.sellUnder("A", leaseA, seenByA)
	a.unlock(ctx, leaseA)
	leaseB := b.lock(ctx, name)
	shop.sellUnder("B", leaseB, shop.read("B"))
	b.unlock(ctx, leaseB)
	return shop.damage()
}

// waitForDead makes B request the lock of a dead holder, for five short leases.
func (s *Stage) waitForDead(ctx context.Context, key string, ask func(context.Context, redis.UniversalClient, string) (bool, error)) Damage {
	const patience, interval = 5 * shortLease, 10 * time.Millisecond
	b, silent := s.redis(ctx, "B"), s.silentRedis(ctx)
	start := time.Now()
	granted, err := ask(ctx, b, key)
	s.check(err)
	for asked := start; !granted && asked.Sub(start) < patience; {
		s.pause(ctx, interval)
		asked = time.Now() // measured before the request, because a busy machine may answer late
		granted, err = ask(ctx, silent, key)
		s.check(err)
	}
	waited := time.Since(start)
	if granted {
		s.at("B", "asks every %v, and is granted the lock after %.1f s", interval, waited.Seconds())
		return Damage{}
	}
	s.at("B", "asks every %v for %.1f s, and is refused", interval, waited.Seconds())
	s.check(b.PTTL(ctx, key).Err()) // shows −1 in the timeline: the key has no expiry
	return lost(waited, "B waited, and the lock stays held until an operator deletes the key")
}

func uncheckedDelete(ctx context.Context, s *Stage) Damage {
	key, shop := s.key(lockName), s.openShop()
	a, b, c := s.redis(ctx, "A"), s.redis(ctx, "B"), s.redis(ctx, "C")
	_, err := flawed.SetOwner(ctx, a, key, "A", shortLease)
	s.check(err)
	s.awaitExpiry(ctx, "A", "works", key)
	_, err = flawed.SetOwner(ctx, b, key, "B", longLease)
	s.check(err)
	seenByB := shop.read("B")
	s.check(flawed.Delete(ctx, a, key))
	_, err = flawed.SetOwner(ctx, c, key, "C", longLease)
	s.check(err)
	seenByC := shop.read("C")
	shop.sell("B", seenByB)
	shop.sell("C", seenByC)
	return shop.damage()
}

func getThenDelete(ctx context.Context, s *Stage) Damage {
	key, shop := s.key(lockName), s.openShop()
	a, b, c := s.redis(ctx, "A"), s.redis(ctx, "B"), s.redis(ctx, "C")
	var seenByB int
	for paused := false; !paused; { // on a busy machine the lease may end before the GET
		_, err := flawed.SetOwner(ctx, a, key, "A", shortLease)
		s.check(err)
		s.check(flawed.GetThenDelete(ctx, a, key, "A", func() {
			paused = true
			s.awaitExpiry(ctx, "A", "is paused", key)
			_, err := flawed.SetOwner(ctx, b, key, "B", longLease)
			s.check(err)
			seenByB = shop.read("B")
		}))
	}
	_, err := flawed.SetOwner(ctx, c, key, "C", longLease)
	s.check(err)
	seenByC := shop.read("C")
	shop.sell("B", seenByB)
	shop.sell("C", seenByC)
	return shop.damage()
}

func sharedOwner(ctx context.Context, s *Stage) Damage {
	key, shop := s.key(lockName), s.openShop()
	shared := &flawed.SharedOwner{Client: s.redis(ctx, "A")}
	_, err := shared.Lock(ctx, key, shortLease)
	s.check(err)
	s.awaitExpiry(ctx, "A", "works", key)
	shared.Client = s.redis(ctx, "B")
	_, err = shared.Lock(ctx, key, longLease)
	s.check(err)
	seenByB := shop.read("B")
	s.at("A", "unlocks as the owner in the field, which is B's now")
	shared.Client = s.redis(ctx, "A")
	s.check(shared.Unlock(ctx, key))
	_, err = flawed.SetOwner(ctx, s.redis(ctx, "C"), key, "C", longLease)
	s.check(err)
	seenByC := shop.read("C")
	shop.sell("B", seenByB)
	shop.sell("C", seenByC)
	return shop.damage()
}

// lateUnlock has the same order of events with the project's Locker: A unlocks after its lease has
// ended and B has got the lock.
func lateUnlock(ctx context.Context, s *Stage) Damage {
	name, shop := s.key(lockName), s.openShop()
	a := s.redisLocker(ctx, "A", redislock.Options{Lease: shortLease, Fixed: true})
	b := s.redisLocker(ctx, "B", redislock.Options{Lease: longLease})
	c := s.redisLocker(ctx, "C", redislock.Options{Lease: longLease})
	leaseA := a.lock(ctx, name)
	s.awaitExpiry(ctx, "A", "works", name)
	leaseB := b.lock(ctx, name)
	seenByB := shop.read("B")
	a.unlock(ctx, leaseA)
	if _, err := c.TryLock(ctx, name); err == nil {
		shop.sell("C", shop.read("C"))
	}
	shop.sellUnder("B", leaseB, seenByB)
	b.unlock(ctx, leaseB)
	return shop.damage()
}

// awaitExpiry waits until the key has expired while the actor does something else.
func (s *Stage) awaitExpiry(ctx context.Context, actor, does, key string) {
	client := s.silentRedis(ctx)
	s.await(ctx, "the lease ends", func() bool {
		n, err := client.Exists(ctx, key).Result()
		s.check(err)
		return n == 0
	})
	s.at(actor, "%s for longer than its lease: the key expires", does)
}

// redisLocker returns the project's Locker in Redis for the actor.
func (s *Stage) redisLocker(ctx context.Context, actor string, options redislock.Options) actorLocker {
	l := redislock.New(s.silentRedis(ctx), options)
	s.Cleanup(func() { _ = l.Close() })
	return s.locker(actor, l)
}
