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

// decodeOrder reads an order as a handler does, and checks what must hold of
// every body. whole says that it is one JSON value.
func decodeOrder(t *testing.T, r *reader, body []byte) (req order.Request, whole bool, bad []fieldError) {
	t.Helper()
	p := r.load(httptest.NewRecorder(), &http.Request{Body: io.NopCloser(bytes.NewReader(body)), ContentLength: -1})
	if large := len(body) > maxBody; large != (p == tooLarge) || !large && p != "" {
		t.Fatalf("%d bytes are %q", len(body), p)
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

// surrogates is what encoding/json lets pass and we do not: an escape that may
// be half a character.
var surrogates = regexp.MustCompile(`\\u[dD][89a-fA-F]`)

// FuzzDecodeOrder holds the decoder against encoding/json and the OpenAPI
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
		valid := json.Valid(body)
		if whole && !(valid && utf8.Valid(body)) {
			t.Fatalf("no JSON in UTF-8, and yet accepted as such: %q", body)
		}
		if !whole {
			if valid && utf8.Valid(body) && !surrogates.Match(body) {
				t.Fatalf("JSON, and not accepted as such: %q", body)
			}
			return
		}

		for i, e := range bad {
			if e.detail == "" || len(e.field) > maxEcho+len("…") || len(bad) > maxNamed {
				t.Fatalf("bad field %d: %+v", i, e)
			}
		}
		var value any
		if err := json.Unmarshal(body, &value); err != nil {
			return // beyond float64, which only encoding/json minds
		}
		fits := schema.VisitJSON(value, openapi3.EnableJSONSchema2020(), openapi3.VisitAsRequest())
		if len(bad) > 0 {
			return // more is asked than a schema can say: distinct SKUs, plain integers, each name once
		}
		if fits != nil {
			t.Fatalf("the document refuses what the decoder accepts: %v: %s", fits, body)
		}
		checkRequest(t, req)

		encoded := encodeRequest(t, req)
		twice, whole, bad := decodeOrder(t, again, encoded)
		if !whole || len(bad) > 0 || !reflect.DeepEqual(twice, req) {
			t.Fatalf("%s became %+v, %s became %+v (bad: %v)", body, req, encoded, twice, bad)
		}
	})
}

func checkRequest(t *testing.T, req order.Request) {
	t.Helper()
	if !stock.ValidID(req.Buyer) || len(req.Lines) < 1 || len(req.Lines) > stock.MaxLines {
		t.Fatalf("accepted %+v", req)
	}
	seen := make(map[stock.SKU]bool)
	for _, line := range req.Lines {
		if !stock.ValidID(string(line.SKU)) || seen[line.SKU] || line.Quantity < 1 || line.Quantity > stock.MaxQuantity || line.Epoch != 0 {
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

// FuzzSetting has the same promise of the administrator's body.
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

// TestEncodersAgreeWithEncodingJSON: what is appended by hand is what a JSON
// library reads back, whatever the strings hold.
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

// TestReaderForgets: neither a broken body nor a bad one shows in the next.
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
