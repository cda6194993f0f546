// Package gateway holds the tests of the gateway: a real nginx in front of two
// real instances on real stores.
package gateway

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/stock/gate"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// soldOut checks that the gateway refuses an order for a sold-out SKU without an instance, and with
// the same answer as an instance.
func soldOut(s *shop) {
	s.sell("gone", 2)
	alone := s.call("POST", s.instances[1].URL()+"/orders", order(1, "gone"))
	if alone.status != http.StatusConflict {
		s.t.Fatalf("an instance answers %v", alone)
	}
	before := s.placed()
	for n := range 30 {
		if n == 15 { // the gateway reads the count again
			s.expireCache()
		}
		a := s.place(order(1, "gone"), "X-Request-Id", "mine")
		if got := a.header.Get("X-Request-Id"); got != "mine" {
			s.t.Fatalf("the request ID is %q", got)
		}
		s.same("an order", a, alone)
	}
	if after := s.placed(); after != before {
		s.t.Fatalf("%v orders reached an instance", after-before)
	}
	// A request without an ID gets a new one.
	if id := s.place(order(1, "gone")).header.Get("X-Request-Id"); len(id) != 32 {
		s.t.Fatalf("the request ID is %q", id)
	}
}

// lastUnits checks that an order for exactly the remaining units is accepted, and that
// an order for one more is refused.
func lastUnits(s *shop) {
	s.setStock("few", 3)
	s.expect(409, false, order(4, "few"))
	s.expect(201, true, order(3, "few"))
}

// inFlight returns a scenario for a SKU with one unit. Orders must reach an instance while the unit
// is in flight, and the unit must sell when it has been returned. counted names the SKU's count at
// the gate: the SKU, or one of its segments.
func inFlight(sku string, counted stock.SKU) func(*shop) {
	return func(s *shop) {
		ctx := context.Background()
		counter := gate.NewCounter(s.redis, s.ledger, gate.Layout{})
		own := gate.NewScript(counter)
		s.setStock(sku, 1)
		s.rest(sku)
		counter.Use(stock.Generation(s.generation()))
		take, err := own.Take(ctx, stock.Deduction{
			OrderID: uuid.New(), TakeID: uuid.New(), Buyer: "u-2",
			Lines: []stock.Line{{SKU: counted, Quantity: 1}},
		})
		check(s.t, err)
		s.expect(409, true, order(1, sku))
		check(s.t, counter.Give(ctx, take))
		s.expect(201, true, order(1, sku))
	}
}

// restocked checks that added units sell as soon as the cache entry of the sold-out
// SKU has expired.
func restocked(s *shop) {
	s.sell("again", 1)
	s.expect(409, false, order(1, "again"))
	s.setStock("again", 2)
	s.awaitAnswer(201, true, order(1, "again"))
}

// keyed checks that the gateway refuses an order with a key only after an instance has refused it,
// and only for as long as no instance can have accepted it. The instances also accept orders that
// the gateway does not see.
func keyed(s *shop) {
	key := func(key string) []string { return []string{"Idempotency-Key", key} }
	replayed := func(name string, first answer) {
		s.t.Helper()
		again := s.place(order(1, "keyed"), key(name)...)
		if again.status != 201 || again.body != first.body || again.header.Get("Idempotent-Replayed") != "true" {
			s.t.Fatalf("%v was replayed as %v", first, again)
		}
	}
	s.setStock("keyed", 1)
	first := s.place(order(1, "keyed"), key("k")...)
	s.rest("keyed")
	s.expect(409, false, order(1, "keyed"))
	s.expect(409, true, order(1, "keyed"), key("other")...)
	s.expect(409, false, order(1, "keyed"), key("other")...)
	s.expect(409, true, order(2, "keyed"), key("other")...)
	s.expect(409, true, order(1, "keyed"), key("third")...)
	replayed("k", first)
	replayed("k", first)
	s.expect(400, true, order(1, "keyed"), key("")...)
	s.expect(400, true, order(1, "keyed"), key("with space")...)
	// The gateway's answer is the same as an instance's.
	alone := s.call("POST", s.instances[0].URL()+"/orders", order(1, "keyed"), key("other")...)
	a := s.place(order(1, "keyed"), key("other")...)
	if a.passed() {
		s.t.Fatalf("it reached an instance")
	}
	s.same("a keyed order", a, alone)
	// A unit is added and sold to the same key at an instance. The gateway still
	// has the SKU cached as sold out.
	s.expect(409, false, order(1, "keyed"))
	s.setStock("keyed", 2)
	testenv.AwaitSuccess(s.t, "the gate has the addition", func() (err error) {
		first, err = call("POST", s.instances[1].URL()+"/orders", order(1, "keyed"), key("other")...)
		if err == nil && first.status != 201 {
			err = fmt.Errorf("an instance answers %v", first)
		}
		return err
	})
	replayed("other", first)
	s.rest("keyed")
	s.expect(409, false, order(1, "keyed"))
	replayed("other", first)
	s.expect(409, true, order(1, "keyed"), key("third")...)
	s.expect(409, false, order(1, "keyed"), key("third")...)
}

// Strategies of stubs, as instances describe them.
const (
	lua        = `{"name":"lua","gate":"script","sound":true}`
	unsound    = `{"name":"none","gate":"readwrite","sound":false}`
	withNoGate = `{"name":"conditional","gate":null,"sound":true}`
)

// stub starts a server that answers every order with 409 and the given problem, and says that
// it runs the strategy. The detail is the value of X-Forwarded-For. stub returns the
// configuration that makes nginx use it instead of the shop's instances.
func stub(t *testing.T, problem, strategy string) map[string]string {
	var named struct{ Name string }
	if err := json.Unmarshal([]byte(strategy), &named); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/strategies" {
			fmt.Fprintf(w, `{"running":%q,"strategies":[%s]}`, named.Name, strategy)
			return
		}
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusConflict)
		fmt.Fprintf(w, `{"type":"/problems/%s","title":"","status":409,"detail":%q}`, problem, r.Header.Get("X-Forwarded-For"))
	}))
	t.Cleanup(server.Close)
	return map[string]string{"instances.conf": "server " + server.Listener.Addr().String() + ";\n"}
}

// inProgress checks that a 409 with another problem is not mistaken for sold out.
func inProgress(s *shop) {
	s.count("twin", 0, 1, 0)
	for range 3 {
		if a := s.place(order(1, "twin"), "Idempotency-Key", "k"); !strings.Contains(a.body, "in-progress") {
			s.t.Fatalf("answered %v", a)
		}
	}
}

// forwarded checks that instances get X-Forwarded-For. Without a token they trust
// only administrators on the same machine.
func forwarded(s *shop) {
	for sent, want := range map[string]string{"": "127.0.0.1", "192.0.2.7": "192.0.2.7, 127.0.0.1"} {
		headers := []string{"X-Forwarded-For", sent}
		if sent == "" {
			headers = nil
		}
		if a := s.place(order(1, "any"), headers...); !strings.Contains(a.body, fmt.Sprintf(`"detail":%q`, want)) {
			s.t.Fatalf("%v, want %s", a, want)
		}
	}
}

// unsoundKeyed checks that a keyed order always reaches an instance under a strategy
// that loses updates, because its counts are not reliable.
func unsoundKeyed(s *shop) {
	s.count("lossy", 0, 1, 0)
	s.expect(409, false, order(1, "lossy"))
	s.expect(409, true, order(1, "lossy"), "Idempotency-Key", "k")
	s.expect(409, true, order(1, "lossy"), "Idempotency-Key", "k")
}

// contentTypes checks that the media type may have a charset and be in any case.
func contentTypes(s *shop) {
	s.sell("typed", 1)
	for _, value := range []string{
		"application/json", "application/json; charset=utf-8", "application/json;charset=UTF-8", "Application/JSON; Charset=\"utf-8\"",
		"application/json ;\tcharset=utf-8 ",
	} {
		s.expect(409, false, order(1, "typed"), "Content-Type", value)
	}
	for _, value := range []string{"application/json; charset=latin-1", "application/jsonx", "application/json charset=utf-8", "text/plain; charset=utf-8"} {
		s.asAlone(order(1, "typed"), "Content-Type", value)
	}
}

// asAlone sends an order to an instance and then to the gateway, which must give the
// instance's answer. It returns both answers.
func (s *shop) asAlone(body string, headers ...string) (a, alone answer) {
	s.t.Helper()
	alone = s.call("POST", s.instances[0].URL()+"/orders", body, headers...)
	a = s.place(body, headers...)
	s.same(fmt.Sprintf("%q %v", body, headers), a, alone)
	return a, alone
}

// severalLines checks orders with several lines. One sold-out line is enough to refuse an order.
// The answer must name the same SKU as an instance would, and an order with an unknown SKU must
// reach an instance.
func severalLines(s *shop) {
	compare := func(lines ...any) {
		s.t.Helper()
		if a, _ := s.asAlone(order(lines...)); a.passed() {
			s.t.Fatalf("%v reached an instance", lines)
		}
	}
	s.sell("x", 1)
	s.sell("x-1", 1)
	s.sell("x.1", 1)
	s.setStock("y", 5)
	compare(1, "x", 1, "y")
	compare(1, "y", 1, "x")
	compare(1, "y", 6, "x", 1, "x-1", 2, "x.1")
	compare(1, "x.1", 6, "y", 1, "x-1")
	s.expect(404, true, order(1, "nowhere", 1, "x"))
	s.expect(201, true, order(5, "y"))
}

// malformed checks that malformed and invalid orders are answered by an instance.
func malformed(s *shop) {
	bodies := []string{
		``, ` `, `{`, `{}`, `[]`, `null`, `1`, `"x"`, "\xff",
		order(1, "out") + `x`, order(1, "out") + order(1, "out"),
		order(0, "out"), order(-1, "out"), order(1001, "out"), order(1, ""), order(1, strings.Repeat("x", 65)), order(1, "out", 1, "out"), order(),
		`{"buyer_id":"u","lines":[{"sku":"out","quantity":1.0}]}`,
		`{"buyer_id":"u","lines":[{"sku":"out","quantity":1e1}]}`,
		`{"buyer_id":"u","lines":[{"sku":"out","quantity":01}]}`,
		`{"buyer_id":"u","lines":[{"sku":"out","quantity":"1"}]}`,
		`{"buyer_id":"u","lines":[{"sku":"out","quantity":99999999999999999999999}]}`,
		`{"buyer_id":"u","lines":[{"sku":"out","quantity":1,"quantity":1}]}`,
		`{"buyer_id":"u","lines":[{"sku":"out"}]}`,
		`{"buyer_id":"u","lines":[{"quantity":1}]}`,
		`{"buyer_id":"u","lines":[{"sku":"out","quantity":1,"colour":"red"}]}`,
		`{"buyer_id":"u","lines":[{"sku":"out","quantity":1},]}`,
		`{"buyer_id":"u","lines":[,{"sku":"out","quantity":1}]}`,
		`{"buyer_id":"u","lines":[{"sku":"out","quantity":1}],}`,
		`{"buyer_id":"u","lines":{"sku":"out","quantity":1}}`,
		`{"buyer_id":"u","lines":null}`,
		`{"buyer_id":1,"lines":[{"sku":"out","quantity":1}]}`,
		`{"buyer_id":"","lines":[{"sku":"out","quantity":1}]}`,
		`{"buyer_id":"-u","lines":[{"sku":"out","quantity":1}]}`,
		`{"lines":[{"sku":"out","quantity":1}]}`,
		`{"buyer_id":"u","buyer_id":"u","lines":[{"sku":"out","quantity":1}]}`,
		`{"buyer_id":"u","lines":[{"sku":"out","quantity":1}],"note":""}`,
		"{\"buyer_id\":\"u\",\v\"lines\":[{\"sku\":\"out\",\"quantity\":1}]}",
		"{\"buyer_id\":\"u\",\"lines\":[{\"sku\":\"out\x00\",\"quantity\":1}]}",
		`{"buyer_id":"u","lines":[` + strings.Repeat(`{"sku":"out","quantity":1},`, 20) + `{"sku":"out","quantity":1}]}`,
		strings.Repeat(" ", 70_000) + order(1, "out"),
		strings.Repeat(" ", 2_000_000) + order(1, "out"),
	}
	compare := func(body string, headers ...string) {
		s.t.Helper()
		if _, alone := s.asAlone(body, headers...); alone.status == http.StatusConflict || alone.status >= 500 {
			s.t.Fatalf("an instance accepts %.100q as an order: %v", body, alone)
		}
	}
	s.sell("out", 1)
	for _, body := range bodies {
		compare(body)
	}
	for _, headers := range [][]string{
		{"Content-Type", "text/plain"}, {"Content-Type", ""}, {"Content-Encoding", "gzip"},
		{"Content-Type", "application/json; charset=latin-1"}, {"Idempotency-Key", "with space"},
	} {
		compare(order(1, "out"), headers...)
	}
	// Unusual but valid: an instance refuses it.
	s.expect(409, true, `{"buyer_id":"u","lines":[{"sku":"\u006fut","quantity":1}]}`)
	s.expect(409, true, strings.Repeat(" ", 10_000)+order(1, "out"))
	// White space and the order of members do not matter.
	s.expect(409, false, " {\r\n\"lines\" : [ { \"quantity\" :\t1 , \"sku\":\"out\" } ] , \"buyer_id\":\"u\" } ")
}

// segmented checks that a SKU in segments is sold out only if all segments are.
func segmented(s *shop) {
	s.setStock("parts", 6) // segments of 2, 2, 1, 1
	s.expect(409, false, order(7, "parts"))
	s.expect(201, true, order(2, "parts"))
	s.expect(201, true, order(3, "parts")) // from several segments
	s.rest("parts")
	s.expect(409, false, order(2, "parts"))
	s.expect(201, true, order(1, "parts"))
	s.rest("parts")
	s.expect(409, false, order(1, "parts"))
}

// invalidHTTP checks that a request that is not valid HTTP is answered with a problem
// document.
func invalidHTTP(s *shop) {
	for _, request := range []string{
		"GARBAGE\r\n\r\n", "GET / HTTP/1.1\r\n\r\n", "GET / HTTP/3.1\r\nHost: x\r\n\r\n",
		"GET /" + strings.Repeat("x", 10_000) + " HTTP/1.1\r\nHost: x\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: x\r\nX-Long: " + strings.Repeat("x", 10_000) + "\r\n\r\n",
		"POST /orders HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n\r\n",
		"POST /orders HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n",
		"GET /stock HTTP/1.1\r\nHost: a\"b\r\n\r\n", "GET /stock HTTP/1.1\r\nHost: \xc3\xa4\r\n\r\n",
		"GET /stock HTTP/1.1\r\nHost: x\r\nX-Control: \x01\r\n\r\n",
		"GET /st\x01ock HTTP/1.1\r\nHost: x\r\n\r\n",
		"GET /stock/%zz HTTP/1.1\r\nHost: x\r\n\r\n", "GET /stock/\x7f HTTP/1.1\r\nHost: x\r\n\r\n",
	} {
		a := s.raw(request)
		if a.status != 400 || strings.TrimSuffix(a.header.Get("Content-Type"), "; charset=utf-8") != "application/problem+json" ||
			!strings.HasPrefix(a.body, `{"type":"/problems/malformed"`) {
			s.t.Fatalf("%.40q: %v %v", request, a, a.header)
		}
	}
}

// raw sends bytes and returns the answer.
func (s *shop) raw(request string) answer {
	s.t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	check(s.t, err)
	defer conn.Close()
	check(s.t, conn.SetDeadline(time.Now().Add(testenv.Patience)))
	_, err = io.WriteString(conn, request)
	check(s.t, err)
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	check(s.t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	check(s.t, err)
	return answer{response.StatusCode, response.Header, string(body)}
}

// withoutHost checks that a request of HTTP/1.0, which needs no Host, reaches an instance.
func withoutHost(s *shop) {
	s.setStock("old", 1)
	body := order(1, "old")
	for request, status := range map[string]int{
		fmt.Sprintf("POST /orders HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body): 201,
		"GET /stock HTTP/1.0\r\n\r\n": 200,
	} {
		if a := s.raw(request); a.status != status || a.header.Get("Content-Type") != "application/json" {
			s.t.Fatalf("%.40q: %v", request, a)
		}
	}
}

// passes checks that an order for an unknown SKU reaches an instance, whatever its
// answer.
func (s *shop) passes(sku string) {
	s.t.Helper()
	if a := s.place(order(1, sku)); !a.passed() {
		s.t.Fatalf("refused: %v", a)
	}
}

// refilling checks that orders reach an instance while the segments of a SKU are
// being filled: some are missing, or their epochs differ.
func refilling(s *shop) {
	set := func(segment, n int) { s.count(fmt.Sprintf("new/%d", segment), 0, n, 0) }
	s.passes("new")
	set(0, 7)
	set(1, 7)
	set(2, 7)
	s.passes("new")
	set(3, 6)
	s.passes("new")
	set(3, 7)
	s.expect(409, false, order(1, "new"))
	s.expireCache()
	s.seed()
	set(3, 8)
	s.passes("new")
}

// generations checks that a count is used only if it has the current generation, the
// generation key is valid, and its BEAT changes.
func generations(s *shop) {
	current := func(text string) {
		s.expireCache()
		s.setGeneration(text)
	}
	refused := func() {
		s.t.Helper()
		s.expect(409, false, order(1, "heir"))
	}
	s.count("heir", 1, 0, 0)
	s.passes("heir")
	s.count("heir", 0, 1<<28-1, 0)
	current("3 0")
	refused()
	for _, other := range []string{"4 0", "3", "3 4", "3 1000000000"} { // the SKU has no segments
		current(other)
		s.passes("heir")
	}
	current("3 0")
	refused()
	testenv.Await(s.t, "the beat has not changed for too long", func() bool { return s.place(order(1, "heir")).passed() })
	current("3 0")
	refused()
	check(s.t, s.redis.Del(context.Background(), s.generationKey()).Err())
	s.expireCache()
	s.passes("heir")
}

// otherLedger checks that a gateway with the ID of another ledger logs a warning, but not
// with every order.
func otherLedger(s *shop) {
	began := time.Now()
	passesAll(s)
	const warning = "it has no valid key holdfast:{"
	testenv.Await(s.t, "the gateway warns", func() bool { return strings.Contains(s.gateway.Output(), warning) })
	before := s.placed()
	for range 20 {
		s.expect(409, true, order(1, "unseen"))
	}
	if after := s.placed(); after != before+20 {
		s.t.Fatalf("%v of 20 orders reached an instance", after-before)
	}
	if n, most := strings.Count(s.gateway.Output(), warning), 2+int(time.Since(began)/(10*time.Second)); n > most {
		s.t.Fatalf("%d warnings", n)
	}
}

// metrics checks that orders are counted by result and reason, and that only this
// machine can read the counters.
func metrics(s *shop) {
	const refused, passed = `holdfast_gateway_orders_total{result="refused",reason=%q}`, `holdfast_gateway_orders_total{result="passed",reason=%q}`
	repeat := func(n int, body string, headers ...string) {
		for range n {
			s.place(body, headers...)
		}
	}
	s.sell("counted", 1)
	s.setStock("plenty", 9)
	repeat(3, order(1, "counted"))
	repeat(5, order(1, "counted"), "Idempotency-Key", "counted")
	repeat(2, order(1, "plenty"))
	repeat(1, "{")
	repeat(1, order(1, "nowhere"))
	repeat(2, order(1, "counted"), "Content-Type", "text/plain")
	s.call("PUT", s.url+"/stock/counted", "{}")
	got := s.series()
	for name, want := range map[string]int{
		fmt.Sprintf(refused, "sold-out"): 3, fmt.Sprintf(refused, "repeated"): 4,
		fmt.Sprintf(passed, "key"): 1, fmt.Sprintf(passed, "available"): 2, fmt.Sprintf(passed, "unusual"): 3,
		fmt.Sprintf(passed, "no-count"): 1, fmt.Sprintf(passed, "no-generation"): 0, fmt.Sprintf(passed, "no-gate"): 0,
		fmt.Sprintf(passed, "redis"): 0, fmt.Sprintf(passed, "no-ledger"): 0,
		`holdfast_gateway_problems_total{type="method-not-allowed"}`: 1,
	} {
		if n, ok := got[name]; !ok || n != want {
			s.t.Fatalf("%s is %d (%v), want %d", name, n, ok, want)
		}
	}
	s.problem(404, "not-found", "GET", "/gateway/metrics", "", "X-Forwarded-For", "192.0.2.1")
	s.problem(404, "not-found", "GET", "/gateway/metrics", "", "Forwarded", "for=192.0.2.1")
}

// problem sends a request and checks that the gateway itself answers with this
// problem. It returns the answer.
func (s *shop) problem(status int, name, method, path, body string, headers ...string) answer {
	s.t.Helper()
	a := s.call(method, s.url+path, body, append([]string{"X-Request-Id", "mine"}, headers...)...)
	if a.status != status || !strings.HasPrefix(a.body, fmt.Sprintf(`{"type":"/problems/%s","title":`, name)) ||
		!strings.Contains(a.body, fmt.Sprintf(`"status":%d,`, status)) ||
		a.header.Get("Content-Type") != "application/problem+json" || a.header.Get("X-Request-Id") != "mine" ||
		a.header.Get("Proxy-Status") != "holdfast-gateway" {
		s.t.Fatalf("%s %s: %v %v; want %d %s from the gateway", method, path, a, a.header, status, name)
	}
	return a
}

// routes checks which routes and methods are public, and that calls to others change nothing.
func routes(s *shop) {
	id := uuid.NewString()
	s.setStock("here", 3)
	hiddenRoutes(s, id)
	wrongMethods(s, id)
	publicRoutes(s, id)
	if a := s.call("GET", s.instances[0].URL()+"/stock/here", ""); !strings.Contains(a.body, `"total":3`) {
		s.t.Fatalf("the stock was changed: %v", a)
	}
}

// hiddenRoutes checks that routes that are not public are 404.
func hiddenRoutes(s *shop, id string) {
	for _, path := range []string{
		"/metrics", "/readyz", "/healthz", "/strategies", "/openapi.yaml", "/payments", "/", "/gateway/problem", "/gateway/strategies",
		"/stock/here/audit", "/stock/here%2faudit", "/stock/", "/stock/here/", "//stock", "/stock//here", "/metrics/../stock", "/stock/%2e%2e/metrics",
		"/%73tock", "/orders/" + id + "/refund", "/orders/" + id + "/pay", "/payments?status=refund-due",
	} {
		s.problem(404, "not-found", "GET", path, "")
	}
	for _, path := range []string{
		"/orders/" + id + "/refund", "/orders/" + id + "/pay", "/orders/" + id + "/%63ancel", "/orders/" + id + "/cancel/",
		"/orders//cancel", "/payments/p-1/refunded",
	} {
		s.problem(404, "not-found", "POST", path, "{}")
	}
}

// wrongMethods checks that other methods on public routes are 405 with Allow.
func wrongMethods(s *shop, id string) {
	for _, request := range []string{"PUT /stock/here", "DELETE /stock/here", "POST /stock", "PATCH /orders/" + id, "GET /orders", "GET /orders?buyer_id=b-1", "DELETE /orders", "PUT /orders?x", "GET /orders/" + id + "/cancel"} {
		method, path, _ := strings.Cut(request, " ")
		body := `{"kind":"product","total":9}`
		if method == "GET" {
			body = ""
		}
		a := s.problem(405, "method-not-allowed", method, path, body)
		if allowed := a.header.Get("Allow"); path == "/stock/here" && allowed != "GET" {
			s.t.Fatalf("%s: Allow is %q", request, allowed)
		}
	}
}

// publicRoutes checks that public routes have the answer of an instance.
func publicRoutes(s *shop, id string) {
	for _, path := range []string{"/stock", "/stock?limit=1", "/stock/here", "/stock/h%3Aere", "/orders/" + id, "/orders/x"} {
		alone, a := s.call("GET", s.instances[0].URL()+path, ""), s.call("GET", s.url+path, "")
		if s.same(path, a, alone); !a.passed() {
			s.t.Fatalf("%s: %v", path, a.header)
		}
	}
	for _, path := range []string{"/orders/" + id + "/cancel", "/orders/" + id + "/cancel?x"} {
		if a := s.call("POST", s.url+path, ""); a.status != 404 || !strings.Contains(a.body, "/problems/unknown-order") || !a.passed() {
			s.t.Fatalf("POST %s: %v %v; want an instance's 404 unknown-order", path, a, a.header)
		}
	}
}

// counted returns a scenario for a SKU whose count at the gate is 0. It checks whether an order
// reaches an instance, which it must if the count cannot be read or does not matter.
func counted(passed bool) func(*shop) {
	return func(s *shop) {
		s.count("left", 0, 1, 0)
		s.expect(409, passed, order(1, "left"))
	}
}

// clusterNodes checks that on a cluster the gateway reads a count from the node that has
// it.
func clusterNodes(s *shop) {
	for n := range 8 {
		sku := fmt.Sprintf("far-%d", n)
		s.setStock(sku, 3)
		s.expect(201, true, order(3, sku))
		s.rest(sku)
		s.expect(409, false, order(1, sku))
	}
	s.expect(409, false, order(1, "far-0", 1, "far-1", 1, "far-2"))
}

// passesAll checks that a gateway that cannot read the counts passes every order.
func passesAll(s *shop) {
	s.sell("unseen", 1)
	s.expect(409, true, order(1, "unseen"))
	s.expect(409, true, order(1, "unseen"))
}

var inSegments = []string{"--strategy", "segment", "--segments", "4"}

// TestGateway runs every scenario at its own gateway. By default it leaves out the scenarios of
// rate limits and of a cluster without segments. Another scenario always checks that instances get
// the client's address, and a test of httpapi checks that they limit by this address.
func TestGateway(t *testing.T) {
	t.Parallel()
	secretive := testenv.OwnRedis(t, "--requirepass", "secret", "--databases", "4")
	for _, test := range []struct {
		name     string
		plan     func(t *testing.T) plan
		scenario func(*shop)
	}{
		{"sold out", nil, soldOut},
		{"the last units", nil, lastUnits},
		{"in flight", nil, inFlight("held", "held")},
		{"restocked", nil, restocked},
		{"a key", func(*testing.T) plan { return plan{ttl: longTTL} }, keyed},
		{"several lines", nil, severalLines},
		{"malformed", nil, malformed},
		{"content types", nil, contentTypes},
		{"generations", func(*testing.T) plan { return plan{fakeLedger: true, beatTimeout: beatTimeout} }, generations},
		{"metrics", nil, metrics},
		{"private routes", nil, routes},
		{"invalid HTTP", nil, invalidHTTP},
		{"without Host", nil, withoutHost},
		{"forwarded", func(t *testing.T) plan { return plan{fakeLedger: true, files: stub(t, "in-progress", lua)} }, forwarded},
		{"a key in progress", func(t *testing.T) plan { return plan{fakeLedger: true, files: stub(t, "in-progress", lua)} }, inProgress},
		{"a key under a broken strategy", func(t *testing.T) plan { return plan{fakeLedger: true, files: stub(t, "sold-out", unsound)} }, unsoundKeyed},
		{"a key and segments", func(*testing.T) plan { return plan{args: inSegments} }, keyed},
		{"segments", func(*testing.T) plan { return plan{args: inSegments} }, segmented},
		{"segments sold out", func(*testing.T) plan { return plan{args: inSegments} }, soldOut},
		{"several lines in segments", func(*testing.T) plan { return plan{args: inSegments} }, severalLines},
		{"a segment in flight", func(*testing.T) plan { return plan{args: inSegments} }, inFlight("pieces", "pieces/0")},
		{"segments refilled", func(*testing.T) plan { return plan{fakeLedger: true, args: inSegments} }, refilling},
		{"no gate", func(t *testing.T) plan { return plan{fakeLedger: true, files: stub(t, "sold-out", withNoGate)} }, counted(true)},
		{"a cluster", func(t *testing.T) plan { return plan{redis: testenv.RedisCluster(t)} }, clusterNodes},
		{"segments on a cluster", func(t *testing.T) plan { return plan{redis: testenv.RedisCluster(t), args: inSegments} }, clusterNodes},
		{"rate limits", func(*testing.T) plan {
			return plan{args: []string{"--rate-limit", "1", "--rate-burst", "3", "--trusted-proxies", "127.0.0.1"}}
		}, rateLimits},
		{"no ledger ID", func(*testing.T) plan { return plan{environment: []string{"HOLDFAST_LEDGER_ID="}} }, passesAll},
		{"a wrong ledger ID", func(*testing.T) plan {
			return plan{environment: []string{"HOLDFAST_LEDGER_ID=" + strings.Repeat("x", 32)}}
		}, passesAll},
		{"another ledger's ID", func(*testing.T) plan { return plan{environment: []string{"HOLDFAST_LEDGER_ID=" + uuid.NewString()}} }, otherLedger},
		{"an unreachable Redis", func(*testing.T) plan { return plan{environment: []string{"HOLDFAST_GATEWAY_REDIS=127.0.0.1:1"}} }, passesAll},
		{"a password", func(t *testing.T) plan {
			return plan{
				fakeLedger: true, files: stub(t, "sold-out", lua),
				redis:       "redis://:secret@" + secretive.Addr() + "/3",
				environment: []string{"HOLDFAST_GATEWAY_REDIS_PASSWORD=secret", "HOLDFAST_GATEWAY_REDIS_DB=3"},
			}
		}, counted(false)},
		{"a wrong password", func(t *testing.T) plan {
			return plan{
				fakeLedger: true, files: stub(t, "sold-out", lua),
				redis:       "redis://:secret@" + secretive.Addr() + "/3",
				environment: []string{"HOLDFAST_GATEWAY_REDIS_PASSWORD=guess", "HOLDFAST_GATEWAY_REDIS_DB=3"},
			}
		}, counted(true)},
	} {
		if (test.name == "a cluster" || test.name == "rate limits") && !testenv.Thorough() {
			continue
		}
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var p plan
			if test.plan != nil {
				p = test.plan(t)
			}
			if p.files == nil {
				p.on = shared.of(t, p)
			}
			test.scenario(build(t, p))
		})
	}
}

// TestOpenResty checks that the gateway finds the Redis client under OpenResty's name. The module
// is the same.
func TestOpenResty(t *testing.T) {
	t.Parallel()
	client, err := os.ReadFile("/usr/share/lua/5.1/nginx/redis.lua")
	if err != nil {
		t.Skipf("no Redis client for nginx: %v", err) // OwnNginx reports the packages to install
	}
	s := build(t, plan{on: shared.of(t, plan{}), files: map[string]string{
		"resty/redis.lua": string(client),
		"nginx/redis.lua": `error("OpenResty has no such module")`,
	}})
	s.sell("gone", 2)
	s.expect(409, false, order(1, "gone"))
}

// TestRedisRestarted checks that orders that were refused before a restart of Redis reach an
// instance after it. Redis may have lost an addition, and the order that took it.
func TestRedisRestarted(t *testing.T) {
	t.Parallel()
	own := testenv.OwnRedis(t)
	s := build(t, plan{fakeLedger: true, redis: own.URL(), files: stub(t, "sold-out", lua)})
	const keys = 20 // several, because a worker may still have a connection that the restart has closed
	place := func() {
		for n := range keys {
			s.place(order(1, "back"), "Idempotency-Key", fmt.Sprint(n))
		}
	}
	repeated := func() {
		t.Helper()
		if n := s.series()[`holdfast_gateway_orders_total{result="refused",reason="repeated"}`]; n != keys {
			t.Fatalf("%d keyed orders were refused, want %d", n, keys)
		}
	}
	s.count("back", 0, 1, 0)
	place()
	place()
	repeated()
	own.Kill()
	own.Restart()
	s.seed()
	s.count("back", 0, 1, 0)
	testenv.Await(t, "the gateway reads the counts again", func() bool { return !s.place(order(1, "back")).passed() })
	place()
	repeated()
}

// TestLedgerIDFile checks that the ledger's ID can be in a file, in upper case and
// without hyphens.
func TestLedgerIDFile(t *testing.T) {
	t.Parallel()
	on := shared.of(t, plan{})
	name := file(t, strings.ToUpper(strings.ReplaceAll(on.ledger.String(), "-", ""))+"\n")
	s := build(t, plan{on: on, environment: []string{"HOLDFAST_LEDGER_ID=", "HOLDFAST_LEDGER_ID_FILE=" + name}})
	s.sell("gone", 2)
	s.expect(409, false, order(1, "gone"))
}

// redisGone checks that orders reach an instance while Redis is stopped or killed, and that
// the gateway refuses orders again afterwards.
func redisGone(s *shop, own *testenv.RedisServer) {
	refused := func() { s.awaitAnswer(409, false, order(1, "gone")) }
	// The counts cannot be read, so every order passes once they are no longer cached. Until then,
	// only orders that would read them again pass: fewer than three in succession.
	pass := func() {
		testenv.AwaitSuccess(s.t, "every order passes", func() error {
			for range 3 {
				if err := s.answers(503, true, order(1, "gone")); err != nil {
					return err
				}
			}
			return nil
		})
	}
	s.sell("gone", 2)
	refused()
	own.Stop()
	pass()
	own.Cont()
	refused()
	own.Kill()
	pass()
	own.Restart()
	refused()
}

// TestRedisPause checks that the gateway pauses after a failure of Redis: the next orders
// pass without asking.
func TestRedisPause(t *testing.T) {
	t.Parallel()
	listener := testenv.Listen(t) // a Redis that closes its connections
	var asked atomic.Int64
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			asked.Add(1)
			conn.Close()
		}
	}()
	s := build(t, plan{on: shared.of(t, plan{}), redisPause: time.Hour, environment: []string{"HOLDFAST_GATEWAY_REDIS=" + listener.Addr().String()}})
	for range 20 {
		s.passes("any")
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("Redis was asked %d times for 20 orders", n)
	}
}

var accepted = regexp.MustCompile(`holdfast_orders_total\{result="accepted"\} (\d+)`)

// bothInstances checks that orders are spread over both instances. nginx skips an instance for ten
// seconds after it was too busy for a connection.
func bothInstances(s *shop) {
	for range 20 {
		s.expect(201, true, order(1, "plenty"))
	}
	testenv.AwaitSuccess(s.t, "each instance has had five orders", func() error {
		for _, api := range s.instances {
			metrics := s.call("GET", api.URL()+ordersMetric, "")
			if found := accepted.FindStringSubmatch(metrics.body); found == nil || len(found[1]) == 1 && found[1] < "5" {
				s.expect(201, true, order(1, "plenty"))
				return fmt.Errorf("%s had %v of the orders", api.URL(), found)
			}
		}
		return nil
	})
}

// noInstance checks the gateway's own answers while no instance runs.
func noInstance(s *shop) {
	a := s.problem(503, "unavailable", "POST", "/orders", order(1, "plenty"))
	if a.header.Get("Retry-After") != "1" {
		s.t.Fatalf("Retry-After is %q", a.header.Get("Retry-After"))
	}
	if id := s.place(order(1, "plenty")).header.Get("X-Request-Id"); id == "" {
		s.t.Fatalf("an order without a request ID gets none")
	}
	for path, status := range map[string]int{"/gateway/healthz": 200, "/gateway/strategies": 404} { // the second is internal
		if a := s.call("GET", s.url+path, ""); a.status != status {
			s.t.Fatalf("%s: %v, want %d", path, a, status)
		}
	}
}

// rateLimits checks that the instances limit each client of the gateway separately, and that a
// client cannot take the address of another one.
func rateLimits(s *shop) {
	from := func(address string) (status int) {
		dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
		own := &http.Client{Timeout: testenv.Patience, Transport: &http.Transport{DialContext: dialer.DialContext, DisableKeepAlives: true}}
		a, err := testenv.Call(context.Background(), own, "GET", s.url+"/stock", "", "X-Forwarded-For", fmt.Sprintf("192.0.2.%d", rand.IntN(255)))
		check(s.t, err)
		return a.Status
	}
	limited := false
	for n := 0; n < 100 && !limited; n++ {
		limited = from("127.0.0.2") == http.StatusTooManyRequests
	}
	if !limited {
		s.t.Fatalf("a client that claims to be many is not limited")
	}
	if status := from("127.0.0.3"); status != http.StatusOK {
		s.t.Fatalf("another client: %d", status)
	}
}

// selling waits until each instance sells.
func selling(s *shop) {
	for _, api := range s.instances {
		testenv.AwaitSuccess(s.t, "an instance sells", func() error {
			a, err := call("POST", api.URL()+"/orders", order(1, "plenty"))
			if err == nil && a.status != 201 {
				err = fmt.Errorf("it answers %v", a)
			}
			return err
		})
	}
}

// TestOutages stops and kills Redis, and then kills the instances one after the other.
func TestOutages(t *testing.T) {
	t.Parallel()
	own := testenv.OwnRedis(t)
	p := plan{redis: own.URL()}
	p.on = start(t, p)
	s := build(t, p)
	p.redisTimeout = time.Second
	impatient := build(t, p)
	s.setStock("plenty", 200)
	bothInstances(s)
	a := s.call("GET", s.url+"/stock/plenty", "", "X-Request-Id", "mine")
	if a.status != 200 || strings.Join(a.header["X-Request-Id"], "|") != "mine" {
		t.Fatalf("%v %v", a, a.header)
	}
	redisGone(impatient, own)
	selling(s)
	s.instances[0].Kill()
	for range 5 {
		if a := s.place(order(1, "plenty")); a.status != 201 {
			t.Fatalf("with one instance: %v", a)
		}
	}
	s.instances[1].Kill()
	noInstance(s)
}
