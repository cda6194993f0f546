//go:build mutants

package mutants

const (
	call        = "internal/stock/gate/call.go"
	scriptTexts = "internal/stock/gate/scripts.go"
	takeLua     = "internal/stock/gate/take.lua"
	giveLua     = "internal/stock/gate/give.lua"
	adjustLua   = "internal/stock/gate/adjust.lua"
	readLua     = "internal/stock/gate/read.lua"
	writeLua    = "internal/stock/gate/write.lua"
	inFlightLua = "internal/stock/gate/inflight.lua"
	segmented   = "internal/stock/gate/segmentedgate.go"
	gather      = "internal/stock/gate/gather.go"
	readWrite   = "internal/stock/gate/readwritegate.go"
	segmentsOf  = "internal/stock/gate/segments.go"
	gateQueues  = "internal/stock/gate/skuqueues.go"
	gateLocks   = "internal/stock/gate/locks.go"
	gateFill    = "internal/stock/gate/fill.go"
	gateAdjust  = "internal/stock/gate/adjust.go"
	gateGive    = "internal/stock/gate/give.go"
	scriptGate  = "internal/stock/gate/scriptgate.go"
)

// scripts has mutants of the gates.
var scripts = []mutant{
	{"one more than there is, at the gate", takeLua, "available[i] < units[l]", "available[i] + 1 < units[l]", "internal/protocol TestRush/SQLite/lua"},
	{"line 1 kept when line 2 fails, at the gate", takeLua, "if refusal == 0 then", "if refusal == 0 or at > numbers[first[t]] then", "internal/protocol TestPlace/SQLite/lua_unguarded"},
	{"a read under an older token", readLua, "token < tonumber(fence)", "false", "internal/stock/gate TestOutlivedLock/before/fence_true"},
	{"a read raises no fence", readLua, "change .. ' ' .. ARGV[4]", "change .. ' ' .. fence", "internal/stock/gate TestOutlivedLock/between/fence_true"},
	{"a write does not check the fence", writeLua, "ARGV[a + 1] ~= '0' and", "false and", "internal/stock/gate TestOutlivedLock/between/fence_true"},
	{"a give without units raises no fence", giveLua, "if given or epoch and token", "if given and token", "internal/stock/gate TestGiveFencesALateWrite"},
	{"a give raises the fence of a later generation", giveLua, " and tonumber(epoch) <= LAST_EPOCH", "", "internal/stock/gate TestGiveFencesALateWrite"},
	{"give does not check the fence", giveLua, "token > 0 and token <", "false and token <", "internal/stock/gate TestFencesAreKept"},
	{"each instance applies an addition", adjustLua, "or number <= last then", "or number < last then", "internal/protocol TestSweepsAtOnce/SQLite"},
	{"an addition does not check the fence", adjustLua, "token < tonumber(fence)", "false", "internal/stock/gate TestFencesAreKept"},
	{"an addition raises no fence", adjustLua, "  fence = ARGV[5]\n", "", "internal/stock/gate TestFencesAreKept"},
	{"an addition without a token is fenced", adjustLua, "if token > 0 then", "if true then", "internal/stock/gate TestFencesAreKept"},
	{"units in several segments count as sold out", segmented, "if sum >= line.Quantity {", "if sum < 0 {", "internal/stock/gate TestGather/Redis"},
	{"a gather waits for its lock without a bound", gather, "context.WithTimeout(ctx, maxGatherWait)", "context.WithCancel(ctx)", "internal/stock/gate TestLostGather"},
	{"a fill that the second segment refuses succeeds", gateFill, "cmp.Or(filled[i*n:(i+1)*n]...)", "cmp.Or(filled[i*n:i*n+1]...)", "internal/stock/gate TestLostSegment"},
	{"segments of two epochs are filled", segmentsOf, "!segment.Filled || segment.Epoch != sum.Epoch", "!segment.Filled", "internal/stock/gate TestLostSegment"},
	{"instances with and without fencing share the stock", "internal/assembly/strategies.go", "layout += \", unfenced\"", "_ = layout", "internal/assembly TestLayout"},
	{"sold out during a gather", segmented, "before%2 == 0 && before == after", "before <= after", "internal/stock/gate TestSoldOutWaitsForAGather"},
	{"the counter of gathers is even during a gather", gather, "odd == begins", "odd != begins", "internal/stock/gate TestAnnounce"},
	{"a gather that has lost its lock finds a SKU sold out", gather, "if lost := context.Cause(lease.Context()); lost != nil {", "if lost := context.Cause(lease.Context()); false {", "internal/stock/gate TestLostGather"},
	{"a gather that has lost its lock ends the next one", gather, "if lease.Context().Err() != nil { // the next", "if false { // the next", "internal/stock/gate TestLostGather"},
	{"a gather outlives its lock", "internal/assembly/strategies.go", "redislock.Options{Lease: gatherLease}", "redislock.Options{Lease: gatherLease, Fixed: true}", "internal/assembly TestLongGather"},
	{"what a turn knew of the units outlives it", gateQueues, "\tdefer qs.forget(q)\n", "", "internal/stock/gate TestTurnEnds_UnitsUnknown"},
	{"no segment gets the remainder", segmentsOf, "if int64((n-first+count)%count) < units%int64(count) {", "if false {", "internal/stock/gate TestFillAndAdjustSpreadEvenly"},
	{"an earlier generation's count is used", takeLua, "if number < FIRST_EPOCH or number == 0 then", "if number == 0 then", "internal/stock/gate TestGenerationsInTurn/Redis/Script"},
	{"a later generation's count is cut", takeLua, "if reply[i] > LAST_EPOCH then", "if false then", "internal/stock/gate TestGenerationsInTurn/Redis/Script"},
	{"an earlier generation's count is used by a reader", readLua, "or tonumber(match(count, '^%d+')) < FIRST_EPOCH", "", "internal/stock/gate TestGenerationsInTurn/Redis/ReadWrite"},
	{"an unreadable count is never refilled by the read-write gate", readLua, "not match(count, COUNT) or ", "", "internal/stock/gate TestUnreadableCounts"},
	{"a later generation's count is cut by a reader", readLua, "if tonumber(epoch) > LAST_EPOCH then", "if false then", "internal/stock/gate TestGenerationsInTurn/Redis/ReadWrite"},
	{"a count that a fill replaced is written", writeLua, "if match(count, '^%d+') ~= match(ARGV[a + 4], '^%S+ %d+ (%d+)') then", "if false then", "internal/stock/gate TestFillBetweenReadAndWrite"},
	{"a replaced record's units stay in flight", writeLua, "in_flight = in_flight - replaced", "", "internal/stock/gate TestTwinBetweenReadAndWrite"},
	{"takes of queued orders are recovered", "internal/stock/gate/inflight.go", "if !to.queued && !c.cluster {", "if false {", "internal/stock/gate TestQueuedTakesAreLeft"},
	{"takes of queued orders are not counted", "internal/stock/gate/inflight.go", "if !to.queued && !c.cluster {", "if !c.cluster {", "internal/stock/gate TestQueuedTakesAreLeft"},
	{"a record of an earlier generation is listed", inFlightLua, "epoch and tonumber(epoch) < FIRST_EPOCH", "false", "internal/stock/gate TestRecordsOfAnEarlierGeneration/Redis/Script"},
	{"a take is no older than its time says", inFlightLua, " or tonumber(taken_at) > now", "", "internal/stock/gate TestInFlight_ClockSetBack/Redis/Script"},
	{"all generations have the same scripts", scriptTexts, "first, last := g.Epochs()", "first, last := 0, 1<<53", "internal/stock/gate TestUnloadedGeneration/Redis/Script"},
	{"all ledgers have the same scripts", scriptTexts, "\"-- ledger %s\\nlocal FIRST_EPOCH", "\"-- %.0s\\nlocal FIRST_EPOCH", "internal/stock/gate TestLedgersHaveScriptsOfTheirOwn"},
	{"parts of two epochs are one cut", segmented, "if cut.Epoch != 0 && cut.Epoch != epoch {", "if false {", "internal/stock/gate TestPartsOfTwoEpochs"},
	{"a refusing Redis leaves the outcome open", call, "for _, prefix := range notRun {", "for _, prefix := range notRun[:0] {", "internal/stock/gate TestRefusalsOfTheServer"},
	{"two consumers of one SKU at once", gateQueues, "qs.leases.Lock(ctx, q.name)", "qs.leases.Lock(ctx, fmt.Sprintf(\"%p\", qs))", "internal/stock/gate TestOneConsumer"},
	{"a consumer begins while its queues are closed", gateQueues, "	if qs.closed {", "	if false {", "internal/stock/gate TestClosedQueue"},
	{"a consumer keeps its turn", gateQueues, "time.Now().Before(end) {", "end.Before(time.Now().Add(time.Hour)) {", "internal/stock/gate TestTurnEnds"},
	{"a take waits for its turn without a bound", "internal/stock/gate/queuegate.go", "context.WithTimeout(ctx, g.wait)", "context.WithCancel(ctx)", "internal/stock/gate TestQueueEnds"},
	{"a queue closes its leases during a turn", gateQueues, "\tqs.consumers.Wait()\n", "", "internal/stock/gate TestQueueEnds"},
	{"a queue leaves its leases open", gateQueues, "\t_ = qs.leases.Close()\n", "", "internal/stock/gate TestQueueEnds"},
	{"a record of an earlier epoch is in flight", segmented, "|| epoch != epochOf(record, 2) {", "{", "internal/stock/gate TestLostSegment"},
	{"a turn goes on after a write without an answer", gateQueues, "q.over = !q.known", "q.over = false", "internal/stock/gate TestQueue_LateWrite/one_line"},
	{"a turn goes on after an order of several SKUs without an answer", gateLocks, "if l.inDoubt != nil && err != nil && !stock.NothingTaken(err) {", "if false {", "internal/stock/gate TestQueue_LateWrite/two_lines"},
	{"a consumer is not fenced", gateQueues, "tokenSet{bySKU: map[stock.SKU]uint64{sku: lease.Token()}}", "unfenced", "internal/stock/gate TestTwoConsumers"},
	{"a queue forgets what waits when it refuses", gateQueues, "q.left-q.queued < w.units()", "q.left < w.units()", "internal/stock/gate TestRefusedAtOnce"},
	{"the twin of a take that waits is told sold out", gateQueues, "if !hasOrder(q.waiting, w) && !hasOrder(q.deciding, w) {", "if true {", "internal/stock/gate TestRefusedAtOnce"},
	{"the units of a caller who left the queue stay claimed", gateQueues, "q.queued -= w.units()\n\treturn fmt", "return fmt", "internal/stock/gate TestLeftQueue"},
	{"a take needs no locks", readWrite, "g.counter.layout.Locks.hold(ctx, d.SKUs()", "(*Locks)(nil).hold(ctx, d.SKUs()", "internal/stock/gate TestChangesAreUnderTheirLocks/Take"},
	{"a give needs no lock", gateGive, "if c.layout.Locks == nil {", "if true {", "internal/stock/gate TestChangesAreUnderTheirLocks/Give"},
	{"a fill needs no lock", gateFill, "if c.layout.Locks == nil {", "if true {", "internal/stock/gate TestChangesAreUnderTheirLocks/Fill"},
	{"an addition needs no lock", gateAdjust, "c.layout.Locks.hold(ctx, []stock.SKU{part.SKU}", "(*Locks)(nil).hold(ctx, []stock.SKU{part.SKU}", "internal/stock/gate TestChangesAreUnderTheirLocks/Adjust"},
	{"a give asks one segment only", segmentsOf, "for n := range l.Segments {\n\t\t\treceipt[i].Parts", "for n := range 1 {\n\t\t\treceipt[i].Parts", "internal/stock/gate TestConformance/Segmented/Redis/GiveBeforeTake"},
	{"any number of calls waits in a queue", gateQueues, "if len(q.waiting) == maxWaiting {", "if len(q.waiting) == 1<<30 {", "internal/stock/gate TestFullQueue"},
	{"a script that Redis does not answer has no bound", scriptGate, "context.WithTimeout(context.Background(), callTimeout)", "context.WithCancel(context.Background())", "internal/stock/gate TestHungCalls"},
	{"a consumer waits for Redis without a bound", gateQueues, "context.WithTimeout(lease.Context(), callTimeout)", "context.WithCancel(lease.Context())", "internal/stock/gate TestHungCalls"},
	{"the takes of a batch do not see each other", readWrite, "left[line.SKU]; ok {", "left[line.SKU]; ok && units < 0 {", "internal/stock/gate TestConformance/Queue/Redis/NoOversell"},
	{"a removal of many units cuts fewer", takeLua, "((u3 * 256 + u2) * 256 + u1) * 256 + u0", "(u2 * 256 + u1) * 256 + u0", "internal/stock/gate TestConformance/Script/Redis/LastUnit"},
	{"a call for many SKUs cuts the wrong ones", takeLua, "local i = n1 * 256 + n0", "local i = n0", "internal/stock/gate TestOneCallForManyTakes"},
	{"a call for many SKUs settles the wrong ones", settleLua, "numbers[a] = n1 * 256 + n0", "numbers[a] = n0", "internal/stock/gate TestOneCallForManyTakes"},
	{"a count of an order's second SKU that a fill replaced is written", writeLua, "for a = 1, #ARGV, 6 do\n  local count", "for a = 1, 6, 6 do\n  local count", "internal/stock/gate TestFillBetweenReadAndWrite"},
	{"twins of an order are decided with one write", gateQueues, " && !hasOrder(q.waiting[:n], q.waiting[n])", "", "internal/stock/gate TestRefusedAtOnce"},
	{"an instance knows the units that are left after a caller's turn", gateQueues, "\t\tq.waiting = q.waiting[1:]\n\t\tq.known = false\n", "\t\tq.waiting = q.waiting[1:]\n", "internal/stock/gate TestTurnEnds_UnitsUnknown"},
	{"a master that does not answer hides that another one has lost the generation", gateMark, "if missing.Load() {", "if err == nil && missing.Load() {", "internal/stock/gate TestLoaded_OneMasterFails"},
	{"a record that a scan returns twice counts twice", gateScan, "lineOf(found.Recorded, sku) < 0", "lineOf(found.Recorded, sku) < 1<<20", "internal/stock/gate TestRecordDescribesTheOrder"},
	{"a twin that waits claims units", gateQueues, "\t\tw.repeat = true\n\t}\n\tif len(q.waiting) == maxWaiting", "\t}\n\tif len(q.waiting) == maxWaiting", "internal/stock/gate TestRefusedAtOnce"},
	{"a crashed instance keeps others from a SKU's queue for long", "internal/assembly/strategies.go", "redislock.Options{Lease: turnLease}", "redislock.Options{}", "internal/assembly TestTurnLease"},
	{"a consumer waits for its lease without a bound", gateQueues, "context.WithTimeout(context.Background(), qs.wait)", "context.WithCancel(context.Background())", "internal/stock/gate TestTurnEnds_UnitsUnknown"},
	{"an order is in flight by a record of the last generation", segmented, "stock.GenerationOf(epoch) != g.counter.scripts.Load().generation || epoch", "epoch", "internal/stock/gate TestTakenAgain/Redis"},
}
