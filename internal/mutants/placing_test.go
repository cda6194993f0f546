//go:build mutants

package mutants

const (
	generations = "internal/stock/generation.go"
	service     = "internal/order/service.go"
	key         = "internal/order/key.go"
	admin       = "internal/admin/admin.go"
	record      = "internal/ledger/record.go"
	lookup      = "internal/ledger/lookup.go"
	resolving   = "internal/ledger/resolve.go"
	outcomes    = "internal/order/outcome.go"
	slowGroups  = "internal/ledger/slowgroups.go"
	groupCommit = "internal/ledger/groupcommit.go"
	ledgerTurns = "internal/ledger/rowturns.go"
	stockrow    = "internal/ledger/stockrows.go"
	epochs      = "internal/ledger/epochs.go"
	ledgerOwner = "internal/ledger/generation.go"
	decisions   = "internal/ledger/cutter/decision.go"
	rows        = "internal/ledger/cutter/rows.go"
	cutterRules = "internal/ledger/cutter/rules.go"
	merged      = "internal/ledger/cutter/merged.go"
	conditional = "internal/ledger/cutter/conditional.go"
	optimistic  = "internal/ledger/cutter/optimistic.go"
	parts       = "internal/ledger/cutter/parts.go"
	slots       = "internal/ledger/cutter/slots.go"
	reconciling = "internal/reconcile/reconcile.go"
	ownership   = "internal/reconcile/generation.go"
	takes       = "internal/reconcile/takes.go"
	sweeping    = "internal/reconcile/loops.go"
	recovery    = "internal/reconcile/recovery.go"
	drift       = "internal/reconcile/drift.go"
	outbox      = "internal/reconcile/outbox.go"
	audits      = "internal/reconcile/audit.go"
	compare     = "internal/stock/compare.go"
	recount     = "internal/ledger/recount.go"
	refill      = "internal/reconcile/refill.go"
	gateMark    = "internal/stock/gate/generation.go"
	gateScan    = "internal/stock/gate/inflight.go"
	gateTake    = "internal/stock/gate/take.go"
)

// placing has mutants of the code that an order passes through: the service, the
// ledger, its cutters and the reconciler.
var placing = []mutant{
	{"one more than there is, in one UPDATE", merged, "sql += \" AND available >= ?\"", "sql += \" AND available + 1 >= ?\"", "internal/ledger/cutter TestConformance/SQLite/merged/LastUnits"},
	{"one more than there is, under a row lock", cutterRules, "available < l.units", "available+1 < l.units", "internal/ledger/cutter TestConformance/SQLite/for-update/LastUnits"},
	{"the last unit kept back", cutterRules, "available < l.units", "available <= l.units", "internal/ledger/cutter TestConformance/SQLite/for-update/LastUnits"},
	{"epoch not demanded", cutterRules, "l.epoch != 0 && r.epoch != l.epoch", "false", "internal/ledger/cutter TestConformance/SQLite/for-update/StaleEpochAlone"},
	{"epoch not demanded in one UPDATE", merged, "if l.epoch != 0 {\n\t\tsql +=", "if false {\n\t\tsql +=", "internal/ledger/cutter TestConformance/SQLite/merged/StaleEpochAlone"},
	{"one more than there is, in one UPDATE of several SKUs", merged, "text.WriteString(\" AND available >= ?\")", "text.WriteString(\" AND available + 1 >= ?\")", "internal/ledger/cutter TestConformance/SQLite/merged/AllLinesOrNone"},
	{"epoch not demanded in one UPDATE of several SKUs", merged, "if of.epoch != 0 {\n\t\t\ttext", "if false {\n\t\t\ttext", "internal/ledger/cutter TestConformance/SQLite/merged/EpochOfEveryLine"},
	{"recovery does not wait for the deadline", recovery, "r.counter.ScanInFlight(ctx, r.takeDeadline,", "r.counter.ScanInFlight(ctx, 0,", "internal/protocol TestYoungTakesAreLeft"},
	{"line 1 kept when line 2 fails", conditional, "giveBack(ctx, tx, t.Lines[:i])", "giveBack(ctx, tx, t.Lines[:min(i, 0)])", "internal/ledger/cutter TestConformance/SQLite/conditional/AllLinesOrNone"},
	{"compensation on the request's context", reconciling, "context.WithTimeout(context.WithoutCancel(ctx), compensationTimeout)", "context.WithTimeout(ctx, compensationTimeout)", "internal/protocol TestCompensationOutlivesTheRequest/SQLite"},
	{"drift is left alone", drift, "if seen, same := look(row, levels[i]); !same", "if seen, same := look(row, levels[i]); true || !same", "internal/protocol TestDrift/SQLite"},
	{"a gap between changes is ignored", outbox, "case errors.Is(err, stock.ErrChangeGap):\n\t\t// The gate", "case false:\n\t\t// The gate", "internal/protocol TestAdditionOnce/SQLite"},
	{"an addition that has overtaken another stays away from the gate", outbox, "case errors.Is(err, stock.ErrChangeGap):\n\t\t\terr = ", "case false:\n\t\t\terr = ", "internal/reconcile TestBringToGate"},
	{"each delivery begins with the first SKU", outbox, "d.next = endOf(after.SKU)", "_ = endOf", "internal/reconcile TestDeliverAll_GoesOn"},
	{"a delivery begins between additions to one SKU", outbox, "d.next = endOf(after.SKU)", "d.next = after", "internal/reconcile TestDeliverAll_GoesOn"},
	{"additions stay in the outbox", outbox, "_ = r.applied.Send(c)", "_ = c", "internal/reconcile TestBringToGate"},
	{"an addition to an empty gate is an error", outbox, "case errors.Is(err, stock.ErrNotFilled): // a refill will include the change, or a take will request a refill\n\t\t\terr = nil", "case false:", "internal/reconcile TestBringToGate"},
	{"a changed version is cut", optimistic, "return nil, ErrConflict", "continue", "internal/ledger/cutter TestConformance/MariaDB/optimistic/CutsAddUp"},
	{"answer before commit", service, "o, out := record(ctx, take)",
		"o, out := Order{ID: d.OrderID, Buyer: d.Buyer, Status: Pending, Lines: d.Lines}, Committed()\n\tgo func() { _, _ = record(context.WithoutCancel(ctx), take) }()", "internal/protocol TestNoAnswerBeforeCommit/SQLite"},
	{"refill without a new epoch", generations, "next++; next > last", "next > last", "internal/protocol TestTakeOutlivesRefill/SQLite"},
	{"a row of another generation is cut", cutterRules, "stock.GenerationOf(r.epoch) > g:", "false:", "internal/ledger/cutter TestConformance/SQLite/for-update/LaterGeneration"},
	{"a row that was not adopted is cut", cutterRules, "stock.GenerationOf(r.epoch) < g:", "false:", "internal/ledger/cutter TestConformance/SQLite/for-update/EarlierGeneration"},
	{"a row of another generation is cut, in one UPDATE", merged, "AND epoch BETWEEN ? AND ?\"", "AND ? < ?\"", "internal/ledger/cutter TestConformance/SQLite/conditional/LaterGeneration"},
	{"a row of another generation is cut, in one UPDATE of several SKUs", merged, "\" AND epoch BETWEEN ? AND ? AND (\"", "\" AND ? < ? AND (\"", "internal/ledger/cutter TestConformance/MariaDB/merged/EarlierGeneration"},
	{"a row of another generation is cut, in one UPDATE of PostgreSQL", merged, "AND cut.epoch BETWEEN ? AND ? AND", "AND ?::bigint < ?::bigint AND", "internal/ledger/cutter TestConformance/PostgreSQL/merged/EarlierGeneration"},
	{"a slot of another generation is cut", merged, "AND epoch BETWEEN ? AND ?\"", "AND ? < ?\"", "internal/ledger TestSlotsInMidSale/SQLite"},
	{"an adoption leaves units in parts", epochs, "lockWhole(ctx, tx, sku); err", "lockRow(ctx, tx, sku); err", "internal/ledger TestPartsAreTakenBack/SQLite"},
	{"a bulk refill leaves units in parts", epochs, "cutter.CollectFree(ctx, tx, SKUsOf(raised))", "cutter.CollectFree(ctx, tx, nil)", "internal/ledger TestPartsAreTakenBack/SQLite"},
	{"a bulk refill waits for locked parts", parts, "skus, tx.SkipLocked(), func", "skus, tx.Dialect().RowLock(), func", "internal/ledger TestRaiseEpochsLeavesLockedPartsOut/MariaDB"},
	{"a bulk refill takes free parts back and leaves locked ones", epochs, "return slices.Contains(busy, row.SKU) })", "return false && slices.Contains(busy, row.SKU) })", "internal/ledger TestRaiseEpochsLeavesLockedPartsOut/MariaDB"},
	{"a shrink leaves units in parts", stockrow, "lockWhole(ctx, tx, line.SKU)", "lockRow(ctx, tx, line.SKU)", "internal/ledger TestPartsAreTakenBack/SQLite"},
	{"a setting leaves units in parts", stockrow, "lockWhole(ctx, tx, s.SKU)", "lockRow(ctx, tx, s.SKU)", "internal/ledger TestPartsAreTakenBack/SQLite"},
	{"a correction leaves units in parts", recount, "lockWhole(ctx, tx, sku)", "lockRow(ctx, tx, sku)", "internal/ledger TestPartsAreTakenBack/SQLite"},
	{"units in parts are not counted", parts, "COALESCE(SUM(stock_parts.available), 0)", "COALESCE(SUM(0), 0)", "internal/ledger TestPartsAreCounted/SQLite"},
	{"refused because one slot has too little", slots, "err = rs.lockParts(ctx, tx, skus[:next])", "err = nil", "internal/ledger TestSlotsOfOne/SQLite"},
	{"slots are divided without the lock of the stock row", slots, "readSKUs(ctx, tx, whole, tx.Dialect().RowLock())", "readSKUs(ctx, tx, whole, \"\")", "internal/ledger/cutter TestSlots_DividedMeanwhile/MariaDB"},
	{"a SKU that is sold out makes its group lock all slots", slots, "whole := slices.DeleteFunc(slices.Clone(skus), func(sku stock.SKU) bool { return ", "whole := slices.DeleteFunc(slices.Clone(skus), func(sku stock.SKU) bool { return false && ", "internal/ledger/cutter TestSlots/MariaDB"},
	{"every group has the same slot", slots, "c.last.Add(1)", "c.last.Add(0)", "internal/ledger/cutter TestSlots/MariaDB"},
	{"refused because a slot was sold meanwhile", slots, "rs[sku].part > 0 && !enough(rs[sku])", "false", "internal/ledger/cutter TestSlots_ChangedMeanwhile/PostgreSQL"},
	{"a slot that was taken back meanwhile makes its SKU unknown", slots, "len(locked) < len(skus)", "false", "internal/ledger/cutter TestSlots_ChangedMeanwhile/MariaDB"},
	{"a bulk refill overlooks that parts could not be taken back", epochs, "collected, busy, err := cutter.CollectFree(ctx, tx, SKUsOf(raised))\n\t\tif err != nil {", "collected, busy, err := cutter.CollectFree(ctx, tx, SKUsOf(raised))\n\t\tif false {", "internal/ledger TestFaults_Stock/RaiseEpochs"},
	{"only the version is checked", optimistic, "AND version = ? AND epoch = ?\"", "AND version = ? AND ? > 0\"", "internal/ledger/cutter TestConformance/SQLite/optimistic/AdoptedMeanwhile"},
	{"an adoption keeps the version", epochs, "row.Version++ // a writer", "// a writer", "internal/protocol TestAdoption/SQLite"},
	{"an adoption keeps the epoch", epochs, "if row.Epoch, err = l.Generation().Renew(row.Epoch, above); err != nil {", "if _, err = l.Generation().Renew(row.Epoch, above); err != nil {", "internal/protocol TestAdoption/SQLite"},
	{"a bulk refill keeps the epochs", epochs, "if epoch, err = l.Generation().Renew(epoch)", "if _, err = l.Generation().Renew(epoch)", "internal/ledger TestRaiseEpochs/SQLite"},
	{"a bulk refill keeps the version", epochs, "version = version + 1", "version = version + 0", "internal/ledger TestRaiseEpochs/SQLite"},
	{"a bulk refill keeps the changes", epochs, "DELETE FROM outbox WHERE sku IN ?", "DELETE FROM outbox WHERE sku IN ? AND 1 = 0", "internal/ledger TestRaiseEpochs/SQLite"},
	{"a bulk refill raises rows that have changed", epochs, "return row.Epoch != epochs[row.SKU] })", "return epochs[row.SKU] == 0 })", "internal/ledger TestRaiseEpochs/SQLite"},
	{"a bulk refill waits for locked rows", epochs, "tx.SkipLocked()", "tx.Dialect().RowLock()", "internal/ledger TestRaiseEpochs/PostgreSQL"},
	{"a single look is enough", drift, "time.Now().Add(-sweepPause)", "time.Now()", "internal/reconcile TestSecondLook"},
	{"a page that cannot be read is passed over", drift, "return l.Err == nil }) {", "return true }) {", "internal/reconcile TestUnreadableCounts"},
	{"a sweep stays under its generation", refill, "return 0, r.generations.catchUp(ctx, later)", "return 0, nil", "internal/reconcile TestCompareMeetsALaterGeneration"},
	{"a shrink keeps the version", stockrow, "row.Available -= line.Quantity\n\t\trow.Version++", "row.Available -= line.Quantity", "internal/protocol TestShrinkIsSeen/SQLite"},
	{"a shrink under any epoch", stockrow, "epoch != 0 && epoch != row.Epoch", "false && epoch != row.Epoch", "internal/protocol TestShrinkOutlivesRefill/SQLite"},
	{"an administrator changes another generation's row", stockrow, "case owner < g:", "case false:", "internal/protocol TestCreatedByTheOldLayout/SQLite"},
	{"unknown commit resolved by reading", resolving,
		"func (l *Ledger) Resolve(ctx context.Context, d stock.Deduction) order.Outcome {",
		"func (l *Ledger) Resolve(ctx context.Context, d stock.Deduction) order.Outcome {\n\tif found, err := readOrders(ctx, l.db, []uuid.UUID{d.OrderID}); err == nil {\n\t\tif o := found[d.OrderID]; o != nil && o.Status != order.Void && o.TakeID == d.TakeID {\n\t\t\treturn order.Committed()\n\t\t}\n\t\treturn order.Refused(errVoided)\n\t}",
		"internal/protocol TestCommitInLimbo/PostgreSQL/lua"},
	{"recovery settles a void", resolving, "case o.Holds(d.TakeID):", "case o.TakeID == d.TakeID:", "internal/ledger TestResolve/SQLite"},
	{"recovery settles another take's order", resolving, "case o.Holds(d.TakeID):", "case o.Status != order.Void:", "internal/ledger TestResolve/SQLite"},
	{"a failed void insert counts as refused", resolving, "return order.Unknown(fmt.Errorf(\"inserting the void order", "return order.Refused(fmt.Errorf(\"inserting the void order", "internal/protocol TestOpenOutcomeGivesNothingBack/SQLite"},
	{"a request gives back what is open", takes, "case out.Unknown():\n\t\tr.leaveOpen(openTake{t, true})", "case out.Unknown():\n\t\tr.GiveBack(ctx, t)", "internal/protocol TestOpenOutcomeGivesNothingBack/SQLite"},
	{"recovery gives back what is open", recovery, "case out.Refused():\n\t\terr, ended =", "case out.Refused(), out.Unknown():\n\t\terr, ended =", "internal/protocol TestOpenOutcomeGivesNothingBack/SQLite"},
	{"an open take waits for its deadline", takes, "r.leaveOpen(openTake{t, false})", "", "internal/protocol TestOpenTakesAreEnded"},
	{"unanswered is committed", outcomes, "unknown   outcomeKind = iota // the order may be committed, now or later\n\tcommitted                    // the ledger has the order", "committed   outcomeKind = iota\n\tunknown", "internal/order TestUnansweredIsUnknown"},
	{"undecided is taken", decisions, "return d.taken }", "return d.reason == nil }", "internal/ledger/cutter TestUndecided"},
	{"duplicates in a failed group get no outcome", record, "refuse(repeats, err)\n\t\t\tbreak", "break", "internal/ledger TestFailedGroup/SQLite"},
	{"a taken primary key answered as sold out", record, "r.answer(order.Duplicate(o))", "r.answer(order.Refused(stock.Refuse(r.take.Lines[0].SKU, stock.ErrSoldOut)))", "internal/protocol TestSlowTwin/SQLite"},
	{"a refused key is not looked up", service, `if r.Key != "" {
		found, _, err := s.findKeyed`, `if false {
		found, _, err := s.findKeyed`, "internal/protocol TestKeys/SQLite"},
	{"a key keeps its void order", service, "voids, last = next, errVoided", "_, last = next, errVoided", "internal/protocol TestSlowTwin/SQLite"},
	{"the search for the live order of a key passes it", service, "case step == 1, err", "case step <= 2, err", "internal/order TestFindKeyed"},
	{"a key has ten void orders at most", service, "maxVoids = 1_000_000", "maxVoids = 10", "internal/order TestManyVoids"},
	{"anybody can compute the IDs of keys", key, "b = append(b, ledgerID[:]...)", "b = append(b, make([]byte, 16)...)", "internal/order TestOrderIDs"},
	{"a lost take is left alone", service, "if !s.reconciler.GiveBack(ctx, take) {", "if false {", "internal/protocol TestCompensationOutlivesTheRequest/SQLite"},
	{"a refused order's units stay at the gate", takes, "\tdefault:\n\t\tr.GiveBack(ctx, t)", "\tdefault:", "internal/protocol TestNoAnswerBeforeCommit/SQLite"},
	{"a guard refusal proves nothing", takes, "r.refillAfterGuardRefusal(ctx, t, out.Reason())", "", "internal/protocol TestGuardRefusal/SQLite"},
	{"one bad order fails its group", record, "case sqltx.IsStatementError(err):\n\t\t\treturn l.divide(ctx, rs, own, err)", "case sqltx.IsStatementError(err):\n\t\t\treturn away(rs, err)", "internal/protocol TestPoisonedGroup/MariaDB/merged"},
	{"a locked row stops the others", slowGroups, "if g.ended || ls.groups == maxSlowGroups {", "if true {", "internal/protocol TestLockedRow/MariaDB"},
	{"a locked row keeps its group", slowGroups, "locked, _ := l.lockedRows", "return rs, nil\n\tlocked, _ := l.lockedRows", "internal/ledger TestLockedRowInAGroup/MariaDB"},
	{"a locked row is not logged", slowGroups, "l.log.WarnContext(ctx, \"stock rows are locked by another transaction\", \"skus\", locked, \"error\", cause)", "_ = cause", "internal/ledger TestLockedRowInAGroup/MariaDB"},
	{"a difference at rest is not logged", drift, "r.log.Warn(\"gate and ledger differ at rest; refilling\",\n\t\t\"sku\", sku, \"gate\", seen.gate, \"in_flight\", seen.inFlight, \"ledger\", seen.ledger)\n", "", "internal/reconcile TestFailuresAreLogged"},
	{"too many takes in flight are not logged", drift, "if err == nil && !counted {", "if false {", "internal/reconcile TestManyInFlight"},
	{"any number of SKUs waits for a second check", drift, "|| !known && len(c.suspects) == maxSuspects", "", "internal/reconcile TestSuspectsAreBounded"},
	{"each check logs that the stock was taken over", ownership, "if !g.superseded.Swap(true) {", "if g.superseded.Store(true); true {", "internal/reconcile TestSuperseded"},
	{"an instance loads a generation that it did not raise", ownership, "\t\tif loaded || err != nil || time", "\t\tif !loaded && err == nil && g.counter.Load(ctx, generation) == nil {\n\t\t\treturn true, nil\n\t\t}\n\t\tif loaded || err != nil || time", "internal/protocol TestStaleRedis/lua"},
	{"the comparison stays at the first page", drift, "r.ledger.Rows(ctx, c.after, pageSize)", "r.ledger.Rows(ctx, \"\", pageSize)", "internal/reconcile TestCompareInPages"},
	{"an instance is ready on a ledger that it cannot write", ownership, "time to ask the ledger\n\towner, err := g.ledger.Beat(ctx)", "time to ask the ledger\n\towner, err := g.ledger.Owner(ctx)", "internal/reconcile TestRun"},
	{"a far Redis is waited for as briefly as a near one", ownership, "loadGrace = 2 * time.Second", "loadGrace = 500 * time.Millisecond", "internal/reconcile TestSlowLoad/far"},
	{"a start waits for no load", ownership, "loaded, err := g.becomesLoaded(ctx) // another", "loaded, err := g.loaded(ctx) // another", "internal/reconcile TestSlowLoad/far"},
	{"a lost generation is waited for without an end", ownership, "time.Since(since) > loadGrace", "since.IsZero()", "internal/reconcile TestLostAgain"},
	{"a Redis that does not answer has lost its scripts", ownership, "> loadGrace {\n\t\t\treturn loaded, err", "> loadGrace {\n\t\t\treturn loaded, nil", "internal/reconcile TestUnansweredLook"},
	{"loads that fail follow each other at once", ownership, "time.Since(since) > loadGrace", "time.Since(since) >= 0", "internal/reconcile TestLoadsFail"},
	{"scripts are loaded one by one", gateMark, "_ = pipe.Process(ctx, command{Cmder: redis.NewStringCmd(ctx, \"script\", \"load\", script.text)}) // Process queues the command", "_ = node.Process(ctx, command{Cmder: redis.NewStringCmd(ctx, \"script\", \"load\", script.text)})", "internal/stock/gate TestLoadInOneRoundTrip"},
	{"recovery of a cluster ends at a master that is away", gateScan, "return next, proven(err)", "return \"\", proven(err)", "internal/protocol TestRecoveryBehindALostMaster"},
	{"a failed step of recovery ends it", recovery, "errs = append(errs, err)\n\t\tif cursor = next; cursor == \"\" ||", "errs = append(errs, err)\n\t\tif cursor = next; err != nil || cursor == \"\" ||", "internal/protocol TestRecoveryBehindALostMaster"},
	{"a failed step of the instance's own recovery ends it", sweeping, "return withinScan, err", "if err != nil {\n\t\t\t\tcursor = \"\"\n\t\t\t}\n\t\t\treturn withinScan, err", "internal/protocol TestRecoveryBehindALostMaster"},
	{"a restored ledger is not detected", ownership, "return mark.Beat >= owner.Beat && mark.Beat > 0 || mark.Generation > owner.Generation", "return false", "internal/protocol TestRestoredLedger/SQLite"},
	{"a changed store is not suspected", ownership, "func (g *generations) demanded() bool { return g.demands.Load() > g.answered.Load() }", "func (g *generations) demanded() bool { return false }", "internal/protocol TestStoreChanged/SQLite"},
	{"a start does not take the stock over", ownership, "if owner.Layout == g.layout && !restored(owner, mark) {", "if !restored(owner, mark) && owner.Layout != \"\" {", "internal/protocol TestLayouts/SQLite/lua_to_merged"},
	{"flight without records stays", drift, "recorded[sku] == seen.inFlight", "recorded[sku] >= 0", "internal/protocol TestFlightWithoutRecords/SQLite"},
	{"too many takes in flight are drift", drift, "(!counted || recorded[sku]", "(recorded[sku]", "internal/reconcile TestManyInFlight"},
	{"a void record counts", drift, "range t.Recorded {", "range t.Lines {", "internal/reconcile TestVoidRecords"},
	{"a failed second look ends the round", drift, "refilled, last, err := r.comparePage(ctx)\n", "refilled, last, err := r.comparePage(ctx)\n\terr = joined([]error{err, r.lookAgain(ctx, due)})\n", "internal/reconcile TestSecondLookFails"},
	{"flight with records is refilled away", drift, "recorded[sku] == seen.inFlight", "recorded[sku] < 0", "internal/protocol TestFlightWithoutRecords/SQLite"},
	{"one bad SKU stops the sweep", sweeping, "errs := []error{r.Deliver(ctx, \"\")}", "errs := []error{r.Deliver(ctx, \"\")}\n\tif errs[0] != nil {\n\t\treturn errs[0]\n\t}", "internal/protocol TestOneBadSKU/SQLite"},
	{"a row of a later generation than the ledger's raises nothing", refill, "return nil, r.generations.catchUp(ctx, later)", "return nil, r.generations.follow(ctx, later-1)", "internal/protocol TestRowOfALaterGeneration/SQLite"},
	{"the layout of a restored ledger supersedes", ownership, "(owner.Generation >= current || g.superseded.Load())", "(owner.Generation >= 0 || current > 0)", "internal/protocol TestRestoredToAnotherLayout/SQLite"},
	{"a raise during a check is a restored ledger", ownership, "owner.Generation < before:", "owner.Generation < g.current():", "internal/reconcile TestRaiseDuringACheck"},
	{"an open take that stays open holds the others up", takes, "r.leaveOpen(t) // to the end of the queue: the stores of the other takes may answer",
		"for ctx.Err() == nil && r.endOpenTake(ctx, t) != nil {\n\t\t\t\t_ = retry.Sleep(ctx, openTakePause)\n\t\t\t}", "internal/reconcile TestOneStuckTake"},
	{"a take that cannot be ended hides the others", recovery, "errs = append(errs, fmt.Errorf(", "return \"\", error(fmt.Errorf(", "internal/protocol TestManyStuckTakes"},
	{"a try refills only one SKU", refill, "for _, sku := range skus {\n\t\tif err := r.Refill", "var refusal *stock.Refusal\n\terrors.As(reason, &refusal)\n\tfor _, sku := range []stock.SKU{refusal.SKU} {\n\t\tif err := r.Refill", "internal/protocol TestManyLinesAfterAFlush"},
	{"a removal of stock is shown as an order", lookup, "case q.found == nil || q.found.Status == shrink:", "case q.found == nil:", "internal/ledger TestShrinkIsNoOrder/SQLite"},
	{"a take that is recorded twice is a duplicate", record, "case o.Holds(r.take.TakeID):\n\t\t\tr.committedAs(o)", "case false:\n\t\t\tr.committedAs(o)", "internal/ledger TestRecord_SameTake/SQLite"},
	{"a group is committed at once although it does not fit", groupCommit, "first = tx.Expect(plan.GroupCut.Rows, plan.GroupCut.Statement, first)", "tx.AtCommit(plan.GroupCut.Statement)", "internal/ledger TestPlannedGroup/PostgreSQL"},
	{"setting duplicates apart overwrites the group", record, "first = make([]*recording, 0, len(rs)) // rs", "first = rs[:0] // rs", "internal/ledger TestDistinct"},
	{"an unreadable mark stays", gateMark, "return stock.Mark{}, nil", "return stock.Mark{}, err", "internal/protocol TestUnreadableMark"},
	{"an unreadable record hides the others", gateScan, "to.add(pairs[0], pairs[1]); err != nil {\n\t\t\terrs = append(errs, err)", "to.add(pairs[0], pairs[1]); err != nil {\n\t\t\treturn firstCursor, err", "internal/protocol TestUnreadableRecord"},
	{"each take that is recovered is logged", recovery, "r.log.Debug(\"recovered a take left", "r.log.Info(\"recovered a take left", "internal/reconcile TestRecoveryLogs"},
	{"a take that cannot be resolved stops recovery", recovery, "errs = append(errs, fmt.Errorf(\"recovering take %s: %w\", t.TakeID, err))\n\t\t\tcontinue", "return next, err", "internal/reconcile TestRecoveryGoesOn"},
	{"a drain gives up what another one has taken over", ownership, "case owner.Generation != g.current() || owner.Layout != g.layout:", "case owner.Layout != g.layout:", "internal/reconcile TestRelease"},
	{"a full page of the outbox is the last", "internal/ledger/outbox.go", "len(changes) < pageSize, nil", "len(changes) <= pageSize, nil", "internal/ledger TestChanges_Pages"},
	{"a buyer is above the limit for an order that may not exist", groupCommit, " || errors.Is(reason, stock.ErrBuyerLimit))", ")", "internal/ledger TestFaults_GroupCommit"},
	{"a later generation's count is added to", adjustLua, "or epoch > LAST_EPOCH then", "then", "internal/stock/gate TestGenerationsInTurn/Redis/Script"},
	{"a row that is read is proof of a commit", lookup, "if err := l.db.Confirm(ctx); err != nil {", "if err := ctx.Err(); err != nil {", "internal/ledger TestAnswersWaitForTheStandby"},
	{"a store that changes during a raise is forgotten", ownership, "g.answered.Store(answers)", "_ = answers\n\tg.answered.Store(g.demands.Load())", "internal/reconcile TestStoreChangesDuringARaise/raise"},
	{"a store that changes during a load is forgotten", ownership, "return g.setMark(ctx, ledger.Owner{Generation: next", "g.answered.Store(g.demands.Load())\n\treturn g.setMark(ctx, ledger.Owner{Generation: next", "internal/reconcile TestStoreChangesDuringARaise/load"},
	{"a lost raise is used", ownership, "Queues: g.queues}); err != nil {", "Queues: g.queues}); err != nil && !errors.Is(err, stock.ErrRowChanged) {", "internal/reconcile TestLostRaise"},
	{"the generation is raised whatever it is", ledgerOwner, "err == nil && raised == 0", "err == nil && raised < 0", "internal/ledger TestRaiseOfAStaleRow/SQLite"},
	{"later groups wait for a slow one", record, "if !l.slow.add(own) {", "if l.slow.add(own); true {", "internal/ledger TestSlowGroupsAreOvertaken"},
	{"any number of groups is under way", record, "if !l.slow.add(own) {", "if !l.slow.add(own) && false {", "internal/ledger TestSlowGroupsAreOvertaken"},
	{"orders of a slow group's SKUs do not wait", record, "\trs = l.slow.hold(rs)\n", "", "internal/ledger TestSlowGroupsAreOvertaken"},
	{"Close leaves slow groups under way", "internal/ledger/ledger.go", "\tl.groups.Wait()\n", "", "internal/ledger TestSlowGroupsAreClosed"},
	{"orders that waited for a slow group get no answer", record, "range l.slow.remove(own) {", "range l.slow.remove(own)[:0] {", "internal/ledger TestSlowGroupsAreClosed"},
	{"a later slow group takes a SKU from an earlier one", slowGroups, "if ls.of[sku] == nil {", "if true {", "internal/ledger TestSlowGroupsKeepTheirSKUs"},
	{"a later slow group's end frees an earlier one's SKU", slowGroups, "if ls.of[sku] == g && released(sku) {", "if released(sku) {", "internal/ledger TestSlowGroupsKeepTheirSKUs"},
	{"the time of an order begins before its turn", record, "r.begun = true\n\tr.order.RecordedAt(created, expires)", "r.begun = true", "internal/ledger TestRecord_TimesAfterTheWait/SQLite"},
	{"the time of an order begins before it has its rows", groupCommit, "_, err = l.begin(rs) //", "_ = err //", "internal/ledger TestRecord_TimesAfterALockWait/MariaDB"},
	{"transactions take no time", groupCommit, "l.metrics.transaction, time.Since(begun)", "l.metrics.transaction, 0*time.Since(begun)", "internal/ledger TestTransactionIsMeasured/SQLite"},
	{"a group after one that did not fit is sent twice too", groupCommit, "l.cutFirst.Store(len(accepted) < len(rs))", "", "internal/ledger TestCutFirst/MariaDB"},
	{"a group after one that fits is not sent at once", groupCommit, "l.cutFirst.Store(len(accepted) < len(rs))", "l.cutFirst.Store(true)", "internal/ledger TestCutFirst/MariaDB"},
	{"a short payment window passes in a lock wait", groupCommit, "plan.GroupCut != nil && l.mayWait &&", "plan.GroupCut != nil &&", "internal/ledger TestRecord_TimesAfterALockWait/PostgreSQL"},
	{"an order is committed although its caller has given up", record, "if r.left {\n\t\treturn false", "if false {\n\t\treturn false", "internal/ledger TestRecord_TimesAfterTheWait/SQLite"},
	{"an order that was given up before it began is unknown", record, "if r.begun {", "if true {", "internal/ledger TestRecord_TimesAfterTheWait/SQLite"},
	{"an order that may be committed is refused", record, "if r.begun {", "if false {", "internal/ledger TestRecord_GivenUp/SQLite"},
	{"changes of one locked row hold many connections", ledgerTurns, "taken: make(chan struct{}, 1)", "taken: make(chan struct{}, 1000)", "internal/ledger TestLockedRowHoldsOneConnection/MariaDB"},
	{"changes of many locked rows hold all connections", ledgerTurns, "make(chan struct{}, maxStockChanges)", "make(chan struct{}, maxQueue)", "internal/ledger TestTurns"},
	{"turns are taken in any order", ledgerTurns, "range slices.Sorted(slices.Values(skus)) {", "range skus {", "internal/ledger TestTurns"},
	{"changes wait for turns without a bound", ledgerTurns, "if ts.changes >= maxQueue {", "if false {", "internal/ledger TestTurns"},
	{"a turn is remembered for ever", ledgerTurns, "if t.changes--; t.changes == 0 {", "if t.changes == 0 {", "internal/ledger TestTurns"},
	{"a change of stock without its turn", stockrow, "l.turns.take(ctx, sku)", "l.turns.take(ctx)", "internal/ledger TestChangesTakeTurns/SQLite"},
	{"a change of an order without its turn", "internal/ledger/lifecycle.go", "l.turns.take(ctx, o.SKUs()...)", "l.turns.take(ctx)", "internal/ledger TestChangesTakeTurns/SQLite"},
	{"a revival without its turn", revival, "l.turns.take(ctx, stock.SKUsOf(t)...)", "l.turns.take(ctx)", "internal/ledger TestChangesTakeTurns/SQLite"},
	{"a payment waits for the turn of the stock row", "internal/ledger/lifecycle.go", "if options.Returns { // a payment", "if true { // a payment", "internal/ledger TestChangesTakeTurns/SQLite"},
	{"a payment locks the stock rows", "internal/ledger/lifecycle.go", "var rows []StockRow\n\t\tif options.Returns {", "var rows []StockRow\n\t\tif true {", "internal/ledger TestPaymentPassesAWaitingCancellation/PostgreSQL"},
	{"a slow group that ended is counted for ever", slowGroups, "\tls.groups--\n", "", "internal/ledger TestSlowGroupsEnd"},
	{"orders that waited for a slow group are counted for ever", slowGroups, "\tls.waiting -= len(freed)\n", "", "internal/ledger TestSlowGroupsEnd"},
	{"orders that a slow group sets free get no answer", slowGroups, "range l.slow.keepOnly(own, locked) {", "range l.slow.keepOnly(own, locked)[:0] {", "internal/ledger TestLockedRowInAGroup/MariaDB"},
	{"a new epoch goes on with the additions of the one before", epochs, "\t\trow.Changes = 0\n", "", "internal/ledger TestRaiseEpochs/SQLite"},
	{"a slow group keeps the SKUs that are not locked", slowGroups, "return !slices.Contains(locked, sku) }", "return false }", "internal/ledger TestSlowGroupsEnd"},
	{"a revival that could not be barred counts as refused", resolving, "if err = l.bar(ctx, d.OrderID); err == nil {", "if err = l.bar(ctx, d.OrderID); true {", "internal/ledger TestFaults_NotBarred"},
	{"a vanished duplicate counts as refused", resolving, "return order.Unknown(fmt.Errorf(\"order %s is not found, but its ID is taken\", d.OrderID))", "return order.Refused(errVoided)", "internal/protocol TestVanishedDuplicate"},
	{"a shrink is not resolved", admin, "switch ended := a.reconciler.FinishTake(ctx, take, out); {", "switch ended := out; {", "internal/protocol TestShrink_AnswerLost/PostgreSQL"},
	{"the second half of a group is left alone", record, "\t\terr = l.commit(ctx, half, own)\n", "\t\tif err = l.commit(ctx, half, own); err != nil {\n\t\t\treturn err\n\t\t}\n", "internal/ledger TestDividedGroup/SQLite"},
	{"a failed fill is ignored", refill, "return fmt.Errorf(\"filling the gate: %w\", err)", "return nil", "internal/protocol TestFillFails"},
	{"a sweep ignores a failed fill", refill, "errs = append(errs, fmt.Errorf(\"filling the gate: %w\", err))", "_ = err", "internal/protocol TestFillFails"},
	{"a part that cannot be given back is ignored", gateTake, "before a refusal: %v\", giveErr)", "before a refusal: %w\", giveErr)", "internal/stock/gate TestPartsOfTwoEpochs"},
	{"a take that was settled since has no lines", segmented, "if short != noLine { // the record was settled since", "if short != noLine && false {", "internal/stock/gate TestSettledBetween"},
	{"an idle instance does not detect lost scripts", ownership, "\tif !loaded {\n\t\treturn g.follow(ctx, owner.Generation)\n\t}", "\t_ = loaded", "internal/protocol TestIdleInstance"},
	{"a raise is not noted", ownership, "return g.setMark(ctx, ledger.Owner{Generation: next, Beat: seen.Beat})", "return nil", "internal/protocol TestIdleInstance"},
	{"oversold units are not counted", drift, "c.oversold += found.Oversold", "", "internal/reconcile TestOversoldUnits"},
	{"a frozen gate makes the ledger unreachable", ownership, "inTime := ctx.Err() == nil", "inTime := true", "internal/reconcile TestStoresUp/the_gate_is_frozen"},
	{"every try to recover counts", recovery, "\tif err != nil {\n\t\treturn \"\", err\n\t}\n\tr.metrics.recoveries.WithLabelValues(ended).Inc()", "\tr.metrics.recoveries.WithLabelValues(ended).Inc()\n\tif err != nil {\n\t\treturn \"\", err\n\t}", "internal/protocol TestRecoveriesAreCounted"},
	{"a repair keeps the epoch", recount, "if row.Epoch, err = l.Generation().Renew(row.Epoch, above); err != nil {", "if _, err = l.Generation().Renew(row.Epoch, above); err != nil {", "internal/protocol TestTakeOutlivesRepair/SQLite"},
	{"a repair counts without the row's lock", recount, "row, err := lockWhole(ctx, tx, sku)", "row, err := readRow(ctx, tx, sku, columnsWithParts(tx.Dialect()), \"\")", "internal/protocol TestRepairWaitsForACommit/PostgreSQL"},
	{"one reading proves a difference", audits, "found, err := r.confirm(ctx, suspects)", "found, err := suspects, error(nil)", "internal/protocol TestOneReadingProvesNothing"},
	{"readings that differ prove a difference", audits, "d.Kind != Unsteady && least <= most", "d.Kind != Unsteady", "internal/protocol TestOneReadingProvesNothing"},
	{"sales between the readings are a difference", compare, "c.Least = gate.Available - max(before.Available, 0)", "c.Least = gate.Available - max(after.Available, 0)", "internal/stock TestCompare_Bounds"},
	{"units in flight are a difference", compare, "c.Most = gate.Available + max(gate.InFlight, 0)", "c.Most = gate.Available", "internal/stock TestCompare_Bounds"},
	{"the drift of a gate is the ledger's", compare, "c.Drift = gate.Available + gate.InFlight + after.Held - after.Total", "c.Drift = c.Ledger", "internal/stock TestCompare"},
	{"units in flight without a record are no difference", audits, "lost != 0 {", "lost > 1 {", "internal/protocol TestAudit/SQLite/lua"},
	{"a refunded order that kept its units holds none", recount, "AND NOT orders.restocked)\"", "AND orders.restocked)\"", "internal/protocol TestAuditAfterRefunds/SQLite"},
	{"an audit takes the stock over", ownership, "if g.auditor {", "if false {", "internal/protocol TestAuditTakesNothingOver"},
	{"an audit uses another layout's stock", ownership, "case owner.Layout != g.layout:", "case false:", "internal/protocol TestAuditTakesNothingOver"},
	{"a duplicate is read without a bound", record, "\tctx, cancel := context.WithTimeout(ctx, transactionTimeout)\n\tdefer cancel()\n\tids := make", "\tctx, cancel := context.WithCancel(ctx)\n\tdefer cancel()\n\tids := make", "internal/ledger TestSilentTransaction/PostgreSQL"},
	{"a lookup has no bound", lookup, "context.WithTimeout(context.Background(), transactionTimeout)", "context.WithCancel(context.Background())", "internal/ledger TestSilentTransaction/PostgreSQL"},
	{"a group waits for a locked row once more", record, "lockWaits == maxLockWaits", "lockWaits > maxLockWaits", "internal/ledger TestFaults_LockedRow/PostgreSQL"},
	{"orders are inserted in any order", groupCommit, "slices.SortFunc(accepted, func(a, b *order.Order) int { return bytes.Compare(a.ID[:], b.ID[:]) })", "_ = bytes.Compare", "internal/ledger TestAcceptedOrders"},
	{"a group that was never slow leaves room for another slow one", slowGroups, "\tif !g.slow {\n\t\treturn nil\n\t}\n", "", "internal/ledger TestSlowGroupsEnd"},
	{"a setting keeps the version", stockrow, "\t\trow.Available += delta\n\t\trow.Version++\n", "\t\trow.Available += delta\n", "internal/ledger TestFaults_Stock/Set_raises"},
	{"the hours of a row are not those that are stored", stockrow, "s.OpensAt.UTC().Truncate(time.Microsecond)", "s.OpensAt.UTC()", "internal/ledger TestFaults_Stock/Set_the_rules"},
	{"the hours of a row are in another time zone", stockrow, "s.ClosesAt.UTC().Truncate(time.Microsecond)", "s.ClosesAt.Truncate(time.Microsecond)", "internal/ledger TestFaults_Stock/Set_the_rules"},
	{"sales may end when they begin", stockrow, "!r.ClosesAt.After(r.OpensAt)", "r.ClosesAt.Before(r.OpensAt)", "internal/ledger TestFaults_Stock/Set_impossible_hours"},
	{"new rules go to the gate as an empty addition", stockrow, "if l.hasGate && delta > 0 {", "if l.hasGate {", "internal/ledger TestFaults_Stock/Set_the_rules"},
	{"a repair keeps the version", recount, "\t\trow.Version++ // as in RaiseEpoch\n", "", "internal/ledger TestFaults_Stock/Correct"},
	{"a change that was applied takes another epoch's along", "internal/ledger/outbox.go", "WHERE sku = ? AND epoch = ? AND number = ?\"", "WHERE sku = ? AND epoch >= -1 - ? AND number = ?\"", "internal/ledger TestApplied/SQLite"},
	{"a removal of stock is listed as an order", "internal/ledger/orders.go", "[]string{string(order.Void), string(shrink)}", "[]string{string(order.Void)}", "internal/ledger TestShrinkIsNoOrder/SQLite"},
	{"a duplicate that cannot be found is tried for ever", record, "if len(left) == len(rs) {", "if false {", "internal/ledger TestFaults_GroupDivided"},
}
