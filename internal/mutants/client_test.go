//go:build mutants

package mutants

// calling lists mutants of the Go client.
var calling = []mutant{
	{"a retry has a key of its own", "client/call.go", `h.Set("Idempotency-Key", r.key)`, `h.Set("Idempotency-Key", NewKey())`, "client TestRetries/answer_lost"},
	{"every conflict is tried again", "client/call.go", "return p.Type == InProgress", "return p.Status == http.StatusConflict", "client TestProblems/sold_out"},
	{"an answer of busy tells of earlier tries", "client/call.go", "case p.Type == Busy, p.Type == Superseded, p.Type == InProgress:\n\t\treturn none", "case p.Type == Busy, p.Type == Superseded, p.Type == InProgress:\n\t\treturn settled", "client TestUnknownOutcome/one_answer_lost,_then_busy"},
	{"any JSON is an order", "client/call.go", "if !into.complete() {", "if false {", "client TestUnknownOutcome/JSON_of_a_proxy"},
	{"an order without a key is tried again", "client/call.go", "!(open && r.twice) && c.wait", "c.wait", "client TestWithoutKeys"},
	{"a request that was not sent may have arrived", "client/call.go", "return answer{}, &lost{err, false}", "return answer{}, &lost{err, true}", "client TestUnknownOutcome/NotSent"},
}
