//go:build mutants

package mutants

const (
	backend    = "internal/lock/backend.go"
	acquireLua = "internal/lock/redis/acquire.lua"
	releaseLua = "internal/lock/redis/release.lua"
	lockQueue  = "internal/lock/queue.go"
	zookeeper  = "internal/lock/zookeeper/zookeeper.go"
	groups     = "internal/group/group.go"
)

// locks are mutants of packages lock and group.
var locks = []mutant{
	{"an inner Unlock frees the lock", backend, "last, lost := len(h.leases) == 0, h.lost", "last, lost := true, h.lost", "internal/lock/locktest TestConformance/local/Reentrant"},
	{"a lock passed on keeps its token", acquireLua, "if last >= token then\n  token = last + 1", "if last > 0 then\n  token = last", "internal/lock/locktest TestConformance/redis/ProcessesExclude"},
	{"a held lock is granted", acquireLua, "if call('HEXISTS', KEYS[1], ARGV[1]) == 0 then", "if false then", "internal/lock/locktest TestConformance/redis/OneHolder"},
	{"anybody's lock is released", releaseLua, "call('HDEL', KEYS[1], ARGV[1]) == 0", "call('DEL', KEYS[1]) == 0", "internal/lock/locktest TestConformance/redis/StoppedHolder"},
	{"a release is not announced", releaseLua, "local heard = call('PUBLISH', KEYS[2], '0')", "local heard = 0", "internal/lock/redis TestOurHolderExcludesRedisson"},
	{"a turn handed over is left again", lockQueue, "case l != nil && l.turn == h:", "case l != nil:", "internal/lock TestLeaseLostAfterHandover"},
	{"a grant nobody got ends a lease", backend, "	var loss handedLoss\n", "	loss := handedLoss{hold: next.hold}\n", "internal/lock TestHandoverThatComesTooLate"},
	{"a grant lost while it is handed over goes on", backend, "	lost := l.lost\n	l.mu.Unlock()", "	lost := false\n	l.mu.Unlock()", "internal/lock TestLossDuringHandover"},
	{"an abandoned call's channel is reused", groups, "return ctx.Err() // ready is not reused: it will still be signalled", "readyChannels.Put(ready)\n\t\treturn ctx.Err()", "internal/group TestAbandonedCall"},
	{"a ZooKeeper suspension is ignored", zookeeper, "if b.suspended != suspensions {", "if false {", "internal/lock/zookeeper TestSuspendedWhileListing"},
	{"a lost ZooKeeper connection is ignored", zookeeper, "case zk.StateDisconnected, zk.StateExpired:", "case zk.StateExpired:", "internal/lock/zookeeper TestLostConnectionEndsLeases"},
	{"a grant that a suspension ended is released", zookeeper, "|| err == nil && !held:", "|| false && !held:", "internal/lock/zookeeper TestReleaseAfterSuspension"},
}
