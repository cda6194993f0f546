package pitfall

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/lock/etcd"
	redislock "github.com/holdfast-stock/holdfast/internal/lock/redis"
	"github.com/holdfast-stock/holdfast/internal/lock/redlock"
	"github.com/holdfast-stock/holdfast/internal/lock/zookeeper"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// failovers returns the pitfalls of lock servers that lose granted locks. Their versions kill
// servers, and so always start their own.
func failovers() []Pitfall {
	return []Pitfall{
		{
			Name: "failover", Title: "Failover to a replica that lags behind", TitleChinese: "切换到落后的从库",
			Versions: []Version{
				{Title: "Redis: the primary is killed, the replica promoted", TitleChinese: "Redis：主库被杀，从库提升", Flawed: true, Needs: Redis, Own: true, Run: staleReplica},
				{Title: "etcd: the leader of three is killed, another is elected", TitleChinese: "etcd：三台中的 leader 被杀，选出新的 leader", Needs: Etcd, Own: true, Run: killedLeader},
				{Title: "ZooKeeper: killed and restarted", TitleChinese: "ZooKeeper：被杀后重启", Needs: ZooKeeper, Own: true, Run: restartedZooKeeper},
			},
		},
		{
			Name: "redlock-emptied", Title: "Redlock when a majority restarts empty", TitleChinese: "Redlock：多数节点空数据重启",
			Versions: []Version{
				{Title: "two of three servers restart without their data", TitleChinese: "三台中的两台丢数据重启", Flawed: true, Needs: Redis, Own: true, Run: sellThroughLoss(2, (*Stage).empty)},
				{Title: "they stay down until the lease has ended", TitleChinese: "等租约结束之后再让它们上线", Needs: Redis, Own: true, Run: majorityLate},
				{Title: "only one of three restarts without its data", TitleChinese: "三台中只有一台丢数据重启", Needs: Redis, Own: true, Run: sellThroughLoss(1, (*Stage).empty)},
			},
		},
		{
			Name: "redlock-clock-jump", Title: "Redlock when clocks jump", TitleChinese: "Redlock：时钟跳变",
			Versions: []Version{
				{Title: "the clocks of two of three servers jump ahead", TitleChinese: "三台中两台的时钟向前跳", Flawed: true, Needs: Redis, Own: true, Run: sellThroughLoss(2, (*Stage).jump)},
				{Title: "the clock of only one of three jumps", TitleChinese: "三台中只有一台的时钟跳变", Needs: Redis, Own: true, Run: sellThroughLoss(1, (*Stage).jump)},
				{Title: "one Redis that jumps, and a fence beside the data", TitleChinese: "单台 Redis 时钟跳变，数据旁有栅栏", Needs: Redis, Run: jumpBehindFence},
			},
		},
		{
			Name: "suspended-ignored", Title: "A holder that ignores SUSPENDED", TitleChinese: "持有者不理会 SUSPENDED",
			Versions: []Version{
				{Title: "ZooKeeper: the connection is lost, and the holder works on", TitleChinese: "ZooKeeper：连接断开，持有者照常工作", Flawed: true, Needs: ZooKeeper, Run: suspendedIgnored},
				{Title: "the lease ends when the connection is lost", TitleChinese: "连接断开，租约随即结束", Needs: ZooKeeper, Run: suspendedHeeded},
			},
		},
	}
}

func staleReplica(ctx context.Context, s *Stage) Damage {
	name, shop := s.key(lockName), s.openShop()
	primary := testenv.OwnRedis(s)
	host, port, _ := strings.Cut(primary.Addr(), ":")
	replica := testenv.OwnRedis(s, "--replicaof", host+" "+port)
	a := s.redisLockerAt(ctx, "A", primary.URL(), longLease)
	admin := s.connect(ctx, replica.URL())
	s.await(ctx, "the replica has the primary's data", func() bool { return s.replicates(ctx, admin) })
	s.check(admin.SlaveOf(ctx, host, "1").Err()) // no server listens there
	s.at("replica", "loses its link to the primary")
	leaseA := a.lock(ctx, name)
	seenByA := shop.read("A")
	primary.Kill()
	s.at("primary", "is killed")
	s.check(admin.SlaveOf(ctx, "NO", "ONE").Err())
	s.at("replica", "is promoted, without A's lock")
	b := s.redisLockerAt(ctx, "B", replica.URL(), longLease)
	if leaseB, err := b.TryLock(ctx, name); err == nil {
		seenByB := shop.read("B")
		shop.sellUnder("A", leaseA, seenByA)
		shop.sellUnder("B", leaseB, seenByB)
	}
	return shop.damage()
}

// replicates reports whether the replica is connected to its primary.
func (s *Stage) replicates(ctx context.Context, replica redis.UniversalClient) bool {
	info, err := replica.Info(ctx, "replication").Result()
	s.check(err)
	return strings.Contains(info, "master_link_status:up")
}

func (s *Stage) redisLockerAt(ctx context.Context, actor, url string, lease time.Duration) actorLocker {
	l := redislock.New(s.connect(ctx, url), redislock.Options{Lease: lease})
	s.Cleanup(func() { _ = l.Close() })
	return s.locker(actor, l)
}

func killedLeader(ctx context.Context, s *Stage) Damage {
	members := testenv.OwnEtcdCluster(s)
	var addresses []string
	for _, member := range members {
		addresses = append(addresses, member.Addr())
	}
	leader := func() (member *testenv.EtcdServer) {
		s.await(ctx, "the cluster has a leader", func() bool {
			at := slices.IndexFunc(members, func(member *testenv.EtcdServer) bool { return member.Leads(ctx) })
			if at >= 0 {
				member = members[at]
			}
			return at >= 0
		})
		return member
	}
	leader()
	fail := func(lock.Lease) {
		leader().Kill()
		s.at("etcd", "the leader of three servers is killed")
		leader()
		s.at("etcd", "another server is elected")
	}
	return s.sellThroughFailure(ctx, fail, func() lock.Locker {
		l, err := etcd.New(ctx, strings.Join(addresses, ","), longLease)
		s.check(err)
		s.Cleanup(func() { _ = l.Close() })
		return l
	})
}

func restartedZooKeeper(ctx context.Context, s *Stage) Damage {
	server := testenv.OwnZooKeeper(s)
	restart := func(leaseA lock.Lease) {
		server.Restart()
		s.at("ZooKeeper", "is killed and restarted, with its data")
		s.await(ctx, "A loses its lease", func() bool { return leaseA.Context().Err() != nil })
		s.at("A", "learns: %v", context.Cause(leaseA.Context()))
	}
	return s.sellThroughFailure(ctx, restart, func() lock.Locker {
		l, err := zookeeper.New(ctx, server.Addr(), longLease)
		s.check(err)
		s.Cleanup(func() { _ = l.Close() })
		return l
	})
}

// sellThroughFailure makes the servers fail while A holds a lock. B then requests the lock, and
// must be refused until A has unlocked, even if A has lost its lease.
func (s *Stage) sellThroughFailure(ctx context.Context, fail func(lease lock.Lease), open func() lock.Locker) Damage {
	name, shop := s.key(lockName), s.openShop()
	a := s.locker("A", open())
	leaseA := a.lock(ctx, name)
	seenByA := shop.read("A")
	fail(leaseA)
	b := s.locker("B", open())
	b.mustBeHeld(ctx, name)
	shop.sellUnder("A", leaseA, seenByA)
	a.unlock(ctx, leaseA)
	leaseB := b.lock(ctx, name)
	shop.sellUnder("B", leaseB, shop.read("B"))
	return shop.damage()
}

// redlockServers are three independent servers.
type redlockServers [3]*testenv.RedisServer

func (s *Stage) startRedlock() (servers redlockServers) {
	for i := range servers {
		servers[i] = testenv.OwnRedis(s)
	}
	return servers
}

// redlock returns a Locker of the actor on the servers.
func (s *Stage) redlock(ctx context.Context, actor string, servers redlockServers, lease time.Duration) actorLocker {
	var clients []redis.UniversalClient
	for _, server := range servers {
		clients = append(clients, s.connect(ctx, server.URL()))
	}
	l, err := redlock.New(clients, lease)
	s.check(err)
	return s.locker(actor, l)
}

// empty restarts the server with the number without its data.
func (s *Stage) empty(_ context.Context, server *testenv.RedisServer, number int) {
	server.Restart()
	s.at("servers", "Redis %d restarts without its data", number)
}

// jump imitates a server whose clock jumps ahead: its keys expire early. The clock itself
// cannot be set here.
func (s *Stage) jump(ctx context.Context, server *testenv.RedisServer, number int) {
	client := s.connect(ctx, server.URL())
	keys, err := client.Keys(ctx, "*").Result()
	s.check(err)
	s.expire(ctx, client, keys)
	s.at("servers", "the clock of Redis %d jumps ahead by a minute: the lock has expired", number)
}

// expire makes the keys expire, and waits until they have expired.
func (s *Stage) expire(ctx context.Context, client redis.UniversalClient, keys []string) {
	if len(keys) == 0 {
		s.Fatalf("there is no lock that could expire")
	}
	for _, key := range keys {
		s.check(client.PExpire(ctx, key, time.Millisecond).Err())
	}
	s.await(ctx, "the keys have expired", func() bool {
		n, err := client.Exists(ctx, keys...).Result()
		s.check(err)
		return n == 0
	})
}

// sellThroughLoss makes this number of the three servers lose the lock that A holds.
func sellThroughLoss(losing int, lose func(s *Stage, ctx context.Context, server *testenv.RedisServer, number int)) run {
	return func(ctx context.Context, s *Stage) Damage {
		name, shop := s.key(lockName), s.openShop()
		servers := s.startRedlock()
		a := s.redlock(ctx, "A", servers, longLease)
		b := s.redlock(ctx, "B", servers, longLease)
		leaseA := a.lock(ctx, name)
		seenByA := shop.read("A")
		for i := range losing {
			lose(s, ctx, servers[i], i+1)
		}
		if leaseB, err := b.tryLock(ctx, name); err == nil {
			seenByB := shop.read("B")
			shop.sellUnder("B", leaseB, seenByB)
		}
		shop.sellUnder("A", leaseA, seenByA)
		return shop.damage()
	}
}

func majorityLate(ctx context.Context, s *Stage) Damage {
	name, shop := s.key(lockName), s.openShop()
	servers := s.startRedlock()
	a := s.redlock(ctx, "A", servers, renewedLease)
	b := s.redlock(ctx, "B", servers, longLease)
	leaseA := a.lock(ctx, name)
	seenByA := shop.read("A")
	servers[0].Kill()
	servers[1].Kill()
	s.at("servers", "Redis 1 and 2 are down")
	if leaseB, err := b.TryLock(ctx, name); err == nil {
		shop.sellUnder("B", leaseB, shop.read("B"))
	}
	s.await(ctx, "A loses its lease", func() bool { return leaseA.Context().Err() != nil })
	s.at("A", "cannot renew its lease of %v, which ends", renewedLease)
	servers[0].Restart()
	servers[1].Restart()
	s.at("servers", "Redis 1 and 2 restart without their data")
	leaseB := b.lock(ctx, name)
	seenByB := shop.read("B")
	shop.sellUnder("A", leaseA, seenByA)
	shop.sellUnder("B", leaseB, seenByB)
	return shop.damage()
}
