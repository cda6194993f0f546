//go:build mutants

package mutants

const (
	labOrders    = "loadtest/orderaudit.go"
	labKeys      = "loadtest/replays.go"
	labArrivals  = "loadtest/arrivals.go"
	labAudit     = "loadtest/audit.go"
	labCalls     = "loadtest/lifecycle.go"
	loadAnswer   = "internal/lab/load/answer.go"
	loadClient   = "internal/lab/load/client.go"
	loadDrive    = "internal/lab/load/drive.go"
	labJudge     = "loadtest/judge.go"
	labHistories = "loadtest/histories.go"
	labHeadline  = "loadtest/report/headline.go"
	labRush      = "loadtest/rush.go"
	labFleet     = "loadtest/fleet.go"
	labSearch    = "loadtest/highestrate.go"
	labLab       = "loadtest/lab.go"
	labFlags     = "loadtest/flags.go"
	labFollow    = "loadtest/queued.go"
	labClean     = "loadtest/clean.go"
	labLifecycle = "loadtest/lifecycleaudit.go"
	labPitfall   = "loadtest/pitfall/pitfall.go"
	labFence     = "loadtest/pitfall/fence.go"
	testServers  = "internal/testenv/testenv.go"
	goRun        = "internal/testenv/gorun.go"
)

// laboratory has the mutants of loadtest.
var laboratory = []mutant{
	{"the audit does not compare buyers", labOrders, "case got.BuyerID != o.BuyerID:", "case false:", "loadtest TestCheckAnswers/stored_under_another_buyer"},
	{"the audit does not compare lines", labOrders, "case !slices.Equal(got.Lines, o.Lines):", "case false:", "loadtest TestCheckAnswers/stored_with_more_units"},
	{"the audit does not compare statuses", labOrders, "case o.Status != \"\" && got.Status != o.Status:", "case false:", "loadtest TestCheckAnswers/cancelled"},
	{"the audit accepts an order that is not found", labOrders, "case !found:\n\t\treturn results.Missing", "case !found:\n\t\treturn \"\"", "loadtest TestCheckAnswers/not_stored"},
	{"the audit accepts one order for two requests", labOrders, "rec.find(results.Repeated, a.order.String())", "", "loadtest TestCheckAnswers/answered_with_the_ID_of_another_order"},
	{"the audit does not compare a 201 with its request", labOrders, "a.asked.differs(a.order, true) != \"\"", "false", "loadtest TestCheckAnswers/answered_with_another_buyer"},
	{"the audit accepts a 201 without an order", labOrders, "a.order.ID == \"\" || a.asked", "a.order.ID != \"\" && a.asked", "loadtest TestCheckAnswers/answered_without_an_order"},
	{"the audit accepts an order that was denied", labOrders, "case !a.unknown():", "case false:", "loadtest TestCheckAnswers/committed_and_busy"},
	{"a request with an unknown outcome may have two orders", labOrders, "default:\n\t\t\tserved[o.BuyerID] = true", "default:", "loadtest TestCheckAnswers/committed_twice_and_never_answered"},
	{"a key may have a second order", labOrders, "case served[o.BuyerID]:", "case false:", "loadtest TestCheckAnswers/committed_twice"},
	{"an order may expire at another time by GET", labOrders, "kind = results.OtherExpiry\n", "\n", "loadtest TestReadBackExpiry"},
	{"orders have no keys", labKeys, "if bits&1 == 0 {", "if bits&1 <= 1 {", "loadtest TestPlan"},
	{"requests with keys are repeated by themselves", loadClient, "own.Header[\"idempotency-key\"] = []string{key}", "own.Header.Set(\"Idempotency-Key\", key)", "internal/lab/load TestSendsOnce"},
	{"the laboratory's client repeats requests", loadClient, "client.WithTries(1), ", "", "internal/lab/load TestSendsOnce"},
	{"every order of the laboratory has a key", loadClient, "client.WithTries(1), client.WithoutKeys()", "client.WithTries(1)", "loadtest TestClientRepeats/measured_false"},
	{"half an answer is an answer", loadClient, "if err != nil {\n\t\treturn nil, err\n\t}\n\ta.Status", "if err != nil && false {\n\t\treturn nil, err\n\t}\n\ta.Status", "internal/lab/load TestNoAnswer"},
	{"an arrival waits for the answers before it", loadDrive, "all.Go(func() {\n\t\t\tdefer func() { <-places }()\n\t\t\tsend(due)\n\t\t})", "send(due)\n\t\t<-places", "internal/lab/load TestArrivals/slow_answers"},
	{"any number of arrivals is under way", loadDrive, "make(chan struct{}, a.MaxUnderWay)", "make(chan struct{}, a.MaxUnderWay+9)", "internal/lab/load TestArrivals/too_many_under_way"},
	{"a client of the crowd pauses for too long", loadDrive, "retry.Sleep(ctx, pause)", "retry.Sleep(ctx, 2*pause)", "internal/lab/load TestCrowd"},
	{"no repeat goes through another instance", labKeys, "return n + 1\n", "return n\n", "loadtest TestClientRepeats/measured_false"},
	{"a repeat may have other bytes", labKeys, "&& bytes.Equal(s.Body, first.Body)", "&& (bytes.Equal(s.Body, first.Body) || s.promised())", "loadtest TestRepeat/other_bytes"},
	{"a replay in a history may have other bytes", labHistories, "h.rec.addTo(r)", "_ = r", "loadtest TestHistories_OtherReplay"},
	{"a repeat may have another status", labKeys, "s.Status == first.Status", "s.promised()", "loadtest TestRepeat/another_status"},
	{"a repeat need not say that it is one", labKeys, "return s.Replayed &&", "return", "loadtest TestRepeat/not_marked"},
	{"an order in progress is an answer that counts", labKeys, ", first.Problem == problemInProgress:", ":", "loadtest TestTogether/in_progress,_and_sold_out"},
	{"two requests at once may both be the first", labKeys, "case twin.promised():\n\t\tr.compare(first, twin)", "case twin.promised():", "loadtest TestTogether/two_orders"},
	{"an order whose key is known may be sold out", labKeys, "case second.outcome == failed:", "case second.outcome != accepted:", "loadtest TestRepeat/sold_out"},
	{"sold out under a key leaves its outcome unknown", labKeys, "second.promised() || second.outcome == refused", "second.promised()", "loadtest TestUnknownIsRepeated/sold_out"},
	{"a repeat that fails does not count", labKeys, "rec.repeatsFailed.Add(1)", "_ = second", "loadtest TestRepeat/busy"},
	{"failed repeats have no limit", labJudge, "counted := r.Failed + r.RepeatsFailed", "counted := r.Failed", "loadtest TestJudge"},
	{"a queued order that was refused keeps its key", labKeys, "&& l.wasTurnedDown(ctx, f.url(n), first.order.ID)", "&& false", "loadtest TestTurnedDownKey"},
	{"a request with a key is not repeated when its outcome is unknown", labKeys, "if p.key != \"\" && first.outcome == failed", "if p.key == \"-\" && first.outcome == failed", "loadtest TestUnknownIsRepeated/placed"},
	{"an unknown outcome that was resolved is forgotten", labKeys, "rec.heard(got)\n", "\n", "loadtest TestUnknownIsRepeated/placed"},
	{"orders are repeated while the rush is measured", labKeys, "if c.measured && p.repeat != never {", "if false {", "loadtest TestClientRepeats/measured_true"},
	{"orders are repeated only after the stock is sold out", labLab, "keys, err := l.keysRush(ctx, spec, f)\n\t\t\tif keys != nil {", "keys, err := l.keysRush(ctx, spec, f)\n\t\t\tif false {", "loadtest TestLiars/makes-a-second-order-of-one-replay-in-ten"},
	{"no order is repeated after an open load", labArrivals, "l.repeatAll(ctx, rec, f, repeated)", "_ = repeated", "loadtest TestOpenLoad"},
	{"unknown outcomes have no limit", labJudge, "!t.faulty && r.Uncertain > most", "false", "loadtest TestTargets/does_not_know"},
	{"unknown outcomes of calls have no limit", labCalls, "v.rec.heard(a)\n", "\n", "loadtest TestLifecycleLiars/is-unavailable-after-every-fifth-call"},
	{"outcomes may not be unknown after a crash", labJudge, "failing := end == crashed || end", "failing := end", "loadtest TestTerms"},
	{"the gate may have more than the ledger for a while", labJudge, "if r.Excess > 0 {", "if false {", "loadtest TestJudge"},
	{"nobody notices that the gate has more than the ledger", labAudit, "return max(0, *before.available-max(ledger, 0)), nil", "return min(0, *before.available-max(ledger, 0)), nil", "loadtest TestExcess"},
	{"units in flight count as too many", labAudit, "before.available == nil || *before.inFlight != 0", "before.available == nil", "loadtest TestExcess"},
	{"repairs during a lifecycle load are not noticed", labCalls, "judgeRepairs(r, t)\n", "\n", "loadtest TestLifecycleLiars/returns-units-twice-at-the-gate"},
	{"the guard may catch orders of a sound strategy", labJudge, "r.Caught != nil && *r.Caught > 0", "false", "loadtest TestJudge"},
	{"an order may have another payment window", labLifecycle, "if window != v.PaymentWindow {", "if false {", "loadtest TestCheckWindows"},
	{"payment windows are not audited", labLifecycle, "v.checkWindows()\n", "\n", "loadtest TestLifecycleLiars/answers-that-orders-expire-an-hour-later"},
	{"a load waits as long as expires_at says", labCalls, "expires.Before(until)", "true", "loadtest TestWaitForExpiry"},
	{"the exit text does not name the fault", labLab, "r.Strategy+\": \"+r.Faults[0]", "r.Strategy", "loadtest TestTargets/oversells"},
	{"the audit accepts an order without a request", labOrders, "rec.find(results.Unasked, o.String())", "", "loadtest TestCheckAnswers/stored_without_a_request"},
	{"the outcome of busy is unknown", loadAnswer, "return a.Problem == Unavailable || a.Problem == \"\"", "return true", "internal/lab/load TestAnswers"},
	{"a sample finds nothing", labOrders, "case err == nil && !found:", "case err != nil && found:", "loadtest TestSample"},
	{"no sample is taken during the rush", labRush, "l.sample(ctx, rec, a)", "_ = sampleEvery", "loadtest TestLiars/stores-all-under-another-buyer"},
	{"more may be sold than was accepted", labJudge, "case r.Sold > most:", "case r.Sold > most+10:", "loadtest TestJudge"},
	{"less may be sold than was accepted", labJudge, "case r.Sold < r.Accepted:", "case false:", "loadtest TestJudge"},
	{"overselling that nobody expected is not recorded", labJudge, "r.Surprise = results.Oversell\n", "\n", "loadtest TestJudge"},
	{"the headline hides overselling that nobody expected", labHeadline, "surprising(run, results.Oversell); len(names) > 0", "surprising(run, results.Oversell); len(names) > 9", "loadtest/report TestHeadline"},
	{"failures after a crash have a limit", labJudge, "if failing {", "if false {", "loadtest TestTerms"},
	{"a broken strategy need not be detected by its history", labJudge, "if t.mustOversell && !detected {", "if false {", "loadtest TestJudgeHistory"},
	{"a history that detects nothing is conclusive", labJudge, "return detected || !t.mustOversell || len(r.Findings) > 0", "return true", "loadtest TestJudgeHistory"},
	{"an undecided history of a sound strategy is allowed", labJudge, "case v.Decision != history.Linearizable:", "case v.Decision == history.NotLinearizable:", "loadtest TestJudgeHistory"},
	{"failures have no limit", labJudge, "part > t.maxFailures", "false", "loadtest TestTargets/fails"},
	{"a target may oversell", labJudge, "return l.ExpectOversell\n", "return l.ExpectOversell || !spec.Sound\n", "loadtest TestTargets/runs_a_broken_strategy"},
	{"the faults after a crash do not count", labJudge, "for i, fault := range other.Faults {", "for i, fault := range other.Faults[:0] {", "loadtest TestCrash"},
	{"the instances of a history remember sold out", labFleet, "if l.History != \"\" {", "if false {", "loadtest TestFlags_History"},
	{"a history of which a call is missing is whole", "loadtest/history/record.go", "\t\tr.err = errFull\n", "", "loadtest/history TestRecorder_Incomplete"},
	{"a history that cannot be read to its end is whole", "loadtest/history/call.go", "return calls, lines.Err()", "return calls, nil", "loadtest/history TestRead"},
	{"a lost answer in a history changed nothing", "loadtest/history/record.go", "case a.Unknown():", "case false:", "loadtest/history TestRecorder"},
	{"a list of one status is complete", "loadtest/history/record.go", "if query.Has(\"status\") || query.Has(\"after\") {", "if false {", "loadtest/history TestRecorder"},
	{"a history may have unknown outcomes", "loadtest/history/call.go", " || !slices.Contains(outcomes, c.Outcome)", "", "loadtest/history TestRead"},
	{"a key may have two orders", "loadtest/history/check.go", "for i := 1; i < len(sales); i++ {", "for i := len(sales); i < len(sales); i++ {", "loadtest/history TestCheck/two_orders_of_one_key"},
	{"a read may contradict an earlier one", "loadtest/history/check.go", "case back != \"\":", "case false:", "loadtest/history TestCheck/cancelled_in_a_read,_and_pending_again"},
	{"a read need not show an accepted call", "loadtest/history/check.go", "act.Outcome == Accepted && act.End < c.Begin && ", "false && ", "loadtest/history TestCheck/cancelled,_and_a_later_read_does_not_show_it"},
	{"an order may be missing between two reads", "loadtest/history/check.go", "c.Outcome != Accepted && c.Begin > s.acceptedAt()", "false", "loadtest/history TestCheck/queued,_lost_and_found"},
	{"an order may be missing in a list", "loadtest/history/check.go", "if c.Begin > s.end && ", "if false && ", "loadtest/history TestCheck/not_listed"},
	{"a list has orders of later calls", "loadtest/history/check.go", "if c.End < lost.begin {", "if false {", "loadtest/history TestCheck/listed_before_it_was_ordered"},
	{"a key may be repeated with other lines", "loadtest/history/check.go", "if !slices.Equal(sorted(c.Lines), sorted(s.lines)) {", "if false {", "loadtest/history TestCheck/a_key_repeated_with_other_lines"},
	{"a refusal may name any SKU", "loadtest/history/check.go", "quantity(c.Lines, sku) > 0 && quantity(c.Lines, c.SKU) == 0", "false", "loadtest/history TestCheck/refused_for_a_SKU_that_was_not_ordered"},
	{"an audit during a call is one at rest", "loadtest/history/model.go", "agree(c.Counts) && !h.changesDuring(c)", "agree(c.Counts)", "loadtest/history TestCheck/an_audit_during_a_call_ends_no_hold"},
	{"an audit with units in flight is one at rest", "loadtest/history/model.go", "(n.GateInFlight == nil || *n.GateInFlight == 0) && ", "", "loadtest/history TestCheck/nor_does_one_with_units_in_flight"},
	{"a lost order may oversell", "loadtest/history/model.go", "case mayTake:\n\t\tif s.left >= o.n {", "case mayTake:\n\t\tif true {", "loadtest/history TestCheck/unknown,_never_listed,_and_oversold"},
	{"no instance is killed", labFleet, "f.apis[last].Kill()", "", "loadtest TestCrash"},
	{"orders with an unknown outcome count as too many", labJudge, "most := r.Accepted + r.Unknown;", "most := r.Accepted;", "loadtest TestJudge"},
	{"the busy answers of every strategy are allowed", labJudge, "t.spec.Cutter == \"optimistic\"", "true", "loadtest TestTargets/fails"},
	{"a sound strategy may refuse orders of an open load", labJudge, "t.plenty && wrongly > 0", "t.plenty && wrongly < 0", "loadtest TestJudge"},
	{"a sound strategy may turn down orders of an open load", labJudge, "r.Refused + r.TurnedDown; t.spec", "r.Refused; t.spec", "loadtest TestJudge"},
	{"a history without an order proves something", labJudge, "if r.Accepted == 0 {\n\t\tr.Fault(\"no order was accepted: ", "if false {\n\t\tr.Fault(\"no order was accepted: ", "loadtest TestJudgeHistory"},
	{"refusals of an open load are not judged", labJudge, "plenty: l.open() && !l.Faults", "plenty: false", "loadtest TestOpenLoad_Refused"},
	{"a gate without a count agrees with the ledger", labJudge, "r.Gate == nil && t.gated && !t.faulty", "false", "loadtest TestJudge"},
	{"no gate needs a count", labJudge, "gated: spec.HasGate() && l.redis != nil", "gated: false", "loadtest TestTerms"},
	{"the report has the password of ZooKeeper", labFlags, "case at >= 0: // user", "case false: // user", "loadtest TestRedacted"},
	{"units may stay in flight after a crash", labJudge, "t.ending == crashed && *r.InFlight > 0", "false", "loadtest TestJudge"},
	{"one probe decides", labSearch, "2*len(held) < s.probes && 2*len(missed) < s.probes", "len(held)+len(missed) < 1", "loadtest TestProbes"},
	{"the folder of the report is not checked", labLab, "if s.Out != \"\" {", "if false {", "loadtest TestUsage"},
	{"a payment answered 200 need not pay the order", labLifecycle, "return !o.paidBy(c.payment)", "return false", "loadtest TestCheckOrders/answered_paid_for_both_payments"},
	{"a payment answered due may pay the order", labLifecycle, "return o.paidBy(c.payment)", "return false", "loadtest TestCheckOrders/answered_paid_and_due"},
	{"a cancelled order may end otherwise", labLifecycle, "return o.Status != \"cancelled\"\n", "return false\n", "loadtest TestCheckOrders/answered_cancelled_and_paid"},
	{"an order may be paid without a payment", labLifecycle, "!o.explainedBy(calls) || ", "", "loadtest TestCheckOrders/paid_without_a_payment"},
	{"the audit does not look for lost payments", labLifecycle, "kinds = append(kinds, results.LostPayment)", "", "loadtest TestCheckOrders/due_payment_lost"},
	{"the audit does not compare the statuses of payments", labLifecycle, "case found && status != want:", "case found && status+want == \"\":", "loadtest TestCheckOrders/due_payment_stored_as_paid"},
	{"any history is allowed", labLifecycle, "if !slices.Contains(followers[status], following) {", "if false {", "loadtest TestCheckOrders/paid_after_cancellation"},
	{"orders may expire before their time", labLifecycle, "early && status == \"expired\"", "early && status == \"\"", "loadtest TestCheckEarly/expired"},
	{"a payment before the order expires is too early", labLifecycle, "early && status == \"expired\"", "early", "loadtest TestCheckEarly/paid"},
	{"orders may stay pending", labLifecycle, "if !slices.Contains(ends, o.Status) {", "if false {", "loadtest TestCheckOrders/pending"},
	{"buyers may exceed their limit", labLifecycle, "if held[buyer] > couponLimit {", "if false {", "loadtest TestCheckClaims/over_the_limit"},
	{"buyers may exceed their limit during the load", labLifecycle, "if most > couponLimit {", "if false {", "loadtest TestCheckLimit/within_the_payment_window"},
	{"claims are not compared", labLifecycle, "if claims[buyer] != held[buyer] {", "if false {", "loadtest TestCheckClaims/too_low"},
	{"the audit accepts an order of a lifecycle load without a request", labLifecycle, "unknown[o.BuyerID] < 0 {", "false {", "loadtest TestCheckUnknown/busy"},
	{"counts are not compared after a lifecycle load", labLifecycle, "judgeCounts(one, t)", "_ = t", "loadtest TestLifecycleLiars/returns-units-twice"},
	{"clean deletes SKUs of others", labClean, "if loadTestSKU.MatchString(sku) {", "if true {", "loadtest TestClean"},
	{"a lost 202 is not missed", labFollow, "case status == http.StatusNotFound:\n\t\t\ta.outcome, a.order.Status = accepted, \"\"", "case status == http.StatusNotFound:\n\t\t\ta.outcome, a.order.Status = failed, \"\"", "loadtest TestFollow/removed_from_the_queue"},
	{"an order may stay queued", labFollow, "rec.find(results.Unended, a.order.String())", "", "loadtest TestFollowGivesUp"},
	{"a refused 202 counts as sold", labFollow, "a.outcome, a.order.Status = turnedDown, got.Status", "a.outcome, a.order.Status = accepted, got.Status", "loadtest TestFollow/refused"},
	{"an order need not be found right after its 202", labFollow, "rec.find(results.Unseen, a.order.String())", "", "loadtest TestSampleQueued"},
	{"an experiment may leave units", labPitfall, "case damage.Unsold:", "case false:", "loadtest/pitfall TestVerdicts"},
	{"a flawed version may do no damage", labPitfall, "case v.Flawed && damage.Amount == 0:", "case false:", "loadtest/pitfall TestVerdicts"},
	{"a fixed version may do damage", labPitfall, "case !v.Flawed && damage.Amount > 0:", "case false:", "loadtest/pitfall TestVerdicts"},
	{"an experiment may refuse all orders", labFence, "s.product(), epoch, units)", "s.product(), epoch, 0)", "loadtest/pitfall TestPitfalls/no-lock"},
	{"an experiment may sell too little", labPitfall, "if sold < expected {", "if false {", "loadtest/pitfall TestVerdicts"},
	{"an experiment runs without its server", labPitfall, "if !v.available(servers) {", "if false {", "loadtest/pitfall TestVerdicts"},
	{"a server that fails is no fault", testServers, "p.fail(failed)", "_ = failed", "loadtest/pitfall TestServerFails"},
	{"folders are removed with the caller's PATH", testServers, "/usr/bin:/bin:\"+os.Getenv(\"PATH\")", "\"+os.Getenv(\"PATH\")", "internal/testenv TestCleanerWithoutPATH"},
	{"a killed go run is not noticed", goRun, "for os.Getppid() == parent {", "for {", "internal/testenv TestWithGoRun/go"},
}
