package pitfall

import (
	"context"
	"time"

	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/lock/flawed"
	redislock "github.com/holdfast-stock/holdfast/internal/lock/redis"
)

// reentry returns the pitfalls of a holder that requests its lock again.
func reentry() []Pitfall {
	return []Pitfall{
		{
			Name: "not-reentrant", Title: "A holder that asks again waits for itself", TitleChinese: "锁不可重入：持有者等待自己",
			Versions: []Version{
				{Title: "each request is a new owner", TitleChinese: "每次申请都是新的所有者", Flawed: true, Needs: Redis, Run: notReentrant},
				{Title: "the owner is named in the context", TitleChinese: "在 context 中写明所有者", Needs: Redis, Run: reentrant},
			},
		},
		{
			Name: "reentrant-no-count", Title: "Reentrant without a count", TitleChinese: "可重入但不计数",
			Versions: []Version{
				{Title: "the first unlock frees the lock", TitleChinese: "第一次解锁就释放了锁", Flawed: true, Needs: Redis, Run: uncounted},
				{Title: "entries are counted", TitleChinese: "对进入次数计数", Needs: Redis, Run: counted},
			},
		},
	}
}

func notReentrant(ctx context.Context, s *Stage) Damage {
	return reenter(ctx, s, 500*time.Millisecond)
}

func reentrant(ctx context.Context, s *Stage) Damage {
	s.at("A", "names itself in the context: owner order-17")
	return reenter(lock.WithOwner(ctx, "order-17"), s, maxRun)
}

// reenter requests a lock twice, like an order that calls a service which needs the same lock.
func reenter(ctx context.Context, s *Stage, patience time.Duration) Damage {
	name := s.key(lockName)
	a := s.redisLocker(ctx, "A", redislock.Options{Lease: longLease})
	outer := a.lock(ctx, name)
	s.at("A", "calls a service that takes the same lock")
	start := time.Now()
	inner, err := a.wait(outer.Context(), name, patience)
	if err != nil {
		a.unlock(ctx, outer)
		return lost(time.Since(start), "A waited for itself, and the order failed")
	}
	a.unlock(ctx, inner)
	a.unlock(ctx, outer)
	return Damage{}
}

func uncounted(ctx context.Context, s *Stage) Damage {
	key, shop := s.key(lockName), s.openShop()
	a := flawed.Uncounted{Client: s.redis(ctx, "A"), Owner: "A"}
	b := flawed.Uncounted{Client: s.redis(ctx, "B"), Owner: "B"}
	_, err := a.Lock(ctx, key, longLease)
	s.check(err)
	seenByA := shop.read("A")
	s.at("A", "calls a service that takes the same lock")
	_, err = a.Lock(ctx, key, longLease)
	s.check(err)
	s.at("A", "the service unlocks")
	s.check(a.Unlock(ctx, key))
	locked, err := b.Lock(ctx, key, longLease)
	s.check(err)
	if locked {
		shop.sell("B", shop.read("B"))
	}
	shop.sell("A", seenByA)
	s.check(a.Unlock(ctx, key))
	return shop.damage()
}

func counted(ctx context.Context, s *Stage) Damage {
	name, shop := s.key(lockName), s.openShop()
	a := s.redisLocker(ctx, "A", redislock.Options{Lease: longLease})
	b := s.redisLocker(ctx, "B", redislock.Options{Lease: longLease})
	outer := a.lock(lock.WithOwner(ctx, "order-17"), name)
	seenByA := shop.read("A")
	s.at("A", "calls a service that takes the same lock")
	inner := a.lock(outer.Context(), name)
	s.at("A", "the service unlocks")
	a.unlock(ctx, inner)
	if _, err := b.TryLock(ctx, name); err == nil {
		shop.sell("B", shop.read("B"))
	}
	shop.sellUnder("A", outer, seenByA)
	a.unlock(ctx, outer)
	return shop.damage()
}
