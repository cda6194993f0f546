package pitfall

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/assembly"
	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/lock/flawed"
	redislock "github.com/holdfast-stock/holdfast/internal/lock/redis"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// fences returns the pitfalls of a holder that outlives its lease.
func fences() []Pitfall {
	return []Pitfall{{
		Name: "lease-outlived", Title: "A holder outlives its lease", TitleChinese: "持有者停顿的时间超过租约",
		Versions: []Version{
			{Title: "no fence", TitleChinese: "没有栅栏", Flawed: true, Needs: Redis, Run: outlive(false, false)},
			{Title: "a fence that refuses older tokens only", TitleChinese: "只拒绝旧令牌的栅栏", Flawed: true, Needs: Redis, Run: outlivedNaive},
			{Title: "a fence raised by the first read, and equal at the write", TitleChinese: "首次读取就抬高、写入时必须相等的栅栏", Needs: Redis, Run: outlive(true, false)},
			{Title: "the same fence, with the late write in between", TitleChinese: "同样的栅栏，迟到的写入夹在读写之间", Needs: Redis, Run: outlive(true, true)},
		},
	}}
}

// product is the SKU of the experiments with gates.
func (s *Stage) product() stock.SKU { return stock.SKU(s.key("10001")) }

// generation is the generation of every gate in these experiments.
const generation = stock.Generation(1)

// gate returns a gate that runs the strategy, and its counter, as one instance has them.
func (s *Stage) gate(ctx context.Context, name string, b assembly.Backends) assembly.Strategy {
	spec, ok := assembly.FindStrategy(name)
	if !ok {
		s.Fatalf("there is no strategy %s", name)
	}
	if b.Redis == nil {
		b.Redis = s.silentRedis(ctx)
	}
	b.LedgerID = s.ledgerID
	built, closeGate := spec.Build(b)
	s.Cleanup(closeGate)
	built.Counter.Use(generation)
	return built
}

// fill enables the gate's Redis and fills the count.
func (s *Stage) fill(ctx context.Context, g assembly.Strategy, units int64) {
	s.check(g.Counter.Load(ctx, generation))
	epoch, err := generation.Renew()
	s.check(err)
	s.check(g.Counter.Fill(ctx, s.product(), epoch, units))
}

// deduction returns an order for units of the product.
func (s *Stage) deduction(units int64) stock.Deduction {
	return stock.Deduction{OrderID: uuid.New(), TakeID: uuid.New(), Lines: []stock.Line{{SKU: s.product(), Quantity: units}}}
}

// takeText describes the gate's answer.
func takeText(err error) string {
	switch {
	case err == nil:
		return "accepted"
	case errors.Is(err, stock.ErrSoldOut):
		return "refused: sold out"
	}
	text := err.Error()
	return "refused: " + text[strings.LastIndex(text, ": ")+2:] // the reason comes last
}

// unaware is a Locker whose leases do not report their loss, as in a process that is
// stopped and then continues in the middle of its work.
type unaware struct{ actorLocker }

func (l unaware) Lock(ctx context.Context, name string) (lock.Lease, error) {
	lease, err := l.actorLocker.Lock(ctx, name)
	if err != nil {
		return nil, err
	}
	return unawareLease{lease}, nil
}

type unawareLease struct{ lock.Lease }

func (l unawareLease) Context() context.Context { return context.WithoutCancel(l.Lease.Context()) }

// beforeWrite is a hook that calls f before the second script of a client. A gate under a lock
// reads with the first script and writes with the second.
type beforeWrite struct {
	commandLog
	scripts *atomic.Int32
	f       func()
}

func (h beforeWrite) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "evalsha" && h.scripts.Add(1) == 2 {
			h.f()
		}
		return next(ctx, cmd)
	}
}

// instance returns an instance that runs the strategy lock. The instance calls f between its first
// read and its first write.
func (s *Stage) instance(ctx context.Context, actor string, options redislock.Options, fence bool, f func()) func() error {
	client := s.silentRedis(ctx)
	client.AddHook(beforeWrite{scripts: new(atomic.Int32), f: f})
	locker := unaware{s.redisLocker(ctx, actor, options)}
	g := s.gate(ctx, "lock", assembly.Backends{Redis: client, Locker: locker, LockName: "redis", Fence: fence})
	return func() error {
		_, err := g.Gate.Take(ctx, s.deduction(1))
		s.at(actor, "takes a unit → %s", takeText(err))
		return err
	}
}

// outlive stops A between its read and its write until its lease has ended. B then gets the lock. A
// continues after B has sold the unit, or between B's read and B's write.
func outlive(fence, between bool) run {
	return func(ctx context.Context, s *Stage) Damage {
		filler := s.redisLocker(ctx, "filler", redislock.Options{Lease: longLease}).inner
		s.fill(ctx, s.gate(ctx, "lock", assembly.Backends{Locker: filler, LockName: "redis", Fence: fence}), 1)
		paused, resume := make(chan struct{}), make(chan struct{})
		a := s.instance(ctx, "A", redislock.Options{Lease: shortLease, Fixed: true}, fence, func() {
			s.at("A", "has read 1, and is paused for longer than its lease")
			close(paused)
			<-resume
			s.at("A", "continues, and writes 0")
		})
		answered := make(chan error, 1)
		resumeA := sync.OnceValue(func() error {
			close(resume)
			return <-answered
		})
		b := s.instance(ctx, "B", redislock.Options{Lease: longLease}, fence, func() {
			s.at("B", "has read 1")
			if between {
				_ = resumeA() // A is resumed again below
			}
		})
		go func() { answered <- a() }()
		select {
		case <-paused:
		case err := <-answered:
			s.Fatalf("A was not paused: %v", err)
		}
		errB := b() // this waits until A's lease has ended
		errA := resumeA()
		return sale(accepted(errA, errB), 1)
	}
}

// accepted counts the orders that were accepted.
func accepted(errs ...error) (n int) {
	for _, err := range errs {
		if err == nil {
			n++
		}
	}
	return n
}

func outlivedNaive(ctx context.Context, s *Stage) Damage {
	name, key := s.key(lockName), s.key("stock")
	clientA, clientB := s.redis(ctx, "A"), s.redis(ctx, "B")
	s.setStock(ctx, key, 1)
	a := s.redisLocker(ctx, "A", redislock.Options{Lease: shortLease, Fixed: true})
	b := s.redisLocker(ctx, "B", redislock.Options{Lease: longLease})
	order := func(client redis.UniversalClient, token uint64) func() bool {
		count := s.getCount(ctx, client, key)
		return func() bool {
			sold, err := flawed.WriteUnlessOlder(ctx, client, key, token, count-1)
			s.check(err)
			return sold
		}
	}
	sellA := order(clientA, a.lock(ctx, name).Token())
	s.at("A", "is paused for longer than its lease")
	sellB := order(clientB, b.lock(ctx, name).Token())
	s.at("A", "continues")
	sold := 0
	for _, sell := range []func() bool{sellA, sellB} {
		if sell() {
			sold++
		}
	}
	return sale(sold, 1)
}

// jumpBehindFence makes the lock expire early between A's read and A's write, as if the clock of
// its Redis jumped. B is granted the lock and sells the unit.
func jumpBehindFence(ctx context.Context, s *Stage) Damage {
	filler := s.redisLocker(ctx, "filler", redislock.Options{Lease: longLease}).inner
	s.fill(ctx, s.gate(ctx, "lock", assembly.Backends{Locker: filler, LockName: "redis", Fence: true}), 1)
	options := redislock.Options{Lease: longLease}
	var errB error
	b := s.instance(ctx, "B", options, true, func() { s.at("B", "has read 1") })
	a := s.instance(ctx, "A", options, true, func() {
		s.at("A", "has read 1")
		client := s.silentRedis(ctx)
		s.expire(ctx, client, []string{"stock:" + string(s.product())}) // the lock of the SKU
		s.at("servers", "the clock of Redis %d jumps ahead by a minute: the lock has expired", 1)
		errB = b()
		s.at("A", "continues, and writes 0")
	})
	errA := a()
	return sale(accepted(errA, errB), 1)
}
