package client_test

import (
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/holdfast-stock/holdfast/client"
)

const documentFile = "../internal/httpapi/openapi.yaml"

// notOffered lists the operations that the client leaves out, because only probes and scrapers need
// them.
var notOffered = []string{"healthz", "metrics", "showOpenAPI"}

// calls has the calls of each operation. Together they use every parameter and member.
var calls = map[string][]func(*testing.T, *client.Client) (any, error){
	"placeOrder": {func(t *testing.T, c *client.Client) (any, error) {
		p, err := c.Place(t.Context(), client.OrderRequest{BuyerID: "u-1", Lines: []client.Line{{SKU: "10001", Quantity: 1}}})
		return p.Order, err
	}},
	"listOrders": {func(t *testing.T, c *client.Client) (any, error) {
		return c.ListOrders(t.Context(), client.OrderFilter{BuyerID: "u-1", Status: client.OrderPaid, After: id, Limit: 1})
	}},
	"showOrder":   {func(t *testing.T, c *client.Client) (any, error) { return c.Order(t.Context(), id) }},
	"payOrder":    {func(t *testing.T, c *client.Client) (any, error) { return c.Pay(t.Context(), id, "p-1") }},
	"cancelOrder": {func(t *testing.T, c *client.Client) (any, error) { return c.Cancel(t.Context(), id) }},
	"refundOrder": {func(t *testing.T, c *client.Client) (any, error) { return c.Refund(t.Context(), id, true) }},
	"listPayments": {func(t *testing.T, c *client.Client) (any, error) {
		return c.ListPayments(t.Context(), client.PaymentFilter{Status: client.PaymentPaid, After: "p-1", Limit: 1})
	}},
	"markRefunded": {func(t *testing.T, c *client.Client) (any, error) { return c.MarkRefunded(t.Context(), "p-1") }},
	"listStock": {func(t *testing.T, c *client.Client) (any, error) {
		return c.ListStock(t.Context(), client.StockFilter{After: "10001", Limit: 1})
	}},
	"showStock": {func(t *testing.T, c *client.Client) (any, error) { return c.Stock(t.Context(), "10001") }},
	"setStock": {
		func(t *testing.T, c *client.Client) (any, error) {
			s, _, err := c.SetStock(t.Context(), "10001", client.Setting{Kind: client.Product, Total: 1})
			return s, err
		},
		func(t *testing.T, c *client.Client) (any, error) {
			s, _, err := c.SetStock(t.Context(), "10001", client.Setting{
				Kind: client.Coupon, BuyerLimit: new(int64(0)), OpensAt: new(time.Time{}), ClosesAt: new(time.Now()),
			})
			return s, err
		},
	},
	"showAudit":      {func(t *testing.T, c *client.Client) (any, error) { return c.Audit(t.Context(), "10001") }},
	"showStrategies": {func(t *testing.T, c *client.Client) (any, error) { return c.Strategies(t.Context()) }},
	"readyz": {func(t *testing.T, c *client.Client) (any, error) {
		return map[string]string{"status": "ready"}, c.Ready(t.Context())
	}},
}

const id = "01990a3c-9b8e-7c31-a5d2-3f6f0e7a1b22"

// TestDocument compares the client with the OpenAPI document: its calls, what they
// send, and the types of what they return.
func TestDocument(t *testing.T) {
	t.Parallel()
	doc, err := openapi3.NewLoader().LoadFromFile(documentFile)
	if err != nil {
		t.Fatal(err)
	}
	words := constants(t)
	left := maps.Clone(calls)
	for path, item := range doc.Paths.Map() {
		for method, op := range item.Operations() {
			if slices.Contains(notOffered, op.OperationID) {
				continue
			}
			if left[op.OperationID] == nil {
				t.Errorf("%s is not offered", op.OperationID)
			}
			delete(left, op.OperationID)
			t.Run(op.OperationID, func(t *testing.T) {
				d := documented{method, path, op, words}
				d.check(t)
			})
		}
	}
	if len(left) > 0 {
		t.Errorf("not in the document: %v", slices.Collect(maps.Keys(left)))
	}

	t.Run("Problems", func(t *testing.T) {
		text, err := os.ReadFile(documentFile)
		if err != nil {
			t.Fatal(err)
		}
		documented := map[string]bool{}
		for _, name := range regexp.MustCompile(`/problems/[a-z-]+[a-z]`).FindAllString(string(text), -1) {
			documented[name] = true
		}
		if got, want := words["ProblemType"], slices.Sorted(maps.Keys(documented)); !slices.Equal(got, append(want, "about:blank")) {
			t.Errorf("offered:\n%v\ndocumented:\n%v", got, want)
		}
		members := map[string]bool{}
		for name, schema := range doc.Components.Schemas {
			if strings.HasSuffix(name, "Problem") {
				for member := range schema.Value.Properties {
					members[member] = true
				}
			}
		}
		if got, want := slices.Sorted(maps.Keys(fields(reflect.TypeFor[client.Problem]()))), slices.Sorted(maps.Keys(members)); !slices.Equal(got, want) {
			t.Errorf("members %v, documented %v", got, want)
		}
	})
}

// documented is an operation of the document.
type documented struct {
	method, path string
	op           *openapi3.Operation
	words        map[string][]string
}

// check makes the operation's calls against every documented answer.
func (d documented) check(t *testing.T) {
	sent, asked := map[string]bool{}, map[string]bool{}
	for status, response := range d.op.Responses.Map() {
		content := response.Value.Content["application/json"]
		if !strings.HasPrefix(status, "2") || content == nil {
			continue
		}
		for _, example := range examples(content) {
			for _, call := range calls[d.op.OperationID] {
				text, err := json.Marshal(example)
				if err != nil {
					t.Fatal(err)
				}
				got := d.answer(t, status, text, call, sent, asked)
				d.compare(t, "answer", content.Schema.Value, reflect.TypeOf(got))
				again, err := json.Marshal(got)
				if err != nil || !equalJSON(again, text) {
					t.Errorf("read %s\nas   %s %v", text, again, err)
				}
			}
		}
	}
	for _, p := range d.op.Parameters {
		if p.Value.In == "query" && !asked[p.Value.Name] {
			t.Errorf("does not send the parameter %s", p.Value.Name)
		}
	}
	if d.op.RequestBody != nil {
		for name := range d.op.RequestBody.Value.Content["application/json"].Schema.Value.Properties {
			if !sent[name] {
				t.Errorf("does not send the member %s", name)
			}
		}
	}
}

// answer makes a call, checks its request and answers it. It adds the names of members
// and parameters to sent and asked.
func (d documented) answer(t *testing.T, status string, text []byte, call func(*testing.T, *client.Client) (any, error), sent, asked map[string]bool) any {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		pattern := regexp.MustCompile(`\{[a-z]+\}`).ReplaceAllString(d.path, `[^/]+`)
		if r.Method != d.method || !regexp.MustCompile("^"+pattern+"$").MatchString(r.URL.EscapedPath()) {
			t.Errorf("sent %s %s", r.Method, r.URL)
		}
		for name, values := range r.URL.Query() {
			p := d.op.Parameters.GetByInAndName("query", name)
			if p == nil || len(values) != 1 {
				t.Errorf("sent the parameter %s %v", name, values)
			}
			asked[name] = true
		}
		if key := d.op.Parameters.GetByInAndName("header", "Idempotency-Key"); (key != nil) != (r.Header.Get("Idempotency-Key") != "") {
			t.Errorf("sent key %q", r.Header.Get("Idempotency-Key"))
		}
		body, _ := io.ReadAll(r.Body)
		if len(body) > 0 {
			var value map[string]any
			if err := json.Unmarshal(body, &value); err != nil || d.op.RequestBody == nil || r.Header.Get("Content-Type") != "application/json" {
				t.Errorf("sent %s %v %v", body, r.Header, err)
				return
			}
			if err := d.op.RequestBody.Value.Content["application/json"].Schema.Value.VisitJSON(value, openapi3.EnableJSONSchema2020(), openapi3.VisitAsRequest()); err != nil {
				t.Errorf("sent %s: %v", body, err)
			}
			for name := range value {
				sent[name] = true
			}
		}
		w.Header().Set("Content-Type", "application/json")
		code, _ := strconv.Atoi(status)
		w.WriteHeader(code)
		_, _ = w.Write(text)
	}))
	defer server.Close()
	got, err := call(t, newClient(t, server.URL))
	if err != nil {
		t.Errorf("%s: %v", text, err)
	}
	return got
}

// compare checks that a Go type matches a schema: it has the same members, and a pointer where null
// is allowed.
func (d documented) compare(t *testing.T, at string, schema *openapi3.Schema, got reflect.Type) {
	t.Helper()
	null := schema.Type.Includes("null")
	if len(schema.OneOf) == 2 {
		null, schema = true, schema.OneOf[0].Value
	}
	if null != (got.Kind() == reflect.Pointer) {
		t.Errorf("%s: %v, null %v", at, got, null)
		return
	}
	if null {
		got = got.Elem()
	}
	want := map[string]reflect.Kind{"string": reflect.String, "integer": reflect.Int64, "boolean": reflect.Bool, "array": reflect.Slice, "object": reflect.Struct}
	for name, kind := range want {
		if !schema.Type.Includes(name) {
			continue
		}
		switch {
		case schema.Format == "date-time":
			if got != reflect.TypeFor[time.Time]() {
				t.Errorf("%s: %v, want a time", at, got)
			}
		case got.Kind() == reflect.Map: // a call without an answer
		case got.Kind() != kind:
			t.Errorf("%s: %v, want a %v", at, got, kind)
		case len(schema.Enum) > 0:
			var enum []string
			for _, v := range schema.Enum {
				enum = append(enum, v.(string))
			}
			slices.Sort(enum)
			if !slices.Equal(d.words[got.Name()], enum) {
				t.Errorf("%s: %v has %v, want %v", at, got, d.words[got.Name()], enum)
			}
		case kind == reflect.Slice:
			d.compare(t, at+"[]", schema.Items.Value, got.Elem())
		case kind == reflect.Struct:
			d.compareMembers(t, at, schema, fields(got))
		}
	}
}

func (d documented) compareMembers(t *testing.T, at string, schema *openapi3.Schema, got map[string]reflect.Type) {
	t.Helper()
	for name, property := range schema.Properties {
		if got[name] == nil {
			t.Errorf("%s: no member %s", at, name)
			continue
		}
		d.compare(t, at+"."+name, property.Value, got[name])
		delete(got, name)
	}
	for name := range got {
		t.Errorf("%s: the member %s is not documented", at, name)
	}
}

// fields returns the types of the JSON members of a struct.
func fields(t reflect.Type) map[string]reflect.Type {
	members := map[string]reflect.Type{}
	for _, f := range reflect.VisibleFields(t) {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" && name != "-" {
			members[name] = f.Type
		}
	}
	return members
}

// examples returns the examples of a body.
func examples(m *openapi3.MediaType) (values []any) {
	if m.Example != nil {
		values = append(values, m.Example)
	}
	for _, e := range m.Examples {
		values = append(values, e.Value.Value)
	}
	return values
}

func equalJSON(a, b []byte) bool {
	var x, y any
	return json.Unmarshal(a, &x) == nil && json.Unmarshal(b, &y) == nil && reflect.DeepEqual(x, y)
}

// constant matches a string constant of a named type, as gofmt writes it.
var constant = regexp.MustCompile(`(?m)^(?:const |\t)\w+ +(\w+) += "([^"]*)"`)

// constants returns the values of the package's string constants, sorted, by the name
// of their type.
func constants(t *testing.T) map[string][]string {
	t.Helper()
	values := map[string][]string{}
	names, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range constant.FindAllStringSubmatch(string(text), -1) {
			values[m[1]] = append(values[m[1]], m[2])
		}
	}
	for _, v := range values {
		slices.Sort(v)
	}
	if len(values) < 4 || strings.ContainsAny(strings.Join(values["Kind"], ""), " /") {
		t.Fatalf("found %v", values)
	}
	return values
}
