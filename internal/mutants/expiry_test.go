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
	{"units returned by the loser of a race", expire, "c := order.Expiry(found); c.To", "c := (order.Transition{To: order.Expired}); c.To", "internal/ledger TestExpire_OthersWin/SQLite"},
	{"claim not lowered", returns, "\"UPDATE claims SET units = units - ? WHERE", "\"UPDATE claims SET units = units - 0 * ? WHERE", "internal/ledger TestExpire/SQLite"},
	{"job without its token", ledgerJobs, "AND holder = ? AND token = ?\"", "AND ? <> '' AND ? > 0\"", "internal/ledger TestExpire_JobLost/SQLite"},
	{"the holder of a job is not compared", ledgerJobs, "AND holder = ? AND token = ?\"", "AND ? <> '' AND token = ?\"", "internal/ledger TestJobs/SQLite"},
	{"a claim keeps the token", ledgerJobs, "holder = ?, token = token + 1, held_until", "holder = ?, token = token + 0, held_until", "internal/ledger TestJobs/SQLite"},
	{"two claims of one lease", ledgerJobs, "\" WHERE name = ? AND token = ? AND held_until <= \"+d.Now(), holder, name, token)", "\" WHERE name = ?\", holder, name)", "internal/ledger TestJobs_OneClaims/MariaDB"},
	{"additions of a batch that was rolled back go to the gate", expire, "returned = nil // additions of an earlier try were rolled back", "", "internal/ledger TestFaults_ReturnedByTheLastTry/expiry"},
	{"expiry waits for a locked order", expire, "ORDER BY id\"+tx.SkipLocked(), keys)", "ORDER BY id\"+d.RowLock(), keys)", "internal/ledger TestExpire_LockedOrder/MariaDB"},
	{"a batch without its job", expire, "if err := setLease(ctx, tx, held, JobLease); err != nil {\n\t\t\treturn err\n\t\t}\n", "", "internal/ledger TestExpire_JobLost/SQLite"},
	{"the job is locked during the wait", expire, "if err := waitForRow(ctx, tx, first)", "if err := setLease(ctx, tx, held, JobLease); err != nil {\n\t\t\treturn err\n\t\t}\n\t\tif err := waitForRow(ctx, tx, first)", "internal/ledger TestExpire_WaitsForOneRow/MariaDB"},
	{"the job's row is not locked", expire, "if err := setLease(ctx, tx, held, JobLease); err != nil {\n\t\t\treturn err\n\t\t}\n", "", "internal/ledger TestExpire_WaitsForOneRow/MariaDB"},
	{"stock row locked after the order row", expire, "if err := waitForRow(ctx, tx, first)", "if _, _, err := expireOrders(ctx, tx, orders); err != nil {\n\t\t\treturn err\n\t\t}\n\t\tif err := waitForRow(ctx, tx, first)", "internal/ledger TestExpire_WaitsForOneRow/MariaDB"},
	{"expiry waits for several stock rows", expire, "first := round.first(orders[ids[0]])", "first := skus", "internal/ledger TestExpire_WaitsForOneRow/MariaDB"},
	{"expiry waits for a locked row with others locked", stockrow, "tx.SkipLocked()", "tx.Dialect().RowLock()", "internal/ledger TestExpire_LockedRow/MariaDB"},
	{"expiry never waits for a locked row", expire, "if oldest == nil || len(oldest.Lines) == 0 ||", "if oldest == nil || len(oldest.Lines) > 0 ||", "internal/ledger TestExpire_WaitsForOneRow/MariaDB"},
	{"expiry waits for a locked row in every batch", expire, "round.waitAfter = time.Now().Add(expiryRetry)", "", "internal/ledger TestExpire_LockedRow/MariaDB"},
	{"expiry waits for the first row of an order only", expire, "oldest.Lines[rand.IntN(len(oldest.Lines))].SKU", "oldest.Lines[0*rand.Int()].SKU", "internal/ledger TestExpire_HotRow/MariaDB"},
	{"a wait that outlasts its transaction stops expiry", expire, " || errors.Is(err, context.DeadlineExceeded)) {", ") {", "internal/ledger TestExpire_LockedRow/MariaDB"},
	{"an order of a locked stock row loses its units", expire, "return slices.ContainsFunc(o.Lines, func(line stock.Line) bool { return slices.Contains(others, line.SKU) })", "return len(others) < 0", "internal/ledger TestExpire_LockedRow/MariaDB"},
	{"a round begins again with every batch", expire, "round.after = due[len(due)-1]", "", "internal/ledger TestExpire_BrokenOrders/SQLite"},
	{"a faulty order stops the others", expire, "case isFault(err):", "case false:", "internal/ledger TestExpire_BrokenOrders/SQLite"},
	{"a faulty order takes its batch along", expire, "case isFault(err) && len(due) > 1:", "case false:", "internal/ledger TestExpire_BrokenOrders/SQLite"},
	{"batches stay small after a faulty order", expire, "min(2*size, limit)", "min(size, limit)", "internal/ledger TestExpire_BrokenOrders/SQLite"},
	{"batches grow above their limit", expire, "min(2*size, limit)", "2 * size", "internal/ledger TestExpire_BrokenOrders/SQLite"},
	{"units that are lost are not logged", expire, "if len(gone) > 0 {", "if false {", "internal/ledger TestExpire_BrokenOrders/SQLite"},
	{"a faulty order is tried again with every batch", expire, "if r.failed == 0 || time.Since(r.began) >= expiryRetry {", "if true {", "internal/ledger TestExpire_BrokenOrders/SQLite"},
	{"a faulty order is never tried again", expire, " || time.Since(r.began) >= expiryRetry {", " {", "internal/ledger TestExpire_BrokenOrders/SQLite"},
	{"no lock wait at all", storeMySQL, "[\"innodb_lock_wait_timeout\"] == \"0\"", "[\"innodb_lock_wait_timeout\"] == \"none\"", "internal/store TestOpenSQL_NoLockWait"},
	{"an order expires without its history", expire, "\" FROM orders\" + in), Args: due,", "\" FROM orders\" + in + \" AND 1 = 0\"), Args: due,", "internal/ledger TestExpire/SQLite"},
	{"a job that failed shows no backlog", jobRunner, "j.work(ctx, held, do)", "j.work(ctx, held, do)\n\t\t\t\tidle()", "internal/reconcile TestJobStepsFail"},
	{"a job that failed is not logged", jobRunner, "!errors.Is(err, ledger.ErrJobLost) && working.Err() == nil {\n\t\t\t\tj.log", "false {\n\t\t\t\tj.log", "internal/reconcile TestFailuresAreLogged"},
	{"a job that ended counts as held", jobRunner, "j.metrics.held.WithLabelValues(held.Name).Set(0) //", "//", "internal/reconcile TestJobHandover/it_stops"},
	{"a job is released within the context that ended", jobRunner, "context.WithTimeout(context.WithoutCancel(ctx), jobCallTimeout)", "context.WithTimeout(ctx, jobCallTimeout)", "internal/reconcile TestJobHandover/it_stops"},
	{"a holder waits for a renewal without an end", jobRunner, "renewing, cancel := context.WithTimeout(ctx, jobCallTimeout)", "renewing, cancel := context.WithCancel(ctx)", "internal/reconcile TestJobHandover/it_can_no_longer_renew"},
	{"an instance shows the backlog of a job that another one has", jobRunner, "case errors.Is(err, ledger.ErrJobHeld):\n\t\t\t\tidle()", "case errors.Is(err, ledger.ErrJobHeld):", "internal/reconcile TestJobStepsFail"},
	{"a job that ends is not released", jobRunner, "\t\tj.release(ctx, held)\n", "", "internal/reconcile TestJobHandover"},
	{"the metric shows a job that has ended", jobRunner, "j.metrics.held.WithLabelValues(held.Name).Set(0)", "_ = held", "internal/reconcile TestJobHandover"},
	{"the metric does not show a job that is held", jobRunner, "j.metrics.held.WithLabelValues(held.Name).Set(1)", "_ = held", "internal/reconcile TestJobHandover"},
	{"a holder that cannot renew goes on", jobRunner, "time.Since(last) < ledger.JobLease;", "time.Since(last) < time.Hour;", "internal/reconcile TestJobHandover"},
	{"a job is not renewed", jobRunner, "err := j.ledger.RenewJob(renewing, held)", "err, _ := error(nil), renewing", "internal/reconcile TestJobHandover"},
	{"a superseded instance keeps its jobs", jobRunner, "for working.Err() == nil && !j.barred.Load() {", "for working.Err() == nil {", "internal/reconcile TestJobHandover"},
	{"expired units stay away from the gate", expiryLoop, "e.BringToGate(ctx, done.Returned...)", "", "internal/reconcile TestExpiryStep"},
	{"expiry leaves no time to orders", expiryLoop, "min((expiryShare-1)*time.Since(start), expiryPause)", "min(0*time.Since(start), expiryPause)", "internal/reconcile TestExpiryStep"},
	{"a round skips orders of the same time", expire, "AND (expires_at > ? OR id > ?)\"", "AND (expires_at > ? OR id > ? AND 1 = 0)\"", "internal/ledger TestExpire_SameTime/SQLite"},
	{"orders of the same time are in any order", expire, "ORDER BY expires_at, id LIMIT ?", "ORDER BY expires_at LIMIT ?", "internal/ledger TestExpire_SameTime/PostgreSQL"},
	{"no units return as an empty addition", returns, "\t\tif n == 0 {\n\t\t\tcontinue\n\t\t}\n", "", "internal/ledger TestExpire_OthersWin/SQLite"},
	{"a job is claimed although it was just renewed", ledgerJobs, "\" WHERE name = ? AND token = ? AND held_until <= \"+d.Now(), holder", "\" WHERE name = ? AND token = ?\", holder", "internal/ledger TestJobs_ClaimWaitsForWork/PostgreSQL"},
	{"jobs whose leases have ended are listed", ledgerJobs, "FROM jobs WHERE held_until > \"+l.db.Dialect().Now()+\" ORDER", "FROM jobs WHERE held_until <> \"+l.db.Dialect().Now()+\" ORDER", "internal/ledger TestJobs/SQLite"},
	{"the database's clock is measured without a bound", ledgerClock, "context.WithTimeout(ctx, maxClockError)", "context.WithCancel(ctx)", "internal/ledger TestSilentTransaction/PostgreSQL"},
	{"a locked stock row is not logged by expiry", expire, "l.log.Warn(\"orders cannot expire because another transaction has locked their stock row\", \"sku\", row.sku, \"error\", err)", "", "internal/ledger TestExpire_LockedRow/PostgreSQL"},
	{"an order that cannot expire is not logged", expire, "l.log.Warn(\"an order cannot expire and is passed over\", \"order\", due[0].id, \"error\", err)", "", "internal/ledger TestExpire_BrokenOrders/SQLite"},
}
