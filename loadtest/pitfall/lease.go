package pitfall

import (
	"context"
	"time"

	"github.com/holdfast-stock/holdfast/internal/lock/flawed"
	redislock "github.com/holdfast-stock/holdfast/internal/lock/redis"
)

// renewedLease is the lease of a holder that renews it and works for twice its length. It is long
// enough for a busy machine to renew it in time.
const renewedLease = 600 * time.Millisecond

// leases returns the pitfalls of work that outlasts its lease.
func leases() []Pitfall {
	return []Pitfall{
		{
			Name: "fixed-lease", Title: "Fixed lease, no watchdog", TitleChinese: "固定租期，没有看门狗",
			Versions: []Version{
				{Title: "the lease ends while its holder works", TitleChinese: "工作途中租约到期", Flawed: true, Needs: Redis, Run: fixedLease},
				{Title: "a watchdog renews the lease", TitleChinese: "看门狗自动续期", Needs: Redis, Run: renewed},
			},
		},
		{
			Name: "blocking-watchdog", Title: "A watchdog that blocks its caller", TitleChinese: "看门狗阻塞了调用者",
			Versions: []Version{
				{Title: "the lock is renewed in the caller's thread", TitleChinese: "在调用者的线程里续期", Flawed: true, Needs: Redis, Run: blockingWatchdog},
				{Title: "the lock is renewed beside the work", TitleChinese: "在工作的同时续期", Needs: Redis, Run: renewed},
			},
		},
	}
}

func fixedLease(ctx context.Context, s *Stage) Damage {
	name, shop := s.key(lockName), s.openShop()
	a := s.redisLocker(ctx, "A", redislock.Options{Lease: shortLease, Fixed: true})
	b := s.redisLocker(ctx, "B", redislock.Options{Lease: longLease})
	leaseA := a.lock(ctx, name)
	seenByA := shop.read("A")
	s.at("A", "works, for longer than its lease of %v", shortLease)
	leaseB := b.lock(ctx, name) // waits until A's lease has ended
	seenByB := shop.read("B")
	shop.sell("A", seenByA)
	shop.sell("B", seenByB)
	a.unlock(ctx, leaseA)
	b.unlock(ctx, leaseB)
	return shop.damage()
}

// renewed works for two leases while a watchdog renews them.
func renewed(ctx context.Context, s *Stage) Damage {
	const work = 2 * renewedLease
	name, shop := s.key(lockName), s.openShop()
	a := s.redisLocker(ctx, "A", redislock.Options{Lease: renewedLease})
	b := s.redisLocker(ctx, "B", redislock.Options{Lease: longLease})
	leaseA := a.lock(ctx, name)
	seenByA := shop.read("A")
	s.at("A", "works for %v; its lease of %v is renewed meanwhile", work, renewedLease)
	worked := make(chan struct{})
	go func() {
		defer close(worked)
		s.pause(ctx, work)
		shop.sellUnder("A", leaseA, seenByA)
		a.unlock(ctx, leaseA)
	}()
	leaseB := b.lock(ctx, name)
	shop.sellUnder("B", leaseB, shop.read("B"))
	b.unlock(ctx, leaseB)
	<-worked
	return shop.damage()
}

func blockingWatchdog(ctx context.Context, s *Stage) Damage {
	const lease, patience = 2 * renewedLease, 1500 * time.Millisecond
	key := s.key(lockName)
	client, clientB := s.redis(ctx, "A"), s.redis(ctx, "B")
	_, err := flawed.SetOwner(ctx, client, key, "A", lease)
	s.check(err)
	s.at("A", "renews the lock every %v, and works when that returns", lease/3)
	start := time.Now()
	bounded, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err = flawed.Renew(bounded, client, key, lease)
	if time.Since(start) < patience { // the connection may time out a moment before its context
		s.check(err)
		return Damage{}
	}
	s.at("A", "has not begun its work")
	locked, err := flawed.SetOwner(ctx, clientB, key, "B", longLease)
	s.check(err)
	if locked {
		return Damage{}
	}
	return lost(time.Since(start), "A has not begun its work, and no other client can")
}
