//go:build mutants

package mutants

const (
	trust    = "internal/httpapi/trust.go"
	decode   = "internal/httpapi/decode.go"
	envelope = "internal/httpapi/envelope.go"
	routes   = "internal/httpapi/httpapi.go"
	lists    = "internal/httpapi/list.go"
	handlers = "internal/httpapi/handlers.go"
	statuses = "internal/httpapi/status.go"
	counting = "internal/outage/outage.go"
	flags    = "cmd/api/config.go"
	serve    = "cmd/api/serve.go"
)

// face lists mutants of the HTTP API and of the command.
var face = []mutant{
	{"a forwarded call is an administrator's", trust, `case forwardedBy(r.Header) != "":`, "case false:", "internal/httpapi TestAdministration/X-Forwarded-For"},
	{"a call with any Host is an administrator's", trust, "case !isLoopback(r.Host):", "case false:", "internal/httpapi TestAdministration/host_evil.test"},
	{"a call from another machine is an administrator's", trust, "case !isLoopback(r.RemoteAddr):", "case false:", "internal/httpapi TestAdministration/another_machine"},
	{"a name that begins with localhost is loopback", trust, `strings.EqualFold(host, "localhost")`, `strings.HasPrefix(host, "localhost")`, "internal/httpapi TestAdministration/host_localhost.evil.test"},
	{"every token is accepted", trust, "subtle.ConstantTimeCompare(hash[:], a.token[:]) != 1", "false && subtle.ConstantTimeCompare(hash[:], a.token[:]) != 1", "internal/httpapi TestAdministration/a_wrong_token"},
	{"a page of another origin places orders", trust, "a.origins.Check(c.Request) == nil", "a.origins.Check(c.Request) == nil || true", "internal/httpapi TestContract/an_order_from_a_page_of_another_origin"},
	{"every client refunds orders", routes, `"/orders/:id/refund", a.adminOnly,`, `"/orders/:id/refund",`, "internal/httpapi TestContract/refund_without_the_token"},
	{"every client lists payments", routes, `"/payments", a.adminOnly,`, `"/payments",`, "internal/httpapi TestContract/list_payments_without_the_token"},
	{"every client marks payments as refunded", routes, `"/payments/:id/refunded", a.adminOnly,`, `"/payments/:id/refunded",`, "internal/httpapi TestContract/a_payment_was_paid_back,_without_the_token"},
	{"every client lists the orders of all buyers", lists, "if everyBuyer {", "if everyBuyer && false {", "internal/httpapi TestContract/list_everybody's_orders_without_the_token"},
	{"a body is not read after its deadline", decode, "if errors.Is(err, os.ErrDeadlineExceeded) {", "if errors.Is(err, os.ErrDeadlineExceeded) && false {", "internal/httpapi TestLateBody"},
	{"a body that is too late is malformed", decode, "case err != nil && brokenConnection(err):", "case err != nil && brokenConnection(err) && false:", "internal/httpapi TestSlowBody/too_late"},
	{"a truncated body is malformed", decode, "|| errors.Is(err, io.ErrUnexpectedEOF)", "", "internal/httpapi TestSlowBody/cut_off"},
	{"the connection stays open after a late body", decode, `w.Header().Set("Connection", "close")`, "", "internal/httpapi TestLateBody"},
	{"no extra time to answer after a late body", decode, " && conn.SetWriteDeadline(now.Add(lateAnswerTimeout)) == nil", "", "internal/httpapi TestLateBody"},
	{"readyz has the timeout of an order", handlers, "min(readyTimeout, a.RequestTimeout)", "a.RequestTimeout", "internal/httpapi TestReadyAnswersInTime"},
	{"superseded is an internal error", statuses, "{stock.ErrSuperseded, superseded,", "{nil, superseded,", "internal/httpapi TestContract/superseded"},
	{"connections stay open while draining", envelope, "if a.Draining() {", "if false {", "internal/httpapi TestDraining"},
	{"every refused request is logged as an error", envelope, "failure != nil && c.Writer.Status() != http.StatusServiceUnavailable", "failure != nil", "internal/httpapi TestLogLevels/busy"},
	{"every warning is written", counting, "h.tracker.count(h.Handler, r)", "h.tracker.count(h.Handler, r) && false", "internal/outage TestOutage"},
	{"all warnings are of one kind", counting, "t.open[r.Message]; o != nil", `t.open["one"]; o != nil`, "internal/outage TestKinds"},
	{"an outage never ends", counting, "case o.unreported == 0:", "case false:", "internal/outage TestOutage"},
	{"counted warnings are lost at the end", counting, "\t\to.summarize()\n\t\tdelete", "\t\tdelete", "internal/outage TestClose"},
	{"the log counts nothing", serve, "httpapi.LogHandler(counting)", "httpapi.LogHandler(log.Handler())", "cmd/api TestRedisUnavailable"},
	{"slow statements go elsewhere", serve, "stores.sql.LogTo(log)", "", "cmd/api TestFrozenDatabase/PostgreSQL"},
	{"slow statements go nowhere else", "internal/store/sql.go", "s.db.Logger = sqltx.SlowLog(log)", "", "internal/ledger/sqltx TestSlowLog_EveryPath/MariaDB"},
	{"an error contains a URL", flags, `return scheme + ":…"`, "return scheme + s", "cmd/api TestNoURLIsRepeated"},
	{"an error contains a URL of the environment", flags, "cutURL(getenv(name))", "getenv(name)", "cmd/api TestNoURLIsRepeated"},
	{"a short token", flags, "len(s) >= minToken", "len(s) > 0", "cmd/api TestIsToken"},
	{"a token with a space", flags, "r < '!'", "r < ' '", "cmd/api TestIsToken"},
	{"the token is not checked", flags, "f.Changed && !isToken(c.adminToken)", "f.Changed && false", "cmd/api TestParseRefuses"},
	{"SIGTERM does not lower readyz", serve, "ready.Store(false)", "", "cmd/api TestDrainDelay/ItEnds"},
	{"a second signal is ignored", "cmd/api/main.go", "\t\t<-signals\n\t\tos.Exit(1)\n", "", "cmd/api TestDrainDelay/ASecondSignalEndsIt"},
	{"no drain delay", serve, "case <-time.After(delay):", "case <-time.After(0):", "cmd/api TestDrainDelay/ItEnds"},
	{"stopping takes for ever", serve, "case <-time.After(limit):", "case <-time.After(time.Hour):", "cmd/api TestEndWithin"},
}
