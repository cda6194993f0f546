package httpapi_test

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"pgregory.net/rapid"

	"github.com/holdfast-stock/holdfast/internal/buyertoken"
	"github.com/holdfast-stock/holdfast/internal/httpapi"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// The names that requests use most of the time, so that requests meet the results of earlier ones.
var (
	someSKUs   = []string{"10001", "a", "b", "c"}
	someBuyers = []string{"u-1", "u-2"}
	someKeys   = []string{"k-1", "k-2", "k-3"}
)

// The token of administrators, and the secret that signs the tokens of buyers.
const fuzzToken, fuzzSecret = "an-administrators-token", "the-secret-of-the-tokens'-issuer"

// TestRandomRequests draws requests from the OpenAPI document, some of them broken in one place,
// and sends them to the running service. Every answer must be as documented. A broken request must
// be refused for its fault, and a valid one must not be refused as invalid. Where buyers have
// tokens, no answer may contain another buyer's order. By default it makes 25 checks of each
// service at a time, until the answers are varied, and 100 in a thorough run. -rapid.checks=N sets
// another number.
func TestRandomRequests(t *testing.T) {
	t.Parallel()
	if checks := flag.Lookup("rapid.checks"); checks.Value.String() == checks.DefValue && !testenv.Thorough() {
		if err := checks.Value.Set("25"); err != nil {
			t.Fatal(err)
		}
	}
	doc := httpapi.LoadDocument(t)
	for _, s := range []struct {
		name, token   string
		queue, buyers bool
	}{
		{"committed, with an admin token", fuzzToken, false, false},
		{"committed, with tokens of buyers", fuzzToken, false, true},
		{"queued, on loopback", "", true, false},
	} {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			f := &requests{
				doc: doc, token: s.token, buyers: s.buyers, orders: []string{"01990a3c-9b8e-7c31-a5d2-3f6f0e7a1b22"}, payments: []string{"p-0"},
				owners: map[string]string{}, statuses: map[string]int{}, broken: map[string]int{},
			}
			f.url = f.serve(t, s.queue)
			for try := 1; ; try++ {
				rapid.Check(t, func(t *rapid.T) {
					for range 16 {
						f.one(t)
					}
				})
				err := f.variety()
				if err == nil || try == 8 || t.Failed() {
					if err != nil && !t.Failed() {
						t.Error(err)
					}
					break
				}
			}
			t.Logf("%v", f.statuses)
		})
	}
}

// requests draws requests for one service, and records facts from the answers.
type requests struct {
	doc      *openapi3.T
	url      string
	token    string // token of administrators; empty: the service needs no token
	buyers   bool   // buyers have tokens
	orders   []string
	payments []string
	owners   map[string]string // buyers of committed orders, by order ID
	statuses map[string]int    // answers by operation and status
	broken   map[string]int    // number of requests by their fault
}

// serve starts the service on embedded stores, behind the server that cmd/api uses.
func (f *requests) serve(t *testing.T, queue bool) (url string) {
	config, stop, err := embeddedConfig(t.Context(), queue)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	config.AdminToken = f.token
	if f.buyers {
		config.Tokens = buyertoken.WithSecret(fuzzSecret, buyertoken.Rules{})
	}
	server := httptest.NewUnstartedServer(nil)
	server.Config = httpapi.NewServer(httpapi.New(config), config.RequestTimeout, slog.New(slog.DiscardHandler))
	server.Start()
	t.Cleanup(server.Close)
	return server.URL
}

// request is a drawn request.
type request struct {
	operation    string
	method, path string
	query        url.Values
	header       http.Header
	body         []byte
	caller       string // the buyer whose token the request has; empty: the request has no token
	broken       string // the fault of the request; empty: the request has no fault
	want         []int  // allowed statuses of a broken request
}

// one draws a request, sends it and checks the answer.
func (f *requests) one(t *rapid.T) {
	r := f.draw(t)
	u := f.url + r.path
	if len(r.query) > 0 {
		u += "?" + r.query.Encode()
	}
	h, err := http.NewRequestWithContext(t.Context(), r.method, u, bytes.NewReader(r.body))
	if err != nil {
		t.Fatalf("%v: %v", r, err)
	}
	h.Header = r.header
	response, err := http.DefaultClient.Do(h)
	if err != nil {
		t.Fatalf("%s: %v", r, err)
	}
	body, err := io.ReadAll(response.Body)
	response.Body.Close()
	if err != nil {
		t.Fatalf("%s: %v", r, err)
	}
	response.Header.Del("Date")
	if vary := response.Header["Vary"]; vary != nil { // Vary may be a list in several lines
		response.Header["Vary"] = []string{strings.Join(vary, ", ")}
	}
	f.statuses[fmt.Sprintf("%s %d", r.operation, response.StatusCode)]++
	if err := httpapi.Judge(f.doc, h, response.StatusCode, response.Header, body); err != nil {
		t.Fatalf("%s\nthe answer is not as documented: %v\n%d %v\n%.1000s", r, err, response.StatusCode, response.Header, body)
	}
	if err := errors.Join(r.judge(response.StatusCode, body), f.judgeOwner(r, response.StatusCode, body)); err != nil {
		t.Fatalf("%s\n%v\n%d %.1000s", r, err, response.StatusCode, body)
	}
	f.broken[r.broken]++
	f.learn(r, response.StatusCode, body)
}

func (r request) String() string {
	return fmt.Sprintf("%s %s %v %v\n%.2000s\nbroken: %s %v", r.method, r.path, r.query, r.header, r.body, r.broken, r.want)
}

// judge returns an error if the answer does not fit the request.
func (r request) judge(status int, body []byte) error {
	if status >= 500 && status != http.StatusServiceUnavailable {
		return fmt.Errorf("the service failed")
	}
	if r.broken != "" {
		if !slices.Contains(r.want, status) {
			return fmt.Errorf("the request is broken: %s", r.broken)
		}
		return nil
	}
	var problem struct {
		Type   string
		Errors []struct{ Field string }
	}
	_ = json.Unmarshal(body, &problem)
	switch status {
	case 400, 401, 403, 405, 408, 413, 415:
		return fmt.Errorf("nothing is wrong with the request")
	case 404:
		if problem.Type == "/problems/not-found" {
			return fmt.Errorf("the path is documented")
		}
	case 422:
		for _, e := range problem.Errors {
			// A schema cannot express these rules: the kind cannot change, the hours must be in
			// order, and a payment belongs to one order.
			if e.Field != "kind" && e.Field != "closes_at" && e.Field != "payment_id" {
				return fmt.Errorf("nothing is wrong with %s", e.Field)
			}
		}
	}
	return nil
}

// judgeOwner returns an error if the answer shows an order to another buyer, or hides it from its
// owner.
func (f *requests) judgeOwner(r request, status int, body []byte) error {
	owner, placed := f.owners[r.orderID()]
	if placed && status == http.StatusNotFound && r.broken == "" && (r.caller == "" || r.caller == owner) {
		return fmt.Errorf("the order was placed by %s", owner)
	}
	if r.caller == "" || status >= 300 {
		return nil
	}
	type order struct {
		BuyerID string `json:"buyer_id"`
	}
	var answer struct {
		order
		Orders []order
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return err
	}
	for _, o := range append(answer.Orders, answer.order) {
		if o.BuyerID != r.caller && (o != order{} || answer.Orders == nil) {
			return fmt.Errorf("it is an order of %s", o.BuyerID)
		}
	}
	return nil
}

// orderID returns the ID of the order that the request is about, if it has one.
func (r request) orderID() string {
	parts := strings.Split(r.path, "/")
	if len(parts) < 3 || parts[1] != "orders" {
		return ""
	}
	return parts[2]
}

// buyerID returns the buyer whom the request names.
func (r request) buyerID() string {
	var body struct {
		BuyerID string `json:"buyer_id"`
	}
	_ = json.Unmarshal(r.body, &body) // without a body, the fields stay empty
	return cmp.Or(body.BuyerID, r.query.Get("buyer_id"))
}

// learn remembers the orders and payments of an answer.
func (f *requests) learn(r request, status int, body []byte) {
	var named struct {
		ID        string
		BuyerID   string `json:"buyer_id"`
		PaymentID string `json:"payment_id"`
	}
	if status >= 300 || json.Unmarshal(body, &named) != nil {
		return
	}
	if r.operation == "placeOrder" {
		f.orders = appendSome(f.orders, named.ID)
	}
	if status == http.StatusCreated && r.operation == "placeOrder" {
		f.owners[named.ID] = named.BuyerID
	}
	if r.operation == "payOrder" {
		_ = json.Unmarshal(r.body, &named)
		f.payments = appendSome(f.payments, named.PaymentID)
	}
}

// appendSome appends to a list of the last few names.
func appendSome(names []string, name string) []string {
	names = append(names, name)
	return names[max(0, len(names)-8):]
}

// variety returns an error if all requests of some kind were refused, or none was made.
func (f *requests) variety() error {
	sum := 0
	for _, n := range f.statuses {
		sum += n
	}
	for _, answers := range []string{"placeOrder 422", "showOrder 200", "payOrder 200", "setStock 200", "listOrders 200", "listPayments 200"} {
		if f.statuses[answers] == 0 {
			return fmt.Errorf("%d requests, and none was answered %s: %v", sum, answers, f.statuses)
		}
	}
	if placed := f.statuses["placeOrder 201"] + f.statuses["placeOrder 202"]; placed == 0 {
		return fmt.Errorf("%d requests, and no order was placed: %v", sum, f.statuses)
	}
	if f.buyers && (f.broken["another buyer's token"] == 0 || f.broken["a buyer's token that is not valid"] == 0) {
		return fmt.Errorf("%d requests, and none with another buyer's token: %v", sum, f.broken)
	}
	for answers, n := range f.statuses {
		if strings.HasSuffix(answers, " 503") && n*100 > sum {
			return fmt.Errorf("%d of %d: %s", n, sum, answers)
		}
	}
	return nil
}

// draw draws a request. Two of three are valid.
func (f *requests) draw(t *rapid.T) request {
	// Most requests are for these paths, which change something. rapid draws the first ones more
	// often.
	paths := []string{"/orders", "/stock/{sku}", "/orders/{id}/pay", "/orders", "/orders/{id}", "/orders/{id}/refund", "/orders", "/stock/{sku}", "/orders/{id}/cancel"}
	paths = append(paths, slices.SortedFunc(maps.Keys(f.doc.Paths.Map()), func(a, b string) int { return strings.Compare(b, a) })...)
	path := rapid.SampledFrom(paths).Draw(t, "path")
	item := f.doc.Paths.Value(path)
	method := rapid.SampledFrom(slices.Sorted(maps.Keys(item.Operations()))).Draw(t, "method")
	op := item.Operations()[method]
	r := f.valid(t, path, method, op)
	if rapid.IntRange(0, 2).Draw(t, "broken") == 0 {
		ways := f.ways(r, op, item)
		way := rapid.SampledFrom(slices.Sorted(maps.Keys(ways))).Draw(t, "way")
		r.broken = way
		ways[way](t, &r)
	}
	return r
}

// valid draws a request that the document allows.
func (f *requests) valid(t *rapid.T, path, method string, op *openapi3.Operation) request {
	r := request{operation: op.OperationID, method: method, path: path, query: url.Values{}, header: http.Header{}}
	for _, p := range op.Parameters {
		p := p.Value
		if !p.Required && rapid.Bool().Draw(t, "without "+p.Name) && (p.Name != "buyer_id" || f.mayListAll(op)) {
			continue
		}
		value := fmt.Sprint(f.value(t, p.Schema.Value, p.Name))
		switch p.In {
		case "path":
			r.path = strings.Replace(r.path, "{"+p.Name+"}", url.PathEscape(value), 1)
		case "query":
			r.query.Set(p.Name, value)
		case "header":
			r.header.Set(p.Name, value)
		}
	}
	if b := op.RequestBody; b != nil && (b.Value.Required || rapid.Bool().Draw(t, "with a body")) {
		value := f.value(t, b.Value.Content["application/json"].Schema.Value, "")
		orderHours(value)
		r.body, _ = json.Marshal(value)
		r.header.Set("Content-Type", rapid.SampledFrom([]string{"application/json", "application/json; charset=UTF-8"}).Draw(t, "type"))
	}
	switch {
	case f.buyers && accepts(op, "buyer") && rapid.IntRange(0, 3).Draw(t, "as an administrator") < 3:
		r.caller = cmp.Or(r.buyerID(), f.owners[r.orderID()], someBuyers[0])
		r.header.Set("Authorization", "Bearer "+sign(t, fuzzSecret, claims(r.caller)))
	case f.asksForToken(op):
		r.header.Set("Authorization", "Bearer "+f.token)
	}
	return r
}

// claims returns the claims of a buyer's token.
func claims(buyer string) map[string]any {
	return map[string]any{"sub": buyer, "exp": time.Now().Add(time.Hour).Unix()}
}

// sign returns a token.
func sign(t *rapid.T, secret string, claims map[string]any) string {
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.HS256, Key: []byte(secret)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	text, err := jwt.Signed(signer).Claims(claims).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// invalidToken draws an Authorization header without a valid buyer's token.
func invalidToken(t *rapid.T, buyer string) []string {
	with := func(claim string, value any) string {
		changed := claims(buyer)
		if changed[claim] = value; value == nil {
			delete(changed, claim)
		}
		return "Bearer " + sign(t, fuzzSecret, changed)
	}
	good := sign(t, fuzzSecret, claims(buyer))
	payload := good[strings.Index(good, ".") : strings.LastIndex(good, ".")+1]
	headers := map[string][]string{
		"expired":                 {with("exp", time.Now().Add(-time.Hour).Unix())},
		"without an end":          {with("exp", nil)},
		"of tomorrow":             {with("nbf", time.Now().Add(24*time.Hour).Unix())},
		"without a buyer":         {with("sub", nil)},
		"of no valid buyer":       {with("sub", "u 1")},
		"of another issuer":       {"Bearer " + sign(t, strings.ToUpper(fuzzSecret), claims(buyer))},
		"without a signature":     {"Bearer " + strings.TrimSuffix(good, good[strings.LastIndex(good, ".")+1:])},
		"with the algorithm none": {"Bearer " + base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none"}`)) + payload},
		"sent twice":              {"Bearer " + good, "Bearer " + good},
		"of another scheme":       {"Basic " + good},
	}
	return headers[rapid.SampledFrom(slices.Sorted(maps.Keys(headers))).Draw(t, "token")]
}

// accepts reports whether the document names the scheme for the operation.
func accepts(op *openapi3.Operation, scheme string) bool {
	return op.Security != nil && slices.ContainsFunc(*op.Security, func(s openapi3.SecurityRequirement) bool {
		_, named := s[scheme]
		return named
	})
}

// asksForToken reports whether the service refuses requests of the operation without a
// token.
func (f *requests) asksForToken(op *openapi3.Operation) bool {
	return f.token != "" && (needsToken(op) || f.buyers && accepts(op, "admin"))
}

// needsToken reports whether only administrators may make the call.
func needsToken(op *openapi3.Operation) bool {
	return op.Security != nil && len(*op.Security) > 0 && !slices.ContainsFunc(*op.Security, func(s openapi3.SecurityRequirement) bool { return len(s) == 0 })
}

// mayListAll reports whether a valid request of the operation needs no buyer_id: its
// caller is an administrator, or a buyer with a token.
func (f *requests) mayListAll(op *openapi3.Operation) bool {
	return f.buyers || f.token == "" || needsToken(op)
}

// value draws a value that the schema allows. name is the member or parameter.
func (f *requests) value(t *rapid.T, s *openapi3.Schema, name string) any {
	fresh := 0 // how many of five values are new, if values are known
	if name == "payment_id" {
		fresh = 3 // a known payment can pay no other order
	}
	if known := f.known(s, name); len(known) > 0 && rapid.IntRange(0, 5).Draw(t, "known "+name) > fresh {
		return rapid.SampledFrom(known).Draw(t, name)
	}
	switch {
	case len(s.Enum) > 0:
		return rapid.SampledFrom(s.Enum).Draw(t, name)
	case s.Type.Includes("null") && rapid.Bool().Draw(t, "null "+name):
		return nil
	case s.Format == "date-time":
		return drawTime(t, name)
	case s.Type.Includes("string") && s.Pattern != "":
		return rapid.StringMatching(s.Pattern).Draw(t, name)
	case s.Type.Includes("string"): // a header value, only for X-Request-ID
		return rapid.StringMatching(`[ -~]{0,140}`).Draw(t, name)
	case s.Type.Includes("integer"):
		return rapid.Int64Range(int64(*s.Min), int64(*s.Max)).Draw(t, name)
	case s.Type.Includes("boolean"):
		return rapid.Bool().Draw(t, name)
	case s.Type.Includes("array"):
		return f.array(t, s)
	}
	object := map[string]any{}
	for _, member := range slices.Sorted(maps.Keys(s.Properties)) {
		if slices.Contains(s.Required, member) || rapid.Bool().Draw(t, "with "+member) {
			object[member] = f.value(t, s.Properties[member].Value, member)
		}
	}
	return object
}

// array draws an array of lines, whose SKUs are distinct.
func (f *requests) array(t *rapid.T, s *openapi3.Schema) []any {
	most := 3
	if rapid.IntRange(0, 20).Draw(t, "many") == 0 {
		most = int(*s.MaxItems)
	}
	return rapid.SliceOfNDistinct(rapid.Custom(func(t *rapid.T) any { return f.value(t, s.Items.Value, "") }), int(s.MinItems), most,
		func(line any) string { return line.(map[string]any)["sku"].(string) }).Draw(t, "lines")
}

// known returns values that other requests have used.
func (f *requests) known(s *openapi3.Schema, name string) (known []any) {
	add := func(values ...string) {
		for _, v := range values {
			known = append(known, v)
		}
	}
	switch name {
	case "sku":
		add(someSKUs...)
	case "buyer_id":
		add(someBuyers...)
	case "Idempotency-Key":
		add(someKeys...)
	case "payment_id":
		add(f.payments...)
	case "id":
		if s.Format == "uuid" {
			add(f.orders...)
		} else {
			add(f.payments...)
		}
	case "quantity":
		known = []any{int64(1), int64(2)}
	case "total":
		known = []any{int64(0), int64(20), int64(1000), int64(1_000_000)}
	case "kind":
		add("product")
	case "opens_at":
		known = []any{nil, "2020-01-02T03:04:05Z"}
	case "closes_at":
		known = []any{nil, "2100-01-02T03:04:05.678+08:00"}
	case "after":
		add("")
	}
	return known
}

// drawTime draws an RFC 3339 time of the years 1970 to 9999.
func drawTime(t *rapid.T, name string) string {
	seconds := rapid.Int64Range(0, 253402300799).Draw(t, name)
	at := time.Unix(seconds, rapid.Int64Range(0, 999999999).Draw(t, name+" nanoseconds"))
	offset := rapid.IntRange(-14*60, 14*60).Draw(t, name+" offset") * 60
	if text := at.In(time.FixedZone("", offset)).Format(time.RFC3339Nano); len(text) > 4 && text[4] == '-' && text[0] != '-' {
		return text // the local year may be 10000
	}
	return at.UTC().Format(time.RFC3339Nano)
}

// orderHours makes a setting close after it opens.
func orderHours(value any) {
	set, ok := value.(map[string]any)
	if !ok {
		return
	}
	opens, _ := set["opens_at"].(string)
	closes, _ := set["closes_at"].(string)
	from, err1 := time.Parse(time.RFC3339, opens)
	to, err2 := time.Parse(time.RFC3339, closes)
	if err1 == nil && err2 == nil && !to.After(from.Add(time.Microsecond)) {
		delete(set, "closes_at")
	}
}

// breaker breaks a request in one place, and sets the allowed answers.
type breaker = func(*rapid.T, *request)

// ways returns the functions that can break the request, by name.
func (f *requests) ways(r request, op *openapi3.Operation, item *openapi3.PathItem) map[string]breaker {
	ways := map[string]breaker{
		"method": func(t *rapid.T, r *request) {
			others := []string{"GET", "PUT", "POST", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"}
			others = slices.DeleteFunc(others, func(m string) bool { return item.Operations()[m] != nil })
			r.method, r.want = rapid.SampledFrom(others).Draw(t, "method"), []int{405}
			r.operation = r.method
		},
		"path": func(t *rapid.T, r *request) {
			r.path += rapid.SampledFrom([]string{"/", "/x/y/z", "/%2e%2e", "//"}).Draw(t, "more")
			r.operation, r.want = "nothing", []int{404, 405, 422}
		},
	}
	maps.Copy(ways, f.waysOfParameters(r, op))
	if f.asksForToken(op) {
		ways["no token"] = func(_ *rapid.T, r *request) {
			r.header.Del("Authorization")
			r.want = []int{401}
		}
		ways["a wrong token"] = func(t *rapid.T, r *request) {
			r.header.Set("Authorization", rapid.SampledFrom([]string{"Bearer", "Bearer x", "Basic " + f.token, f.token, "Bearer " + f.token + "x"}).Draw(t, "token"))
			r.want = []int{401}
		}
	}
	if f.buyers {
		maps.Copy(ways, waysOfBuyers(r, op))
	}
	if r.method != http.MethodGet {
		ways["another origin"] = func(_ *rapid.T, r *request) {
			r.header.Set("Sec-Fetch-Site", "cross-site")
			r.want = []int{403}
		}
	}
	if op.RequestBody != nil {
		maps.Copy(ways, f.waysOfBody(op.RequestBody.Value.Content["application/json"].Schema.Value))
	}
	return ways
}

// waysOfBuyers returns the functions that break a buyer's token.
func waysOfBuyers(r request, op *openapi3.Operation) map[string]breaker {
	ways := map[string]breaker{}
	send := func(t *rapid.T, r *request, buyer string, want int) {
		r.caller, r.want = buyer, []int{want}
		r.header.Set("Authorization", "Bearer "+sign(t, fuzzSecret, claims(buyer)))
	}
	switch {
	case accepts(op, "buyer"):
		ways["a buyer's token that is not valid"] = func(t *rapid.T, r *request) {
			r.header["Authorization"], r.want = invalidToken(t, someBuyers[0]), []int{401}
		}
	case accepts(op, "admin"):
		ways["a buyer's token"] = func(t *rapid.T, r *request) { send(t, r, someBuyers[0], 401) }
	}
	switch { // no buyer is called u-9
	case r.buyerID() != "":
		ways["another buyer's token"] = func(t *rapid.T, r *request) { send(t, r, "u-9", 403) }
	case accepts(op, "buyer") && r.orderID() != "":
		ways["another buyer's token"] = func(t *rapid.T, r *request) { send(t, r, "u-9", 404) }
	}
	return ways
}

// waysOfParameters returns the functions that break path, query and headers.
func (f *requests) waysOfParameters(r request, op *openapi3.Operation) map[string]breaker {
	ways := map[string]breaker{}
	listed := slices.ContainsFunc(op.Parameters, func(p *openapi3.ParameterRef) bool { return p.Value.In == "query" })
	for _, p := range op.Parameters {
		p := p.Value
		switch {
		case p.In == "path":
			ways["an invalid "+p.Name] = func(t *rapid.T, r *request) {
				value := f.invalidText(t, p.Schema.Value)
				parts := strings.Split(r.path, "/")
				parts[2] = strings.ReplaceAll(url.PathEscape(value), ".", "%2E")
				r.path, r.want = strings.Join(parts, "/"), []int{404}
				if r.method == http.MethodPut {
					r.want = []int{422}
				}
			}
		case p.In == "query":
			ways["an invalid "+p.Name] = func(t *rapid.T, r *request) {
				r.query.Set(p.Name, f.invalidText(t, p.Schema.Value))
				r.want = []int{422}
			}
			ways["a repeated "+p.Name] = func(t *rapid.T, r *request) {
				value := fmt.Sprint(f.value(t, p.Schema.Value, p.Name))
				r.query[p.Name], r.want = []string{value, value}, []int{422}
			}
		case p.Name == "Idempotency-Key":
			ways["an invalid key"] = func(t *rapid.T, r *request) {
				r.header["Idempotency-Key"] = rapid.SampledFrom([][]string{{""}, {"k 1"}, {"k", "k"}, {strings.Repeat("k", 256)}, {"ключ"}}).Draw(t, "keys")
				r.want = []int{400}
			}
		}
	}
	if listed {
		ways["an unknown parameter"] = func(t *rapid.T, r *request) {
			r.query.Set(rapid.StringMatching(`[A-Za-z]{6,8}`).Draw(t, "parameter"), "1")
			r.want = []int{422}
		}
	}
	return ways
}

// invalidText draws a text that the schema of a parameter does not allow.
func (f *requests) invalidText(t *rapid.T, s *openapi3.Schema) string {
	text := rapid.OneOf(
		rapid.StringMatching(`[!-~]{1,70}`), rapid.String(), rapid.StringMatching(`-?[0-9]{1,20}`),
		rapid.SampledFrom([]string{"!", " 1", "0", "-1", "1001", "1e2", "1.0", "null", "%", strings.Repeat("a", 65)}),
	).Filter(func(text string) bool {
		var value any = text
		if s.Type.Includes("integer") {
			_ = json.Unmarshal([]byte(text), &value) // value stays a string if text is not a number
		}
		return text != "" && (httpapi.Validate(f.doc, s, value) != nil || s.Type.Includes("integer") && strings.ContainsAny(text, "eE."))
	})
	return text.Draw(t, "invalid")
}

// waysOfBody returns the functions that break a body.
func (f *requests) waysOfBody(schema *openapi3.Schema) map[string]breaker {
	text := func(change func(*rapid.T, []byte) []byte, want ...int) breaker {
		return func(t *rapid.T, r *request) {
			if len(r.body) == 0 {
				r.body = []byte(`{}`)
			}
			r.header.Set("Content-Type", "application/json")
			r.body, r.want = change(t, r.body), want
		}
	}
	ways := map[string]breaker{
		"a body that ends early": text(func(t *rapid.T, b []byte) []byte { return b[:rapid.IntRange(1, len(b)-1).Draw(t, "end")] }, 400),
		"two values":             text(func(_ *rapid.T, b []byte) []byte { return append(b, b...) }, 400),
		"a byte order mark":      text(func(_ *rapid.T, b []byte) []byte { return append([]byte("\xef\xbb\xbf"), b...) }, 400),
		"invalid UTF-8":          text(func(_ *rapid.T, b []byte) []byte { return append([]byte("{\"a\xff\":1,"), b[1:]...) }, 400),
		"too large":              text(func(_ *rapid.T, b []byte) []byte { return append(b, bytes.Repeat([]byte(" "), 64<<10)...) }, 413),
		"an unknown member":      text(func(_ *rapid.T, b []byte) []byte { return withMember(b, `"Total":1`) }, 422),
		"another type": func(t *rapid.T, r *request) {
			r.body = append(r.body, ' ')
			r.header["Content-Type"] = rapid.SampledFrom([][]string{nil, {"text/plain"}, {"application/json; charset=latin1"}, {"application/xml"}, {"application/json", "application/json"}}).Draw(t, "type")
			r.want = []int{415}
		},
		"a compressed body": func(_ *rapid.T, r *request) {
			r.body = append(r.body, ' ')
			r.header.Set("Content-Encoding", "gzip")
			r.want = []int{415}
		},
		"no object": text(func(t *rapid.T, _ []byte) []byte {
			return []byte(rapid.SampledFrom([]string{"null", "[]", "1", `"x"`, "true", "[{}]"}).Draw(t, "value"))
		}, 422),
	}
	if len(schema.Properties) > 0 {
		ways["a repeated member"] = text(func(_ *rapid.T, b []byte) []byte { return withMember(b, strings.TrimSuffix(string(b[1:]), "}")) }, 422)
		ways["an invalid value"] = func(t *rapid.T, r *request) { f.spoil(t, r, schema) }
	}
	return ways
}

// withMember puts a member in front of the object's others.
func withMember(object []byte, member string) []byte {
	if string(object) == "{}" {
		return []byte("{" + member + "}")
	}
	return []byte("{" + member + "," + string(object[1:]))
}

// spoil replaces or removes one value of the body, so that the schema no longer allows the body.
func (f *requests) spoil(t *rapid.T, r *request, schema *openapi3.Schema) {
	bad := rapid.Custom(func(t *rapid.T) []byte {
		var body map[string]any
		_ = json.Unmarshal(r.body, &body)
		object := body
		if lines, ok := body["lines"].([]any); ok && rapid.Bool().Draw(t, "in a line") {
			object = rapid.SampledFrom(lines).Draw(t, "line").(map[string]any)
		}
		member := rapid.SampledFrom(slices.Sorted(maps.Keys(object))).Draw(t, "member")
		object[member] = rapid.OneOf(
			rapid.SampledFrom([]any{nil, true, "", "x y", []any{}, map[string]any{}, -1, 1001, 1000000001, json.Number("1.5"), json.Number("1e400"), "1", "2026-01-02", "2026-13-02T00:00:00Z", "1969-12-31T23:59:59Z"}),
			rapid.Custom(func(t *rapid.T) any { return rapid.String().Draw(t, "text") }),
			rapid.Custom(func(t *rapid.T) any { return rapid.Int64().Draw(t, "number") }),
		).Draw(t, "value")
		if rapid.IntRange(0, 4).Draw(t, "remove") == 0 {
			delete(object, member)
		}
		text, _ := json.Marshal(body)
		return text
	}).Filter(func(text []byte) bool {
		var body any
		return json.Unmarshal(text, &body) != nil ||
			httpapi.Validate(f.doc, schema, body) != nil
	})
	r.body, r.want = bad.Draw(t, "body"), []int{422}
}
