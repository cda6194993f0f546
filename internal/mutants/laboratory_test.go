//go:build mutants

package mutants

const (
	labOrders    = "loadtest/orders.go"
	labRecord    = "loadtest/record.go"
	labJudge     = "loadtest/judge.go"
	labHeadline  = "loadtest/report/headline.go"
	labRush      = "loadtest/rush.go"
	labFleet     = "loadtest/fleet.go"
	labSearch    = "loadtest/search.go"
	labLab       = "loadtest/lab.go"
	labFlags     = "loadtest/flags.go"
	labFollow    = "loadtest/follow.go"
	labClean     = "loadtest/clean.go"
	labLifecycle = "loadtest/lifeaudit.go"
	labPitfall   = "loadtest/pitfall/pitfall.go"
	labFence     = "loadtest/pitfall/fence.go"
	labStage     = "loadtest/pitfall/stage.go"
	testServers  = "internal/testenv/testenv.go"
	goRun        = "internal/testenv/gorun.go"
)

// laboratory has the mutants of loadtest.
var laboratory = []mutant{
	{"the audit does not compare buyers", labOrders, "case got.Buyer != o.Buyer:", "case false:", "loadtest TestCheckAnswers/stored_under_another_buyer"},
	{"the audit does not compare lines", labOrders, "case !slices.Equal(got.Lines, o.Lines):", "case false:", "loadtest TestCheckAnswers/stored_with_more_units"},
	{"the audit does not compare statuses", labOrders, "case o.Status != \"\" && got.Status != o.Status:", "case false:", "loadtest TestCheckAnswers/cancelled"},
	{"the audit accepts an order that is not found", labOrders, "case !found:\n\t\treturn results.Missing", "case !found:\n\t\treturn \"\"", "loadtest TestCheckAnswers/not_stored"},
	{"the audit accepts one order for two requests", labOrders, "rec.find(results.Repeated, a.order.String())", "", "loadtest TestCheckAnswers/answered_with_the_ID_of_another_order"},
	{"the audit does not compare a 201 with its request", labOrders, "a.asked.differs(a.order, true) != \"\"", "false", "loadtest TestCheckAnswers/answered_with_another_buyer"},
	{"the audit accepts a 201 without an order", labOrders, "a.order.ID == \"\" || a.asked", "a.order.ID != \"\" && a.asked", "loadtest TestCheckAnswers/answered_without_an_order"},
	{"the audit accepts an order that was denied", labOrders, "case !a.unknown():", "case false:", "loadtest TestCheckAnswers/committed_and_busy"},
	{"a request with an unknown outcome may have two orders", labOrders, "answers[o.Buyer] = a\n\t\t}", "}", "loadtest TestCheckAnswers/committed_twice_and_never_answered"},
	{"the audit accepts an order without a request", labOrders, "rec.find(results.Unasked, o.String())", "", "loadtest TestCheckAnswers/stored_without_a_request"},
	{"the outcome of busy is unknown", labRecord, "return a.problem == problemUnavailable || a.problem == \"\"", "return true", "loadtest TestRead"},
	{"a sample finds nothing", labOrders, "case err == nil && !found:", "case err != nil && found:", "loadtest TestSample"},
	{"no sample is taken during the rush", labRush, "l.sample(ctx, rec, a)", "_ = sampleEvery", "loadtest TestLiars/honest"},
	{"more may be sold than was accepted", labJudge, "case r.Sold > most:", "case r.Sold > most+10:", "loadtest TestJudge"},
	{"less may be sold than was accepted", labJudge, "case r.Sold < r.Accepted:", "case false:", "loadtest TestJudge"},
	{"overselling that nobody expected is not recorded", labJudge, "r.Surprise = results.Oversell\n", "\n", "loadtest TestJudge"},
	{"the headline hides overselling that nobody expected", labHeadline, "surprising(run, results.Oversell); len(names) > 0", "surprising(run, results.Oversell); len(names) > 9", "loadtest/report TestHeadline"},
	{"failures have no limit", labJudge, "part > t.maxFailures", "false", "loadtest TestTargets/fails"},
	{"a target may oversell", labJudge, "return l.expectOversell\n", "return l.expectOversell || !spec.Sound\n", "loadtest TestTargets/runs_a_broken_strategy"},
	{"the faults after a crash do not count", labJudge, "for i, fault := range crash.Faults {", "for i, fault := range crash.Faults[:0] {", "loadtest TestLiars/answers-before-the-commit"},
	{"no instance is killed", labFleet, "f.apis[last].Kill()", "", "loadtest TestCrash"},
	{"orders with an unknown outcome count as too many", labJudge, "most := r.Accepted + r.Unknown;", "most := r.Accepted;", "loadtest TestJudge"},
	{"the busy answers of every strategy are allowed", labJudge, "t.spec.Cutter == \"optimistic\"", "true", "loadtest TestTargets/fails"},
	{"units may stay in flight after a crash", labJudge, "t.ending == crashed && *r.InFlight > 0", "false", "loadtest TestJudge"},
	{"one probe decides", labSearch, "2*len(held) < s.probes && 2*len(missed) < s.probes", "len(held)+len(missed) < 1", "loadtest TestProbes"},
	{"the slash at the end of a target stays", labFlags, "strings.TrimRight(target, \"/\")", "target", "loadtest TestTargets/correct"},
	{"the folder of the report is not checked", labLab, "if s.out != \"\" {", "if false {", "loadtest TestUsage"},
	{"a payment answered 200 need not pay the order", labLifecycle, "return !o.paidBy(c.payment)", "return false", "loadtest TestCheckOrders/answered_paid_for_both_payments"},
	{"a payment answered due may pay the order", labLifecycle, "return o.paidBy(c.payment)", "return false", "loadtest TestCheckOrders/answered_paid_and_due"},
	{"a cancelled order may end otherwise", labLifecycle, "return o.Status != \"cancelled\"\n", "return false\n", "loadtest TestCheckOrders/answered_cancelled_and_paid"},
	{"an order may be paid without a payment", labLifecycle, "!o.explainedBy(calls) || ", "", "loadtest TestCheckOrders/paid_without_a_payment"},
	{"the audit does not look for lost payments", labLifecycle, "kinds = append(kinds, results.LostPayment)", "", "loadtest TestCheckOrders/due_payment_lost"},
	{"the audit does not compare the statuses of payments", labLifecycle, "case found && status != want:", "case found && status+want == \"\":", "loadtest TestCheckOrders/due_payment_stored_as_paid"},
	{"any history is allowed", labLifecycle, "if !slices.Contains(followers[status], following) {", "if false {", "loadtest TestCheckOrders/paid_after_cancellation"},
	{"orders may stay pending", labLifecycle, "if !slices.Contains(ends, o.Status) {", "if false {", "loadtest TestCheckOrders/pending"},
	{"buyers may exceed their limit", labLifecycle, "if held[buyer] > couponLimit {", "if false {", "loadtest TestCheckClaims/over_the_limit"},
	{"buyers may exceed their limit during the load", labLifecycle, "if most > couponLimit {", "if false {", "loadtest TestCheckLimit/within_the_payment_window"},
	{"claims are not compared", labLifecycle, "if claims[buyer] != held[buyer] {", "if false {", "loadtest TestCheckClaims/too_low"},
	{"the audit accepts an order of a lifecycle load without a request", labLifecycle, "unknown[o.Buyer] < 0 {", "false {", "loadtest TestCheckUnknown/busy"},
	{"counts are not compared after a lifecycle load", labLifecycle, "judgeCounts(one, terms{spec: strategy.Spec{Sound: true}})", "_ = strategy.Spec{}", "loadtest TestLifecycleLiars/returns-units-twice"},
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
	{"a server that fails is no fault", labStage, "s.err = p\n", "_ = p\n", "loadtest/pitfall TestServerFails"},
	{"folders are removed with the caller's PATH", testServers, "/usr/bin:/bin:\"+os.Getenv(\"PATH\")", "\"+os.Getenv(\"PATH\")", "internal/testenv TestCleanerWithoutPATH"},
	{"a killed go run is not noticed", goRun, "for os.Getppid() == parent {", "for {", "internal/testenv TestWithGoRun/go"},
}
