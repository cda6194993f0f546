//go:build mutants

package mutants

const (
	trust    = "internal/httpapi/administrator.go"
	bodies   = "internal/httpapi/body.go"
	envelope = "internal/httpapi/middleware.go"
	requests = "internal/httpapi/metrics.go"
	routes   = "internal/httpapi/httpapi.go"
	lists    = "internal/httpapi/list.go"
	handlers = "internal/httpapi/orders.go"
	health   = "internal/httpapi/health.go"
	statuses = "internal/httpapi/status.go"
	counting = "internal/loglimit/loglimit.go"
	flags    = "cmd/api/config.go"
	lines    = "internal/commandline/commandline.go"
	serve    = "cmd/api/serve.go"
	feed     = "internal/console/feed.go"
	rush     = "internal/console/rush/rush.go"
	rushHTTP = "internal/console/rush/http.go"
	rushRun  = "internal/console/rush/run.go"
	callers  = "internal/httpapi/caller.go"
	clients  = "internal/httpapi/clientaddress.go"
	limiting = "internal/httpapi/ratelimit.go"
	tokens   = "internal/buyertoken/buyertoken.go"
	keySets  = "internal/buyertoken/keys.go"
)

// httpAPI lists mutants of the HTTP API and of the command.
var httpAPI = []mutant{
	{"a forwarded call is an administrator's", trust, `case forwardedBy(r.Header) != "":`, "case false:", "internal/httpapi TestAdministration/X-Forwarded-For"},
	{"a call with any Host is an administrator's", trust, "case !isLoopback(r.Host):", "case false:", "internal/httpapi TestAdministration/host_evil.test"},
	{"a call from another machine is an administrator's", trust, "case !isLoopback(r.RemoteAddr):", "case false:", "internal/httpapi TestAdministration/another_machine"},
	{"a name that begins with localhost is loopback", trust, `strings.EqualFold(host, "localhost")`, `strings.HasPrefix(host, "localhost")`, "internal/httpapi TestAdministration/host_localhost.evil.test"},
	{"every token is accepted", trust, "subtle.ConstantTimeCompare(hash[:], a.token[:]) == 1", "(true || subtle.ConstantTimeCompare(hash[:], a.token[:]) == 1)", "internal/httpapi TestAdministration/a_wrong_token"},
	{"a page of another origin places orders", trust, "a.origins.Check(c.Request) == nil", "a.origins.Check(c.Request) == nil || true", "internal/httpapi TestContract/an_order_from_a_page_of_another_origin"},
	{"every client refunds orders", routes, `"/orders/:id/refund", a.adminOnly,`, `"/orders/:id/refund",`, "internal/httpapi TestContract/refund_without_the_token"},
	{"every client lists payments", routes, `"/payments", a.adminOnly,`, `"/payments",`, "internal/httpapi TestContract/list_payments_without_the_token"},
	{"every client marks payments as refunded", routes, `"/payments/:id/refunded", a.adminOnly,`, `"/payments/:id/refunded",`, "internal/httpapi TestContract/a_payment_was_paid_back,_without_the_token"},
	{"every client lists the orders of all buyers", lists, "if everyBuyer {", "if everyBuyer && false {", "internal/httpapi TestContract/list_everybody's_orders_without_the_token"},
	{"a body that is too late is malformed", bodies, "if brokenConnection(err) {", "if brokenConnection(err) && false {", "internal/httpapi TestSlowBody/too_late"},
	{"the connection stays open after a truncated body", bodies, `c.Header("Connection", "close")`, "", "internal/httpapi TestSlowBody/cut_off"},
	{"a truncated body is malformed", bodies, "|| errors.Is(err, io.ErrUnexpectedEOF)", "", "internal/httpapi TestSlowBody/cut_off"},
	{"an unknown field is ignored", bodies, "json.RejectUnknownMembers(true)", "json.RejectUnknownMembers(false)", "internal/httpapi TestContract/cancel_with_an_unknown_field"},
	{"null is an empty object", bodies, "err == nil && jsontext.Value(data).Kind() !=", "false && jsontext.Value(data).Kind() !=", "internal/httpapi TestContract/cancel_with_null"},
	{"a body is not read beyond its first bad field", bodies, "errors.Join(json.Unmarshal(data, new(jsontext.Value), jsontext.AllowDuplicateNames(true)), err)", "err", "internal/httpapi TestContract/malformed_after_bad_fields"},
	{"a body is too large only once it has arrived", bodies, "case r.ContentLength > maxBody:", "case false:", "internal/httpapi TestWire/a_Content-Length_too_large"},
	{"a body may be large", bodies, "r.Body, maxBody)", "r.Body, 1<<30)", "internal/httpapi TestWire/a_chunked_body_too_large"},
	{"two lines of one SKU", bodies, "other.SKU == line.SKU", "false", "internal/httpapi TestContract/the_same_SKU_twice"},
	{"a buyer limit that is null is kept", bodies, "limit.value == nil || *limit.value < 0", "limit.value != nil && (*limit.value < 0)", "internal/httpapi TestContract/stock_of_nulls"},
	{"hours that are left out are cleared", bodies, "if !o.given {", "if false {", "internal/httpapi TestSetStockArguments"},
	{"an answer to a client that is gone is logged as an error", envelope, "failure != nil && c.Writer.Status() == http.StatusInternalServerError", "failure != nil && c.Writer.Status() != http.StatusServiceUnavailable", "internal/httpapi TestLogLevels/an_answer_to_a_client_that_is_gone_is_no_error"},
	{"readyz has the timeout of an order", health, "min(readyTimeout, a.RequestTimeout)", "a.RequestTimeout", "internal/httpapi TestReadyAnswersInTime"},
	{"superseded is an internal error", statuses, "{stock.ErrSuperseded, superseded,", "{nil, superseded,", "internal/httpapi TestContract/superseded"},
	{"connections stay open while draining", envelope, "if a.Draining() {", "if false {", "internal/httpapi TestDraining"},
	{"a client's path is looked up as a route", envelope, "c.FullPath(), status, took", "c.Request.URL.Path, status, took", "internal/httpapi TestRequests/an_ID_in_the_path"},
	{"half an answer counts as an answer", envelope, "status = http.StatusInternalServerError", "", "internal/httpapi TestRequests_OtherStatus"},
	{"a panic keeps the headers of the answer", envelope, "delete(c.Writer.Header(), name)", "_ = name", "internal/httpapi TestPanicTooLate"},
	{"a limited client may try again too early", limiting, "(wait+time.Second-1)/time.Second", "wait/time.Second", "internal/httpapi TestRateLimit"},
	{"the first refusal of a kind is no increase", requests, "a.byStatus[def.status] = m.counter(label, def.status)", "_ = def", "internal/httpapi TestRequests/a_guessed_token"},
	{"a profile is written for a page that is refused", trust, "Nothing was done.\")\n\tc.Abort()\n}\n\n// adminOnly", "Nothing was done.\")\n}\n\n// adminOnly", "internal/httpapi TestOps/profiles_for_a_page_of_another_site"},
	{"an answer lists every bad parameter", lists, " && len(bad) < maxErrors", "", "internal/httpapi TestReadQuery_Bound"},
	{"a text is cut within a letter", bodies, `strings.ToValidUTF8(s[:maxEcho], "")`, "s[:maxEcho]", "internal/httpapi TestContract/stock_of_a_SKU_that_is_cut_in_the_answer"},
	{"the second coding of a body is ignored", bodies, `(len(coding) > 1 || coding[0] != "identity")`, `coding[0] != "identity"`, "internal/httpapi TestContract/two_codings"},
	{"a failed handshake is a warning", "internal/httpapi/server.go", `if bytes.HasPrefix(line, []byte("http: TLS handshake error")) {`, "if false {", "internal/httpapi TestServerLog"},
	{"every refused request is logged as an error", envelope, "failure != nil && c.Writer.Status() == http.StatusInternalServerError", "failure != nil", "internal/httpapi TestLogLevels/busy"},
	{"every warning is written", counting, "h.tracker.count(h.Handler, r)", "h.tracker.count(h.Handler, r) && false", "internal/loglimit TestOutage"},
	{"all warnings are of one kind", counting, "t.open[r.Message]; o != nil", `t.open["one"]; o != nil`, "internal/loglimit TestKinds"},
	{"an outage never ends", counting, "case o.unreported == 0:", "case false:", "internal/loglimit TestOutage"},
	{"an outage is over after the end", counting, "	case t.open[message] != o: // Close has ended the outage already\n", "", "internal/loglimit TestClose"},
	{"a log of warnings says that an outage is over", counting, "o.total == 1 || !o.to.Enabled(ctx, slog.LevelInfo)", "o.total == 1", "internal/loglimit TestLevel"},
	{"counted warnings are lost at the end", counting, "\t\to.summarize()\n\t\tdelete", "\t\t_ = o\n\t\tdelete", "internal/loglimit TestClose"},
	{"everybody sees the console", routes, `consolePath+"stream", a.adminOnly,`, `consolePath+"stream",`, "internal/httpapi TestConsole/the_stream_without_the_token"},
	{"everybody starts a rush", routes, `e.POST(consolePath+"rush", a.adminOnly,`, `e.POST(consolePath+"rush",`, "internal/httpapi TestConsole/starting_a_rush_without_the_token"},
	{"any number of consoles", feed, "len(f.streams) >= maxStreams", "false", "internal/console TestStreamsAreBounded"},
	{"the console samples for nobody", feed, "f.watched() && ctx.Err() == nil", "ctx.Err() == nil", "internal/console TestSamplerSleeps"},
	{"a stream ends with the server's timeout", "internal/console/stream.go", "_ = s.conn.SetWriteDeadline(time.Now().Add(flushTimeout))", "", "internal/console TestStream"},
	{"a stream that ends late is cut off", "internal/console/stream.go", "defer s.limitEnd()", "", "internal/console TestEndOfStream"},
	{"the log counts nothing", serve, "httpapi.LogHandler(counting)", "httpapi.LogHandler(log.Handler())", "cmd/api TestRedisUnavailable"},
	{"slow statements go elsewhere", "internal/assembly/stores.go", "s.SQL.LogTo(log)", "", "cmd/api TestDatabaseFails"},
	{"slow statements go nowhere else", "internal/store/sql.go", "s.db.Logger = sqltx.SlowLog(log)", "", "internal/ledger/sqltx TestSlowLog_EveryPath/MariaDB"},
	{"an error contains a URL", lines, `return before + ":…"`, "return before + s", "cmd/api TestNoURLIsRepeated"},
	{"an error of the library contains a URL", lines, "CutURL(err.Error())", "err.Error()", "internal/commandline TestErrors"},
	{"a short token", flags, "len(s) >= minLength", "len(s) > 0", "cmd/api TestIsSecret"},
	{"a token with a space", flags, "r < '!'", "r < ' '", "cmd/api TestIsSecret"},
	{"the token is not checked", flags, "commandline.IsSet(line, \"admin-token\") && !isSecret(c.AdminToken, minToken)", "false", "cmd/api TestParseRefuses"},
	{"SIGTERM does not lower readyz", serve, "ready.Store(false)", "", "cmd/api TestDrainDelay/ASecondSignalEndsIt"},
	{"a second signal is ignored", "cmd/api/main.go", "\t\t<-signals\n\t\tos.Exit(exitCode(errSecondSignal, os.Stderr))\n", "", "cmd/api TestDrainDelay/ASecondSignalEndsIt"},
	{"no drain delay", serve, "case <-time.After(delay):", "case <-time.After(0):", "cmd/api TestDrain_RequestOnItsWay"},
	{"everybody orders in a rush", rushHTTP, "|| !last.knows(q.Header)", "", "internal/console/rush TestStrangers"},
	{"the clients of a rush accept any certificate", "internal/certificate/certificate.go", "if !s.PeerCertificates[0].Equal(p.Leaf()) {", "if false {", "internal/certificate TestClientConfig"},
	{"two rushes at once", rush, "case r.last != nil && !r.last.over():", "case false:", "internal/console/rush TestOneAtATime"},
	{"a rush closes its stores under an order", rushRun, "\tr.serving.Wait()\n", "", "internal/console/rush TestCloseDoor"},
	{"a rush reports what it believes", rushRun, "r.p.Sold = sold", "r.p.Sold = min(sold, r.p.Units)", "internal/console/rush TestStrategies/none"},
	{"the doctor ignores problems", "internal/doctor/doctor.go", "n := count[store.Problem]; n > 0", "n := count[store.Problem]; n > 99", "cmd/api TestDoctor_Flags"},
	{"the doctor relies on a guard that is off", "internal/doctor/doctor.go", "case !o.Strategy.Sound && !guarded:", "case !o.Strategy.Sound && !o.Strategy.HasGate():", "cmd/api TestDoctor_Flags"},
	{"the doctor finds that no ledger is needed", "internal/doctor/stores.go", "case errors.Is(err, fs.ErrNotExist) && e.o.Migrate:", "case errors.Is(err, fs.ErrNotExist):", "cmd/api TestDoctor_ChangesNothing"},
	{"an instance without the keys of tokens is ready", "cmd/api/listeners.go", "	return l.keys.Ready()\n", "	_ = l.keys\n	return nil\n", "cmd/api TestKeysNotRead"},
	{"an address in use comes without advice", "cmd/api/listeners.go", "case errors.Is(err, syscall.EADDRINUSE):", "case false && errors.Is(err, syscall.EADDRINUSE):", "cmd/api TestAddressInUse"},
	{"tokens for other services are accepted without a warning", "cmd/api/listeners.go", "if a.JWTAudience == \"\" {", "if a.JWTAudience == \"-\" {", "cmd/api TestKeysNotRead"},
	{"requests that were cut off are not logged", serve, "\t\tlog.Warn(\"some requests were cut off\", \"seconds\", answerTimeout.Seconds(), \"error\", err)\n", "", "cmd/api TestFinishRequests_InTime"},
	{"stopping takes forever", serve, "case <-time.After(limit):", "case <-time.After(time.Hour):", "cmd/api TestEndWithin"},
	{"every buyer may act for every other", callers, `own == "" || own == buyer`, `own == "" || own != ""`, "internal/httpapi TestBuyers/place_as_u-2"},
	{"a buyer reads another's order", handlers, "if err == nil && !a.mayActFor(c, o.Buyer) {", "if false {", "internal/httpapi TestBuyers/show_as_u-2"},
	{"a buyer cancels another's order", "internal/httpapi/lifecycle.go", "a.Orders.Cancel(ctx, id, a.caller(c).buyer)", `a.Orders.Cancel(ctx, id, "")`, "internal/httpapi TestBuyers/cancel_as_u-2"},
	{"a buyer lists another's orders", lists, "if !a.mayActFor(c, f.Buyer) {", "if false {", "internal/httpapi TestBuyers/list_one_buyer's_as_u-2"},
	{"a buyer reports payments", callers, "if a.Tokens != nil {\n\t\ta.adminOnly(c)\n\t}", "a.buyerOnly(c)", "internal/httpapi TestBuyers/pay_as_u-1"},
	{"buyers need no tokens", routes, "buyers.Use(a.buyerOnly)", "_ = a.buyerOnly", "internal/httpapi TestBuyers/cancel_as_nobody"},
	{"a request without a token is let in", callers, "\tcase who.err == nil:", "\tcase who.err == nil, errors.Is(who.err, errNoToken):", "internal/httpapi TestBuyers/place_as_nobody"},
	{"dates beyond int64 are accepted", tokens, "case !dates.inRange():", "case !dates.inRange() && false:", "internal/buyertoken TestSecret"},
	{"dates whose sums overflow are accepted", tokens, "const maxDate = math.MaxInt64 / 2", "const maxDate = math.MaxInt64", "internal/buyertoken TestSecret"},
	{"requests on their way are reset at the end", "cmd/api/serve.go", "_ = retry.Sleep(ctx, lastRequests)", "_ = retry.Sleep(ctx, 0)", "cmd/api TestDrain_RequestOnItsWay"},
	{"a process that cuts requests off ends with status 0", "cmd/api/serve.go", "return errors.Join(errCutOff, ", "return errors.Join(", "cmd/api TestFinishRequests_InTime"},
	{"a stopping instance accepts connections", "cmd/api/serve.go", "_ = listener.Close() // open connections stay\n\tlog.Debug(\"accepting no more connections\", \"reason\", <-served)\n", "", "cmd/api TestDrain_RequestOnItsWay"},
	{"any algorithm of a secret is accepted", tokens, "{jose.HS256}", "{jose.HS256, jose.HS384, jose.HS512}", "internal/buyertoken TestSecret"},
	{"a key verifies any algorithm", tokens, `key.Algorithm != "" && key.Algorithm != algorithm`, "false", "internal/buyertoken TestPublicKeys/another_algorithm_than_the_key's"},
	{"a token lasts forever", tokens, "case claims.Expiry == nil:", "case false:", "internal/buyertoken TestSecret/no_exp"},
	{"any audience is accepted", tokens, `if v.rules.Audience != "" {`, "if false {", "internal/buyertoken TestSecret/another_audience"},
	{"a broken set replaces the keys", keySets, "if len(keys) == 0 {", "if false {", "internal/buyertoken TestRefusedSets"},
	{"unknown keys cause readings without a pause", keySets, "due := time.Since(k.ended) >= minPause", "due := true", "internal/buyertoken TestKeysOverTime"},
	{"the log has the query of the issuer's URL", keySets, "err = inner.Err //", "_ = inner //", "internal/buyertoken TestFetch"},
	{"a redirect is followed", keySets, "return http.ErrUseLastResponse", "return nil", "internal/buyertoken TestFetch"},
	{"any client names its address", clients, "i >= 0 && within(trusted, client)", "i >= 0", "internal/httpapi TestClientAddress"},
	{"a forwarded address with a port is none", clients, "withPort, err = netip.ParseAddrPort(text)", "_, _ = netip.ParseAddrPort(text)", "internal/httpapi TestClientAddress"},
	{"a forwarded IPv6 address in brackets is none", clients, `netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(text, "["), "]"))`, "netip.ParseAddr(text)", "internal/httpapi TestClientAddress"},
	{"nobody learns that clients share a limit", clients, "unusable = strings.TrimSpace(hops[i])", "", "internal/httpapi TestUnusableForward"},
	{"the first forwarded address is trusted", clients, "i := len(hops) - 1; i >= 0 && within(trusted, client); i--", "i := 0; i < 1 && within(trusted, client); i++", "internal/httpapi TestClientAddress"},
	{"wrong tokens are not limited", limiting, "if from.buyer == \"\" {\n", "if from.buyer == \"\" {\n\t\tif a.caller(c).err != nil {\n\t\t\treturn\n\t\t}\n", "internal/httpapi TestRateLimit"},
	{"every client is remembered", "internal/ratelimit/ratelimit.go", "NewLRU[K, *rate.Limiter](size, nil)", "NewLRU[K, *rate.Limiter](1<<30, nil)", "internal/ratelimit TestForgets"},
	{"a broken certificate replaces the good one", "internal/certificate/certificate.go", "pair, err := tls.X509KeyPair(cert, key)\n", "pair, err := tls.X509KeyPair(cert, key)\n\tp.current.Store(&pair)\n", "internal/certificate TestWatch"},
	{"half a certificate's file is used", "internal/certificate/certificate.go", "if isCut(cert) {", "if false {", "internal/certificate TestWatch"},
	{"the issuer of tokens is an administrator", "cmd/api/serverflags.go", "case a.JWTSecret == a.AdminToken:", "case false:", "cmd/api TestParseRefuses"},
	{"the doctor takes any program for an instance", "internal/doctor/listen.go", "return a.instance(response.StatusCode, answer)", "_ = answer\n\treturn \"\", true", "cmd/api TestDoctor_Listen"},
	{"the doctor takes a redirect for an instance", "internal/doctor/listen.go", "return http.ErrUseLastResponse", "return nil", "cmd/api TestDoctor_Listen"},
	{"the doctor takes an instance of other stores for its own", "internal/doctor/listen.go", "case serves && foreign:", "case foreign && false:", "cmd/api TestDoctor_Listen"},
	{"orders are queued on a cluster over TLS", flags, "store.OnCluster(c.Redis)", "strings.HasPrefix(c.Redis, \"redis+cluster:\")", "cmd/api TestParseRefuses"},
	{"an unusable URL is another flag's mistake", flags, "return cmp.Or(c.serverFlags.check(), c.checkDatabase(), ", "return cmp.Or(c.serverFlags.check(), ", "cmd/api TestParseRefuses"},
	{"a variable's mistake is a flag's", lines, "UsageError{blame(line, variables, err)}", "UsageError{err}", "cmd/api TestParseRefuses"},
	{"a misspelt variable is ignored", lines, "err = checkVariables(parser.Model.Flags, variables); err == nil", "err == nil", "internal/commandline TestUnknownVariable"},
	{"a flag without a value is empty", lines, "if word.IsEOL() {", "if false {", "internal/commandline TestErrors"},
	{"a command is the value of a switch", lines, "&& !isCommand &&", "&& (!isCommand || true) &&", "internal/commandline TestSwitches"},
	{"a variable of another program is refused", "internal/commandline/variables.go", "return slices.Contains(variables, name) ||", "return false ||", "internal/commandline TestUnknownVariable"},
	{"the banner is in the log of a container", serve, "if isTerminal(stdout) {", "if true {", "cmd/api TestEmbedded"},
	{"everybody reads profiles", "internal/httpapi/ops.go", `"/debug/pprof/*name", a.adminOnly,`, `"/debug/pprof/*name",`, "internal/httpapi TestOps/profiles_without_the_token"},
	{"any page makes the service write profiles", "internal/httpapi/ops.go", "a.ownPages, ", "", "internal/httpapi TestOps/profiles_for_a_page_of_another_site"},
	{"a profile lasts as long as it is asked to", "internal/httpapi/ops.go", "seconds > maxProfile {", "seconds > maxProfile && false {", "internal/httpapi TestOps/an_endless_trace"},
	{"the public reads metrics", routes, "if !a.SeparateOps {", "if true {", "internal/httpapi TestOps/metrics_of_the_API_beside_a_listener_for_operators"},
	{"a stop waits for requests forever", serve, "context.WithTimeout(context.Background(), answerTimeout)", "context.WithCancel(context.Background())", "cmd/api TestFinishRequests_InTime"},
	{"requests go on after the stop", serve, "return errors.Join(errCutOff, server.Close())", "return errCutOff", "cmd/api TestFinishRequests_InTime"},
	{"serve leaves its stores open", serve, "err = errors.Join(err, instance.Close())", "err = errors.Join(err)", "cmd/api TestStoresAreClosed"},
	{"drain leaves its stores open", "cmd/api/drain.go", "err = errors.Join(err, instance.Close())", "err = errors.Join(err)", "cmd/api TestStoresAreClosed"},
	{"a server that fails before the drain delay has passed is waited for", serve, "case err := <-served:\n\t\t\treturn err\n\t\tcase <-time.After(delay):", "case <-time.After(delay):", "cmd/api TestFinishRequests_ServerFails"},
	{"the operators' listener closes first", serve, "defer listeners.serveOps(settings, c.serverFlags, served)()", "context.AfterFunc(ctx, listeners.serveOps(settings, c.serverFlags, served))", "cmd/api TestOpsListener"},
	{"profiles are open on every operators' address", "cmd/api/listeners.go", "if c.Loopback = onLoopback(a.OpsListen); c.Loopback {", "if c.Loopback = true; c.Loopback {", "cmd/api TestBuyersByToken"},
}
