//go:build mutants

package mutants

const (
	labOrders = "loadtest/orders.go"
	labRecord = "loadtest/record.go"
	labJudge  = "loadtest/judge.go"
	labRush   = "loadtest/rush.go"
	labFleet  = "loadtest/fleet.go"
	labSearch = "loadtest/search.go"
	labLab    = "loadtest/lab.go"
	labMain   = "loadtest/main.go"
	labClean  = "loadtest/clean.go"
	goRun     = "internal/testenv/gorun.go"
)

// laboratory are mutants of loadtest.
var laboratory = []mutant{
	{"the audit does not compare buyers", labOrders, "case got.Buyer != o.Buyer:", "case false:", "loadtest TestHoldAnswers/another_buyer's"},
	{"the audit does not compare lines", labOrders, "case !slices.Equal(got.Lines, o.Lines):", "case false:", "loadtest TestHoldAnswers/more_units"},
	{"the audit does not compare statuses", labOrders, "case o.Status != \"\" && got.Status != o.Status:", "case false:", "loadtest TestHoldAnswers/cancelled"},
	{"an order that is not found is right", labOrders, "case !found:\n\t\treturn missing", "case !found:\n\t\treturn \"\"", "loadtest TestHoldAnswers/not_stored"},
	{"one order answers two requests", labOrders, "rec.find(repeated, a.order.String())", "", "loadtest TestHoldAnswers/answered_with_another's_order_under_this_buyer"},
	{"what a 201 says is not held against the request", labOrders, "a.asked.differs(a.order, true) != \"\"", "false", "loadtest TestHoldAnswers/answered_with_another's_buyer"},
	{"a 201 without an order is right", labOrders, "a.order.ID == \"\" || a.asked", "a.order.ID != \"\" && a.asked", "loadtest TestHoldAnswers/answered_with_no_order"},
	{"nobody looks for orders that were denied", labOrders, "case !a.open():", "case false:", "loadtest TestHoldAnswers/committed_and_busy"},
	{"an open request may have two orders", labOrders, "answers[o.Buyer] = a\n\t\t}", "}", "loadtest TestHoldAnswers/committed_twice_and_never_answered"},
	{"nobody looks for orders that nobody asked for", labOrders, "rec.find(unasked, o.String())", "", "loadtest TestHoldAnswers/nobody's"},
	{"busy leaves the outcome open", labRecord, "return a.problem == problemUnavailable || a.problem == \"\"", "return true", "loadtest TestRead"},
	{"a sample sees nothing", labOrders, "case err == nil && !there:", "case err != nil && there:", "loadtest TestSample"},
	{"no sample is taken in mid-rush", labRush, "l.sample(ctx, rec, a)", "_ = sampleEvery", "loadtest TestLiars/honest"},
	{"more may be sold than was accepted", labJudge, "case r.Sold > most:", "case r.Sold > most+10:", "loadtest TestJudge"},
	{"less may be sold than was accepted", labJudge, "case r.Sold < r.Accepted:", "case false:", "loadtest TestJudge"},
	{"failures have no limit", labJudge, "part > t.maxFailures", "false", "loadtest TestTargets/fails"},
	{"a target may oversell", labJudge, "(l.expectOversell || !targets && !spec.Sound)", "(l.expectOversell || !spec.Sound)", "loadtest TestTargets/is_known_to_oversell"},
	{"the faults after a crash are nobody's", labJudge, "for _, fault := range crash.Faults {", "for _, fault := range crash.Faults[:0] {", "loadtest TestLiars/answers-before-the-commit"},
	{"nothing is killed", labFleet, "f.apis[last].Kill()", "", "loadtest TestCrash"},
	{"open outcomes count as orders nobody asked for", labJudge, "most := r.Accepted + r.Unknown;", "most := r.Accepted;", "loadtest TestJudge"},
	{"busy of every strategy is forgiven", labJudge, "t.spec.Cutter == \"optimistic\"", "true", "loadtest TestTargets/fails"},
	{"units stay in flight after a crash", labJudge, "t.ending == crashed && *r.InFlight > 0", "false", "loadtest TestJudge"},
	{"one probe decides", labSearch, "2*len(held) < s.probes && 2*len(missed) < s.probes", "len(held)+len(missed) < 1", "loadtest TestProbes"},
	{"a slash at a target's end stays", labMain, "strings.TrimRight(target, \"/\")", "target", "loadtest TestTargets/right"},
	{"the folder of the report is not tried", labLab, "if s.out != \"\" {", "if false {", "loadtest TestUsage"},
	{"another's SKU is deleted", labClean, "if laidBefore.MatchString(sku) {", "if true {", "loadtest TestClean"},
	{"a killed go run is not noticed", goRun, "for os.Getppid() == parent {", "for {", "internal/testenv TestWithGoRun/go"},
}
