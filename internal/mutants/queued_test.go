//go:build mutants

package mutants

const (
	queueing  = "internal/async/queue.go"
	consumer  = "internal/async/consumer.go"
	underWay  = "internal/async/underway.go"
	drained   = "cmd/api/drain.go"
	settleLua = "internal/stock/gate/settle.lua"
	markLua   = "internal/stock/gate/mark.lua"
	persisted = "internal/store/redispersistence.go"
	leaveLua  = "internal/stock/gate/leave.lua"
	lostPlace = "internal/stock/gate/redeliver.lua"
	plainList = "internal/stock/gate/journal.go"
	recording = "internal/ledger/recordrefusal.go"
	flightLua = "internal/stock/gate/inflight.lua"
)

// queued has mutants of the code for queued orders.
var queued = []mutant{
	{"a queued order does not wait for units on their way to the gate", consumer, "if errors.Is(err, stock.ErrSoldOut) { // added", "if false { // added", "internal/async TestEnds"},
	{"a queued order that the guard refused leaves the gate as it is", consumer, "c.reconciler.AfterRefusal(ctx, t, out.Reason())", "_ = t", "internal/protocol TestQueuedOrderIsRefused/SQLite"},
	{"a queued order does not wait while its SKU is refilled", consumer, "\t\t\tretry.Wait(ctx, try)\n\t\tcase stock.NothingTaken(err):", "\t\tcase stock.NothingTaken(err):", "internal/async TestEnds"},
	{"a 202 before the journal", queueing, "return q.journal.Queue(ctx, d, q.ledger.Now())",
		"go func() { _, _ = q.journal.Queue(context.WithoutCancel(ctx), d, q.ledger.Now()) }()\n\treturn stock.Take{Deduction: d, QueuedAt: q.ledger.Now()}, nil", "internal/protocol TestLostQueueAnswer/MariaDB"},
	{"an order leaves the journal before its commit", consumer, "\t\t\tends <- c.trace(ctx, t)", "\t\t\t_ = c.journal.Finish(ctx, t)\n\t\t\tends <- c.trace(ctx, t)", "internal/protocol TestQueuedOrder/SQLite"},
	{"recovery voids a queued order's take", flightLua, "not waiting[found[i]] then", "true then", "internal/protocol TestQueuedOrder/SQLite"},
	{"the take of a lost queued order stays in flight", flightLua, "= entry and true", "= true", "internal/stock/gate TestQueuedTakesAreLeft/Redis"},
	{"a request gives back what a fast consumer committed", queueing, "err == nil && ended(found, t):", "false:", "internal/protocol TestFastConsumer/MariaDB"},
	{"a key is not looked up after it is queued", queueing, "\tif !keyed {", "\tif true {", "internal/protocol TestQueuedTwinOfACommittedOrder/SQLite"},
	{"a queued order whose answer is lost is given back", service, "return Order{}, Unknown(fmt.Errorf(\"queueing the order: %w\", err))",
		"s.reconciler.GiveBack(ctx, stock.Take{Deduction: d})\n\t\treturn Order{}, Unknown(fmt.Errorf(\"queueing the order: %w\", err))", "internal/protocol TestLostQueueAnswer/MariaDB"},
	{"a queue that does not answer has no order", queueing, "if err == nil && !ok {", "if !ok {", "internal/async TestOrder/InProcess"},
	{"the ledger is asked before the queue", service, "queued, queuedErr := s.queue.Order(ctx, id)\n\tfound, err = s.ledger.Order(ctx, id)", "found, err = s.ledger.Order(ctx, id)\n\tqueued, queuedErr := s.queue.Order(ctx, id)", "internal/order TestOrderLeavesTheQueue/it_has_left"},
	{"a refused order expires", recording, "o.RecordedAt(now, time.Time{})", "o.RecordedAt(now, now.Add(time.Hour))", "internal/ledger TestFaults_RecordRefusal"},
	{"a refused order has no row", consumer, "switch down := c.ledger.RecordRefusal(ctx, t); {", "switch down := order.Refused(nil); {", "internal/protocol TestQueuedOrderTakesAgain/SQLite"},
	{"an acknowledged order ends as void", consumer, "case exists && found.Status == order.Void:", "case exists && found.Status == order.Queued:", "internal/protocol TestQueuedOrderIsVoid/SQLite"},
	{"a queued order is not found because it is void", service, "err == nil && found.Status != Void:", "err == nil:", "internal/protocol TestQueuedOrderIsVoid/SQLite"},
	{"an acknowledged order is withdrawn because it is void", queueing, "!q.ledger.RecordRefusal(ctx, t).Refused():", "false:", "internal/protocol TestQueuedBehindAVoidOrder/SQLite"},
	{"a refused order keeps its key", "internal/order/key.go", "o.Status == Void || o.Status == TurnedDown", "o.Status == Void", "internal/protocol TestQueuedOrderTakesAgain/SQLite"},
	{"a stale take is given back though it was committed", consumer, "if out := c.committedBefore(ctx, t); !out.Refused() {", "if out := c.committedBefore(ctx, t); false {", "internal/protocol TestCommittedBeforeARefill/MariaDB"},
	{"a stale order is given up", consumer, "again, err := c.takeAgain(ctx, t)", "again, err := t, stock.ErrSoldOut", "internal/protocol TestQueuedOrderTakesAgain/SQLite"},
	{"a twin of a queued order is cut after a refill", takeLua, "if current ~= take and (current or NO_TAKE) ~= previous and refusal < IN_FLIGHT then", "if false then", "internal/stock/gate TestTwinsOfAQueuedOrder/Redis"},
	{"a full journal takes one more", takeLua, "(closed or room <= 0)", "(closed or room < 0)", "internal/stock/gate TestFullJournal/Redis"},
	{"an order is queued under an earlier generation", takeLua, "~= generation", "> generation", "internal/stock/gate TestClosedJournal/Redis"},
	{"an order is queued after a drain", takeLua, "~= generation", "< generation", "internal/protocol TestQueueAfterADrain"},
	{"an instance that was paused opens the journal again", markLua, "if written > tonumber(ARGV[1]) and written <= tonumber(ARGV[3]) then", "if false then", "internal/stock/gate TestClosedJournal/Redis"},
	{"an order that was taken again leaves with its first take", settleLua, "if take == takes[o] then", "if id then", "internal/stock/gate TestRequeue/Redis"},
	{"a Redis that saves every second is not warned of", persisted, `case p.appendOnly == "yes" && p.sync == "always":`, `case p.appendOnly == "yes" && p.sync != "no":`, "internal/store TestQueueWarning"},
	{"an order is finished before its refusal is recorded", consumer, "case down.Unknown():\n\t\treturn end{take: t, err: down.Reason()}\n\tcase down.Committed():", "case down.Committed() || down.Refused():", "internal/async TestAnswers/refused/InProcess"},
	{"an order that the ledger was too busy for is finished", consumer, "case out.Unknown() || !final(out.Reason()):\n\t\treturn end{take: t, err: out.Reason()}", "case out.Unknown() || !final(out.Reason()):\n\t\treturn end{take: t, became: refused}", "internal/async TestBusyLedger/InProcess"},
	{"orders that lost their place stay queued", plainList, "size.messages >= size.orders", "size.orders >= 0", "internal/stock/gate TestRedeliver/Redis"},
	{"a message of another order is the order's", lostPlace, " or message[2][2] ~= order", "", "internal/stock/gate TestRedeliver/Redis"},
	{"orders without a message have no limit", takeLua, "math.max(call('XLEN', journal), call('HLEN', queued))", "call('XLEN', journal)", "internal/stock/gate TestRedeliver/Redis"},
	{"consumers that have been idle for long stay", leaveLua, " or of.idle > tonumber(ARGV[2])", "", "internal/stock/gate TestLeave/Redis"},
	{"a deleted stream looks like an empty journal", plainList, "return max(size.orders, size.messages), size.oldest, err", "return size.messages, size.oldest, err", "internal/stock/gate TestRedeliver/Redis"},
	{"an instance that cannot queue takes over the stock", "internal/assembly/instance.go", "if i.Consumer != nil { // first", "if err := i.Reconciler.Start(ctx); err != nil {\n\t\treturn err\n\t}\n\tif i.Consumer != nil { // first", "internal/assembly TestStart_OldRedis"},
	{"a message is acknowledged before it is deleted", plainList, "p.XDel(ctx, j.journal, ids...)\n\t\tp.XAck(ctx, j.journal, consumers, ids...)", "p.XAck(ctx, j.journal, consumers, ids...)\n\t\tp.XDel(ctx, j.journal, ids...)", "internal/stock/gate TestClaimBeforeRedis7"},
	{"orders that have a place get another one", lostPlace, "if not message or message[2][2] ~= order then", "if true then", "internal/stock/gate TestRedeliver/Redis"},
	{"a slow revival is answered busy", revival, "case sqltx.IsDuplicate(err): // a", "case false: // a", "internal/ledger TestRevive_Blocked/SQLite"},
	{"a consumer looks for no orders without a message", consumer, "lost, err := c.journal.Redeliver(ctx)", "lost, err := 0, error(nil)", "internal/async TestFailingCalls/Redeliver"},
	{"an order whose content the database refuses is tried forever", consumer, "errors.Is(reason, ledger.ErrRejected) || ", "", "internal/async TestRejectedOrder/InProcess"},
	{"a consumer leaves its orders undelivered", leaveLua, "of.pending == 0 and ", "", "internal/stock/gate TestLeave/Redis"},
	{"a void order in between ends a refused order", recording, "case ok && row.Status != order.Void:", "case ok:", "internal/ledger TestRecordRefusal_VoidMeanwhile/PostgreSQL"},
	{"a void order is taken for the row of a refused order", recording, "case ok && row.Status != order.Void:", "case ok:", "internal/protocol TestRefusalMeetsAVoidOrder/SQLite"},
	{"a take that another consumer committed is given back", consumer, "case down.Committed(): // another consumer was faster", "case false:", "internal/async TestAnswers/committed_by_another/InProcess"},
	{"a refused order loses its buyer with its lines", recording, "\t\t\to.Lines = nil\n", "\t\t\to.Lines, o.Buyer = nil, \"\"\n", "internal/ledger TestFaults_RecordRefusal"},
	{"a committed take counts as turned down", recording, "case ok && row.Holds(t.TakeID):", "case false:", "internal/ledger TestRecordRefusal/SQLite"},
	{"a dead consumer's orders behind many others are not claimed", plainList, "found, start = append(found, page...), next", "found, _ = append(found, page...), next", "internal/stock/gate TestClaimPages/Redis"},
	{"a journal is opened though orders cannot be queued", plainList, "if err != nil && !errors.Is(err, redis.Nil) { // XADD", "if false { // XADD", "internal/stock/gate TestJournalRefuses"},
	{"a read of a journal that does not answer has no bound", plainList, "context.WithTimeout(ctx, max(wait, 0)+callTimeout)", "context.WithCancel(ctx)", "internal/stock/gate TestHungCalls"},
	{"a consumer works on any number of orders", underWay, "room := maxUnderWay - len(u.orders)", "room := maxUnderWay", "internal/async TestFullConsumer"},
	{"a consumer that is full does not go on", underWay, "case u.freed <- struct{}{}:\n\tdefault:", "default:", "internal/async TestFullConsumer"},
	{"a consumer ends before its last call to the journal", consumer, "\twatching.Wait()\n", "", "internal/async TestSlowJournal"},
	{"an order that leaves the journal is worked on again", consumer, "\t\tfailures.note(!c.finish(ctx, some))\n\t\tc.underWay.end(some)\n", "\t\tc.underWay.end(some)\n\t\tfailures.note(!c.finish(ctx, some))\n", "internal/async TestSlowJournal"},
	{"a queued order prepares its retry for one SKU", consumer, "\t\tif err := c.reconciler.PrepareRetry(ctx, out.Reason(), stock.SKUsOf(t)...); err != nil {\n\t\t\treturn t, order.Refused(err)", "\t\tif err := c.reconciler.PrepareRetry(ctx, out.Reason(), stock.SKUsOf(t)[:1]...); err != nil {\n\t\t\treturn t, order.Refused(err)", "internal/async TestEnds/stale"},
	{"a queued order waits for the units of one SKU", consumer, "t.SKUs()...); err != nil {", "t.SKUs()[:1]...); err != nil {", "internal/async TestEnds/not_taken_again,_because_none_is_left"},
	{"the pause after a failure stays long", consumer, "failures.note(false) //", "//", "internal/async TestPausesAfterFailures"},
	{"the orders of others are claimed in one batch a second", consumer, "return takes, err == nil, err", "return takes, false, err", "internal/async TestClaimsAll"},
	{"failing orders of others keep a consumer from new ones", consumer, "if claim && (!more || failed > 0) {", "if claim && !more {", "internal/async TestReadsBesideFailures"},
	{"failing reads keep a consumer from claiming", consumer, "claim := time.Since(looked) >= claimPause", "claim := time.Since(looked) >= claimPause && failures.inRow.Load() == 0", "internal/async TestClaimsBesideFailures"},
	{"an order that fails is not logged", consumer, "c.log.Warn(\"committing a queued order failed and will be retried\", \"order\", e.take.OrderID, \"error\", e.err)", "", "internal/async TestFailingCalls/Record"},
	{"an order that stays in the journal is counted", consumer, "\"orders\", len(ended), \"error\", err)\n\t\treturn false", "\"orders\", len(ended), \"error\", err)", "internal/async TestFailingCalls/Finish"},
	{"consumers that are gone stay", consumer, "c.leave(ctx, nobody)", "", "internal/async TestFailingCalls/Finish"},
	{"an order that is refused for its content is not logged", consumer, "if errors.Is(out.Reason(), ledger.ErrRejected) {", "if false {", "internal/async TestRejectedOrder/InProcess"},
	{"a key leads to an order that will be refused, although it has a live one", service, "case step == 1 && last != nil && errors.Is(err, ErrUnknownOrder):", "case last != nil:", "internal/protocol TestQueuedTwinOfALiveOrder/SQLite"},
	{"a key leads to an order that will be refused, although its live one cannot be read", service, "last != nil && errors.Is(err, ErrUnknownOrder):", "last != nil && err != nil:", "internal/order TestFindKeyed_QueuedUnderAVoidOrder"},
	{"an order that recovery has voided is acknowledged", queueing, "o.TakeID == t.TakeID && o.Status == order.TurnedDown", "o.TakeID == t.TakeID", "internal/async TestAccept/its_own_void_order"},
	{"a drain stops the sale of another strategy", drained, "case found == 0 && !ownership.Owner.Queues:", "case false:", "cmd/api TestDrainQueued_NothingQueued"},
	{"a drain shares the stock with instances that queue", "internal/assembly/open.go", "strategy.Layout += \", draining\"", "", "internal/assembly TestDraining"},
	{"a drain forgets what a running process has queued", drained, "case c.Redis == \"\":", "case false:", "cmd/api TestDrainQueued_InProcess"},
	{"a consumer that stops leaves its orders", consumer, "working.Wait()\n\tclose(ends)\n\tfinishing.Wait()\n\twatching.Wait()\n\tc.leave(ctx, c.name)", "c.leave(ctx, c.name)\n\tworking.Wait()\n\tclose(ends)\n\tfinishing.Wait()\n\twatching.Wait()", "internal/async TestStopWaitsForOrders"},
	{"another strategy takes over while orders may be queued", ownership, "if owner.Queues && !g.queues {", "if false {", "internal/protocol TestNoOtherStrategy/SQLite"},
	{"the ledger does not say that orders may be queued", ownership, "Layout: g.layout, Queues: g.queues}", "Layout: g.layout}", "internal/protocol TestNoOtherStrategy/SQLite"},
	{"a drain gives up what another instance has taken over", ownership, "case owner.Generation != g.current() || owner.Layout != g.layout:", "case false:", "internal/protocol TestNoOtherStrategy/SQLite"},
	{"a drain takes over what another one has given up", ownership, "owner.Generation != g.onlyFrom.Generation {", "false {", "cmd/api TestDrainQueued_Twice"},
	{"a drain ends while orders are queued", drained, "case err == nil && left == 0:", "case err == nil:", "cmd/api TestDrainQueued"},
	{"a drain ends while the journal does not answer", drained, "case err == nil && left == 0:", "case left == 0:", "cmd/api TestReleaseDrained"},
	{"a drain that cannot give the stock up succeeds", drained, "if err := i.Reconciler.Release(ctx); err != nil {", "if err := i.Reconciler.Release(ctx); err != nil && false {", "cmd/api TestReleaseDrained"},
	{"a drain whose stock is taken over waits on", drained, "errors.Is(err, stock.ErrSuperseded)", "false", "cmd/api TestReleaseDrained"},
	{"the retries of a refusal are not counted", recording, "\t\tl.metrics.retries.Inc()\n", "", "internal/ledger TestFaults_VoidAgain"},
	{"a refusal is remembered from after it", consumer, "c.learn(asked, out.Reason())", "_ = asked\n\t\tc.learn(time.Now(), out.Reason())", "internal/async TestEnds/sold_out"},
	{"a consumer that stops logs that reading failed", consumer, "if ctx.Err() == nil && err != nil {\n\t\t\tc.log.Warn(\"reading", "if err != nil {\n\t\t\tc.log.Warn(\"reading", "internal/async TestSuperseded"},
	{"orders that had lost their messages are not logged", consumer, "c.log.Warn(\"the journal had lost the messages of queued orders; they are delivered again\", \"orders\", lost)", "", "internal/async TestWatch"},
	{"a journal that cannot be measured is empty", consumer, "if err == nil {\n\t\tc.metrics.length", "{\n\t\tc.metrics.length", "internal/async TestWatch"},
	{"an order that is tried again counts as ended", consumer, "\t\tif e.err == nil {\n\t\t\tc.metrics", "\t\t{\n\t\t\tc.metrics", "internal/async TestFailingCalls/Record"},
	{"the replay of a queued order has a time to be paid", key, "first.Status, first.ExpiresAt = Queued, time.Time{}", "first.Status = Queued", "internal/order TestReplay_Queued"},
}
