//go:build mutants

package mutants

// calling lists mutants of the Go client.
var calling = []mutant{
	{"a retry has a key of its own", "client/call.go", `h.Set("Idempotency-Key", r.key)`, `h.Set("Idempotency-Key", NewKey())`, "client TestRetries/answer_lost"},
	{"every conflict is tried again", "client/call.go", "return p.Type == InProgress", "return p.Status == http.StatusConflict", "client TestProblems/sold_out"},
	{"an answer of busy tells of earlier tries", "client/call.go", "case p.Type == Busy, p.Type == Superseded, p.Type == InProgress:\n\t\treturn none", "case p.Type == Busy, p.Type == Superseded, p.Type == InProgress:\n\t\treturn settled", "client TestUnknownOutcome/one_answer_lost,_then_busy"},
	{"a refusal tells of earlier tries that may still arrive", "client/call.go", "case p.Status == http.StatusConflict, p.Type == UnknownSKU:\n\t\treturn none", "case p.Status == http.StatusConflict, p.Type == UnknownSKU:\n\t\treturn settled", "client TestUnknownOutcome_LateRequest"},
	{"any JSON is an order", "client/call.go", "if !into.complete() {", "if false {", "client TestUnknownOutcome/JSON_of_a_proxy"},
	{"an order without a key is tried again", "client/call.go", "!(open && r.twice) && c.wait", "c.wait", "client TestWithoutKeys"},
	{"a request that was not sent may have arrived", "client/call.go", "return answer{}, &lost{err, false}", "return answer{}, &lost{err, true}", "client TestUnknownOutcome/NotSent"},
	{"a limit that is met later tells of earlier tries", "client/call.go", "p.Status == http.StatusRequestTimeout, p.Status == http.StatusTooManyRequests:", "p.Status == http.StatusRequestTimeout:", "client TestUnknownOutcome/one_answer_lost,_then_too_many_requests"},
	{"a refused token tells of earlier tries", "client/call.go", "p.Status == http.StatusUnauthorized, ", "", "client TestUnknownOutcome/one_answer_lost,_then_not_authorized"},
	{"a read has an unknown outcome", "client/call.go", "if !r.changes() {", "if false {", "client TestUnknownOutcome/Read"},
	{"a timeout of a proxy is not tried again", "client/call.go", "http.StatusBadGateway, http.StatusGatewayTimeout:", "http.StatusBadGateway:", "client TestRetries/a_proxy_fails"},
	{"an error names the request twice", "client/call.go", "err = inner.Err", "_ = inner.Err", "client TestUnknownOutcome/every_answer_lost"},
	{"an order that is in progress at every try was refused", "client/call.go", "	case p.Type == InProgress && r.key != \"\":\n		return unknown", "	case false:\n		return unknown", "client TestUnknownOutcome/in_progress_every_time"},
	{"an answer of a proxy tells of earlier tries", "client/call.go", "case p.Type == blank, p.Status", "case p.Status", "client TestUnknownOutcome/one_answer_lost,_then_not_found_by_a_proxy"},
	{"a request with half an answer has not arrived", "client/call.go", "reading the answer: %w\", err), true}", "reading the answer: %w\", err), false}", "client TestUnknownOutcome/every_answer_cut"},
	{"a list ends without its error", "client/orders.go", "				var none T\n				yield(none, err)\n", "", "client TestAnswersOfOthers"},
	{"Ready is asked again", "client/call.go", "if r.once || try >= c.tries", "if try >= c.tries", "client TestAnswersOfOthers"},
	{"a date in Retry-After is ignored", "client/call.go", "return max(0, time.Until(date))", "return max(0, 0*time.Until(date))", "client TestRetryAfter"},
	{"a problem without a type counts as an answer of the service", "client/call.go", " || json.Unmarshal(text, &p) != nil || p.Type == \"\" {", " || json.Unmarshal(text, &p) != nil {", "client TestUnknownOutcome/one_answer_lost,_then_a_problem_without_a_type"},
	{"a transport that reports no connection has sent nothing", "client/call.go", "connected.Load() || !asked.Load()", "connected.Load()", "client TestUnknownOutcome/OtherTransport"},
	{"a payment that must be refunded is an unknown outcome", "client/call.go", "case p.Type == RefundDue:", "case false:", "client TestUnknownOutcome/RefundDue"},
	{"a redirect proves that nothing was changed", "client/call.go", "case p.Status/100 != 4:", "case p.Status/100 == 5:", "client TestUnknownOutcome/a_redirect_of_a_proxy"},
	{"the caller's HTTP client is changed", "client/client.go", "own := *c.http\n\t\town.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }\n\t\tc.http = &own", "c.http.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }", "client TestNewRefuses"},
	{"any JSON is a problem of the service", "client/call.go", "mediaType != \"application/problem+json\" || ", "mediaType == \"?\" || ", "client TestUnknownOutcome/one_answer_lost,_then_an_error_of_a_proxy_in_JSON"},
	{"a date that is past is a time to wait", "client/call.go", "return max(0, time.Until(date))", "return time.Until(date)", "client TestRetryAfter"},
	{"an answer of superseded leaves the outcome open", "client/call.go", "case p.Type == Busy, p.Type == Superseded, p.Type == InProgress:", "case p.Type == Busy, p.Type == InProgress:", "client TestUnknownOutcome/superseded"},
	{"an unknown SKU tells of earlier tries that may still arrive", "client/call.go", "case p.Status == http.StatusConflict, p.Type == UnknownSKU:", "case p.Status == http.StatusConflict:", "client TestUnknownOutcome/one_request_lost,_then_unknown_SKU"},
	{"a base URL may have a fragment", "client/client.go", "u.RawQuery != \"\" || u.ForceQuery || u.Fragment != \"\"", "u.RawQuery != \"\"", "client TestNewRefuses"},
	{"a base URL with a slash at its end names other paths", "client/client.go", "strings.TrimRight(u.String(), \"/\")", "u.String()", "client TestTokens"},
	{"an error does not name its SKU", "client/problem.go", "text += \" SKU \" + strconv.Quote(p.SKU) + \".\"", "_ = p.SKU", "client TestProblems/sold_out"},
}
