package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"mime"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/gin-gonic/gin"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// document checks answers against the OpenAPI document.
type document struct{ *openapi3.T }

// parsed parses the document once, because parsing is slow under the race
// detector.
var parsed = sync.OnceValues(func() (*openapi3.T, error) { return openapi3.NewLoader().LoadFromData(openAPI) })

func loadDocument(t testing.TB) document {
	t.Helper()
	doc, err := parsed()
	if err != nil {
		t.Fatalf("loading openapi.yaml: %v", err)
	}
	return document{doc}
}

// judged wraps the API. The test fails on any answer that the document does not allow.
func judged(t testing.TB, h http.Handler) http.Handler {
	doc := loadDocument(t)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rec := judgedAnswer{httptest.NewRecorder(), w}
		h.ServeHTTP(rec, r)
		if err := doc.judge(r, rec.Code, rec.Header(), rec.Body.Bytes()); err != nil {
			t.Errorf("the answer to %s %s is not as documented: %v\n%d %v\n%s", r.Method, r.URL, err, rec.Code, rec.Header(), rec.Body)
		}
		for name, values := range rec.Header() {
			w.Header()[name] = values
		}
		w.WriteHeader(rec.Code)
		_, _ = w.Write(rec.Body.Bytes())
	})
}

// judgedAnswer records an answer. Unwrap gives handlers the real connection, whose
// deadlines they set.
type judgedAnswer struct {
	*httptest.ResponseRecorder
	to http.ResponseWriter
}

func (a judgedAnswer) Unwrap() http.ResponseWriter { return a.to }

// judge returns an error if the document does not allow the answer.
func (d document) judge(r *http.Request, status int, h http.Header, body []byte) error {
	response, err := d.response(r, status, h)
	if err != nil {
		return err
	}
	if err := d.judgeHeaders(response, h); err != nil {
		return err
	}
	mediaType, _, err := mime.ParseMediaType(h.Get("Content-Type"))
	if err != nil {
		return fmt.Errorf("content type: %w", err)
	}
	content := response.Content[mediaType]
	if content == nil {
		return fmt.Errorf("%s is not documented for %d", mediaType, status)
	}
	var value any = string(body)
	if strings.HasSuffix(mediaType, "json") {
		if err := json.Unmarshal(body, &value); err != nil {
			return fmt.Errorf("body: %w", err)
		}
	}
	if err := d.validate(content.Schema.Value, value); err != nil {
		return fmt.Errorf("body: %w", err)
	}
	if strings.HasPrefix(mediaType, "application/problem") {
		if said := value.(map[string]any)["status"]; said != float64(status) {
			return fmt.Errorf("the problem has status %v, the answer %d", said, status)
		}
	}
	return nil
}

// validators has the compiled schemas. Compiling takes much longer than validating.
var validators sync.Map // *openapi3.Schema → *jsonschema.Schema

// validate returns an error if the schema, which must belong to the document, does not allow the
// value.
func (d document) validate(schema *openapi3.Schema, value any) error {
	if v, ok := validators.Load(schema); ok {
		return v.(*jsonschema.Schema).Validate(value)
	}
	// The schema becomes a separate JSON Schema, with the components that its references name.
	var resource map[string]any
	text, err := schema.MarshalJSON()
	if err != nil {
		return err
	}
	components, err := d.Components.MarshalJSON()
	if err != nil {
		return err
	}
	whole := fmt.Sprintf(`{"allOf":[%s],"components":%s}`, text, components)
	if err := json.Unmarshal([]byte(whole), &resource); err != nil {
		return err
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	if err := c.AddResource("schema.json", resource); err != nil {
		return err
	}
	v, err := c.Compile("schema.json")
	if err != nil {
		return err
	}
	validators.Store(schema, v)
	return v.Validate(value)
}

// response returns the documented response for the request and status.
func (d document) response(r *http.Request, status int, h http.Header) (*openapi3.Response, error) {
	item := d.item(r.URL.EscapedPath())
	if item == nil {
		if status != http.StatusNotFound {
			return nil, errors.New("the path is not documented")
		}
		return d.Components.Responses["NotFound"].Value, nil
	}
	operation := item.Operations()[r.Method]
	if operation == nil {
		var methods []string
		for method := range item.Operations() {
			methods = append(methods, method)
		}
		slices.Sort(methods)
		if status != http.StatusMethodNotAllowed {
			return nil, errors.New("the method is not documented")
		}
		if allow := h.Get("Allow"); allow != strings.Join(methods, ", ") {
			return nil, fmt.Errorf("Allow is %q, the documented methods are %v", allow, methods)
		}
		return d.Components.Responses["MethodNotAllowed"].Value, nil
	}
	response := operation.Responses.Value(strconv.Itoa(status))
	if response == nil {
		return nil, fmt.Errorf("%d is not documented", status)
	}
	return response.Value, nil
}

// item returns the documented path that matches, or nil. A path without
// parameters takes precedence.
func (d document) item(path string) *openapi3.PathItem {
	if item := d.Paths.Value(path); item != nil {
		return item
	}
	parts := strings.Split(path, "/")
	for pattern, item := range d.Paths.Map() {
		wanted := strings.Split(pattern, "/")
		if slices.EqualFunc(wanted, parts, func(want, part string) bool {
			return want == part || strings.HasPrefix(want, "{") && part != ""
		}) {
			return item
		}
	}
	return nil
}

// judgeHeaders returns an error if a required header is missing, or one is
// invalid or not documented.
func (d document) judgeHeaders(response *openapi3.Response, h http.Header) error {
	documented := map[string]bool{"Content-Type": true, "Content-Length": true, "Connection": true}
	for name, header := range response.Headers {
		name = http.CanonicalHeaderKey(name)
		documented[name] = true
		values := h[name]
		switch {
		case len(values) == 0 && header.Value.Required:
			return fmt.Errorf("%s is missing", name)
		case len(values) > 1:
			return fmt.Errorf("%s is given twice", name)
		case len(values) == 1:
			if err := d.validate(header.Value.Schema.Value, values[0]); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	for name := range h {
		if !documented[name] {
			return fmt.Errorf("%s is not documented", name)
		}
	}
	return nil
}

func TestDocument(t *testing.T) {
	doc := loadDocument(t)
	if err := doc.Validate(context.Background(), openapi3.EnableExamplesValidation(), openapi3.EnableSchemaFormatValidation()); err != nil {
		t.Error(err)
	}

	t.Run("HasEveryRoute", func(t *testing.T) {
		var served, documented []string
		for _, route := range New(testConfig(new(fakeOrders))).(*gin.Engine).Routes() {
			path := strings.NewReplacer(":id", "{id}", ":sku", "{sku}").Replace(route.Path)
			if strings.HasPrefix(path, "/debug/") {
				continue // operations under /debug/ are for people with Go's tools, and not part of the contract
			}
			served = append(served, route.Method+" "+path)
		}
		for path, item := range doc.Paths.Map() {
			for method := range item.Operations() {
				documented = append(documented, method+" "+path)
			}
		}
		slices.Sort(served)
		slices.Sort(documented)
		if !slices.Equal(served, documented) {
			t.Errorf("served:\n%v\ndocumented:\n%v", served, documented)
		}
	})

	// Spectral and Redocly check these too (make openapi-lint), with Node.
	t.Run("SuitsGenerators", func(t *testing.T) {
		text, err := doc.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		var value map[string]any
		if err := json.Unmarshal(text, &value); err != nil {
			t.Fatal(err)
		}
		checkTypes(t, "", value)
		for name := range doc.Components.Parameters {
			if doc.Components.Schemas[name] != nil {
				t.Errorf("a parameter and a schema are called %s: generated types would be too", name)
			}
		}
		if doc.Security == nil {
			t.Error("no security for the calls that do not say theirs")
		}
		for path, item := range doc.Paths.Map() {
			for method, operation := range item.Operations() {
				if operation.OperationID == "" || operation.Summary == "" || operation.Description == "" || len(operation.Tags) != 1 {
					t.Errorf("%s %s: no ID, summary, description or tag", method, path)
				}
				if !slices.ContainsFunc(slices.Collect(maps.Keys(operation.Responses.Map())), func(status string) bool { return status[0] == '4' }) {
					t.Errorf("%s %s: no 4xx", method, path)
				}
			}
		}
	})

	t.Run("HasAnExampleForEveryJSONBody", func(t *testing.T) {
		for path, item := range doc.Paths.Map() {
			for method, operation := range item.Operations() {
				for status, response := range operation.Responses.Map() {
					for mediaType, content := range response.Value.Content {
						if strings.HasSuffix(mediaType, "json") && content.Example == nil && len(content.Examples) == 0 {
							t.Errorf("%s %s %s %s has no example", method, path, status, mediaType)
						}
					}
				}
			}
		}
	})
}

// checkTypes checks that every constant and enumeration below the value has a type.
// Without one, generated clients get interface{}.
func checkTypes(t *testing.T, at string, value any) {
	t.Helper()
	switch value := value.(type) {
	case []any:
		for i, v := range value {
			checkTypes(t, fmt.Sprintf("%s[%d]", at, i), v)
		}
	case map[string]any:
		if (value["const"] != nil || value["enum"] != nil) && value["type"] == nil {
			t.Errorf("%s has no type", at)
		}
		for name, v := range value {
			if name != "example" && name != "examples" {
				checkTypes(t, at+"/"+name, v)
			}
		}
	}
}

// TestWrongAnswersAreRejected checks that judge rejects wrong answers, because all other tests rely
// on it.
func TestWrongAnswersAreRejected(t *testing.T) {
	doc := loadDocument(t)
	orders := &fakeOrders{order: order.Order{
		ID: testID, Buyer: "u-1", Status: order.Pending, Lines: []stock.Line{{SKU: "10001", Quantity: 1}},
		Strategy: "lua", CreatedAt: testTime, History: []order.Step{{Status: order.Pending, At: testTime}},
	}}
	answer := func(method, path, body string) (*http.Request, *httptest.ResponseRecorder) {
		r := call{method: method, path: path, body: body}.request()
		rec := httptest.NewRecorder()
		New(testConfig(orders)).ServeHTTP(rec, r)
		return r, rec
	}
	replace := func(old, new string) func(*httptest.ResponseRecorder) {
		return func(rec *httptest.ResponseRecorder) {
			b := rec.Body.Bytes()
			if !bytes.Contains(b, []byte(old)) {
				t.Errorf("%q is not in %s", old, b)
			}
			rec.Body = bytes.NewBuffer(bytes.Replace(b, []byte(old), []byte(new), 1))
		}
	}
	status := func(code int) func(*httptest.ResponseRecorder) {
		return func(rec *httptest.ResponseRecorder) { rec.Code = code }
	}
	header := func(name, value string) func(*httptest.ResponseRecorder) {
		return func(rec *httptest.ResponseRecorder) {
			if value == "" {
				rec.Header().Del(name)
			} else {
				rec.Header().Set(name, value)
			}
		}
	}
	const sound = `{"buyer_id":"u-1","lines":[{"sku":"10001","quantity":1}]}`
	due, wrong := &order.RefundDue{PaymentID: "p-1", Status: order.Paid}, &order.WrongStatus{Status: order.Paid}
	one := "/orders/" + testID.String()
	for _, tt := range []struct {
		name, method, path, body string
		err                      error // error of the service
		change                   func(*httptest.ResponseRecorder)
	}{
		{"a status not documented", "POST", "/orders", sound, nil, status(202)},
		{"a status of another call", "GET", "/healthz", "", nil, status(422)},
		{"an unknown member", "POST", "/orders", sound, nil, replace(`"id":`, `"extra":1,"id":`)},
		{"a missing member", "POST", "/orders", sound, nil, replace(`"expires_at":null`, `"x":1`)},
		{"a wrong type", "POST", "/orders", sound, nil, replace(`"quantity":1`, `"quantity":"1"`)},
		{"an unknown order status", "POST", "/orders", sound, nil, replace(`"pending"`, `"open"`)},
		{"a time without microseconds", "POST", "/orders", sound, nil, replace(`.000006Z`, `Z`)},
		{"no Location", "POST", "/orders", sound, nil, header("Location", "")},
		{"a bad Location", "POST", "/orders", sound, nil, header("Location", "/order/1")},
		{"no request ID", "GET", "/healthz", "", nil, header("X-Request-Id", "")},
		{"an undocumented header", "GET", "/healthz", "", nil, header("X-Powered-By", "gin")},
		{"another media type", "GET", "/healthz", "", nil, header("Content-Type", "text/plain")},
		{"a problem as plain JSON", "POST", "/orders", `{}`, nil, header("Content-Type", "application/json")},
		{"a problem of another status", "POST", "/orders", `{}`, nil, replace(`"status":422`, `"status":400`)},
		{"a problem of another type", "GET", "/orders/x", "", nil, replace(`unknown-order`, `not-found`)},
		{"no errors", "POST", "/orders", `{}`, nil, replace(`"errors":[{`, `"errs":[{`)},
		{"an undocumented sku", "GET", "/orders/x", "", nil, replace(`"status"`, `"sku":"1","status"`)},
		{"an undocumented path", "GET", "/nowhere", "", nil, status(200)},
		{"an undocumented method", "DELETE", "/stock", "", nil, status(404)},
		{"a wrong Allow", "DELETE", "/stock", "", nil, header("Allow", "GET, POST")},
		{"false for a missing count", "GET", "/stock/10001/audit", "", nil, replace(`"gate_available":null`, `"gate_available":false`)},
		{"no history", "GET", one, "", nil, replace(`"history":[{"status":"pending","at":"2026-01-02T03:04:05.000006Z"}]`, `"history":null`)},
		{"an unknown status in the history", "GET", one, "", nil, replace(`[{"status":"pending"`, `[{"status":"open"`)},
		{"a payment in the answer to pay", "POST", one + "/pay", goodPayment, nil, replace(`"expires_at":null`, `"expires_at":null,"payment_id":"p-1"`)},
		{"a history where there is none", "POST", one + "/cancel", "", nil, replace(`"expires_at":null`, `"expires_at":null,"payment_id":null,"history":[]`)},
		{"a page without next", "GET", "/orders?buyer_id=u-1", "", nil, replace(`,"next":null`, ``)},
		{"no array of payments", "GET", "/payments", "", nil, replace(`[]`, `null`)},
		{"an unknown payment status", "POST", "/payments/p-1/refunded", "", nil, replace(`"refunded"`, `"pending"`)},
		{"a refund-due without a payment", "POST", one + "/pay", goodPayment, due, replace(`"payment_id":"p-1",`, ``)},
		{"a refund-due without the order's status", "POST", one + "/pay", goodPayment, due, replace(`,"order_status":"paid"`, ``)},
		{"a wrong-status without the order's status", "POST", one + "/cancel", "", wrong, replace(`,"order_status":"paid"`, ``)},
		{"a wrong-status with a payment", "POST", one + "/cancel", "", wrong, replace(`"order_status"`, `"payment_id":"p-1","order_status"`)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			orders.err = tt.err
			r, rec := answer(tt.method, tt.path, tt.body)
			if err := doc.judge(r, rec.Code, rec.Header(), rec.Body.Bytes()); err != nil {
				t.Fatalf("the unchanged answer is rejected: %v", err)
			}
			tt.change(rec)
			if err := doc.judge(r, rec.Code, rec.Header(), rec.Body.Bytes()); err == nil {
				t.Errorf("the changed answer is accepted: %d %v %s", rec.Code, rec.Header(), rec.Body)
			}
		})
	}
}
