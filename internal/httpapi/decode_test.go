package httpapi

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// decodeOrder decodes an order as the handler does, and checks that the size
// limit holds. whole reports that the body is one JSON value.
func decodeOrder(t *testing.T, r *reader, body []byte) (req order.Request, whole bool, bad []fieldError) {
	t.Helper()
	p := r.load(httptest.NewRecorder(), &http.Request{Body: io.NopCloser(bytes.NewReader(body)), ContentLength: -1})
	if large := len(body) > maxBody; large != (p == tooLarge) || !large && p != "" {
		t.Fatalf("loading %d bytes: %q", len(body), p)
	}
	if p != "" {
		r.clear()
		return req, false, nil
	}
	req = r.order()
	whole = r.finish()
	bad = append(bad, r.bad...)
	r.clear()
	return req, whole, bad
}

// surrogates matches escapes that may be half of a surrogate pair. encoding/json
// accepts them; this package does not.
var surrogates = regexp.MustCompile(`\\u[dD][89a-fA-F]`)

// FuzzDecodeOrder compares the decoder with encoding/json and with the OpenAPI
// document.
func FuzzDecodeOrder(f *testing.F) {
	for _, tt := range contract() {
		if tt.path == "/orders" && len(tt.body) < 3000 {
			f.Add([]byte(tt.body))
		}
	}
	schema := loadDocument(f).Components.Schemas["OrderRequest"].Value
	r, again := newReader(), newReader()
	f.Fuzz(func(t *testing.T, body []byte) {
		req, whole, bad := decodeOrder(t, r, body)
		if len(body) > maxBody {
			return
		}
		checkSyntax(t, body, whole)
		if !whole {
			return
		}
		checkBadFields(t, bad)
		if len(bad) > 0 {
			return // the decoder also checks what a schema cannot: distinct SKUs, plain integers, unique names
		}
		var value any
		if err := json.Unmarshal(body, &value); err != nil {
			return // a number beyond float64, which only encoding/json refuses
		}
		if err := schema.VisitJSON(value, openapi3.EnableJSONSchema2020(), openapi3.VisitAsRequest()); err != nil {
			t.Fatalf("the decoder accepts a body that the document does not allow: %v: %s", err, body)
		}
		checkRequest(t, req)
		checkRoundTrip(t, again, body, req)
	})
}

// checkSyntax checks that the decoder and encoding/json agree on whether body is
// one JSON value in UTF-8.
func checkSyntax(t *testing.T, body []byte, whole bool) {
	t.Helper()
	valid := json.Valid(body) && utf8.Valid(body)
	if whole && !valid {
		t.Fatalf("accepted, but not JSON in UTF-8: %q", body)
	}
	if !whole && valid && !surrogates.Match(body) {
		t.Fatalf("refused, but JSON in UTF-8: %q", body)
	}
}

// checkBadFields checks the bounds of a list of bad fields.
func checkBadFields(t *testing.T, bad []fieldError) {
	t.Helper()
	if len(bad) > maxErrors {
		t.Fatalf("%d bad fields are listed", len(bad))
	}
	for i, e := range bad {
		if e.detail == "" || len(e.field) > maxEcho+len("…") {
			t.Fatalf("bad field %d: %+v", i, e)
		}
	}
}

// checkRoundTrip checks that an accepted request is the same after it was encoded
// and decoded again.
func checkRoundTrip(t *testing.T, r *reader, body []byte, req order.Request) {
	t.Helper()
	encoded := encodeRequest(t, req)
	again, whole, bad := decodeOrder(t, r, encoded)
	if !whole || len(bad) > 0 || !reflect.DeepEqual(again, req) {
		t.Fatalf("%s became %+v, %s became %+v (bad: %v)", body, req, encoded, again, bad)
	}
}

// checkRequest checks that an accepted request is within all limits.
func checkRequest(t *testing.T, req order.Request) {
	t.Helper()
	if !stock.ValidID(req.Buyer) || len(req.Lines) < 1 || len(req.Lines) > stock.MaxLines {
		t.Fatalf("accepted %+v", req)
	}
	seen := make(map[stock.SKU]bool)
	for _, line := range req.Lines {
		if !stock.ValidID(string(line.SKU)) || seen[line.SKU] || line.Quantity < 1 || line.Quantity > stock.MaxQuantity {
			t.Fatalf("accepted %+v", req)
		}
		seen[line.SKU] = true
	}
}

func encodeRequest(t *testing.T, req order.Request) []byte {
	t.Helper()
	type line struct {
		SKU      stock.SKU `json:"sku"`
		Quantity int64     `json:"quantity"`
	}
	doc := struct {
		Buyer string `json:"buyer_id"`
		Lines []line `json:"lines"`
	}{Buyer: req.Buyer}
	for _, l := range req.Lines {
		doc.Lines = append(doc.Lines, line{l.SKU, l.Quantity})
	}
	b, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// FuzzSetting checks that an accepted setting is JSON and within its limits.
func FuzzSetting(f *testing.F) {
	for _, tt := range contract() {
		if strings.HasPrefix(tt.path, "/stock/") && len(tt.body) < 3000 {
			f.Add([]byte(tt.body))
		}
	}
	r := newReader()
	f.Fuzz(func(t *testing.T, body []byte) {
		defer r.clear()
		if r.load(httptest.NewRecorder(), &http.Request{Body: io.NopCloser(bytes.NewReader(body)), ContentLength: -1}) != "" {
			return
		}
		set := r.setting()
		if !r.finish() || len(r.bad) > 0 {
			return
		}
		if !json.Valid(body) || !set.Kind.Valid() || set.Total < 0 || set.Total > stock.MaxTotal {
			t.Fatalf("%q became %+v", body, set)
		}
	})
}

// TestEncodersAgreeWithEncodingJSON checks that encoding/json reads back every
// string that the encoder writes.
func TestEncodersAgreeWithEncodingJSON(t *testing.T) {
	for _, s := range []string{"", "plain", `"\/`, "\x00\x1f\u007f", "é漢🂡", "\u2028<&>", "\xff\xc0 cut \xf0\x9f"} {
		b := appendString(nil, s)
		var got string
		if err := json.Unmarshal(b, &got); err != nil || got != strings.ToValidUTF8(s, "\ufffd") && !strings.Contains(s, "\xff") {
			t.Errorf("%q is encoded as %s: %q, %v", s, b, got, err)
		}
		if !utf8.Valid(b) {
			t.Errorf("%q is encoded as %q", s, b)
		}
	}
}

// TestReaderForgets checks that no body, malformed or invalid, affects the next
// one.
func TestReaderForgets(t *testing.T) {
	r := newReader()
	want, _, _ := decodeOrder(t, newReader(), []byte(oneLine))
	for _, tt := range contract() {
		if tt.path != "/orders" {
			continue
		}
		decodeOrder(t, r, []byte(tt.body))
		req, whole, bad := decodeOrder(t, r, []byte(oneLine))
		if !whole || len(bad) > 0 || !reflect.DeepEqual(req, want) {
			t.Errorf("after %.100q: %+v, %v, %v", tt.body, req, whole, bad)
		}
	}
}
