package pitfall

import (
	"context"
	"fmt"

	"github.com/holdfast-stock/holdfast/internal/lock"
	redislock "github.com/holdfast-stock/holdfast/internal/lock/redis"
)

// scopes returns the pitfalls of a lock that covers too few processes, or too little time.
func scopes() []Pitfall {
	return []Pitfall{
		{
			Name: "process-mutex", Title: "A mutex of the process, and two instances", TitleChinese: "进程内的互斥锁，却有两个实例",
			Versions: []Version{
				{Title: "each instance has its own mutex", TitleChinese: "每个实例各有一把互斥锁", Flawed: true, Run: processMutex},
				{Title: "a lock that the instances share", TitleChinese: "各实例共用一把锁", Needs: Redis, Run: sharedLock},
			},
		},
		{
			Name: "unlock-before-commit", Title: "The lock is released before the transaction commits", TitleChinese: "事务还没提交就释放了锁",
			Versions: []Version{
				{Title: "unlock, then COMMIT", TitleChinese: "先解锁，后 COMMIT", Flawed: true, Needs: MariaDB, Run: unlockThenCommit},
				{Title: "COMMIT, then unlock", TitleChinese: "先 COMMIT，后解锁", Needs: MariaDB, Run: commitThenUnlock},
			},
		},
	}
}

func processMutex(ctx context.Context, s *Stage) Damage {
	return s.twoInstances(ctx, lock.NewLocal(), lock.NewLocal())
}

func sharedLock(ctx context.Context, s *Stage) Damage {
	open := func(actor string) lock.Locker {
		return s.redisLocker(ctx, actor, redislock.Options{Lease: longLease}).inner
	}
	return s.twoInstances(ctx, open("A"), open("B"))
}

// twoInstances lets instance B request the lock after A has read the count and before A writes it.
func (s *Stage) twoInstances(ctx context.Context, lockerA, lockerB lock.Locker) Damage {
	name, shop := s.key(lockName), s.openShop()
	a, b := s.locker("A", lockerA), s.locker("B", lockerB)
	leaseA := a.lock(ctx, name)
	seenByA := shop.read("A")
	if _, err := b.TryLock(ctx, name); err == nil {
		seenByB := shop.read("B")
		shop.sell("A", seenByA)
		shop.sell("B", seenByB)
		return shop.damage()
	}
	shop.sellUnder("A", leaseA, seenByA)
	a.unlock(ctx, leaseA)
	leaseB := b.lock(ctx, name)
	shop.sellUnder("B", leaseB, shop.read("B"))
	return shop.damage()
}

// cutting is a transaction that cuts a unit of a product under a lock.
type cutting struct {
	actorConn
	table  string
	locker actorLocker
	lease  lock.Lease
	seen   int
}

// cuttings returns the transactions of two threads, which share a lock.
func (s *Stage) cuttings(ctx context.Context) (a, b *cutting) {
	db := s.database(ctx)
	table, locks := s.stockTable(ctx, db, true), lock.NewLocal()
	open := func(actor string) *cutting {
		return &cutting{actorConn: s.conn(ctx, actor, db, readCommitted), table: table, locker: s.locker(actor, locks)}
	}
	return open("A"), open("B")
}

// begin takes the lock, begins the transaction and reads the units available.
func (c *cutting) begin(ctx context.Context) {
	c.lease = c.locker.lock(ctx, c.stage.key(lockName))
	c.do(ctx, "BEGIN")
	var err error
	c.seen, err = c.number(ctx, selectUnits(c.table, 10001))
	c.stage.check(err)
}

// write writes the number of units left.
func (c *cutting) write(ctx context.Context) {
	c.do(ctx, fmt.Sprintf("UPDATE %s SET available = %d WHERE sku = 10001", c.table, c.seen-1))
}

// commit commits a sale and returns the units sold.
func (c *cutting) commit(ctx context.Context) int {
	c.do(ctx, "COMMIT")
	c.stage.at(c.actor, "sells a unit")
	return 1
}

func unlockThenCommit(ctx context.Context, s *Stage) Damage {
	a, b := s.cuttings(ctx)
	a.begin(ctx)
	a.write(ctx)
	a.locker.unlock(ctx, a.lease)
	b.begin(ctx)
	sold := a.commit(ctx)
	if b.seen >= 1 {
		b.write(ctx)
		sold += b.commit(ctx)
	}
	return sale(sold, 1)
}

func commitThenUnlock(ctx context.Context, s *Stage) Damage {
	a, b := s.cuttings(ctx)
	a.begin(ctx)
	a.write(ctx)
	b.locker.mustBeHeld(ctx, s.key(lockName))
	sold := a.commit(ctx)
	a.locker.unlock(ctx, a.lease)
	b.begin(ctx)
	if b.seen >= 1 {
		b.write(ctx)
		sold += b.commit(ctx)
	} else {
		s.at("B", "refuses the order: sold out")
	}
	return sale(sold, 1)
}
