//go:build mutants

package mutants

const (
	queueing  = "internal/order/queued.go"
	consumer  = "internal/journal/journal.go"
	settleLua = "internal/stock/gate/settle.lua"
	persisted = "internal/store/persistence.go"
	leaveLua  = "internal/stock/gate/leave.lua"
	finishLua = "internal/stock/gate/finish.lua"
	lostPlace = "internal/stock/gate/redeliver.lua"
	plainList = "internal/stock/gate/queuedorders.go"
	batches   = "internal/journal/batch.go"
	lockedOut = "internal/journal/aside.go"
	turnDown  = "internal/ledger/queued.go"
	assembly  = "internal/service/service.go"
	flightLua = "internal/stock/gate/inflight.lua"
)

// queued has mutants of the way of queued orders.
var queued = []mutant{
	{"a 202 before the journal", queueing, "take, err := s.take(ctx, func(ctx context.Context) (stock.Take, error) { return s.journal.Queue(ctx, d, now) })",
		"take, err := stock.Take{Deduction: d, QueuedAt: now}, error(nil)\n\tgo func() { _, _ = s.journal.Queue(context.WithoutCancel(ctx), d, now) }()", "internal/protocol TestLostQueueAnswer/MariaDB"},
	{"an order leaves the journal before its commit", batches, "all = c.remove(ctx, c.await(working, b))", "_ = c.journal.Finish(ctx, takes...)\n\tall = c.remove(ctx, c.await(working, b))", "internal/protocol TestQueuedOrder/SQLite"},
	{"recovery voids a queued order's take", flightLua, "not waiting[found[i]] then", "true then", "internal/protocol TestQueuedOrder/SQLite"},
	{"the take of a lost queued order stays in flight", flightLua, "= entry and true", "= true", "internal/stock/gate TestLostQueue/Redis"},
	{"a request gives back what a fast consumer committed", queueing, "case err == nil && found.TakeID == take.TakeID:", "case false:", "internal/protocol TestFastConsumer/MariaDB"},
	{"a key is not looked up before it is queued", queueing, "case !keyed:", "case true:", "internal/protocol TestQueuedTwinOfACommittedOrder/SQLite"},
	{"a queued order whose answer is lost is given back", queueing, "return Order{}, Unknown(fmt.Errorf(\"queueing the order: %w\", err))",
		"s.reconciler.GiveBack(ctx, stock.Take{Deduction: d})\n\t\treturn Order{}, Unknown(fmt.Errorf(\"queueing the order: %w\", err))", "internal/protocol TestLostQueueAnswer/MariaDB"},
	{"the ledger is asked before the journal", queueing, "t, queuedErr := s.queued.Queued(ctx, id)\n\tfound, err := s.ledger.Order(ctx, id)", "found, err := s.ledger.Order(ctx, id)\n\tt, queuedErr := s.queued.Queued(ctx, id)", "internal/order TestKeyElsewhere/it_moves"},
	{"a refused order has no row", consumer, "switch down := c.ledger.TurnDown(ctx, t); {", "switch down := order.Refused(nil); {", "internal/protocol TestQueuedOrderTakesAgain/SQLite"},
	{"an acknowledged order ends as void", consumer, "case exists && found.Status == order.Void:", "case exists && found.Status == order.Queued:", "internal/protocol TestQueuedOrderIsVoid/SQLite"},
	{"a queued order is not found because it is void", queueing, "|| err == nil && found.Status == Void", "", "internal/protocol TestQueuedOrderIsVoid/SQLite"},
	{"a refused order keeps its key", "internal/order/key.go", "s == Void || s == TurnedDown", "s == Void", "internal/protocol TestQueuedOrderTakesAgain/SQLite"},
	{"a stale take is given back though it was committed", consumer, "if out := c.committedBefore(ctx, t); !out.Refused() {", "if out := c.committedBefore(ctx, t); false {", "internal/protocol TestCommittedBeforeARefill/MariaDB"},
	{"a stale order is given up", consumer, "again, err := c.takeAgain(ctx, t)", "again, err := t, stock.ErrSoldOut", "internal/protocol TestQueuedOrderTakesAgain/SQLite"},
	{"a twin of a queued order is cut after a refill", takeLua, "if current ~= take and (current or NO_TAKE) ~= previous and refusal < IN_FLIGHT then", "if false then", "internal/stock/gate TestTwinsOfAQueuedOrder/Redis"},
	{"a full journal takes one more", takeLua, "not current and room <= 0", "not current and room < 0", "internal/stock/gate TestFullJournal/Redis"},
	{"an order that was taken again leaves with its first take", settleLua, "if take == takes[o] then", "if id then", "internal/stock/gate TestRequeue/Redis"},
	{"a Redis that saves every second is not warned of", persisted, `case p.appendOnly == "yes" && p.sync == "always":`, `case p.appendOnly == "yes" && p.sync != "no":`, "internal/store TestQueueWarning"},
	{"an order is finished before its refusal is recorded", consumer, "case down.Unknown():\n\t\treturn end{take: t, err: down.Reason()}\n\tcase down.Committed():", "case down.Committed() || down.Refused():", "internal/journal TestRefusedOrder/InProcess"},
	{"an order that the ledger was too busy for is finished", consumer, "case out.Unknown() || !final(out.Reason()):\n\t\treturn end{take: t, err: out.Reason()}", "case out.Unknown() || !final(out.Reason()):\n\t\treturn end{take: t, became: refused}", "internal/journal TestBusyLedger/InProcess"},
	{"orders that lost their place stay queued", plainList, "size.messages >= size.orders", "size.orders >= 0", "internal/protocol TestStreamIsLost/MariaDB"},
	{"a deleted stream looks like an empty journal", plainList, "return max(size.orders, size.messages), size.oldest, err", "return size.messages, size.oldest, err", "internal/stock/gate TestRedeliver/Redis"},
	{"orders that have a place get another one", lostPlace, "if not message or message[2][2] ~= order then", "if true then", "internal/stock/gate TestRedeliver/Redis"},
	{"an order that was taken again leaves with its first take, without its gate", finishLua, "if current == take then", "if id then", "internal/stock/gate TestQueuedOrdersWithoutTheGate/Redis"},
	{"a queued order is not found by another strategy", assembly, ", Queued: s.Queued,", ",", "internal/protocol TestQueuedByAnotherStrategy/SQLite"},
	{"one slow order keeps all in the journal", batches, "all = c.remove(ctx, c.await(working, b))", "ends := c.await(working, b)\n\tall = working.Err() == nil && c.remove(ctx, ends)", "internal/journal TestSlowOrderDelaysNoOther"},
	{"a refusal after an unknown outcome is final", "internal/order/queued.go", "if try > 1 && out.Refused() {", "if false {", "internal/order TestRefusedAfterUnknown"},
	{"an order of another strategy leaves before its commit", consumer, "if c.foreign() {\n\t\treturn t, c.placer.PlaceQueued(ctx, t)", "if c.foreign() {\n\t\treturn t, order.Committed()", "internal/protocol TestQueuedByAnotherStrategy/SQLite"},
	{"an order of another strategy leaves before its commit, in a storm", consumer, "if c.foreign() {\n\t\treturn t, c.placer.PlaceQueued(ctx, t)", "if c.foreign() {\n\t\treturn t, order.Committed()", "internal/protocol TestStorm/SQLite"},
	{"another strategy's name in a replay", "internal/ledger/orders.go", "o.Strategy, o.CreatedAt, o.QueuedUntil = l.queuedBy, t.QueuedAt, now", "o.CreatedAt, o.QueuedUntil = t.QueuedAt, now", "internal/protocol TestQueuedByAnotherStrategy/SQLite"},
	{"a queued order's key is placed again by another strategy", service, "if keyed && s.asksJournal() {", "if false {", "internal/protocol TestQueuedByAnotherStrategy/SQLite"},
	{"a silent ledger refuses a queued order", queueing, "case err == nil && found.Replaceable(): // of a take", "case false && found.Replaceable(): // of a take", "internal/order TestSilentLedger"},
	{"a key moves on from a void order that may be replaced", service, "if last.Replaceable() {", "if false {", "internal/order TestKeyMovesOn"},
	{"a void order refuses a queued order", consumer, "!exists || !found.Replaceable()", "!exists || true || !found.Replaceable()", "internal/protocol TestQueuedOrderIsVoid/SQLite"},
	{"a queued order is withdrawn because of a void order", queueing, "case err == nil && found.Replaceable(): // a consumer puts", "case false: // a consumer puts", "internal/protocol TestQueuedInPlaceOfAVoidOrder/SQLite"},
	{"an acknowledged order is withdrawn because its key has passed it", queueing, "if s.ledger.TurnDown(ctx, take).Refused() {", "if true {", "internal/protocol TestQueuedInPlaceOfAVoidOrder/SQLite"},
	{"a key stays at a queued order that it has passed", queueing, "if err == nil && found.Passed() {", "if false {", "internal/protocol TestKeyPassesAQueuedOrder/MariaDB"},
	{"a journal that is away has no orders", queueing, "under != 0 && under == int64(s.ledger.Generation())", "true || under > 0", "internal/order TestJournalAway/it_had_some"},
	{"a void order is replaced although its key has moved on", "internal/order/order.go", "func (o *Order) Passed() bool { return o.Version == PassedVersion }", "func (o *Order) Passed() bool { return false }", "internal/order TestKeyMovesOn"},
	{"Resolve forgets that a key has passed a void order", changes, "AND status IN ? AND version >= 0", "AND status IN ?", "internal/ledger TestPass/SQLite"},
	{"a slow revival is answered busy", changes, "case sqltx.IsDuplicate(err): // in", "case false: // in", "internal/ledger TestRevive_Barred/SQLite"},
	{"the time of a replacing order begins before its lock wait", "internal/ledger/queued.go", "\t\to.RecordedAt(now, expires)\n", "\t\t_, _ = now, expires\n", "internal/ledger TestRecord_TimesAfterALockWait/MariaDB"},
	{"a resolved take replaces a void order", "internal/ledger/queued.go", "AND version = ?", "AND version >= ?", "internal/ledger TestReplace/SQLite"},
	{"Resolve does not bar a replacement", changes, "return o.Status == order.Expired || o.Status == order.Void", "return o.Status == order.Expired", "internal/ledger TestReplace/SQLite"},
	{"an order whose content the database refuses is tried for ever", consumer, "errors.Is(reason, ledger.ErrRejected) || ", "", "internal/journal TestRejectedOrder/InProcess"},
	{"a consumer leaves its orders undelivered", leaveLua, "of.pending == 0 and ", "", "internal/stock/gate TestLeave/Redis"},
	{"a void order in between ends a refused order", turnDown, "case ok && row.Status != order.Void:", "case ok:", "internal/ledger TestTurnDown_VoidMeanwhile/PostgreSQL"},
	{"a void order is taken for the row of a refused order", turnDown, "case ok && row.Status != order.Void:", "case ok:", "internal/protocol TestRefusalMeetsAVoidOrder/SQLite"},
	{"a take that another consumer committed is given back", consumer, "case down.Committed(): // another consumer was faster", "case false:", "internal/journal TestCommittedByAnother/InProcess"},
	{"a committed take counts as turned down", turnDown, "case ok && row.Holds(t.TakeID):", "case false:", "internal/ledger TestTurnDown/SQLite"},
	{"a dead consumer's orders behind many others are not claimed", plainList, "found, start = append(found, page...), next", "found, _ = append(found, page...), next", "internal/stock/gate TestClaimPages/Redis"},
	{"queued orders of a locked row delay all others", batches, "case <-impatient.C:\n\t\t\tc.holdLocked(ctx, b)", "case <-impatient.C:", "internal/journal TestLockedRow/InProcess"},
	{"queued orders of a locked row delay all others in the database", batches, "case <-impatient.C:\n\t\t\tc.holdLocked(ctx, b)", "case <-impatient.C:", "internal/protocol TestQueuedLockedRow/PostgreSQL"},
	{"more orders of a locked row begin", lockedOut, "case !a.mustWait(t):", "case true:", "internal/journal TestLockedRow/InProcess"},
	{"orders that were set aside are forgotten", consumer, "if takes := c.aside.resume(maxBatch); len(takes) > 0 {", "if takes := c.aside.resume(maxBatch); false {", "internal/journal TestAsideIsResumed"},
	{"claimed orders of a locked row keep new ones unread", consumer, "if free := c.aside.admit(takes); len(free) > 0 || err != nil {", "if free := c.aside.admit(takes); len(takes) > 0 || err != nil {", "internal/journal TestClaimedOrdersOfALockedRow"},
	{"a claim that finds nothing hides a failure", consumer, "at.After(c.claimed) {", "true {", "internal/journal TestFailureBesideAClaim"},
	{"held orders keep their SKU locked", batches, "c.aside.release(locked)", "_ = locked", "internal/journal TestLockedRow/InProcess"},
	{"a consumer that stops leaves the orders that it holds", consumer, "c.held.Wait()\n", "", "internal/journal TestStopWaitsForHeldOrders"},
	{"orders that were held stay in the journal", batches, "c.remove(ctx, ends)\n\t})", "_ = ends\n\t})", "internal/journal TestStopWaitsForHeldOrders"},
	{"an order that is held is given up", batches, "defer stopWorking()\n\t\tvar ends", "stopWorking()\n\t\tvar ends", "internal/journal TestStopWaitsForHeldOrders"},
}
