//go:build mutants

package mutants

const (
	generations = "internal/stock/generation.go"
	decisions   = "internal/stock/decision.go"
	ownership   = "internal/order/generation.go"
	outcomes    = "internal/order/outcome.go"
	lanes       = "internal/order/lanes.go"
	service     = "internal/order/service.go"
	ledger      = "internal/order/ledger.go"
	stockrow    = "internal/order/stockrow.go"
	recovery    = "internal/order/recovery.go"
	refill      = "internal/order/refill.go"
	rows        = "internal/stock/cutter/rows.go"
	merged      = "internal/stock/cutter/merged.go"
	conditional = "internal/stock/cutter/conditional.go"
	optimistic  = "internal/stock/cutter/optimistic.go"
	admin       = "internal/order/admin.go"
	ledgerRows  = "internal/order/ledgerrow.go"
	gateMark    = "internal/stock/gate/generation.go"
	gateCounts  = "internal/stock/gate/gate.go"
)

// placing are mutants of orders on their way: the service, the ledger and the cutters.
var placing = []mutant{
	{"one more than there is, in one UPDATE", merged, "sql += \" AND available >= ?\"", "sql += \" AND available + 1 >= ?\"", "internal/stock/cutter TestConformance/SQLite/merged/LastUnits"},
	{"one more than there is, under a row lock", rows, "available < line.Quantity", "available+1 < line.Quantity", "internal/stock/cutter TestConformance/SQLite/for-update/LastUnits"},
	{"the last unit kept back", rows, "available < line.Quantity", "available <= line.Quantity", "internal/stock/cutter TestConformance/SQLite/for-update/LastUnits"},
	{"epoch not demanded", rows, "line.Epoch != 0 && r.epoch != line.Epoch", "false", "internal/stock/cutter TestConformance/SQLite/for-update/StaleEpochAlone"},
	{"epoch not demanded in one UPDATE", merged, "if line.Epoch != 0 {\n\t\tsql +=", "if false {\n\t\tsql +=", "internal/order TestTakeOutlivesRefill/SQLite"},
	{"one more than there is, in one UPDATE of several SKUs", merged, "text.WriteString(\" AND available >= ?\")", "text.WriteString(\" AND available + 1 >= ?\")", "internal/stock/cutter TestConformance/SQLite/merged/AllLinesOrNone"},
	{"epoch not demanded in one UPDATE of several SKUs", merged, "if of.epoch != 0 {\n\t\t\ttext", "if false {\n\t\t\ttext", "internal/stock/cutter TestConformance/SQLite/merged/EpochOfEveryLine"},
	{"recovery does not wait for the deadline", recovery, "s.gate.InFlight(ctx, s.takeDeadline,", "s.gate.InFlight(ctx, 0,", "internal/order TestYoungTakesAreLeft"},
	{"line 1 kept when line 2 fails", conditional, "giveBack(tx, d.Lines[:n])", "giveBack(tx, d.Lines[:min(n, 0)])", "internal/stock/cutter TestConformance/SQLite/conditional/AllLinesOrNone"},
	{"compensation on the request's context", service, "context.WithTimeout(context.WithoutCancel(ctx), compensationTimeout)", "context.WithTimeout(ctx, compensationTimeout)", "internal/order TestCompensationOutlivesTheRequest/SQLite"},
	{"drift is left alone", recovery, "if before[sku] != now {", "if before[sku] != now || true {", "internal/order TestDrift/SQLite"},
	{"a gap between changes is nothing", refill, "case errors.Is(err, stock.ErrChangeGap):", "case false:", "internal/order TestAdditionOnce/SQLite"},
	{"a moved version is cut all the same", optimistic, "return nil, stock.ErrConflict", "continue", "internal/stock/cutter TestConformance/MariaDB/optimistic/CutsAddUp"},
	{"answer before commit", service, "out := s.ledger.Record(ctx, e, d)",
		"out := outcome{kind: committed}\n\tgo func() { _ = s.ledger.Record(context.WithoutCancel(ctx), e, d) }()", "internal/order TestNoAnswerBeforeCommit/SQLite"},
	{"refill without a new epoch", generations, "next++; next > last", "next > last", "internal/order TestTakeOutlivesRefill/SQLite"},
	{"a row of another generation is cut", rows, "stock.GenerationOf(r.epoch) > g:", "false:", "internal/stock/cutter TestConformance/SQLite/for-update/LaterGeneration"},
	{"a row that nobody adopted is cut", rows, "stock.GenerationOf(r.epoch) < g:", "false:", "internal/stock/cutter TestConformance/SQLite/for-update/EarlierGeneration"},
	{"a row of another generation is cut, in one UPDATE", merged, "AND epoch BETWEEN ? AND ?\"", "AND ? < ?\"", "internal/stock/cutter TestConformance/SQLite/conditional/LaterGeneration"},
	{"a row of another generation is cut, in one UPDATE of several SKUs", merged, "text.WriteString(\" WHERE epoch BETWEEN ? AND ? AND (\")", "text.WriteString(\" WHERE ? < ? AND (\")", "internal/stock/cutter TestConformance/MariaDB/merged/EarlierGeneration"},
	{"a row of another generation is cut, in one UPDATE of PostgreSQL", merged, "AND stock.epoch BETWEEN ? AND ? AND", "AND ?::bigint < ?::bigint AND", "internal/stock/cutter TestConformance/PostgreSQL/merged/EarlierGeneration"},
	{"a version is enough", optimistic, "AND version = ? AND epoch = ?\"", "AND version = ? AND ? > 0\"", "internal/stock/cutter TestConformance/SQLite/optimistic/AdoptedMeanwhile"},
	{"an adoption keeps the version", stockrow, "row.Version++ // a writer", "// a writer", "internal/order TestAdoption/SQLite"},
	{"an adoption keeps the epoch", stockrow, "if row.Epoch, err = l.Generation().Renew(row.Epoch, above); err != nil {", "if _, err = l.Generation().Renew(row.Epoch, above); err != nil {", "internal/order TestAdoption/SQLite"},
	{"a shrink keeps the version", stockrow, "row.Available -= line.Quantity\n\t\trow.Version++", "row.Available -= line.Quantity", "internal/order TestShrinkIsSeen/SQLite"},
	{"a shrink under any epoch", stockrow, "line.Epoch != 0 && line.Epoch != row.Epoch", "false", "internal/order TestShrinkOutlivesRefill/SQLite"},
	{"an administrator changes another generation's row", stockrow, "case owner < g:", "case false:", "internal/order TestCreatedByTheOldLayout/SQLite"},
	{"unknown commit resolved by reading", ledger,
		"func (l *ledger) Resolve(ctx context.Context, d stock.Deduction) outcome {",
		"func (l *ledger) Resolve(ctx context.Context, d stock.Deduction) outcome {\n\tif found, err := entries(l.db.WithContext(ctx), []uuid.UUID{d.OrderID}); err == nil {\n\t\tif e := found[d.OrderID]; e != nil && e.Status != Void && e.takeID == d.TakeID {\n\t\t\treturn outcome{kind: committed}\n\t\t}\n\t\treturn refusedFor(errVoided)\n\t}",
		"internal/order TestCommitInLimbo/PostgreSQL/lua"},
	{"recovery settles a void", ledger, "case e.Status != Void && e.takeID == d.TakeID:\n\t\treturn outcome{kind: committed}", "case e.takeID == d.TakeID:\n\t\treturn outcome{kind: committed}", "internal/order TestRecovery/SQLite"},
	{"recovery settles another take's order", ledger, "case e.Status != Void && e.takeID == d.TakeID:\n\t\treturn outcome{kind: committed}", "case e.Status != Void:\n\t\treturn outcome{kind: committed}", "internal/order TestRecovery/SQLite"},
	{"a void insert that failed says no", ledger, "return unknownFor(fmt.Errorf(\"inserting the void order", "return refusedFor(fmt.Errorf(\"inserting the void order", "internal/order TestOpenOutcomeGivesNothingBack/SQLite"},
	{"a request gives back what is open", service, "case unknown:\n\t\ts.leaveOpen(openTake{d, true})", "case unknown:\n\t\ts.endTake(ctx, d, resolved)", "internal/order TestOpenOutcomeGivesNothingBack/SQLite"},
	{"recovery gives back what is open", recovery, "case refused:\n\t\terr, ended =", "case refused, unknown:\n\t\terr, ended =", "internal/order TestOpenOutcomeGivesNothingBack/SQLite"},
	{"an open take waits for its deadline", service, "s.leaveOpen(openTake{d, false})", "", "internal/order TestOpenTakesAreEnded"},
	{"unanswered is committed", outcomes, "unknown   outcomeKind = iota // it may have been committed, or may yet be\n\tcommitted                    // the ledger has it", "committed   outcomeKind = iota\n\tunknown", "internal/order TestUnansweredIsUnknown"},
	{"undecided is taken", decisions, "return d.taken }", "return d.reason == nil }", "internal/order TestUnansweredIsUnknown"},
	{"the twins of a failed group hear nothing", ledger, "refuse(twins, err)\n\t\t\tbreak", "break", "internal/order TestFailedGroup/SQLite"},
	{"a taken primary key answered as sold out", ledger, "r.answer(outcome{kind: duplicate, found: e})", "r.answer(refusedFor(stock.Refuse(r.deduction.Lines[0].SKU, stock.ErrSoldOut)))", "internal/order TestSlowTwin/SQLite"},
	{"a refused key is not looked up", service, `if r.Key != "" {
		e, _, err := s.findKeyed`, `if false {
		e, _, err := s.findKeyed`, "internal/order TestKeys/SQLite"},
	{"a key keeps its void order", service, "generation, last = at, errVoided", "_, last = at, errVoided", "internal/order TestSlowTwin/SQLite"},
	{"a key has ten void orders at most", service, "maxVoids = 10_000", "maxVoids = 10", "internal/order TestManyVoids/SQLite"},
	{"IDs of keys are known to everybody", service, "b = append(b, s.ledgerID[:]...)", "b = append(b, make([]byte, 16)...)", "internal/order TestOrderIDs"},
	{"a lost take is left alone", service, "if !s.give(ctx, d) {", "if false {", "internal/order TestLostTakeAnswer/SQLite"},
	{"a refused order's units stay at the gate", service, "\t\ts.settle(d)\n\t\treturn\n\t}\n\ts.give(ctx, d)", "\t\ts.settle(d)\n\t\treturn\n\t}", "internal/order TestNoAnswerBeforeCommit/SQLite"},
	{"a guard refusal proves nothing", service, "s.refillAfterGuardRefusal(ctx, d, skuOf(out.err))", "", "internal/order TestGuardRefusal/SQLite"},
	{"one bad order fails its group", ledger, "case store.IsStatementError(err):\n\t\t\treturn l.divide(rs, own, err)", "case store.IsStatementError(err):\n\t\t\treturn away(rs, err)", "internal/order TestPoisonedGroup/MariaDB/merged"},
	{"a locked row stops the others", lanes, "if l.ended || ls.open == maxLanes {", "if true {", "internal/order TestLockedRow/MariaDB"},
	{"a locked row keeps its group", ledger, "locked, err := store.LockedRows", "return rs, nil\n\tlocked, err := store.LockedRows", "internal/order TestLockedRowInAGroup/MariaDB"},
	{"an instance loads a generation that it did not raise", ownership, "if own || time.Since(since) > loadGrace || ctx.Err() != nil {", "if g.gate.Load(ctx, g.current()) == nil {\n\t\t\treturn true\n\t\t}\n\t\tif own || time.Since(since) > loadGrace || ctx.Err() != nil {", "internal/order TestStaleRedis/lua"},
	{"a restored ledger is believed", ownership, "return mark.Beat >= row.Beat && mark.Beat > 0 || mark.Generation > row.Generation", "return false", "internal/order TestRestoredLedger/SQLite"},
	{"a store that changed is believed", ownership, "func (g *generations) suspected() bool { return g.suspicions.Load() > g.answered.Load() }", "func (g *generations) suspected() bool { return false }", "internal/order TestStoreChanged/SQLite"},
	{"a start takes no stock over", ownership, "if row.Layout == g.layout && !restored(row, mark) {", "if !restored(row, mark) && row.Layout != \"\" {", "internal/order TestLayouts/SQLite/lua_to_merged"},
	{"flight without records stays", recovery, "if err != nil || recorded == now.inFlight {", "if err != nil || recorded >= 0 {", "internal/order TestFlightWithoutRecords/SQLite"},
	{"flight with records is refilled away", recovery, "if err != nil || recorded == now.inFlight {", "if err != nil || recorded < 0 {", "internal/order TestFlightWithoutRecords/SQLite"},
	{"one bad SKU stops the sweep", recovery, "errs := []error{s.applyChanges(ctx, \"\")}", "errs := []error{s.applyChanges(ctx, \"\")}\n\tif errs[0] != nil {\n\t\treturn errs[0]\n\t}", "internal/order TestOneBadSKU/SQLite"},
	{"a row of a later generation than the ledger's is nobody's", refill, "return nil, s.generations.reach(ctx, later)", "return nil, s.generations.follow(ctx, later-1)", "internal/order TestRowOfALaterGeneration/SQLite"},
	{"the layout of a restored ledger supersedes", ownership, "(row.Generation >= current || g.superseded.Load())", "(row.Generation >= 0 || current > 0)", "internal/order TestRestoredToAnotherLayout/SQLite"},
	{"a raise during a check is a restored ledger", ownership, "row.Generation < before:", "row.Generation < g.current():", "internal/order TestRaiseDuringACheck"},
	{"an open take that stays open holds the others up", recovery, "s.leaveOpen(t) // behind the others, whose stores may answer",
		"for ctx.Err() == nil && s.endOpenTake(ctx, t) != nil {\n\t\t\t\t_ = sleep(ctx, openTakePause)\n\t\t\t}", "internal/order TestOneStuckTake"},
	{"takes that cannot be ended hide the others", recovery, "skus = slices.DeleteFunc(slices.Clone(skus), func(sku stock.SKU) bool { return failed[sku] })",
		"if len(failed) > 0 {\n\t\t\tbreak\n\t\t}", "internal/order TestManyStuckTakes"},
	{"a try mends one SKU alone", service, "for _, line := range lines {\n\t\tif err := s.refill", "for _, line := range []stock.Line{{SKU: skuOf(reason)}} {\n\t\tif err := s.refill", "internal/order TestManyLinesAfterAFlush"},
	{"a group is overwritten when its twins are set apart", ledger, "first = make([]*recording, 0, len(rs)) // rs", "first = rs[:0] // rs", "internal/order TestDistinct"},
	{"a mark that makes no sense stays", gateMark, "return stock.Mark{}, nil", "return stock.Mark{}, err", "internal/order TestUnreadableMark"},
	{"a record that makes no sense hides the others", gateCounts, "to.add(pairs[0], pairs[1]); err != nil {\n\t\t\t\terrs = append(errs, err)", "to.add(pairs[0], pairs[1]); err != nil {\n\t\t\t\treturn err", "internal/order TestUnreadableRecord"},
	{"a later generation's count is added to", adjustLua, "or epoch > LAST then", "then", "internal/stock/gate TestGenerationsInTurn/Redis/Script"},
	{"a row that is read is proof of a commit", ledger, "return found, store.Confirm(ctx, l.db)", "return found, nil", "internal/order TestCommitOfThePrimaryAlone"},
	{"a raise that another was faster with is used", ownership, "if err := g.ledger.RaiseGeneration(ctx, seen, next, g.layout); err != nil {", "if err := g.ledger.RaiseGeneration(ctx, seen, next, g.layout); err != nil && !errors.Is(err, errRowChanged) {", "internal/order TestLostRaise/SQLite"},
	{"the generation is raised whatever it is", ledgerRows, "raised.Error == nil && raised.RowsAffected == 0", "false", "internal/order TestLostRaise/SQLite"},
	{"a lane that ended is counted for ever", lanes, "\t\tls.open--\n", "", "internal/order TestLanesEnd"},
	{"who waited in a lane is counted for ever", lanes, "\tls.parked -= len(freed)\n", "", "internal/order TestLanesEnd"},
	{"a lane keeps the SKUs that are not locked", lanes, "return !slices.Contains(locked, string(sku)) }", "return false }", "internal/order TestLanesEnd"},
	{"a duplicate that vanished says no", ledger, "return unknownFor(fmt.Errorf(\"order %s: %w\", d.OrderID, errMissing))", "return refusedFor(errVoided)", "internal/order TestVanishedDuplicate"},
	{"a shrink is not resolved", admin, "switch ended := s.resolveTake(ctx, d, out); {", "switch ended := out; {", "internal/order TestShrinkUnheard/PostgreSQL"},
	{"the second half of a group is left alone", ledger, "\t\terr = l.commit(half, own)\n", "\t\tif err = l.commit(half, own); err != nil {\n\t\t\treturn err\n\t\t}\n", "internal/order TestDividedGroup/SQLite"},
	{"a fill that failed is none", refill, "return fmt.Errorf(\"filling the gate: %w\", err)", "return nil", "internal/order TestFillFails"},
	{"a part that cannot be given back is no part", gateCounts, "before a refusal: %v\", giveErr)", "before a refusal: %w\", giveErr)", "internal/stock/gate TestPartsOfTwoEpochs"},
	{"a take that was settled since is one of nothing", segmented, "if short != nil { // settled since", "if short != nil && false {", "internal/stock/gate TestSettledBetween"},
	{"an idle instance does not miss its scripts", ownership, "\tif !loaded {\n\t\treturn g.follow(ctx, row.Generation)\n\t}", "\t_ = loaded", "internal/order TestIdleInstance"},
	{"a raise is not noted", ownership, "return g.setMark(ctx, ledgerRow{Generation: next, Beat: seen.Beat})", "return nil", "internal/order TestIdleInstance"},
	{"every try to recover counts", recovery, "\tif err != nil {\n\t\treturn err\n\t}\n\ts.metrics.recoveries.WithLabelValues(ended).Inc()", "\ts.metrics.recoveries.WithLabelValues(ended).Inc()\n\tif err != nil {\n\t\treturn err\n\t}", "internal/order TestRecoveriesAreCounted"},
}
