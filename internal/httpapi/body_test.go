package httpapi

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// TestReadQuery_Bound checks that an answer lists a bounded number of bad parameters.
func TestReadQuery_Bound(t *testing.T) {
	query := make(url.Values)
	for n := range maxErrors + 1 {
		query.Set(strconv.Itoa(n), "")
	}
	if bad := readQuery(query.Encode(), nil); len(bad) != maxErrors {
		t.Errorf("%d of %d bad parameters are listed", len(bad), len(query))
	}
}

// bindBody binds a body as the handlers do. whole reports that it is one JSON value.
func bindBody(data []byte, body any) (whole bool, bad []fieldError) {
	err := strictJSON{newValidator()}.Bind(httptest.NewRequest(http.MethodPost, "/", bytes.NewReader(data)), body)
	if err == nil {
		return true, nil
	}
	p, _, bad := bodyProblem(err)
	return p == invalid, bad
}

// bindOrder binds the body of an order.
func bindOrder(data []byte) (req order.Request, whole bool, bad []fieldError) {
	var body orderBody
	whole, bad = bindBody(data, &body)
	return order.Request{Buyer: body.BuyerID, Lines: body.Lines}, whole, bad
}

// surrogates matches escapes that may be half of a surrogate pair. encoding/json
// accepts them; this package does not.
var surrogates = regexp.MustCompile(`\\u[dD][89a-fA-F]`)

// FuzzDecodeOrder compares the decoder with encoding/json and with the OpenAPI document.
func FuzzDecodeOrder(f *testing.F) {
	for _, tt := range contract() {
		if tt.path == "/orders" && len(tt.body) < 3000 {
			f.Add([]byte(tt.body))
		}
	}
	schema := loadDocument(f).Components.Schemas["OrderRequest"].Value
	f.Fuzz(func(t *testing.T, body []byte) {
		if len(body) > maxBody {
			return
		}
		req, whole, bad := bindOrder(body)
		checkSyntax(t, body, whole)
		if !whole {
			return
		}
		checkBadFields(t, bad)
		if len(bad) > 0 {
			return // the decoder also checks rules that a schema cannot express: distinct SKUs, plain integers, unique names
		}
		var value any
		if err := json.Unmarshal(body, &value); err != nil {
			return // a number beyond float64, which only encoding/json refuses
		}
		if err := schema.VisitJSON(value, openapi3.EnableJSONSchema2020(), openapi3.VisitAsRequest()); err != nil {
			t.Fatalf("the decoder accepts a body that the document does not allow: %v: %s", err, body)
		}
		checkRequest(t, req)
		checkRoundTrip(t, body, req)
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
	if most := 2 + 2*stock.MaxLines; len(bad) > most {
		t.Fatalf("%d bad fields are listed", len(bad))
	}
	for i, e := range bad {
		if e.Detail == "" || len(e.Field) > maxEcho+len("…") {
			t.Fatalf("bad field %d: %+v", i, e)
		}
	}
}

// checkRoundTrip checks that an accepted request does not change when it is encoded and decoded
// again.
func checkRoundTrip(t *testing.T, body []byte, req order.Request) {
	t.Helper()
	encoded := encodeRequest(t, req)
	again, whole, bad := bindOrder(encoded)
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
	f.Fuzz(func(t *testing.T, data []byte) {
		var body settingBody
		body.SKU = "10001"
		if whole, bad := bindBody(data, &body); !whole || len(bad) > 0 {
			return
		}
		set := body.setting()
		if !json.Valid(data) || !set.Kind.Valid() || set.Total < 0 || set.Total > stock.MaxTotal {
			t.Fatalf("%q became %+v", data, set)
		}
		if set.BuyerLimit != nil && (*set.BuyerLimit < 0 || *set.BuyerLimit > stock.MaxTotal) {
			t.Fatalf("%q became a limit of %d", data, *set.BuyerLimit)
		}
		if set.OpensAt != nil && set.ClosesAt != nil && !set.ClosesAt.IsZero() && !set.ClosesAt.After(*set.OpensAt) {
			t.Fatalf("%q is open from %v to %v", data, set.OpensAt, set.ClosesAt)
		}
	})
}
