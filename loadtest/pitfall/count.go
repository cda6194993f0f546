package pitfall

import (
	"context"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/assembly"
)

// noLocks returns the pitfall of a count that no lock protects.
func noLocks() []Pitfall {
	return []Pitfall{
		{
			Name: "no-lock", Title: "Read, check, write without a lock", TitleChinese: "读取、检查、写回，不加锁",
			Versions: []Version{
				{Title: "GET, compare, SET", TitleChinese: "GET，比较，SET", Flawed: true, Needs: Redis, Run: noLock},
				{Title: "one script checks and cuts (strategy lua)", TitleChinese: "用一个脚本检查并扣减（策略 lua）", Needs: Redis, Run: oneScript},
			},
		},
	}
}

// counts returns the pitfalls of counts that drift from the stock.
func counts() []Pitfall {
	return []Pitfall{
		{
			Name: "segments-stranded", Title: "A segment's last units are stranded", TitleChinese: "分段里的最后几件卖不出去",
			Versions: []Version{
				{Title: "an order is filled by one segment or refused", TitleChinese: "单个分段够就卖，否则拒绝", Flawed: true, Needs: Redis, Run: stranded},
				{Title: "an order is gathered from several segments (strategy segment)", TitleChinese: "从几个分段凑齐（策略 segment）", Needs: Redis, Run: gathered},
			},
		},
		{
			Name: "refill-no-epoch", Title: "A count refilled while orders are in flight", TitleChinese: "订单在途时重新装填计数",
			Versions: []Version{
				{Title: "SET the count; a failed order adds its unit back", TitleChinese: "直接 SET 计数；失败的订单再把件数加回去", Flawed: true, Needs: Redis, Run: refillWithoutEpoch},
				{Title: "each fill has an epoch; units of an older one are dropped", TitleChinese: "每次装填都有新的纪元，旧纪元的件数作废", Needs: Redis, Run: refillWithEpoch},
			},
		},
	}
}

// setStock writes a count in Redis.
func (s *Stage) setStock(ctx context.Context, key string, units int) {
	s.check(s.silentRedis(ctx).Set(ctx, key, units, longLease).Err())
}

func noLock(ctx context.Context, s *Stage) Damage {
	key := s.key("stock")
	s.setStock(ctx, key, 1)
	a, b := s.redis(ctx, "A"), s.redis(ctx, "B")
	seenByA, seenByB := s.getCount(ctx, a, key), s.getCount(ctx, b, key)
	sold := 0
	for _, order := range []struct {
		actor  string
		client redis.UniversalClient
		seen   int
	}{{"A", a, seenByA}, {"B", b, seenByB}} {
		if order.seen >= 1 {
			s.check(order.client.Set(ctx, key, order.seen-1, 0).Err())
			s.at(order.actor, "sells a unit")
			sold++
		}
	}
	s.check(s.silentRedis(ctx).Del(ctx, key).Err())
	return sale(sold, 1)
}

func (s *Stage) getCount(ctx context.Context, client redis.UniversalClient, key string) int {
	text, err := client.Get(ctx, key).Result()
	s.check(err)
	count, err := strconv.Atoi(text)
	s.check(err)
	return count
}

// order sends an order of the actor to the gate.
func (s *Stage) order(ctx context.Context, actor string, g assembly.Strategy, units int64) error {
	_, err := g.Gate.Take(ctx, s.deduction(units))
	s.at(actor, "takes %d at the gate → %s", units, takeText(err))
	return err
}

func oneScript(ctx context.Context, s *Stage) Damage {
	g := s.gate(ctx, "lua", assembly.Backends{})
	s.fill(ctx, g, 1)
	errA, errB := s.order(ctx, "A", g, 1), s.order(ctx, "B", s.gate(ctx, "lua", assembly.Backends{}), 1)
	return sale(accepted(errA, errB), 1)
}

// cutSegment cuts units from one segment if it has enough.
var cutSegment = redis.NewScript(`-- cut if enough
if tonumber(redis.call('GET', KEYS[1])) < tonumber(ARGV[1]) then
  return 0
end
redis.call('DECRBY', KEYS[1], ARGV[1])
return 1`)

func stranded(ctx context.Context, s *Stage) Damage {
	const quantity = 2
	a := s.redis(ctx, "A")
	keys := []string{s.key("stock/0"), s.key("stock/1")}
	for _, key := range keys {
		s.setStock(ctx, key, 1)
	}
	s.at("A", "orders %d; both segments have 1", quantity)
	for _, key := range keys {
		cut, err := cutSegment.Eval(ctx, a, []string{key}, quantity).Bool()
		s.check(err)
		if cut {
			return Damage{}
		}
	}
	s.at("A", "is told “sold out”")
	left := 0
	for _, key := range keys {
		left += s.getCount(ctx, s.silentRedis(ctx), key)
	}
	return units(left, "left that this buyer could have had")
}

func gathered(ctx context.Context, s *Stage) Damage {
	const quantity = 2
	g := s.gate(ctx, "segment", assembly.Backends{Segments: 2})
	s.fill(ctx, g, quantity)
	s.at("A", "orders %d; both segments have 1", quantity)
	if s.order(ctx, "A", g, quantity) == nil {
		return Damage{}
	}
	return units(quantity, "left that this buyer could have had")
}

func refillWithoutEpoch(ctx context.Context, s *Stage) Damage {
	const total = 2
	key := s.key("stock")
	a, refill := s.redis(ctx, "A"), s.redis(ctx, "refill")
	s.setStock(ctx, key, total)
	s.check(a.Decr(ctx, key).Err())
	s.at("refill", "Redis may have lost data; the ledger has sold nothing yet")
	s.check(refill.Set(ctx, key, total, longLease).Err())
	s.at("A", "its order fails in the ledger, and gives its unit back")
	s.check(a.Incr(ctx, key).Err())
	sold := 0
	for _, actor := range []string{"B", "C", "D"} {
		left, err := s.redis(ctx, actor).Decr(ctx, key).Result()
		s.check(err)
		if left >= 0 {
			sold++
		}
	}
	s.at("shop", "%d of %d units sold", sold, total)
	return sale(sold, total)
}

func refillWithEpoch(ctx context.Context, s *Stage) Damage {
	const total = 2
	g := s.gate(ctx, "lua", assembly.Backends{})
	s.fill(ctx, g, total)
	taken, err := g.Gate.Take(ctx, s.deduction(1))
	s.check(err)
	s.at("A", "takes 1 at the gate → accepted under epoch …%d", taken.Epoch(0)%1000)
	next, err := generation.Renew(taken.Epoch(0))
	s.check(err)
	s.at("refill", "Redis may have lost data; the ledger has sold nothing yet")
	s.check(g.Counter.Fill(ctx, s.product(), next, total))
	s.at("refill", "fills %d units under epoch …%d", total, next%1000)
	s.check(g.Counter.Give(ctx, taken))
	s.at("A", "its order fails in the ledger, and gives its unit back → dropped")
	sold := accepted(s.order(ctx, "B", g, 1), s.order(ctx, "C", g, 1), s.order(ctx, "D", g, 1))
	s.at("shop", "%d of %d units sold", sold, total)
	return sale(sold, total)
}
