package pitfall

import (
	"context"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/holdfast-stock/holdfast/internal/lock/zookeeper"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// shortSession is the timeout of sessions that end in an experiment. longSession is that of the
// other sessions, which must last even on a busy machine.
const shortSession, longSession = 2 * time.Second, 10 * time.Second

// zooKeeper returns the address of the ZooKeeper of the experiments.
func (s *Stage) zooKeeper() string {
	if addr := s.servers[ZooKeeper]; addr != "" {
		return addr
	}
	return testenv.ZooKeeper(s)
}

// suspendedIgnored uses the lock of the client library, which does not report a lost connection to
// its holder. Curator reports it as SUSPENDED.
func suspendedIgnored(ctx context.Context, s *Stage) Damage {
	const call = "Lock(" + lockName + ")"
	shop, addr := s.openShop(), s.zooKeeper()
	wire := testenv.NewWire(s, addr)
	connA, connB := s.connectZooKeeper(ctx, wire.Addr(), shortSession), s.connectZooKeeper(ctx, addr, longSession)
	s.Cleanup(wire.Thaw) // lets A's session end
	parent := "/" + strings.TrimSuffix(s.prefix, "_")
	s.Cleanup(func() { _ = connB.Delete(parent, -1) })
	a, b := zk.NewLock(connA, parent, zk.WorldACL(zk.PermAll)), zk.NewLock(connB, parent, zk.WorldACL(zk.PermAll))
	s.check(a.Lock())
	s.at("A", "%s → granted", call)
	seenByA := shop.read("A")
	wire.Freeze()
	s.at("network", "cuts A off from ZooKeeper")
	s.await(ctx, "A is disconnected", func() bool { return connA.State() != zk.StateHasSession })
	s.at("A", "is told SUSPENDED, and works on")
	s.check(b.Lock()) // waits until A's session has ended
	s.Cleanup(func() { _ = b.Unlock() })
	s.at("ZooKeeper", "ends A's session, and deletes its node")
	s.at("B", "%s → granted", call)
	seenByB := shop.read("B")
	shop.sell("A", seenByA)
	shop.sell("B", seenByB)
	return shop.damage()
}

// suspendedHeeded has the same order of events with the project's Locker.
func suspendedHeeded(ctx context.Context, s *Stage) Damage {
	name, shop, addr := s.key(lockName), s.openShop(), s.zooKeeper()
	wire := testenv.NewWire(s, addr)
	open := func(actor, addr string, session time.Duration) actorLocker {
		l, err := zookeeper.New(ctx, addr, session)
		s.check(err)
		s.Cleanup(func() { _ = l.Close() })
		return s.locker(actor, l)
	}
	a, b := open("A", wire.Addr(), shortSession), open("B", addr, longSession)
	s.Cleanup(wire.Thaw) // lets A's session end
	leaseA := a.lock(ctx, name)
	seenByA := shop.read("A")
	wire.Freeze()
	s.at("network", "cuts A off from ZooKeeper")
	s.await(ctx, "A loses its lease", func() bool { return leaseA.Context().Err() != nil })
	s.at("A", "learns: %v", context.Cause(leaseA.Context()))
	leaseB := b.lock(ctx, name)
	seenByB := shop.read("B")
	shop.sellUnder("A", leaseA, seenByA)
	shop.sellUnder("B", leaseB, seenByB)
	return shop.damage()
}
