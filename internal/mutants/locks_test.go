//go:build mutants

package mutants

const (
	locker     = "internal/lock/locker.go"
	handover   = "internal/lock/handover.go"
	acquireLua = "internal/lock/redis/acquire.lua"
	releaseLua = "internal/lock/redis/release.lua"
	lockQueue  = "internal/lock/queue.go"
	zookeeper  = "internal/lock/zookeeper/zookeeper.go"
	groups     = "internal/group/group.go"
)

// locks are mutants of packages lock and group.
var locks = []mutant{
	{"an inner Unlock frees the lock", locker, "last, lost := len(h.leases) == 0, h.lost", "last, lost := true, h.lost", "internal/lock/locktest TestConformance/local/Reentrant"},
	{"a new grant keeps the last token", acquireLua, "if last >= token then\n  token = last + 1", "if last > 0 then\n  token = last", "internal/lock/locktest TestConformance/redis/ProcessesExclude"},
	{"a held lock is granted", acquireLua, "if call('HEXISTS', KEYS[1], ARGV[1]) == 0 then", "if false then", "internal/lock/locktest TestConformance/redis/OneHolder"},
	{"Release frees any holder's lock", releaseLua, "call('HDEL', KEYS[1], ARGV[1]) == 0", "call('DEL', KEYS[1]) == 0", "internal/lock/locktest TestConformance/redis/StoppedHolder"},
	{"a release is not published", releaseLua, "local receivers = call('PUBLISH', KEYS[2], '0')", "local receivers = 0", "internal/lock/redis TestOurHolderExcludesRedisson"},
	{"leave ends a turn that was handed over", lockQueue, "case l != nil && l.turn == h:", "case l != nil:", "internal/lock TestLeaseLostAfterHandover"},
	{"the loss of an undelivered grant ends a lease", handover, "	var loss handoverLoss\n", "	loss := handoverLoss{hold: next.hold}\n", "internal/lock TestHandoverTooLate"},
	{"a loss during a handover is ignored", handover, "	lost := l.lost\n	l.mu.Unlock()", "	lost := false\n	l.mu.Unlock()", "internal/lock TestLossDuringHandover"},
	{"the channel of an abandoned call is reused", groups, "return ctx.Err() // ready is not reused: it will still be signalled", "readyChannels.Put(ready)\n\t\treturn ctx.Err()", "internal/group TestAbandonedCall"},
	{"a ZooKeeper suspension is ignored", zookeeper, "if b.suspensions != suspensions {", "if false {", "internal/lock/zookeeper TestSuspendedWhileListing"},
	{"a lost ZooKeeper connection is ignored", zookeeper, "case zk.StateDisconnected, zk.StateExpired:", "case zk.StateExpired:", "internal/lock/zookeeper TestLostConnectionEndsLeases"},
	{"a grant that a suspension has ended is released without an error", zookeeper, "|| err == nil && !held:", "|| false && !held:", "internal/lock/zookeeper TestReleaseAfterSuspension"},
}
