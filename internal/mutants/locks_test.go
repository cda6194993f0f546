//go:build mutants

package mutants

const (
	withlockLease      = "cmd/withlock/lease.go"
	lostLock           = "internal/lock/lost.go"
	leases             = "internal/lock/lease.go"
	locker             = "internal/lock/locker.go"
	handover           = "internal/lock/handover.go"
	acquireLua         = "internal/lock/redis/acquire.lua"
	releaseLua         = "internal/lock/redis/release.lua"
	lockQueue          = "internal/lock/queue.go"
	observe            = "internal/lock/observe.go"
	lockNames          = "internal/lock/name.go"
	etcdLock           = "internal/lock/etcd/etcd.go"
	etcdSession        = "internal/lock/etcd/session.go"
	mysqlLock          = "internal/lock/mysql/mysql.go"
	mysqlCounter       = "internal/lock/mysql/counter.go"
	postgresLock       = "internal/lock/postgres/postgres.go"
	zookeeperLock      = "internal/lock/zookeeper/zookeeper.go"
	zookeeperShow      = "internal/lock/zookeeper/show.go"
	groups             = "internal/group/group.go"
	multi              = "internal/lock/recipe/multi.go"
	semaphore          = "internal/lock/recipe/semaphore.go"
	job                = "internal/lock/recipe/job.go"
	leader             = "internal/lock/recipe/lead.go"
	sequence           = "internal/lock/stamped/stamped.go"
	guard              = "cmd/withlock/guard.go"
	withlockCmd        = "cmd/withlock/command.go"
	beginning          = "cmd/withlock/begin.go"
	sessions           = "internal/lock/session/session.go"
	sessionConfirm     = "internal/lock/session/confirm.go"
	backendFlags       = "internal/assembly/backends/flags.go"
	redisLock          = "internal/lock/redis/redis.go"
	redisWatchdog      = "internal/lock/redis/watchdog.go"
	redisConfirm       = "internal/lock/redis/confirm.go"
	etcdConfirm        = "internal/lock/etcd/confirm.go"
	redisSubscriptions = "internal/lock/redis/subscriptions.go"
	etcdAddress        = "internal/lock/etcd/address.go"
	lockAddress        = "internal/lock/address/address.go"
)

// locks are mutants of packages lock and group.
var locks = []mutant{
	{"an answer from before a frozen server has run all requests counts", "internal/lock/leftovers.go", "(found || next.absent)", "(found || true)", "internal/lock TestLeftovers"},
	{"a release that Redis did not answer is forgotten", redisLock, "case err != nil:\n\t\tg.releaseLater()", "case err != nil:", "internal/lock/locktest TestConformance/redis/SilentServers"},
	{"a release that etcd did not answer is forgotten", etcdLock, "g.session.endLater() // also deletes the key", "g.session.lose(nil)", "internal/lock/locktest TestConformance/etcd/SilentServers"},
	{"the probe of a silent SQL server waits without end", sessions, "other.ExecContext(ctx, \"ROLLBACK\")", "other.ExecContext(context.Background(), \"ROLLBACK\")", "internal/lock/session TestSilentWhileOpening/MariaDB"},
	{"a silent member of a ZooKeeper ensemble is waited for", "internal/lock/zookeeper/dial.go", "!c.answered.Load() && deadline.After(first)", "false && deadline.After(first)", "internal/lock/zookeeper TestSilentMember"},
	{"opening ZooKeeper has no bound", "internal/lock/zookeeper/zookeeper.go", "ctx, cancel := context.WithTimeoutCause(ctx, connectTimeout, fmt.Errorf(\"no session after %v\", connectTimeout))", "ctx, cancel := context.WithCancel(ctx)", "internal/lock/zookeeper TestSilentMember"},
	{"any name is accepted", locker, "if err := CheckName(name); err != nil {", "if err := CheckName(name); false {", "internal/lock TestInvalidNamesAreRefused"},
	{"a part of a name may be empty", lockNames, "case part == \"\":", "case false:", "internal/lock TestCheckName"},
	{"a name may be that of a token's key", lockNames, "strings.HasPrefix(name, p)", "false", "internal/lock TestCheckName"},
	{"nested names block each other on etcd", etcdLock, "len(g.prefix):], \"/\")", "len(g.prefix):], \"//\")", "internal/lock/locktest TestConformance/etcd/NamesApart"},
	{"an inner Unlock frees the lock", leases, "last, lost := len(h.leases) == 0, h.lost", "last, lost := true, h.lost", "internal/lock/locktest TestConformance/local/Reentrant"},
	{"a new grant keeps the last token", acquireLua, "if last >= token then\n  token = last + 1", "if last > 0 then\n  token = last", "internal/lock/locktest TestConformance/redis/ProcessesExclude"},
	{"a held lock is granted", acquireLua, "if call('HEXISTS', KEYS[1], field) == 0 then", "if false then", "internal/lock/locktest TestConformance/redis/OneHolder"},
	{"Release frees any holder's lock", releaseLua, "call('HDEL', KEYS[1], field) == 1", "call('DEL', KEYS[1]) == 1", "internal/lock/locktest TestConformance/redis/StoppedHolder"},
	{"a release is not published", releaseLua, "  receivers = call('PUBLISH', KEYS[2], '0')\n", "", "internal/lock/redis TestOurHolderExcludesRedisson/single"},
	{"a release wakes no waiter", releaseLua, "  woken = wakeFirst()\n", "  woken = 0\n", "internal/lock/redis TestNextWaiterIsWoken/given_up"},
	{"a release fails if an ACL forbids to wake a waiter", releaseLua, "redis.pcall('PUBLISH', ARGV[3]", "call('PUBLISH', ARGV[3]", "internal/lock/redis TestReleaseWithoutWakeChannel"},
	{"a release wakes a dead waiter only", releaseLua, "and receivers > 0", "and receivers >= 0", "internal/lock/redis TestNextWaiterIsWoken/dead"},
	{"a waiter that gives up after it was woken wakes no other", releaseLua, "if freed or leaveQueue() then", "if freed or (leaveQueue() and false) then", "internal/lock/redis TestNextWaiterIsWoken/cancelled"},
	{"places do not expire", acquireLua, "'-inf', expired)", "'-inf', '-inf')", "internal/lock/redis TestPlacesExpire"},
	{"a holder of Redisson looks like ours", acquireLua, "holder and not string.find(holder, ':0%d+$')", "false", "internal/lock/redis TestEveryWaiterListensToRedisson"},
	{"no release is published on a sharded channel", releaseLua, "redis.pcall('SPUBLISH', KEYS[2], '0')", "", "internal/lock/redis TestOurHolderExcludesRedisson/sharded"},
	{"a connection without a peer is kept", redisSubscriptions, "context.WithTimeout(context.Background(), timeout)", "context.WithCancel(context.Background())", "internal/lock/redis TestSilentConnection"},
	{"an idle connection is replaced", redisSubscriptions, "_ = pubsub.Ping(ctx)", "_ = ctx", "internal/lock/redis TestSilentConnection"},
	{"a slow node delays the waiters of others", redisSubscriptions, "client.SSubscribe(context.Background())", "client.SSubscribe(context.Background(), s.channel)", "internal/lock/redis TestNodeThatDoesNotAnswer"},
	{"no sharded channel is subscribed", redisSubscriptions, "if !s.owner.cluster {", "if true {", "internal/lock/redis TestRedissonHolderExcludesOurs/sharded"},
	{"any length of a lease is accepted", redisLock, "if b.lease < minLease {", "if false {", "internal/lock/redis TestShortLeaseIsRefused"},
	{"a confirmation extends a fixed lease", redisConfirm, "if g.backend.fixed {", "if false {", "internal/lock/redis TestConfirmFixedLease"},
	{"a confirmation hides why a redis lock is lost", redisWatchdog, "case !held:\n\t\treturn time.Time{}, lock.ErrDeleted\n\t}\n\treturn asked", "case !held:\n\t\treturn time.Time{}, lock.ErrLost\n\t}\n\treturn asked", "internal/lock/redis TestConfirmTellsTheReason"},
	{"withlock calls a database without the schema held", "cmd/withlock/main.go", "case errors.Is(err, lock.ErrNotMigrated):", "case false:", "cmd/withlock TestNotMigrated/MariaDB"},
	{"locks on MariaDB without the sequence of tokens", mysqlLock, "		return s, lock.ErrNotMigrated\n", "		return s, nil\n", "internal/lock/session TestNotMigrated/MariaDB"},
	{"locks on PostgreSQL without the sequence of tokens", postgresLock, "if err == nil && !migrated {", "if false {", "internal/lock/session TestNotMigrated/PostgreSQL"},
	{"a confirmation hides that an etcd session has expired", etcdConfirm, "notAlive == nil && seconds <= 0:", "false:", "internal/lock/etcd TestConfirmTellsTheReason/session"},
	{"a confirmation hides why a session is lost", sessionConfirm, "cmp.Or(g.lost, lock.ErrLost)", "cmp.Or(lock.ErrLost, g.lost)", "internal/lock/session TestConfirm"},
	{"a waiter asks again only when it is woken", redisLock, "maxSleep = 2 * time.Second", "maxSleep = time.Hour", "internal/lock/redis TestQueueIsLost/queue"},
	{"New forgets how long a waiter sleeps", redisLock, "maxSleep: maxSleep, ", "", "internal/lock/redis TestWaiterSleeps"},
	{"a process takes a lock that it has just released to another", acquireLua, "elseif ARGV[7] ~= '0' and", "elseif false and", "internal/lock/redis TestWokenWaiterGoesFirst"},
	{"leave ends a turn that was handed over", lockQueue, "case l != nil && l.turn == h:", "case l != nil:", "internal/lock TestLeaseLostAfterHandover"},
	{"the loss of an undelivered grant ends a lease", handover, "	var loss handoverLoss\n", "	loss := handoverLoss{hold: next.hold}\n", "internal/lock TestHandoverTooLate"},
	{"a Redis lease counts from the answer", redisLock, "asked.Add(g.backend.lease) // g", "time.Now().Add(g.backend.lease + 0*time.Since(asked)) // g", "internal/lock/redis TestLeaseCountsFromTheRequest"},
	{"a renewed Redis lease counts from the answer", redisWatchdog, "return asked.Add(g.backend.lease), nil", "return time.Now().Add(g.backend.lease + 0*time.Since(asked)), nil", "internal/lock/redis TestLeaseCountsFromTheRequest"},
	{"Unlock ends with its context", leases, "context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)", "context.WithTimeout(ctx, releaseTimeout)", "internal/lock TestWatchEndsWithUnlock"},
	{"a writer that gives up keeps readers waiting", lockQueue, "q.advance(name, l) // callers", "// callers", "internal/lock TestLocalReadersBehindAWriter"},
	{"a turn that comes with the end of the context is lost", lockQueue, "if w.entered {", "if false {", "internal/lock TestLocalCancelDuringUnlock"},
	{"a process's own tokens begin again after a restart", "internal/lock/local.go", "max(c.last+1, uint64(time.Now().UnixMicro()))", "max(c.last+1, 0*uint64(time.Now().UnixMicro()))", "internal/lock TestLocalTokensRise"},
	{"a process hands a lock over any number of times", handover, "h.handovers == maxHandovers || ", "", "internal/lock TestOtherProcessesGetATurn/number"},
	{"each handover counts as the first", handover, "before.handovers + 1", "1", "internal/lock TestOtherProcessesGetATurn/number"},
	{"a process hands a lock over for any time", handover, " || time.Since(h.since) > maxHandoverTime", "", "internal/lock TestOtherProcessesGetATurn/time"},
	{"a request for a Redis lock has no bound", redisLock, "context.WithTimeout(ctx, callTimeout)\n\tdefer cancel()\n\tvar", "context.WithCancel(ctx)\n\tdefer cancel()\n\tvar", "internal/lock/redis TestCallsAreBounded"},
	{"the clean-up of a Redis request has no bound", redisLock, "context.WithTimeout(context.WithoutCancel(ctx), callTimeout)", "context.WithCancel(context.WithoutCancel(ctx))", "internal/lock/redis TestCallsAreBounded"},
	{"a renewal of a Redis lease has no bound", redisWatchdog, "context.WithTimeout(ctx, callTimeout)", "context.WithCancel(ctx)", "internal/lock/redis TestUnansweredRenewal/one_hangs"},
	{"a Redis lease that has ended is renewed by a late answer", redisWatchdog, "case !time.Now().Before(until):", "case false:", "internal/lock/redis TestLateRenewal"},
	{"a Redis lease is renewed after its watchdog was stopped", redisWatchdog, "if g.stopped {\n\t\tg.mu.Unlock()\n\t\treturn\n\t}\n", "", "internal/lock/redis TestStoppedWatchdog"},
	{"a renewal goes on after the release of a Redis lock", redisWatchdog, "if g.cancelRenewal != nil {", "if false {", "internal/lock/redis TestUnansweredRenewal/until_the_release"},
	{"ending an etcd session has no bound", etcdSession, "context.WithTimeout(context.Background(), revokeTimeout)", "context.WithCancel(context.Background())", "internal/lock/etcd TestContenderWithoutAPlace"},
	{"a lease of Redlock that has ended is renewed by late answers", "internal/lock/redlock/redlock.go", "if !time.Now().Before(until) {", "if false {", "internal/lock/redlock TestLateRenewal"},
	{"the clean-up of a Redlock request has no bound", "internal/lock/redlock/redlock.go", "context.WithTimeout(context.WithoutCancel(ctx), cleanUpTimeout)", "context.WithCancel(context.WithoutCancel(ctx))", "internal/lock/redlock TestCleanUpIsBounded"},
	{"a Redlock request without answers leaves its traces", "internal/lock/redlock/redlock.go", "b.cleanUp(ctx, mutex)\n\t\t\treturn nil, fmt", "return nil, fmt", "internal/lock/redlock TestUnansweredRequests"},
	{"one server of Redlock grants a lock alone", "internal/lock/redlock/redlock.go", "quorum: len(clients)/2 + 1}", "quorum: 1}", "internal/lock/redlock TestServersKilled"},
	{"a closed ZooKeeper Locker keeps its leases", zookeeperLock, "l.backend.suspend() // the client", "// the client", "internal/lock/zookeeper TestCloseEndsLeases"},
	{"a loss during a handover is ignored", handover, "	reason := l.reason\n	l.mu.Unlock()", "	var reason error\n	l.mu.Unlock()", "internal/lock TestLossDuringHandover"},
	{"a lease does not end by itself", locker, "if g, ok := g.(ExpiringGrant); ok {", "if g, ok := g.(ExpiringGrant); ok && false {", "internal/lock TestLeaseExpires"},
	{"a renewed lease ends at its old end", lostLock, "if left <= 0 {", "if true {", "internal/lock TestLeaseExpires"},
	{"a watch of etcd that began late is relied on", etcdLock, "if found.Header.GetRevision() > began && pause < readAll {", "if found.Header.GetRevision() > began && pause < 0*readAll {", "internal/lock/etcd TestWatchBeginsLate/a_write_meanwhile"},
	{"a waiter on etcd reads again although its watch is in time", etcdLock, "if found.Header.GetRevision() > began && pause < readAll {", "if began >= 0 && pause < readAll {", "internal/lock/etcd TestWatchBeginsLate/no_write_meanwhile"},
	{"a waiter on etcd polls", etcdLock, "found.Header.GetRevision() > began && pause < readAll {", "found.Header.GetRevision() > began && pause <= readAll {", "internal/lock/etcd TestWatchBeginsLate/not_deleted"},
	{"a deleted etcd key goes unnoticed", etcdLock, "entry{g.key, g.token}); err == nil {", "entry{g.key, g.token}); err == nil && false {", "internal/lock/locktest TestConformance/etcd/DeletedHolder"},
	{"a deleted ZooKeeper node goes unnoticed", zookeeperLock, "case errors.Is(err, zk.ErrNoNode):\n\t\t\treturn lock.ErrDeleted", "case false:\n\t\t\treturn lock.ErrDeleted", "internal/lock/locktest TestConformance/zookeeper/DeletedHolder"},
	{"a grant is watched after its end", locker, "if h.unwatch != nil {", "if false {", "internal/lock TestGrantIsWatched"},
	{"a user's ZooKeeper nodes are open to everybody", zookeeperLock, "b.acl = zk.AuthACL(zk.PermAll)", "b.acl = zk.WorldACL(zk.PermAll)", "internal/lock/zookeeper TestDigest"},
	{"etcd's certificate is not verified", etcdAddress, "tls.Config{MinVersion:", "tls.Config{InsecureSkipVerify: true, MinVersion:", "internal/lock/etcd TestCredentialsAndTLS/unknown_authority"},
	{"a login in etcd sends the token of the last one", "internal/lock/etcd/login.go", "if method == pb.Auth_Authenticate_FullMethodName {", "if method == pb.Auth_AuthEnable_FullMethodName {", "internal/lock/etcd TestLoginThatEnds"},
	{"an address's password is not decoded", lockAddress, "password, err = url.PathUnescape(password)", "", "internal/lock/address TestParse"},
	{"the last reason counts", lostLock, "if h.lost == nil {", "if true {", "internal/lock TestFirstReasonCounts"},
	{"a loss is observed as a release", observe, "if errors.Is(err, ErrLost) {", "if false {", "internal/lock TestObserved_LossFoundByUnlock"},
	{"the channel of an abandoned call is reused", groups, "return ctx.Err() // ready will still be signalled, so it is not reused", "b.ready.Put(ready)\n\t\treturn ctx.Err()", "internal/group TestAbandonedCall"},
	{"an etcd key that is written again looks like the old one", etcdLock, "entryIn(found).created != e.created", "entryIn(found).created == 0", "internal/lock/etcd TestPredecessorLeavesBeforeTheWatch"},
	{"an etcd waiter gives up after a failed watch", etcdLock, "_ = retry.Sleep(ctx, watchPause)\n		}\n		answer", "return err\n		}\n		answer", "internal/lock/etcd TestWatchOfACompactedRevision"},
	{"a watch in etcd stays on a stream whose login has expired", etcdLock, "CompareAndSwap(stream, stream+1)", "CompareAndSwap(stream, stream)", "internal/lock/etcd TestWatchOfACompactedRevision"},
	{"a server of etcd without a leader keeps a watch", etcdLock, "clientv3.WithRequireLeader(metadata.", "context.Context(metadata.", "internal/lock/etcd TestWatchWithoutLeader"},
	{"an idle etcd session that has expired is used again", "internal/lock/etcd/session.go", "s.ctx.Err() == nil && time.Now().Before(s.Until())", "s.ctx.Err() == nil", "internal/lock/etcd TestIdleSessionThatHasExpired"},
	{"an etcd key that is deleted before the watch is not noticed", etcdLock, "case !answer.Created:", "default:", "internal/lock/etcd TestPredecessorLeavesBeforeTheWatch"},

	{"the next waiter asks only after the release", leases, "	wait := g.StartRelease()\n	h.leaveQueue()\n", "	wait := g.StartRelease()\n", "internal/lock TestNextWaiterAsksDuringRelease"},
	{"waiters that give up leave a ZooKeeper watch each", "internal/lock/zookeeper/watch.go", "if w != nil {", "if false {", "internal/lock/zookeeper TestAbandonedWaitsShareAWatch"},
	{"a ZooKeeper watch that has fired is used again", "internal/lock/zookeeper/watch.go", "delete(b.watches, path)", "_ = path", "internal/lock/zookeeper TestAbandonedWaitsShareAWatch"},
	{"a ZooKeeper suspension is ignored", zookeeperLock, "if b.suspensions != suspensions {", "if false {", "internal/lock/zookeeper TestSuspendedWhileListing"},
	{"a lost ZooKeeper connection is ignored", zookeeperLock, "case zk.StateDisconnected, zk.StateExpired:", "case zk.StateExpired:", "internal/lock/zookeeper TestLostConnectionEndsLeases"},
	{"a suspension frees locks whose holders still work", zookeeperLock, "g.lost(lock.ErrDisconnected)", "g.lost(lock.ErrDisconnected)\n\t\tg.deleteAsync()", "internal/lock/zookeeper TestLostConnectionEndsLeases"},
	{"a node whose creation was not answered is looked for on a server that lags behind", zookeeperLock, "g.backend.conn.Sync(g.parent)", "\"\", error(nil)", "internal/lock/zookeeper TestFindNodeSyncsFirst"},
	{"a deletion that an ACL refuses is tried for ever", zookeeperLock, "|| errors.Is(err, zk.ErrNoAuth)", "", "internal/lock/zookeeper TestDigest"},
	{"a grant that a suspension has ended is released without an error", zookeeperLock, "|| err == nil && !held:", "|| false && !held:", "internal/lock/zookeeper TestFailingRequests"},
	{"an etcd waiter gives up with its session", etcdLock, "if !errors.Is(err, lock.ErrLost) && !(waited && isAway(err)) {", "if !(waited && isAway(err)) {", "internal/lock/etcd TestWaiterOutlivesItsSession/session_revoked"},
	{"an etcd waiter gives up while the servers have no leader", etcdLock, "if !errors.Is(err, lock.ErrLost) && !(waited && isAway(err)) {", "if !errors.Is(err, lock.ErrLost) {", "internal/lock/etcd TestWaiterOutlivesItsSession/no_leader_for_longer_than_the_lease"},
	{"an etcd lease counts from the answer to its grant", etcdSession, "until: asked.Add(ttl)}", "until: time.Now().Add(ttl)}; _ = asked", "internal/lock/etcd TestLeaseCountsFromTheRequest/grant"},
	{"an etcd lease counts from the answer to a renewal", etcdSession, "	s.until = asked.Add(", "	_ = asked\n	s.until = time.Now().Add(", "internal/lock/etcd TestLeaseCountsFromTheRequest/renewal"},
	{"a confirmation of an etcd lease counts from the answer", etcdConfirm, "return asked.Add(time.Duration(seconds) * time.Second), nil", "_ = asked\n	return time.Now().Add(time.Duration(seconds) * time.Second), nil", "internal/lock/etcd TestLeaseCountsFromTheRequest/confirmation"},
	{"an etcd lease that has ended is renewed by a late answer", etcdSession, "case !time.Now().Before(s.until):", "case false:", "internal/lock/etcd TestLateRenewal"},
	{"a ZooKeeper waiter gives up with its node", zookeeperLock, "if !errors.Is(err, lock.ErrLost) && !errors.Is(err, zk.ErrSessionExpired) {", "if !errors.Is(err, zk.ErrSessionExpired) {", "internal/lock/zookeeper TestWaiterOutlivesItsNode/node_deleted"},
	{"a ZooKeeper waiter gives up with its session", zookeeperLock, "if !errors.Is(err, lock.ErrLost) && !errors.Is(err, zk.ErrSessionExpired) {", "if !errors.Is(err, lock.ErrLost) {", "internal/lock/zookeeper TestBetweenRequests/the_session_expires_before_the_node_is_created"},
	{"a holder that holds nothing is listed when the answer comes late", zookeeperShow, "			<-answered\n", "", "internal/lock/zookeeper TestFailingRequests"},
	{"a holder that holds nothing is listed when the answer is lost", zookeeperShow, "			shown.deleteAsync() // the node may have been created despite the error\n", "", "internal/lock/zookeeper TestFailingRequests"},
	{"the waiter of an SQL lock gives up with its session", sessions, "s.reused || wait && ", "s.reused || false && wait && ", "internal/lock/session TestWaiterOutlivesItsSession"},
	{"tokens in a table fall after a restore", mysqlCounter, "LAST_INSERT_ID(GREATEST(fencing_tokens.token + 1, VALUES(token)))", "LAST_INSERT_ID(fencing_tokens.token + 1)", "internal/lock/session TestTokensRise/table"},
	{"tokens in a table fall with the clock", mysqlCounter, "LAST_INSERT_ID(GREATEST(fencing_tokens.token + 1, VALUES(token)))", "LAST_INSERT_ID(VALUES(token))", "internal/lock/session TestTokensRise/table"},
	{"MariaDB tokens fall after a restore", mysqlCounter, "if token >= clock-session.MaxBehind {", "if true {", "internal/lock/session TestTokensRise/MariaDB"},
	{"a token of MariaDB is not that of the raised sequence", mysqlCounter, "SELECT NEXTVAL(fencing_tokens)\", clock)", "SELECT %[1]d + 1\", clock)", "internal/lock/mysql TestRaise"},
	{"PostgreSQL tokens fall after a restore", postgresLock, "if token >= clock-session.MaxBehind {", "if true {", "internal/lock/session TestTokensRise/PostgreSQL"},
	{"a session that has waited lowers a sequence", postgresLock, "WHEN (SELECT last_value FROM fencing_tokens) < $1::bigint - $2::bigint THEN", "WHEN $2::bigint > 0 THEN", "internal/lock/postgres TestRaise"},
	{"several sessions raise a sequence at the same time", postgresLock, "WHEN pg_advisory_xact_lock(1752132708, 1717662580) IS NULL THEN NULL", "WHEN FALSE THEN NULL", "internal/lock/postgres TestRaise"},
	{"each lock has a row for its tokens", mysqlCounter, "shared := key[len(keyPrefix):][:2]", "shared := key[len(keyPrefix):][:3]", "internal/lock/session TestTokenRows"},
	{"a tick is not recorded when the process is stopping", job, "context.WithTimeout(context.WithoutCancel(ctx), recordTimeout)", "context.WithTimeout(ctx, recordTimeout)", "internal/lock/recipe TestTickOfAProcessThatStops"},
	{"a candidate whose leadership was lost at Unlock does not stand again", leader, "lost = errors.Is(lease.Unlock(ctx), lock.ErrLost)", "_ = lease.Unlock(ctx)", "internal/lock/recipe TestLeadershipLostAtUnlock"},
	{"a nested withlock inherits the outer token", withlockCmd, "append(variables(), tokenVariable, slotVariable)", "append(variables(), slotVariable)", "cmd/withlock TestOneAtATime/redlock"},
	{"the command inherits the database's password", withlockCmd, "append(variables(), tokenVariable, slotVariable)", "[]string{tokenVariable, slotVariable}", "cmd/withlock TestCredentialsStay"},
	{"a command that reads the terminal behind a pipe stops", withlockCmd, "		case <-c.stopped:\n			c.terminal.give(c.group)\n", "", "cmd/withlock TestTerminal/pipe_behind"},
	{"the terminal is given before the command has begun", withlockCmd, "	testHookWaiting()\n", "	openTerminal().give(group)\n	testHookWaiting()\n", "cmd/withlock TestTerminalBeforeTheCommand"},
	{"withlock does not take the terminal back", "cmd/withlock/terminal.go", "	if t.given {\n", "	if false {\n", "cmd/withlock TestTerminal"},
	{"a Ctrl-C that ends the guard is a failure", withlockCmd, "			if err := g.interrupted(); err != nil {", "			if err := g.interrupted(); false {", "cmd/withlock TestInterruptedGuard"},
	{"the command begins before the guard ignores signals", withlockCmd, "if g.awaitReady() != nil {", "if false {", "cmd/withlock TestInterruptedGuard"},
	{"a session whose lease was revoked is used again", "internal/lock/etcd/etcd.go", "case errors.Is(err, rpctypes.ErrLeaseNotFound):", "case false && errors.Is(err, rpctypes.ErrLeaseNotFound):", "internal/lock/etcd TestIdleSessionThatWasRevoked"},
	{"the locks of one call are taken in the order given", multi, "slices.Compact(slices.Sorted(slices.Values(names)))", "slices.Clone(names)", "internal/lock/recipe TestRecipes/local/AllOrNone"},
	{"a call that cannot have one of the locks keeps the others", multi, "			_ = held.Unlock(ctx) // the error of the failed lock matters more\n", "", "internal/lock/recipe TestRecipes/local/AllOrNone"},
	{"a lock that is lost does not end the wait for the others", multi, "stop(context.Cause(held.ctx))", "_ = stop", "internal/lock/recipe TestLostWhileWaiting"},
	{"the loss of one lock does not end the work under all", multi, "l.end(context.Cause(ctx))", "_ = l.end", "internal/lock/recipe TestLossEndsAll"},
	{"the names of the slots are not checked", semaphore, "longest := s.queueName()", "longest := s.name", "internal/lock/recipe TestNameOfSlots"},
	{"a second slot that is granted is kept", semaphore, "		case granted.lease != nil: // two slots were granted at once\n			_ = a.lease.Unlock(ctx)\n", "		case granted.lease != nil:\n", "internal/lock/recipe TestTwoSlotsAtOnce"},
	{"a slot is not asked for again after a failure", semaphore, "		if err := retry.Sleep(ctx, retryPause); err != nil {\n			return nil, err\n		}\n", "		_ = retry.Sleep\n		return nil, err\n", "internal/lock/recipe TestSlotIsAskedForAgain"},
	{"a lock is granted although its session may have ended with the caller's context", sessions, "database.Mint(ctx, g.session.conn, g.key)\n	if err == nil {\n		err = ctx.Err()", "database.Mint(ctx, g.session.conn, g.key)\n	if err == nil {\n		_ = ctx.Err()", "internal/lock/session TestCancelledAsTheTokenComes"},
	{"a waiter is granted a lock although its session may have ended with the caller's context", sessions, "database.Wait(ctx, g.session.conn, g.key)\n	if err == nil {\n		err = ctx.Err()", "database.Wait(ctx, g.session.conn, g.key)\n	if err == nil {\n		_ = ctx.Err()", "internal/lock/session TestCancelledAsTheTokenComes"},
	{"an owner gets its own slot again", semaphore, "	ctx = lock.WithOwner(ctx, \"\")\n	for number := 1; ; number++ {", "	for number := 1; ; number++ {", "internal/lock/recipe TestRecipes/local/SlotsAreNotReentrant"},
	{"a writer that becomes a reader frees the lock", multi, "		if lease != kept {", "		if true {", "internal/lock/recipe TestRecipes/local/DowngradeButNoUpgrade"},
	{"several locks are unlocked one after the other", multi, "			unlocking.Go(func() { errs[i] = lease.Unlock(ctx) })\n", "			errs[i] = lease.Unlock(ctx)\n", "internal/lock/recipe TestUnlockAtTheSameTime"},
	{"a writer that has lost a lock becomes a reader", multi, "context.Cause(kept.Context())); errors.Is(err, lock.ErrLost)", "context.Cause(kept.Context())); false", "internal/lock/recipe TestDowngradeOfLostLock"},
	{"a candidate tries an invalid name for ever", leader, "if errors.Is(err, lock.ErrName) {", "if false {", "internal/lock/recipe TestLeaderOfInvalidName"},
	{"a job tries an invalid name for ever", job, "if err := lock.CheckName(j.lockName()); err != nil {", "if err := lock.CheckName(j.lockName()); false {", "internal/lock/recipe TestJobOfInvalidName"},
	{"a list is kept with a lease that is too short", "internal/lock/redis/show.go", "if err := b.checkLease(); err != nil {", "if err := b.checkLease(); err != nil && b.lease <= 0 {", "internal/lock/redis TestShortLeaseIsRefused"},
	{"a job is run although another has run it meanwhile", job, "	if done, err := j.done(ctx, number); done || err != nil {\n		return err\n	}\n	err = workUnder", "	err = workUnder", "internal/lock/recipe TestJobRunsOncePerTick"},
	{"a run delays the next tick", job, "		err := j.runOnce(ctx, tick)\n		wait := time.Until(tick.Add(j.Every)) // the next tick, however long the run took\n", "		wait := time.Until(tick.Add(j.Every))\n		err := j.runOnce(ctx, tick)\n", "internal/lock/recipe TestRunDoesNotDelayTicks"},
	{"an optimistic read is valid after a write", sequence, "func (l *Lock) Unlock() {\n	l.sequence.Add(1)\n", "func (l *Lock) Unlock() {\n	l.sequence.Add(^uint64(0))\n", "internal/lock/stamped TestStamps"},
	{"only the command gets SIGTERM, not its children", guard, "err := syscall.Kill(-group, s)", "err := syscall.Kill(group, s)", "cmd/withlock TestKilled"},
	{"the command outlives a withlock that is killed", guard, "			if current.Group == 0 { // withlock", "			if true { // withlock", "cmd/withlock TestKilled"},
	{"the command begins although withlock has died before the guard knew it", beginning, "n < 1 {", "n > 1 {", "cmd/withlock TestKilledBeforeTheCommand"},
	{"the command begins before the guard knows it", withlockCmd, "	testHookWaiting()\n", "	_, _ = begin.Write([]byte{0})\n	testHookWaiting()\n", "cmd/withlock TestStoppedBeforeTheCommand"},
	{"the command begins after its lease", withlockCmd, "	if l.overdue() { // withlock was stopped\n", "	if false { // withlock was stopped\n", "cmd/withlock TestStoppedBeforeTheCommand"},
	{"a withlock that has waited starts another version of itself", beginning, `"/proc/self/exe"`, `"/none"`, "cmd/withlock TestReplacedProgram"},
	{"the command inherits the pipe for which it waited", beginning, "	unix.CloseOnExec(number)\n", "", "cmd/withlock TestOpenFiles"},
	{"a killed withlock frees a SQL lock before the command has ended", guard, "	if connection != nil {\n", "	if false {\n", "cmd/withlock TestConnectionOfTheGuard"},
	{"a lost SQL lock is free before the command has ended", sessions, "g.lost != nil && !g.keepsConnection() {", "g.lost != nil {", "internal/lock/session TestConnectionIsKept"},
	{"a guard that continues acts on an old order", guard, "case n > 0:", "case n > 0 && timeout > 0:", "cmd/withlock TestNewerOrder"},
	{"a process whose first thread has ended counts as ended", "cmd/withlock/zombies_linux.go", "threads > 1 {", "threads < 0 {", "cmd/withlock TestZombies"},
	{"a lock that was deleted is not missed", withlockLease, "			lost <- err // the channel has room for one error\n", "", "cmd/withlock TestLockTakenAway"},
	{"a server that does not answer keeps a lease", sessions, "	defer g.mu.Unlock()\n	return g.until", "	defer g.mu.Unlock()\n	return g.until.Add(time.Hour)", "internal/lock/session TestSilentServer"},
	{"a lease ends when the server frees the lock", sessions, "g.backend.lease * 2 / 3", "g.backend.lease", "internal/lock/session TestSilentServer"},
	{"Confirm of an SQL lock does not ask the server", sessions, "		if err := g.renew(ctx); err != nil {\n", "		if confirmed != nil {\n		} else if err := g.renew(ctx); err != nil {\n", "internal/lock/session TestConfirm"},
	{"Confirm of an SQL lock waits for the first check", "internal/lock/session/confirm.go", "if g.checks.Stop() {", "if false {", "internal/lock/session TestConfirm"},
	{"Confirm of a MySQL lock does not ask the server", sessions, "		if err := g.renew(ctx); err != nil {\n", "		if confirmed != nil {\n		} else if err := g.renew(ctx); err != nil {\n", "internal/lock/session TestEndedSession/MariaDB"},
	{"Confirm of a PostgreSQL lock does not ask the server", sessions, "		if err := g.renew(ctx); err != nil {\n", "		if confirmed != nil {\n		} else if err := g.renew(ctx); err != nil {\n", "internal/lock/session TestEndedSession/PostgreSQL"},
	{"Confirm of an SQL lock tells more than the lease", sessionConfirm, "return until, nil", "return until.Add(time.Minute), nil", "internal/lock/session TestConfirm"},
	{"Confirm of an SQL lock ends the session with its context", sessionConfirm, "		case <-ctx.Done():\n", "		case <-ctx.Done():\n			g.cancelCheck()\n", "internal/lock/session TestConfirm"},
	{"Confirm of an SQL lock waits for a server that does not answer", sessionConfirm, "case <-ctx.Done():", "case <-context.WithoutCancel(ctx).Done():", "internal/lock/session TestConfirm"},
	{"Confirm of a lost SQL lock does not return", sessionConfirm, "case <-g.stopped:", "case <-context.WithoutCancel(ctx).Done():", "internal/lock/session TestConfirm"},
	{"a token is minted before its lock is granted", sessions, "	switch granted, err := g.ask(ctx, g.backend.database.Try", "	_, _ = g.backend.database.Mint(ctx, g.session.conn, g.key)\n	switch granted, err := g.ask(ctx, g.backend.database.Try", "internal/lock/session TestTokenAfterGrant"},
	{"a MySQL lock is granted without a token", mysqlCounter, "if err := next(rows, &token, &clock); err != nil {", "if err := next(rows, &token, &clock); false {", "internal/lock/mysql TestWait_CutShort"},
	{"a waiter for a MySQL lock keeps a token that was not raised", mysqlCounter, "taken.Token, err = raise(ctx, conn, token, clock)", "taken.Token, _ = raise(ctx, conn, token, clock)", "internal/lock/mysql TestWait_CutShort"},
	{"a MySQL answer that ends in its middle is whole", mysqlCounter, "return cmp.Or(rows.Err(), errCutShort)", "return rows.Err()", "internal/lock/mysql TestWait_CutShort"},
	{"a lease counts from the beginning of the wait", sessions, "if time.Since(asked) <= checkInterval {", "if true {", "internal/lock/session TestLeaseAfterAWait"},
	{"a lock that is gone after the wait is granted", sessions, "		if err == nil && !held {\n			err = lock.ErrDeleted\n		}\n		if err == nil {", "		if err == nil && !held {\n			err = nil\n		}\n		if err == nil {", "internal/lock/session TestLeaseAfterAWait"},
	{"a waiter's answer in another session counts", sessions, "case taken.Session != g.session.server.Session:", "case taken.Session < 0:", "internal/lock/session TestWaiterMoved"},
	{"a wait goes on in a session that may hold the lock", sessions, "		case errors.Is(err, errWaited):\n			b.discard(s)\n", "		case errors.Is(err, errWaited):\n			b.put(s)\n", "internal/lock/session TestLockGrantedWithTimeout"},
	{"an SQL lock that is unlocked after Close keeps its session", "internal/lock/session/session.go", "if b.closed {", "if false {", "internal/lock/session TestUnlockOfFreedLock"},
	{"Unlock of an SQL lock waits for a silent server after its context", "internal/lock/session/session.go", "g.cancelCheck()\n\t\t<-g.stopped", "<-g.stopped", "internal/lock/session TestUnlockDuringCheck/given_up"},
	{"a pooler is not refused", sessions, "if !held || heldTwice || !stillHeld || session == otherSession || session != last {", "if !held && heldTwice && !stillHeld && session == otherSession && session != last {", "internal/lock/session TestPoolerIsRefused"},
	{"a check in another session counts", sessions, "case session != g.session.server.Session:", "case session < 0:", "internal/lock/session TestPoolerThatAppearsLater"},
	{"a server grants locks as soon as it has started", sessions, "settleTime-max(s.server.Uptime, 0)", "0*settleTime", "internal/lock/session TestServerThatHasJustStarted"},
	{"redlock does not start without one of its servers", backendFlags, "len(failures) <= len(clients)/2", "len(failures) == 0", "internal/assembly/backends TestRedlockWithoutAServer"},
	{"the service does not count its locks", "internal/assembly/locks.go", "newLockMetrics(metrics).observe)", "func(lock.Event) {})", "cmd/api TestLocks/redis"},
	{"a server is taken for older than it is", mysqlLock, "time.Duration(seconds-1)", "time.Duration(seconds)", "internal/lock/mysql TestUptime"},
	{"the databases of a MySQL server share their locks", "internal/lock/mysql/mysql.go", "[]byte(database + \"\\x00\" + name)", "[]byte(name)", "internal/lock/mysql TestKey"},
}
