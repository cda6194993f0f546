//go:build mutants

package mutants

const (
	ledgerClock = "internal/ledger/clock.go"
	ledgerJobs  = "internal/ledger/jobs.go"
	expire      = "internal/ledger/expiry.go"
	jobRunner   = "internal/reconcile/jobs.go"
	expiryLoop  = "internal/reconcile/expiry.go"
)

// expiry has mutants of jobs, of expiry and of the database's clock.
var expiry = []mutant{
	{"expiry by the instance's clock", ledgerClock, "created, err = l.clock.now()", "created = l.clock.wall().UTC().Truncate(time.Microsecond)", "internal/ledger TestTimes/SQLite"},
	{"orders expire by the instance's clock", expire, "expires_at <= (SELECT \" + d.Now() + \")\"", "expires_at <= \" + string(d.AppendTime(nil, time.Now().Add(-time.Hour)))", "internal/ledger TestExpire/SQLite"},
	{"an old measurement of the clock is used", ledgerClock, "case age > maxClockAge:", "case false:", "internal/ledger TestClock"},
	{"a jump of the clock is ignored", ledgerClock, "case c.jumped(last, age):", "case false:", "internal/ledger TestClockJumps"},
	{"the clock is behind the database's", ledgerClock, "r := reading{at: time.Now(), wall: c.wall().Round(0)}\n\t\tvar err error\n\t\tif r.database, err = read(); err != nil {\n\t\t\treturn err\n\t\t}\n\t\tif trip := time.Since(r.at)",
		"start := time.Now()\n\t\tr := reading{wall: c.wall().Round(0)}\n\t\tvar err error\n\t\tif r.database, err = read(); err != nil {\n\t\t\treturn err\n\t\t}\n\t\tr.at = time.Now().Add(time.Millisecond)\n\t\tif trip := time.Since(start)", "internal/ledger TestClock"},
	{"orders without a known clock", ledgerClock, "if l.paymentWindow == 0 {\n\t\treturn nil", "if true {\n\t\treturn nil", "internal/ledger TestTimes/SQLite"},
	{"units returned by the loser of a race", expire, "c := order.Expiry(found); c.To", "c := (order.Change{To: order.Expired}); c.To", "internal/ledger TestExpire_OthersWin/SQLite"},
	{"claim not lowered", returns, "\"UPDATE claims SET units = units - ? WHERE", "\"UPDATE claims SET units = units - 0 * ? WHERE", "internal/ledger TestExpire/SQLite"},
	{"job without its token", ledgerJobs, "AND holder = ? AND token = ?\"", "AND ? <> '' AND ? > 0\"", "internal/ledger TestExpire_JobLost/SQLite"},
	{"a batch without its job", expire, "if err := holdJob(ctx, tx, b.held); err != nil {\n\t\t\treturn err\n\t\t}\n\t\trows, err", "rows, err", "internal/ledger TestExpire_JobLost/SQLite"},
	{"a batch that waited without its job", expire, "if err := holdJob(ctx, tx, b.held); err != nil {\n\t\t\treturn err\n\t\t}\n\t\texpired, err", "expired, err", "internal/ledger TestExpire_LostWhileWaiting/MariaDB"},
	{"the job is locked during the wait", expire, "rows, err := lockRows(ctx, tx, skus, tx.Dialect().RowLock())", "if err := holdJob(ctx, tx, b.held); err != nil {\n\t\t\treturn err\n\t\t}\n\t\trows, err := lockRows(ctx, tx, skus, tx.Dialect().RowLock())", "internal/ledger TestExpire_LocksStockFirst/MariaDB"},
	{"the holder of a job is not compared", ledgerJobs, "AND holder = ? AND token = ?\"", "AND ? <> '' AND token = ?\"", "internal/ledger TestJobs/SQLite"},
	{"a claim keeps the token", ledgerJobs, "holder = ?, token = token + 1, held_until", "holder = ?, token = token + 0, held_until", "internal/ledger TestJobs/SQLite"},
	{"two claims of one lease", ledgerJobs, "\" WHERE name = ? AND token = ? AND held_until <= \"+d.Now(), holder, name, token)", "\" WHERE name = ?\", holder, name)", "internal/ledger TestJobs_OneClaims/MariaDB"},
	{"the job's row is not locked", ledgerJobs, "error { return setLease(ctx, tx, j, JobLease) }", "error { return nil }", "internal/ledger TestExpire_LocksStockFirst/MariaDB"},
	{"stock row locked after the order row", expire, "rows, err := lockRows(ctx, tx, skus, tx.Dialect().RowLock())", "if _, err := expireOrders(ctx, tx, orders); err != nil {\n\t\t\treturn err\n\t\t}\n\t\trows, err := lockRows(ctx, tx, skus, tx.Dialect().RowLock())", "internal/ledger TestExpire_LocksStockFirst/MariaDB"},
	{"expiry waits for a locked order", expire, "ORDER BY id\"+d.SkipLocked(), keys)", "ORDER BY id\"+d.RowLock(), keys)", "internal/ledger TestExpire_LockedOrder/MariaDB"},
	{"a round begins again with every batch", expire, "if r.after = at; left[at.id] == nil {", "if left[at.id] == nil {", "internal/ledger TestExpire_Round/SQLite"},
	{"a round waits for a locked row in every batch", expire, "if r.waited {\n\t\treturn nil\n\t}", "", "internal/ledger TestExpiryRound"},
	{"a round waits for a slow row first", expire, "return !r.slow[sku].IsZero()", "return false", "internal/ledger TestExpiryRound"},
	{"a slow row is forgotten at once", expire, "slowRowPause, maxSlowSKUs = 30 * time.Second, 1000", "slowRowPause, maxSlowSKUs = 0 * time.Second, 1000", "internal/ledger TestExpiryRound"},
	{"an old round goes on", expire, "0 < r.left && r.left <= r.expired", "false", "internal/ledger TestExpiryRound_End"},
	{"an old round ends before younger orders", expire, "0 < r.left && r.left <= r.expired", "0 < r.left", "internal/ledger TestExpiryRound_End"},
	{"a faulty order stops the others", expire, "if !isFault(err) {", "if true {", "internal/ledger TestExpire_Round/SQLite"},
	{"a faulty order is tried again with every batch", expire, "if len(r.failed) < maxFailedOrders {", "if false {", "internal/ledger TestExpire_Round/SQLite"},
	{"expiry waits for a locked row with others locked", expire, "tx.Dialect().SkipLocked()", "tx.Dialect().RowLock()", "internal/ledger TestExpire_LockedRow/MariaDB"},
	{"expiry waits for a locked row with the order's others locked", expire, "if len(skus) > 1 {", "if false {", "internal/ledger TestExpire_LockedRow/MariaDB"},
	{"expiry never waits for a locked row", expire, "round.worthWaiting(ids, b.left), b.expireWaiting", "nil, b.expireWaiting", "internal/ledger TestExpire_LocksStockFirst/MariaDB"},
	{"an order expires without its history", expire, "SELECT id, version, status, \"+d.Now()+\" FROM orders WHERE id IN ?\", due)", "SELECT id, version, status, \"+d.Now()+\" FROM orders WHERE id IN ? AND 1 = 0\", due)", "internal/ledger TestExpire/SQLite"},
	{"a job that ends is not released", jobRunner, "\t\tj.release(ctx, held)\n", "", "internal/reconcile TestJobHandover"},
	{"a holder that cannot renew goes on", jobRunner, "time.Since(last) < ledger.JobLease;", "time.Since(last) < time.Hour;", "internal/reconcile TestJobHandover"},
	{"a job is not renewed", jobRunner, "return j.ledger.RenewJob(ctx, held)", "return nil", "internal/reconcile TestJobHandover"},
	{"a superseded instance keeps its jobs", jobRunner, "for working.Err() == nil && !j.barred.Load() {", "for working.Err() == nil {", "internal/reconcile TestJobHandover"},
	{"expired units stay away from the gate", expiryLoop, "e.Returned(ctx, done.SKUs...)", "", "internal/reconcile TestExpiryStep"},
	{"batches grow without a bound", expiryLoop, "case locked > longLock:", "case false:", "internal/reconcile TestExpiryBatch"},
	{"expiry leaves no time to orders", expiryLoop, "min((expiryShare-1)*time.Since(start), expiryPause)", "min(0*time.Since(start), expiryPause)", "internal/reconcile TestExpiryStep"},
}
