package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-stock/holdfast/internal/admin"
	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

var update = flag.Bool("update", false, "rewrite the golden answers in testdata")

const (
	oneLine   = `{"buyer_id":"u-1","lines":[{"sku":"10001","quantity":1}]}`
	goodStock = `{"kind":"product","total":100}`

	goodPayment = `{"payment_id":"p-1"}`
	goodRefund  = `{"restock":true}`
)

// lines returns n lines of distinct SKUs.
func lines(n int) string {
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"sku":"s%02d","quantity":1}`, i)
	}
	return b.String()
}

func int64p(n int64) *int64 { return &n }

// refusal returns a refusal wrapped as the service wraps it.
func refusal(sku stock.SKU, reason error) error {
	return fmt.Errorf("cutting: %w", stock.Refuse(sku, reason))
}

type contractCase struct {
	name string
	call
	orders  fakeOrders // result of the service
	change  func(*Config)
	status  int
	problem problem  // empty: the request succeeds
	bad     []string // fields that a 422 lists, in order
	asked   int      // number of calls that must reach the service
}

func contract() []*contractCase {
	placed := order.Order{
		ID: testID, Buyer: "u-1", Status: order.Pending, Strategy: "lua", CreatedAt: testTime,
		Lines: []stock.Line{{SKU: "10001", Quantity: 1}},
	}
	queued := placed
	queued.Status = order.Queued
	expiring := placed
	expiring.Status = order.Paid
	expiring.ExpiresAt = testTime.Add(15*60*1e9 + 1e6)
	void := order.Order{ID: testID, Buyer: "u-1", Status: order.Void, Strategy: "lua", CreatedAt: testTime}
	whole := placed
	whole.CreatedAt, whole.ExpiresAt = testTime.Truncate(1e9), testTime.Truncate(1e9).Add(1e9).Local()
	paid, cancelled, refunded := placed, placed, placed
	paid.Status, cancelled.Status, refunded.Status = order.Paid, order.Cancelled, order.Refunded
	withHistory := refunded
	withHistory.PaymentID = "p-1"
	withHistory.History = []order.Step{
		{Status: order.Pending, At: testTime},
		{Status: order.Paid, At: testTime.Add(time.Minute)},
		{Status: order.Refunded, At: testTime.Add(time.Hour)},
	}
	due := order.Payment{ID: "p-2", OrderID: testID, Status: order.PaymentRefundDue, CreatedAt: testTime, ChangedAt: testTime.Add(time.Second)}
	key := func(values ...string) http.Header { return http.Header{"Idempotency-Key": values} }
	mediaType := func(values ...string) http.Header { return http.Header{"Content-Type": values} }
	bearer := func(values ...string) http.Header { return http.Header{"Authorization": values} }
	withToken := func(c *Config) { c.AdminToken = "s3cret" }
	withTokenAnywhere := func(c *Config) { c.AdminToken, c.Loopback = "s3cret", false }
	notLoopback := func(c *Config) { c.Loopback = false }
	draining := func(c *Config) { c.Draining = func() bool { return true } }
	fails := func(err error) fakeOrders { return fakeOrders{err: err} }
	post := func(body string, header ...http.Header) call {
		c := call{method: "POST", path: "/orders", body: body}
		if len(header) > 0 {
			c.header = header[0]
		}
		return c
	}
	ofOrder := func(action, body string, header ...http.Header) call {
		c := post(body, header...)
		c.path += "/" + testID.String() + "/" + action
		return c
	}
	pay := func(body string, header ...http.Header) call { return ofOrder("pay", body, header...) }
	cancel := func(body string, header ...http.Header) call { return ofOrder("cancel", body, header...) }
	refund := func(body string, header ...http.Header) call { return ofOrder("refund", body, header...) }
	paidBack := func(id, body string, header ...http.Header) call {
		c := post(body, header...)
		c.path = "/payments/" + id + "/refunded"
		return c
	}
	put := func(body string, header ...http.Header) call {
		c := call{method: "PUT", path: "/stock/10001", body: body}
		if len(header) > 0 {
			c.header = header[0]
		}
		return c
	}
	get := func(path string) call { return call{method: "GET", path: path} }

	cases := []*contractCase{
		// POST /orders: accepted.
		{name: "place one line", call: post(oneLine), status: 201, asked: 1},
		{name: "place with a key", call: post(oneLine, key("k-1")), status: 201, asked: 1},
		{name: "place with the longest key", call: post(oneLine, key(strings.Repeat("~", 255))), status: 201, asked: 1},
		{name: "replay", call: post(oneLine, key("k-1")), orders: fakeOrders{order: placed, replayed: true}, status: 201, asked: 1},
		{name: "queued", call: post(oneLine), orders: fakeOrders{order: queued}, status: 202, asked: 1},
		{name: "replay of a queued order", call: post(oneLine, key("k-1")), orders: fakeOrders{order: queued, replayed: true}, status: 202, asked: 1},
		{name: "lines come back by SKU", call: post(`{"lines":[{"quantity":2,"sku":"b"},{"sku":"a","quantity":1}],"buyer_id":"u-1"}`), status: 201, asked: 1},
		{name: "place the most lines", call: post(`{"buyer_id":"u-1","lines":[` + lines(20) + `]}`), status: 201, asked: 1},
		{name: "place the longest answer", call: post(longest()), status: 201, asked: 1},
		{name: "escapes in names and values", call: post(`{"b\u0075yer_id":"u\u002d1","lines":[{"s\u006bu":"1000\u0031","quantity":1}]}`), status: 201, asked: 1},
		{name: "white space around", call: post(" \r\n\t{ \"buyer_id\" : \"u-1\" , \"lines\" : [ { \"sku\" : \"10001\" , \"quantity\" : 1 } ] } \n"), status: 201, asked: 1},
		{name: "charset utf-8", call: post(oneLine, mediaType("application/json; charset=UTF-8")), status: 201, asked: 1},
		{name: "another media type parameter", call: post(oneLine, mediaType(`Application/JSON; v="1"`)), status: 201, asked: 1},
		{name: "identity coding", call: post(oneLine, http.Header{"Content-Encoding": {"identity"}}), status: 201, asked: 1},

		// POST /orders: refused by the service.
		{name: "buyer limit", call: post(oneLine), orders: fails(refusal("10001", stock.ErrBuyerLimit)), status: 409, problem: buyerLimit, asked: 1},
		{name: "not open", call: post(oneLine), orders: fails(refusal("10001", &stock.NotOpen{OpensAt: testTime})), status: 409, problem: notOpen, asked: 1},
		{name: "not open, and unavailable", call: post(oneLine), orders: fails(fmt.Errorf("%w: %w", stock.ErrUnavailable, refusal("10001", &stock.NotOpen{OpensAt: testTime}))), status: 503, problem: unavailable, asked: 1},
		{name: "closed", call: post(oneLine), orders: fails(refusal("10001", stock.ErrClosed)), status: 409, problem: closed, asked: 1},
		{name: "sold out", call: post(oneLine), orders: fails(refusal("10001", stock.ErrSoldOut)), status: 409, problem: soldOut, asked: 1},
		{name: "unknown SKU", call: post(oneLine), orders: fails(refusal("10001", stock.ErrUnknownSKU)), status: 404, problem: unknownSKU, asked: 1},
		{name: "in progress", call: post(oneLine, key("k")), orders: fails(fmt.Errorf("%w: %w", order.ErrInProgress, stock.ErrInFlight)), status: 409, problem: inProgress, asked: 1},
		{name: "key reused", call: post(oneLine, key("k")), orders: fails(order.ErrKeyReused), status: 422, problem: keyReused, asked: 1},
		{name: "busy", call: post(oneLine), orders: fails(fmt.Errorf("%w: %w", stock.ErrBusy, refusal("10001", stock.ErrStaleEpoch))), status: 503, problem: busy, asked: 1},
		{name: "unavailable", call: post(oneLine), orders: fails(stock.ErrUnavailable), status: 503, problem: unavailable, asked: 1},
		{name: "superseded", call: post(oneLine), orders: fails(fmt.Errorf("%w: %w", stock.ErrSuperseded, refusal("10001", stock.ErrSuperseded))), status: 503, problem: superseded, asked: 1},
		{name: "an order from a page of another origin", call: post(oneLine, http.Header{"Origin": {"http://evil.test"}, "Sec-Fetch-Site": {"cross-site"}}), status: 403, problem: crossOrigin},
		{name: "an order from a page of another port", call: post(oneLine, http.Header{"Origin": {"http://localhost:3000"}}), status: 403, problem: crossOrigin},
		{name: "an order from a page without an origin", call: post(oneLine, http.Header{"Origin": {"null"}}), status: 403, problem: crossOrigin},
		{name: "an order from a page of the same origin", call: post(oneLine, http.Header{"Origin": {"http://localhost:8080"}}), status: 201, asked: 1},
		{name: "unavailable after sold out", call: post(oneLine), orders: fails(fmt.Errorf("%w: %w", stock.ErrUnavailable, refusal("10001", stock.ErrSoldOut))), status: 503, problem: unavailable, asked: 1},
		{name: "an unknown error", call: post(oneLine), orders: fails(errors.New("password=hunter2")), status: 500, problem: internal, asked: 1},

		// POST /orders: headers.
		{name: "empty key", call: post(oneLine, key("")), status: 400, problem: malformed},
		{name: "two keys", call: post(oneLine, key("a", "b")), status: 400, problem: malformed},
		{name: "the same key twice", call: post(oneLine, key("a", "a")), status: 400, problem: malformed},
		{name: "a key too long", call: post(oneLine, key(strings.Repeat("k", 256))), status: 400, problem: malformed},
		{name: "a key with a space", call: post(oneLine, key("a b")), status: 400, problem: malformed},
		{name: "a key beyond ASCII", call: post(oneLine, key("clé")), status: 400, problem: malformed},
		{name: "no content type", call: post(oneLine, mediaType()), status: 415, problem: notJSON},
		{name: "text", call: post(oneLine, mediaType("text/plain")), status: 415, problem: notJSON},
		{name: "a form", call: post(oneLine, mediaType("application/x-www-form-urlencoded")), status: 415, problem: notJSON},
		{name: "another JSON media type", call: post(oneLine, mediaType("application/problem+json")), status: 415, problem: notJSON},
		{name: "another charset", call: post(oneLine, mediaType("application/json; charset=latin1")), status: 415, problem: notJSON},
		{name: "two content types", call: post(oneLine, mediaType("application/json", "application/json")), status: 415, problem: notJSON},
		{name: "a broken content type", call: post(oneLine, mediaType("application/json; =")), status: 415, problem: notJSON},
		{name: "compressed", call: post(oneLine, http.Header{"Content-Encoding": {"gzip"}}), status: 415, problem: notJSON},
		{name: "two codings", call: post(oneLine, http.Header{"Content-Encoding": {"identity", "gzip"}}), status: 415, problem: notJSON},

		// POST /orders: not one JSON value.
		{name: "empty body", call: post("", mediaType("application/json")), status: 400, problem: malformed},
		{name: "no body and no content type", call: post(""), status: 400, problem: malformed},
		{name: "only white space", call: post(" \n"), status: 400, problem: malformed},
		{name: "a truncated body", call: post(oneLine[:30]), status: 400, problem: malformed},
		{name: "two values", call: post(oneLine + oneLine), status: 400, problem: malformed},
		{name: "text after the value", call: post(oneLine + " x"), status: 400, problem: malformed},
		{name: "a trailing comma in an array", call: post(`{"buyer_id":"u-1","lines":[{"sku":"10001","quantity":1},]}`), status: 400, problem: malformed},
		{name: "a trailing comma in an object", call: post(`{"buyer_id":"u-1",}`), status: 400, problem: malformed},
		{name: "single quotes", call: post(`{'buyer_id':'u-1'}`), status: 400, problem: malformed},
		{name: "a leading zero", call: post(`{"buyer_id":"u-1","lines":[{"sku":"10001","quantity":01}]}`), status: 400, problem: malformed},
		{name: "a comment", call: post(`/* */` + oneLine), status: 400, problem: malformed},
		{name: "a byte order mark", call: post("\ufeff" + oneLine), status: 400, problem: malformed},
		{name: "bad UTF-8 in a value", call: post("{\"buyer_id\":\"\xff\"}"), status: 400, problem: malformed},
		{name: "bad UTF-8 in a name", call: post("{\"\xff\":1}"), status: 400, problem: malformed},
		{name: "bad UTF-8 in a skipped value", call: post("{\"x\":[\"\xff\"]}"), status: 400, problem: malformed},
		{name: "half a surrogate", call: post(`{"buyer_id":"\ud800"}`), status: 400, problem: malformed},
		{name: "malformed after bad fields", call: post(`{"buyer_id":1,"lines":{},"x":`), status: 400, problem: malformed},
		{name: "too deep", call: post(strings.Repeat("[", 20000) + strings.Repeat("]", 20000)), status: 400, problem: malformed},

		// POST /orders: too large.
		{name: "the largest body", call: post(padded(64 << 10)), status: 201, asked: 1},
		{name: "a byte too large", call: post(padded(64<<10 + 1)), status: 413, problem: tooLarge},
		{name: "too large and not JSON", call: post(strings.Repeat("x", 70_000)), status: 413, problem: tooLarge},

		// POST /orders: bad fields.
		{name: "an empty object", call: post(`{}`), status: 422, problem: invalid, bad: []string{"buyer_id", "lines"}},
		{name: "an array", call: post(`[]`), status: 422, problem: invalid, bad: []string{""}},
		{name: "null", call: post(`null`), status: 422, problem: invalid, bad: []string{""}},
		{name: "a string", call: post(`"x"`), status: 422, problem: invalid, bad: []string{""}},
		{name: "nulls", call: post(`{"buyer_id":null,"lines":null}`), status: 422, problem: invalid, bad: []string{"buyer_id", "lines"}},
		{name: "wrong types, of which the first is named", call: post(`{"buyer_id":7,"lines":{"sku":"1"}}`), status: 422, problem: invalid, bad: []string{"buyer_id"}},
		{name: "lines of another type", call: post(`{"buyer_id":"-","lines":{"sku":"1"}}`), status: 422, problem: invalid, bad: []string{"lines"}},
		{name: "no lines", call: post(`{"buyer_id":"u-1","lines":[]}`), status: 422, problem: invalid, bad: []string{"lines"}},
		{name: "too many lines", call: post(`{"buyer_id":"u-1","lines":[` + lines(21) + `]}`), status: 422, problem: invalid, bad: []string{"lines"}},
		{name: "too many lines, the last one bad", call: post(`{"buyer_id":"u-1","lines":[` + lines(20) + `,{"sku":"s00"}]}`), status: 422, problem: invalid, bad: []string{"lines"}},
		{name: "far too many lines", call: post(`{"buyer_id":"-","lines":[` + lines(1500) + `]}`), status: 422, problem: invalid, bad: []string{"buyer_id", "lines"}},
		{name: "a line of another type", call: post(`{"buyer_id":"u-1","lines":[{},[],1]}`), status: 422, problem: invalid, bad: []string{"lines[1]"}},
		{name: "lines without fields", call: post(`{"buyer_id":"u-1","lines":[{},null]}`), status: 422, problem: invalid, bad: []string{"lines[0].sku", "lines[0].quantity", "lines[1].sku", "lines[1].quantity"}},
		{name: "every field bad", call: post(`{"buyer_id":"-","lines":[{"sku":"","quantity":0},{"sku":"a b","quantity":1001},{"quantity":-1}]}`), status: 422, problem: invalid,
			bad: []string{"buyer_id", "lines[0].sku", "lines[0].quantity", "lines[1].sku", "lines[1].quantity", "lines[2].sku", "lines[2].quantity"}},
		{name: "an unknown field of a line", call: post(`{"buyer_id":"-","lines":[{"sku":"a","quantity":1},{"sku":"b","quantity":1,"z":null}]}`), status: 422, problem: invalid, bad: []string{"lines[1].z"}},
		{name: "a field in another case", call: post(`{"Buyer_id":"u-1","buyer_id":"u-1","lines":[{"sku":"a","quantity":1}]}`), status: 422, problem: invalid, bad: []string{"Buyer_id"}},
		{name: "a field of a line in another case", call: post(`{"buyer_id":"u-1","lines":[{"SKU":"a","quantity":1}]}`), status: 422, problem: invalid, bad: []string{"lines[0].SKU"}},
		{name: "the same SKU twice", call: post(`{"buyer_id":"u-1","lines":[{"sku":"a","quantity":1},{"sku":"b","quantity":1},{"sku":"a","quantity":2}]}`), status: 422, problem: invalid, bad: []string{"lines[2].sku"}},
		{name: "the same SKU three times", call: post(`{"buyer_id":"u-1","lines":[{"sku":"a","quantity":1},{"sku":"a","quantity":0},{"sku":"a","quantity":2}]}`), status: 422, problem: invalid, bad: []string{"lines[1].quantity", "lines[1].sku", "lines[2].sku"}},
		{name: "a duplicate name", call: post(`{"buyer_id":"u-1","buyer_id":"u-1","lines":[{"sku":"a","sku":"a","quantity":1}]}`), status: 422, problem: invalid, bad: []string{"buyer_id"}},
		{name: "a duplicate name in a line", call: post(`{"buyer_id":"-","lines":[{"sku":"a","quantity":1},{"sku":"b","quantity":1,"quantity":1}],"lines":[]}`), status: 422, problem: invalid, bad: []string{"lines[1].quantity"}},
		{name: "a duplicate name, malformed later", call: post(`{"buyer_id":"u-1","buyer_id":"u-1","lines":[}`), status: 400, problem: malformed},
		{name: "a duplicate name in another spelling", call: post(`{"buyer_id":"u-1","buyer\u005fid":"u-1","lines":[{"sku":"a","quantity":1}]}`), status: 422, problem: invalid, bad: []string{"buyer_id"}},
		{name: "duplicate names inside an unknown field", call: post(`{"buyer_id":"u-1","lines":[{"sku":"a","quantity":1}],"x":{"a":1,"a":2},"x":3}`), status: 422, problem: invalid, bad: []string{"x"}},
		{name: "a name that needs escapes", call: post(`{"buyer_id":"u-1","lines":[{"sku":"a","quantity":1}],"\"<\u0000\u2028é":1}`), status: 422, problem: invalid, bad: []string{"\"<\x00\u2028é"}},
		{name: "a very long name", call: post(`{"buyer_id":"u-1","lines":[{"sku":"a","quantity":1}],"` + strings.Repeat("é", 1000) + `":1}`), status: 422, problem: invalid, bad: []string{strings.Repeat("é", 64) + "…"}},

		// POST /orders/{id}/pay.
		{name: "pay", call: pay(goodPayment), orders: fakeOrders{order: paid}, status: 200, asked: 1},
		{name: "pay with the longest payment ID", call: pay(`{"payment_id":"` + strings.Repeat("p", 64) + `"}`), orders: fakeOrders{order: paid}, status: 200, asked: 1},
		{name: "pay an order by an upper-case ID", call: call{method: "POST", path: "/orders/" + strings.ToUpper(testID.String()) + "/pay", body: goodPayment}, orders: fakeOrders{order: paid}, status: 200, asked: 1},
		{name: "pay with a needless idempotency key", call: pay(goodPayment, key("a b")), orders: fakeOrders{order: paid}, status: 200, asked: 1},
		{name: "pay without an admin token", call: pay(goodPayment), change: withTokenAnywhere, orders: fakeOrders{order: paid}, status: 200, asked: 1},
		{name: "pay too late", call: pay(goodPayment), orders: fails(fmt.Errorf("paying: %w", &order.RefundDue{PaymentID: "p-1", Status: order.Expired})), status: 409, problem: refundDue, asked: 1},
		{name: "pay a second time with another payment", call: pay(goodPayment), orders: fails(&order.RefundDue{PaymentID: "p-1", Status: order.Paid}), status: 409, problem: refundDue, asked: 1},
		{name: "pay a queued order", call: pay(goodPayment), orders: fails(order.ErrInProgress), status: 409, problem: inProgress, asked: 1},
		{name: "pay with the payment of another order", call: pay(goodPayment), orders: fails(fmt.Errorf("paying: %w", order.ErrPaymentReused)), status: 422, problem: invalid, bad: []string{"payment_id"}, asked: 1},
		{name: "pay no such order", call: pay(goodPayment), orders: fails(order.ErrUnknownOrder), status: 404, problem: unknownOrder, asked: 1},
		{name: "pay an order whose ID is not a UUID", call: call{method: "POST", path: "/orders/1/pay", body: goodPayment}, status: 404, problem: unknownOrder},
		{name: "pay an order whose ID is not a UUID, with bad fields", call: call{method: "POST", path: "/orders/1/pay", body: `{}`}, status: 422, problem: invalid, bad: []string{"payment_id"}},
		{name: "pay while the database is unavailable", call: pay(goodPayment), orders: fails(stock.ErrUnavailable), status: 503, problem: unavailable, asked: 1},
		{name: "pay while a refusal is not the outcome", call: pay(goodPayment), orders: fails(fmt.Errorf("%w: %w", stock.ErrUnavailable, &order.RefundDue{PaymentID: "p-1", Status: order.Expired})), status: 503, problem: unavailable, asked: 1},
		{name: "pay while the service is busy", call: pay(goodPayment), orders: fails(stock.ErrBusy), status: 503, problem: busy, asked: 1},
		{name: "pay after another layout has taken over", call: pay(goodPayment), orders: fails(stock.ErrSuperseded), status: 503, problem: superseded, asked: 1},
		{name: "pay without fields", call: pay(`{}`), status: 422, problem: invalid, bad: []string{"payment_id"}},
		{name: "pay with a bad field and an unknown one", call: pay(`{"payment_id":"-","amount":1,"payment_id":"p-1"}`), status: 422, problem: invalid, bad: []string{"amount"}},
		{name: "pay with two payments", call: pay(`{"payment_id":"p-1","payment_id":"p-2"}`), status: 422, problem: invalid, bad: []string{"payment_id"}},
		{name: "pay with a number", call: pay(`{"payment_id":1}`), status: 422, problem: invalid, bad: []string{"payment_id"}},
		{name: "pay with a payment ID that is too long", call: pay(`{"payment_id":"` + strings.Repeat("p", 65) + `"}`), status: 422, problem: invalid, bad: []string{"payment_id"}},
		{name: "pay with an array", call: pay(`["p-1"]`), status: 422, problem: invalid, bad: []string{""}},
		{name: "pay without a body", call: pay(""), status: 400, problem: malformed},
		{name: "pay with two values", call: pay(goodPayment + goodPayment), status: 400, problem: malformed},
		{name: "pay with text", call: pay(goodPayment, mediaType("text/plain")), status: 415, problem: notJSON},
		{name: "pay with too much", call: pay(goodPayment + strings.Repeat(" ", 70_000)), status: 413, problem: tooLarge},
		{name: "pay from a page of another origin", call: pay(goodPayment, http.Header{"Origin": {"http://evil.test"}}), status: 403, problem: crossOrigin},

		// POST /orders/{id}/cancel.
		{name: "cancel", call: cancel(""), orders: fakeOrders{order: cancelled}, status: 200, asked: 1},
		{name: "cancel with an empty body of JSON", call: cancel("", mediaType("application/json")), orders: fakeOrders{order: cancelled}, status: 200, asked: 1},
		{name: "cancel with an empty object", call: cancel(" {} "), orders: fakeOrders{order: cancelled}, status: 200, asked: 1},
		{name: "cancel without an admin token", call: cancel(""), change: withTokenAnywhere, orders: fakeOrders{order: cancelled}, status: 200, asked: 1},
		{name: "cancel a paid order", call: cancel(""), orders: fails(fmt.Errorf("cancelling: %w", &order.WrongStatus{Status: order.Paid})), status: 409, problem: wrongStatus, asked: 1},
		{name: "cancel a queued order", call: cancel(""), orders: fails(order.ErrInProgress), status: 409, problem: inProgress, asked: 1},
		{name: "cancel no such order", call: cancel(""), orders: fails(order.ErrUnknownOrder), status: 404, problem: unknownOrder, asked: 1},
		{name: "cancel an order whose ID is not a UUID", call: call{method: "POST", path: "/orders/1/cancel"}, status: 404, problem: unknownOrder},
		{name: "cancel while the service is busy", call: cancel(""), orders: fails(stock.ErrBusy), status: 503, problem: busy, asked: 1},
		{name: "cancel with an unknown field", call: cancel(`{"reason":"x"}`), status: 422, problem: invalid, bad: []string{"reason"}},
		{name: "cancel with null", call: cancel("null"), status: 422, problem: invalid, bad: []string{""}},
		{name: "cancel with white space", call: cancel(" "), status: 400, problem: malformed},
		{name: "cancel with two values", call: cancel("{}{}"), status: 400, problem: malformed},
		{name: "cancel with a form", call: cancel("a=b", mediaType("application/x-www-form-urlencoded")), status: 415, problem: notJSON},
		{name: "cancel with too much", call: cancel(strings.Repeat(" ", 70_000)), status: 413, problem: tooLarge},
		{name: "cancel from a page of another origin", call: cancel("", http.Header{"Sec-Fetch-Site": {"cross-site"}}), status: 403, problem: crossOrigin},

		// POST /orders/{id}/refund.
		{name: "refund", call: refund(goodRefund), orders: fakeOrders{order: refunded}, status: 200, asked: 1},
		{name: "refund and keep the units", call: refund(`{"restock":false}`), orders: fakeOrders{order: refunded}, status: 200, asked: 1},
		{name: "refund with the token", call: refund(goodRefund, bearer("Bearer s3cret")), change: withTokenAnywhere, orders: fakeOrders{order: refunded}, status: 200, asked: 1},
		{name: "refund without the token", call: refund("x", mediaType("text/plain")), change: withToken, status: 401, problem: unauthorized},
		{name: "refund through a proxy", call: refund(goodRefund, http.Header{"X-Forwarded-For": {"10.0.0.7"}}), status: 401, problem: unauthorized},
		{name: "refund an unpaid order", call: refund(goodRefund), orders: fails(&order.WrongStatus{Status: order.Pending}), status: 409, problem: wrongStatus, asked: 1},
		{name: "refund no such order", call: refund(goodRefund), orders: fails(order.ErrUnknownOrder), status: 404, problem: unknownOrder, asked: 1},
		{name: "refund an order whose ID is not a UUID", call: call{method: "POST", path: "/orders/1/refund", body: goodRefund}, status: 404, problem: unknownOrder},
		{name: "refund while the database is unavailable", call: refund(goodRefund), orders: fails(stock.ErrUnavailable), status: 503, problem: unavailable, asked: 1},
		{name: "refund without fields", call: refund(`{}`), status: 422, problem: invalid, bad: []string{"restock"}},
		{name: "refund with a string", call: refund(`{"restock":"true","restock":1,"amount":1}`), status: 422, problem: invalid, bad: []string{"restock"}},
		{name: "refund with and without units", call: refund(`{"restock":true,"restock":false}`), status: 422, problem: invalid, bad: []string{"restock"}},
		{name: "refund with null", call: refund(`{"restock":null}`), status: 422, problem: invalid, bad: []string{"restock"}},
		{name: "refund without a body", call: refund(""), status: 400, problem: malformed},
		{name: "refund with text", call: refund(goodRefund, mediaType("text/plain")), status: 415, problem: notJSON},
		{name: "refund from a page of another origin", call: refund(goodRefund, http.Header{"Origin": {"http://evil.test"}, "Authorization": {"Bearer s3cret"}}), change: withToken, status: 403, problem: crossOrigin},

		// GET /payments and POST /payments/{id}/refunded.
		{name: "list no payments", call: get("/payments"), status: 200, asked: 1},
		{name: "list payments", call: get("/payments?status=refund-due&after=p-1&limit=1"), orders: fakeOrders{payments: []order.Payment{due}, later: "p-2"}, status: 200, asked: 1},
		{name: "list payments with the token", call: call{method: "GET", path: "/payments", header: bearer("Bearer s3cret")}, change: withTokenAnywhere, status: 200, asked: 1},
		{name: "list payments without the token", call: get("/payments?limit=0"), change: withToken, status: 401, problem: unauthorized},
		{name: "list payments with everything wrong", call: get("/payments?limit=x&after=-&status=due&buyer_id=u-1"), status: 422, problem: invalid, bad: []string{"after", "buyer_id", "limit", "status"}},
		{name: "list payments while the database is unavailable", call: get("/payments"), orders: fails(stock.ErrUnavailable), status: 503, problem: unavailable, asked: 1},
		{name: "a payment was paid back", call: paidBack("p-2", ""), status: 200, asked: 1},
		{name: "a payment with a colon was paid back", call: paidBack("p%3A2", "{}"), status: 200, asked: 1},
		{name: "a payment was paid back, with the token", call: paidBack("p-2", "", bearer("Bearer s3cret")), change: withTokenAnywhere, status: 200, asked: 1},
		{name: "a payment was paid back, without the token", call: paidBack("p-2", "x"), change: withToken, status: 401, problem: unauthorized},
		{name: "no such payment", call: paidBack("p-3", ""), orders: fails(fmt.Errorf("refunding: %w", order.ErrUnknownPayment)), status: 404, problem: unknownPayment, asked: 1},
		{name: "a payment with an invalid ID", call: paidBack("-", ""), status: 404, problem: unknownPayment},
		{name: "a payment that pays its order", call: paidBack("p-1", ""), orders: fails(&order.WrongStatus{Status: order.Paid}), status: 409, problem: wrongStatus, asked: 1},
		{name: "a payment was paid back, with an unknown field", call: paidBack("-", `{"amount":1}`), status: 422, problem: invalid, bad: []string{"amount"}},
		{name: "a payment was paid back, with text", call: paidBack("p-2", "x", mediaType("text/plain")), status: 415, problem: notJSON},
		{name: "a payment was paid back, from a page of another origin", call: paidBack("p-2", "", http.Header{"Origin": {"null"}}), status: 403, problem: crossOrigin},

		// GET /orders.
		{name: "list a buyer's orders", call: get("/orders?buyer_id=u-1"), orders: fakeOrders{orders: []order.Order{placed, expiring}}, change: withTokenAnywhere, status: 200, asked: 1},
		{name: "list a page of orders", call: get("/orders?buyer_id=u-1&status=paid&after=" + testID.String() + "&limit=1"), orders: fakeOrders{orders: []order.Order{withHistory}, after: testID}, change: withTokenAnywhere, status: 200, asked: 1},
		{name: "list everybody's orders", call: get("/orders?after="), status: 200, asked: 1},
		{name: "list everybody's orders with the token", call: call{method: "GET", path: "/orders?status=void", header: bearer("Bearer s3cret")}, change: withTokenAnywhere, status: 200, asked: 1},
		{name: "list everybody's orders without the token", call: get("/orders?status=paid"), change: withToken, status: 422, problem: invalid, bad: []string{"buyer_id"}},
		{name: "list everybody's orders through a proxy", call: call{method: "GET", path: "/orders", header: http.Header{"Via": {"1.1 x"}}}, status: 422, problem: invalid, bad: []string{"buyer_id"}},
		{name: "list orders with everything wrong", call: get("/orders?buyer_id=-&status=open&after=1&limit=0&buyer=u-1"), change: withToken, status: 422, problem: invalid, bad: []string{"after", "buyer", "buyer_id", "limit", "status"}},
		{name: "list the orders of an empty buyer", call: get("/orders?buyer_id="), status: 422, problem: invalid, bad: []string{"buyer_id"}},
		{name: "list the orders of two buyers", call: get("/orders?buyer_id=u-1&buyer_id=u-2"), status: 422, problem: invalid, bad: []string{"buyer_id"}},
		{name: "list orders after an ID in braces", call: get("/orders?buyer_id=u-1&after=%7B" + testID.String() + "%7D"), status: 422, problem: invalid, bad: []string{"after"}},
		{name: "list orders with an empty status", call: get("/orders?buyer_id=u-1&status="), status: 422, problem: invalid, bad: []string{"status"}},
		{name: "list orders while the database is unavailable", call: get("/orders?buyer_id=u-1"), orders: fails(stock.ErrUnavailable), status: 503, problem: unavailable, asked: 1},

		// PUT /stock/{sku}.
		{name: "create stock", call: put(goodStock), orders: fakeOrders{created: true}, status: 201, asked: 1},
		{name: "change stock", call: put(`{"kind":"coupon","total":0,"buyer_limit":0}`), status: 200, asked: 1},
		{name: "the most stock", call: put(`{"kind":"product","total":1000000000}`), status: 200, asked: 1},
		{name: "an escaped SKU in the path", call: call{method: "PUT", path: "/stock/%31%30%3a1", body: goodStock}, status: 200, asked: 1},
		{name: "below what is sold", call: put(goodStock), orders: fails(stock.ErrBelowSold), status: 409, problem: belowSold, asked: 1},
		{name: "another kind", call: put(goodStock), orders: fails(stock.ErrKindFixed), status: 422, problem: invalid, bad: []string{"kind"}, asked: 1},
		{name: "stock busy", call: put(goodStock), orders: fails(stock.ErrBusy), status: 503, problem: busy, asked: 1},
		{name: "stock unavailable", call: put(goodStock), orders: fails(stock.ErrUnavailable), status: 503, problem: unavailable, asked: 1},
		{name: "stock without fields", call: put(`{}`), status: 422, problem: invalid, bad: []string{"kind", "total"}},
		{name: "stock with every field bad", call: call{method: "PUT", path: "/stock/-x", body: `{"kind":"thing","total":-1,"buyer_limit":-1,"opens_at":"0001-01-01T00:00:00Z","closes_at":"1969-12-31T00:00:00Z"}`}, status: 422, problem: invalid, bad: []string{"sku", "kind", "total", "buyer_limit", "opens_at", "closes_at"}},
		{name: "stock of nulls", call: put(`{"kind":null,"total":null,"buyer_limit":null}`), status: 422, problem: invalid, bad: []string{"kind", "total", "buyer_limit"}},
		{name: "stock with a SKU in the body", call: put(`{"kind":"product","total":5,"sku":"10001"}`), status: 422, problem: invalid, bad: []string{"sku"}},
		{name: "a total of another type", call: put(`{"kind":"product","total":"5"}`), status: 422, problem: invalid, bad: []string{"total"}},
		{name: "a buyer limit of another type", call: put(`{"kind":"product","total":5,"buyer_limit":true}`), status: 422, problem: invalid, bad: []string{"buyer_limit"}},
		{name: "a time of day", call: put(`{"kind":"product","total":5,"opens_at":"8:00"}`), status: 422, problem: invalid, bad: []string{"opens_at"}},
		{name: "a time of another type", call: put(`{"kind":"product","total":5,"closes_at":0}`), status: 422, problem: invalid, bad: []string{"closes_at"}},
		{name: "stock with rules", call: put(`{"kind":"coupon","total":5,"buyer_limit":1000000000,"opens_at":"2026-01-02T08:00:00Z","closes_at":"2026-01-02T20:00:00.123456+08:00"}`), status: 200, asked: 1},
		{name: "stock with rules cleared", call: put(`{"kind":"coupon","total":5,"buyer_limit":0,"opens_at":null,"closes_at":null}`), status: 200, asked: 1},
		{name: "a buyer limit too large", call: put(`{"kind":"product","total":5,"buyer_limit":1000000001}`), status: 422, problem: invalid, bad: []string{"buyer_limit"}},
		{name: "stock that closes as it opens", call: put(`{"kind":"product","total":-1,"opens_at":"2026-01-02T08:00:00Z","closes_at":"2026-01-02T16:00:00+08:00"}`), status: 422, problem: invalid, bad: []string{"total", "closes_at"}},
		{name: "stock that closes before it opens", call: put(goodStock), orders: fails(stock.ErrHours), status: 422, problem: invalid, bad: []string{"closes_at"}, asked: 1},
		{name: "hours out of range", call: put(`{"kind":"product","total":5,"opens_at":"1969-12-31T23:59:59Z","closes_at":"9999-12-31T23:59:59-01:00"}`), status: 422, problem: invalid, bad: []string{"opens_at", "closes_at"}},
		{name: "more stock than the maximum", call: put(`{"kind":"product","total":1000000001}`), status: 422, problem: invalid, bad: []string{"total"}},
		{name: "stock as an array", call: put(`[]`), status: 422, problem: invalid, bad: []string{""}},
		{name: "stock as text", call: put(goodStock, mediaType("text/plain")), status: 415, problem: notJSON},
		{name: "stock without a body", call: put(""), status: 400, problem: malformed},
		{name: "stock too large", call: put(strings.Repeat(" ", 70_000)), status: 413, problem: tooLarge},
		{name: "a SKU with a slash", call: call{method: "PUT", path: "/stock/a%2Fb", body: goodStock}, status: 422, problem: invalid, bad: []string{"sku"}},
		{name: "the token", call: put(goodStock, bearer("Bearer s3cret")), change: withToken, status: 200, asked: 1},
		{name: "the token from anywhere", call: put(goodStock, bearer("bearer  s3cret")), change: withTokenAnywhere, status: 200, asked: 1},
		{name: "no token", call: put(goodStock), change: withToken, status: 401, problem: unauthorized},
		{name: "no token, and everything else wrong", call: call{method: "PUT", path: "/stock/-", body: "x", header: mediaType("text/plain")}, change: withToken, status: 401, problem: unauthorized},
		{name: "a wrong token", call: put(goodStock, bearer("Bearer s3cre")), change: withToken, status: 401, problem: unauthorized},
		{name: "an empty token", call: put(goodStock, bearer("Bearer ")), change: withToken, status: 401, problem: unauthorized},
		{name: "the token with another scheme", call: put(goodStock, bearer("Basic s3cret")), change: withToken, status: 401, problem: unauthorized},
		{name: "the token twice", call: put(goodStock, bearer("Bearer s3cret", "Bearer s3cret")), change: withToken, status: 401, problem: unauthorized},
		{name: "no token set, and forwarded", call: put(goodStock, http.Header{"X-Forwarded-For": {"10.0.0.7"}}), status: 401, problem: unauthorized},
		{name: "the token, and forwarded", call: put(goodStock, http.Header{"X-Forwarded-For": {"10.0.0.7"}, "Authorization": {"Bearer s3cret"}}), change: withToken, status: 200, asked: 1},
		{name: "stock from a page of another origin", call: put(goodStock, http.Header{"Origin": {"http://evil.test"}}), status: 403, problem: crossOrigin},
		{name: "stock from a page of another origin, with the token", call: put(goodStock, http.Header{"Sec-Fetch-Site": {"cross-site"}, "Authorization": {"Bearer s3cret"}}), change: withToken, status: 403, problem: crossOrigin},
		{name: "no token set, and not on loopback", call: put(goodStock, bearer("Bearer ")), change: notLoopback, status: 401, problem: unauthorized},

		// Reading.
		{name: "show an order", call: get("/orders/" + testID.String()), orders: fakeOrders{order: placed}, status: 200, asked: 1},
		{name: "show an order by an upper-case ID", call: get("/orders/" + strings.ToUpper(testID.String())), orders: fakeOrders{order: placed}, status: 200, asked: 1},
		{name: "show an order with its history", call: get("/orders/" + testID.String()), orders: fakeOrders{order: withHistory}, status: 200, asked: 1},
		{name: "show an order that expires", call: get("/orders/" + testID.String()), orders: fakeOrders{order: expiring}, status: 200, asked: 1},
		{name: "show an order created at a whole second", call: get("/orders/" + testID.String()), orders: fakeOrders{order: whole}, status: 200, asked: 1},
		{name: "show a void order", call: get("/orders/" + testID.String()), orders: fakeOrders{order: void}, status: 200, asked: 1},
		{name: "no such order", call: get("/orders/" + testID.String()), orders: fails(order.ErrUnknownOrder), status: 404, problem: unknownOrder, asked: 1},
		{name: "an order ID that is not a UUID", call: get("/orders/1"), status: 404, problem: unknownOrder},
		{name: "an order ID in braces", call: get("/orders/%7B" + testID.String() + "%7D"), status: 404, problem: unknownOrder},
		{name: "an order while the database is unavailable", call: get("/orders/" + testID.String()), orders: fails(stock.ErrUnavailable), status: 503, problem: unavailable, asked: 1},
		{name: "show stock", call: get("/stock/10001"), status: 200, asked: 1},
		{name: "no such stock", call: get("/stock/10002"), orders: fails(refusal("10002", stock.ErrUnknownSKU)), status: 404, problem: unknownSKU, asked: 1},
		{name: "stock of an invalid SKU", call: get("/stock/-"), status: 404, problem: unknownSKU},
		{name: "stock of a SKU that is not UTF-8", call: get("/stock/%ff"), status: 404, problem: unknownSKU},
		{name: "stock of a SKU with a slash", call: get("/stock/a%2Fb"), status: 404, problem: unknownSKU},
		{name: "stock of a SKU that is too long", call: get("/stock/" + strings.Repeat("a", 65)), status: 404, problem: unknownSKU},
		{name: "stock of a SKU that is cut in the answer", call: get("/stock/a" + strings.Repeat("%C3%A4", 325)), status: 404, problem: unknownSKU},
		{name: "audit behind a gate", call: get("/stock/10001/audit"), orders: fakeOrders{audit: admin.Audit{Total: 10, Sold: 11, Oversold: 1, GateAvailable: int64p(0), GateInFlight: int64p(2), LedgerAvailable: -1, Drift: 3}}, status: 200, asked: 1},
		{name: "audit without a gate", call: get("/stock/10001/audit"), orders: fakeOrders{audit: admin.Audit{Total: 10, Sold: 1, LedgerAvailable: 9}}, status: 200, asked: 1},
		{name: "audit of no such stock", call: get("/stock/10002/audit"), orders: fails(refusal("10002", stock.ErrUnknownSKU)), status: 404, problem: unknownSKU, asked: 1},
		{name: "audit of an invalid SKU", call: get("/stock/a+b/audit"), status: 404, problem: unknownSKU},
		{name: "list no stock", call: get("/stock"), status: 200, asked: 1},
		{name: "list a page", call: get("/stock?after=0&limit=2"), orders: fakeOrders{page: []admin.Stock{{SKU: "1", Kind: stock.Product, Total: 5, Available: -2, Sold: 7}, {SKU: "2", Kind: stock.Coupon}}, next: "2"}, status: 200, asked: 1},
		{name: "list from the beginning", call: get("/stock?after=&limit=1000"), status: 200, asked: 1},
		{name: "list with a long answer", call: get("/stock"), orders: fakeOrders{page: manyStock(100)}, status: 200, asked: 1},
		{name: "list with limit 0", call: get("/stock?limit=0"), status: 422, problem: invalid, bad: []string{"limit"}},
		{name: "list with a limit too large", call: get("/stock?limit=1001"), status: 422, problem: invalid, bad: []string{"limit"}},
		{name: "list with everything wrong", call: get("/stock?limit=x&after=-&page=2&Limit=1"), status: 422, problem: invalid, bad: []string{"Limit", "after", "limit", "page"}},
		{name: "list with duplicate parameters", call: get("/stock?limit=1&limit=1&after=a&after=b"), status: 422, problem: invalid, bad: []string{"after", "limit"}},
		{name: "list with an empty limit", call: get("/stock?limit="), status: 422, problem: invalid, bad: []string{"limit"}},
		{name: "list with a signed limit", call: get("/stock?limit=%2B5"), status: 422, problem: invalid, bad: []string{"limit"}},
		{name: "list with a broken query", call: get("/stock?after=%zz"), status: 422, problem: invalid, bad: []string{""}},
		{name: "list while the database is unavailable", call: get("/stock"), orders: fails(stock.ErrUnavailable), status: 503, problem: unavailable, asked: 1},

		// Operations.
		{name: "strategies", call: get("/strategies"), status: 200},
		{name: "healthz", call: get("/healthz"), status: 200},
		{name: "healthz while the stores are unavailable", call: get("/healthz"), orders: fails(errors.New("unavailable")), status: 200},
		{name: "readyz", call: get("/readyz"), status: 200, asked: 1},
		{name: "readyz while draining", call: get("/readyz"), change: draining, status: 503, problem: unavailable},
		{name: "readyz while the stores are unavailable", call: get("/readyz"), orders: fails(errors.New("password=hunter2")), status: 503, problem: unavailable, asked: 1},
		{name: "readyz after another layout has taken over", call: get("/readyz"), orders: fails(fmt.Errorf("%w: %w", stock.ErrSuperseded, refusal("10001", stock.ErrSuperseded))), status: 503, problem: superseded, asked: 1},
		{name: "stock after another layout has taken over", call: put(goodStock), orders: fails(stock.ErrSuperseded), status: 503, problem: superseded, asked: 1},
		{name: "an audit read by a page of another origin", call: call{method: "GET", path: "/stock/10001/audit", header: http.Header{"Sec-Fetch-Site": {"cross-site"}}}, status: 200, asked: 1},
		{name: "metrics", call: get("/metrics"), status: 200},

		// Paths and methods.
		{name: "the root", call: get("/"), status: 404, problem: notFound},
		{name: "no such path", call: get("/orders/1/2"), status: 404, problem: notFound},
		{name: "a trailing slash", call: get("/strategies/"), status: 404, problem: notFound},
		{name: "a trailing slash after stock", call: get("/stock/"), status: 404, problem: notFound},
		{name: "a path in another case", call: get("/Strategies"), status: 404, problem: notFound},
		{name: "a problem's type", call: get("/problems/sold-out"), status: 404, problem: notFound},
		{name: "no such path, from a page of another origin", call: call{method: "POST", path: "/nowhere", header: http.Header{"Origin": {"http://evil.test"}}}, status: 404, problem: notFound},
		{name: "get a payment's result", call: get("/orders/" + testID.String() + "/pay"), status: 405, problem: methodNotAllowed},
		{name: "delete the orders", call: call{method: "DELETE", path: "/orders"}, status: 405, problem: methodNotAllowed},
		{name: "show a payment", call: get("/payments/p-1"), status: 404, problem: notFound},
		{name: "put stock without a SKU", call: call{method: "PUT", path: "/stock"}, status: 405, problem: methodNotAllowed},
		{name: "delete stock", call: call{method: "DELETE", path: "/stock/10001"}, status: 405, problem: methodNotAllowed},
		{name: "post to an order", call: call{method: "POST", path: "/orders/" + testID.String()}, status: 405, problem: methodNotAllowed},
		{name: "options", call: call{method: "OPTIONS", path: "/orders"}, status: 405, problem: methodNotAllowed},
		{name: "head", call: call{method: "HEAD", path: "/healthz"}, status: 405, problem: methodNotAllowed},
		{name: "an unknown method", call: call{method: "BREW", path: "/metrics"}, status: 405, problem: methodNotAllowed},
	}

	for _, quantity := range []string{"0", "-1", "1001", "1.0", "1e2", "1E0", "99999999999999999999", `"1"`, "null", "true", "[1]", "-0"} {
		cases = append(cases, &contractCase{
			name: "quantity " + quantity, call: post(`{"buyer_id":"u-1","lines":[{"sku":"10001","quantity":` + quantity + `}]}`),
			status: 422, problem: invalid, bad: []string{"lines[0].quantity"},
		})
	}
	for _, id := range []string{"", "-a", ".a", "_a", ":a", "a b", "a/b", "ä", `a\n`, strings.Repeat("a", 65)} {
		cases = append(cases, &contractCase{
			name: "ID " + id, call: post(`{"buyer_id":"` + id + `","lines":[{"sku":"` + id + `","quantity":1}]}`),
			status: 422, problem: invalid, bad: []string{"buyer_id", "lines[0].sku"},
		})
	}
	for _, id := range []string{"a", "0", "a.b_c:d-e", strings.Repeat("Z", 64)} {
		cases = append(cases, &contractCase{
			name: "ID " + id, call: post(`{"buyer_id":"` + id + `","lines":[{"sku":"` + id + `","quantity":1000}]}`),
			status: 201, asked: 1,
		})
	}
	return cases
}

// longest returns an order whose answer does not fit into package http's buffer.
func longest() string {
	var b strings.Builder
	for i := range 20 {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"sku":"%064d","quantity":1000}`, i)
	}
	return `{"buyer_id":"u-1","lines":[` + b.String() + `]}`
}

// padded returns a valid order of n bytes.
func padded(n int) string { return oneLine + strings.Repeat(" ", n-len(oneLine)) }

func manyStock(n int) []admin.Stock {
	page := make([]admin.Stock, n)
	for i := range page {
		page[i] = admin.Stock{SKU: stock.SKU(fmt.Sprintf("s%03d", i)), Kind: stock.Product, Total: 1}
	}
	return page
}

func TestContract(t *testing.T) {
	golden := newGolden(t, "testdata/contract.golden")
	for _, tt := range contract() {
		t.Run(tt.name, func(t *testing.T) {
			var changes []func(*Config)
			if tt.change != nil {
				changes = append(changes, tt.change)
			}
			rec := do(newAPI(t, &tt.orders, changes...), tt.call)
			if rec.Code != tt.status {
				t.Errorf("status %d, want %d", rec.Code, tt.status)
			}
			if tt.orders.asked != tt.asked {
				t.Errorf("the service was called %d times, want %d", tt.orders.asked, tt.asked)
			}
			if got := rec.Header().Get("X-Request-ID"); got != "req-1" {
				t.Errorf("X-Request-ID is %q", got)
			}
			checkProblem(t, rec, tt.problem, tt.bad)
			golden.check(t, tt.name, rec)
		})
	}
	golden.finish(t, len(contract()))
}

func checkProblem(t *testing.T, rec *httptest.ResponseRecorder, want problem, bad []string) {
	t.Helper()
	if strings.Contains(rec.Body.String(), "hunter2") {
		t.Errorf("the answer contains the cause: %s", rec.Body)
	}
	if want == "" {
		if rec.Header().Get("Content-Type") == "application/problem+json" {
			t.Errorf("the answer is a problem: %s", rec.Body)
		}
		return
	}
	var doc struct {
		Type        string
		SKU         *string
		PaymentID   string `json:"payment_id"`
		OrderStatus string `json:"order_status"`
		Errors      []struct{ Field string }
	}
	if err := json.Unmarshal(rec.Body.Bytes(), &doc); err != nil {
		t.Fatalf("%v: %s", err, rec.Body)
	}
	if doc.Type != "/problems/"+string(want) {
		t.Errorf("type %s, want %s", doc.Type, want)
	}
	var named []string
	for _, e := range doc.Errors {
		named = append(named, e.Field)
	}
	if !slices.Equal(named, bad) {
		t.Errorf("bad fields %q, want %q", named, bad)
	}
	if has := doc.SKU != nil; has != slices.Contains([]problem{soldOut, buyerLimit, notOpen, closed, unknownSKU}, want) {
		t.Errorf("sku: %v", doc.SKU)
	}
	if has := doc.PaymentID != ""; has != (want == refundDue) {
		t.Errorf("payment_id: %q", doc.PaymentID)
	}
	if has := doc.OrderStatus != ""; has != (want == refundDue || want == wrongStatus) {
		t.Errorf("order_status: %q", doc.OrderStatus)
	}
	retry := map[problem]string{inProgress: "1", busy: "1", unavailable: "1", timeout: "1", superseded: "5"}[want]
	if got := rec.Header().Get("Retry-After"); got != retry {
		t.Errorf("Retry-After is %q, want %q", got, retry)
	}
}

// golden is a file of complete answers, by the name of the test.
type golden struct {
	path string
	want map[string]string
	got  bytes.Buffer
	ran  int
}

func newGolden(t *testing.T, path string) *golden {
	t.Helper()
	g := &golden{path: path, want: make(map[string]string)}
	content, err := os.ReadFile(path)
	if err != nil && !*update {
		t.Fatal(err)
	}
	for _, part := range strings.Split(string(content), "\n== ")[1:] {
		name, answer, _ := strings.Cut(part, "\n")
		g.want[name] = strings.TrimRight(answer, "\n")
	}
	return g
}

func (g *golden) check(t *testing.T, name string, rec *httptest.ResponseRecorder) {
	t.Helper()
	g.ran++
	var b strings.Builder
	fmt.Fprintf(&b, "%d\n", rec.Code)
	var names []string
	for name := range rec.Header() {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		if name == "X-Request-Id" {
			continue // always the same, and checked by the test
		}
		fmt.Fprintf(&b, "%s: %s\n", name, strings.Join(rec.Header()[name], ", "))
	}
	fmt.Fprintf(&b, "\n%s", strings.TrimRight(rec.Body.String(), "\n"))
	fmt.Fprintf(&g.got, "\n== %s\n%s\n", name, b.String())
	if want := g.want[name]; !*update && b.String() != want {
		t.Errorf("the answer:\n%s\nwant:\n%s", b.String(), want)
	}
}

// finish rewrites the file under -update. Otherwise it checks that the file has no
// answers without a test. It does nothing unless all tests ran and passed.
func (g *golden) finish(t *testing.T, all int) {
	t.Helper()
	switch {
	case t.Failed() || g.ran < all:
	case *update:
		head := "Answers of the API. Rewritten by: go test ./internal/httpapi -run TestContract -update\n"
		if err := os.WriteFile(g.path, append([]byte(head), g.got.Bytes()...), 0o644); err != nil {
			t.Fatal(err)
		}
	case len(g.want) != all:
		t.Errorf("%s has %d answers, the tests have %d", g.path, len(g.want), all)
	}
}

func TestPlaceArguments(t *testing.T) {
	orders := new(fakeOrders)
	orders.place = func(ctx context.Context, r order.Request) (order.Order, bool, error) {
		if got := RequestID(ctx); got != "req-1" {
			t.Errorf("the service sees request ID %q", got)
		}
		if _, ok := ctx.Deadline(); !ok {
			t.Error("the service has no deadline")
		}
		return order.Order{ID: testID, Buyer: r.Buyer, Status: order.Pending, Lines: r.Lines, Strategy: "lua", CreatedAt: testTime}, false, nil
	}
	h := newAPI(t, orders)
	do(h, call{method: "POST", path: "/orders", body: `{"buyer_id":"u-1","lines":[{"sku":"b","quantity":2},{"sku":"a","quantity":1}]}`, header: http.Header{"Idempotency-Key": {"k-1"}}})
	first := orders.request
	want := order.Request{Buyer: "u-1", Key: "k-1", Lines: []stock.Line{{SKU: "b", Quantity: 2}, {SKU: "a", Quantity: 1}}}
	if !equalRequests(first, want) {
		t.Errorf("the service got %+v, want %+v", first, want)
	}
	// A later body must not change the lines that the service got from an earlier one.
	for range 10 {
		do(h, call{method: "POST", path: "/orders", body: `{"buyer_id":"v-2","lines":[{"sku":"y","quantity":9},{"sku":"z","quantity":9}]}`})
	}
	if !equalRequests(first, want) {
		t.Errorf("later requests changed an earlier one to %+v", first)
	}
}

func equalRequests(a, b order.Request) bool {
	return a.Buyer == b.Buyer && a.Key == b.Key && slices.EqualFunc(a.Lines, b.Lines, func(a, b stock.Line) bool { return a.SKU == b.SKU && a.Quantity == b.Quantity })
}

func TestSetStockArguments(t *testing.T) {
	orders := new(fakeOrders)
	do(newAPI(t, orders), call{method: "PUT", path: "/stock/c-1", body: `{"total":7,"kind":"coupon"}`})
	if want := (stock.Setting{SKU: "c-1", Kind: stock.Coupon, Total: 7}); orders.set != want {
		t.Errorf("the service got %+v, want %+v", orders.set, want)
	}
	var (
		limit    int64
		opensAt  = time.Date(2026, 1, 2, 8, 0, 0, 123_456_000, time.UTC)
		closesAt time.Time
	)
	do(newAPI(t, orders), call{method: "PUT", path: "/stock/c-1", body: `{"total":7,"kind":"coupon","buyer_limit":0,"opens_at":"2026-01-02T16:00:00.1234567+08:00","closes_at":null}`})
	want := stock.Setting{SKU: "c-1", Kind: stock.Coupon, Total: 7, BuyerLimit: &limit, OpensAt: &opensAt, ClosesAt: &closesAt}
	if !reflect.DeepEqual(orders.set, want) {
		t.Errorf("the service got %+v, want %+v", orders.set, want)
	}
}

// TestArguments checks the arguments of each other call of the service.
func TestArguments(t *testing.T) {
	id := testID.String()
	orders := new(fakeOrders)
	h := newAPI(t, orders)
	ask := func(method, path, body string) *fakeOrders {
		t.Helper()
		*orders = fakeOrders{order: order.Order{ID: testID, Buyer: "u-1", Status: order.Paid, Strategy: "lua", CreatedAt: testTime}}
		if rec := do(h, call{method: method, path: path, body: body}); rec.Code != 200 {
			t.Errorf("%s %s: %d %s", method, path, rec.Code, rec.Body)
		}
		return orders
	}
	if got := ask("POST", "/orders/"+id+"/pay", goodPayment); got.id != testID || got.payment != "p-1" {
		t.Errorf("pay: %+v", got)
	}
	if got := ask("POST", "/orders/"+id+"/cancel", ""); got.id != testID {
		t.Errorf("cancel: %+v", got)
	}
	for _, restock := range []bool{true, false} {
		if got := ask("POST", "/orders/"+id+"/refund", fmt.Sprintf(`{"restock":%v}`, restock)); got.id != testID || got.restock != restock {
			t.Errorf("refund: %+v", got)
		}
	}
	if got := ask("POST", "/payments/p%3A1/refunded", ""); got.payment != "p:1" {
		t.Errorf("refunded: %+v", got)
	}
	if got, want := ask("GET", "/orders", "").filter, (order.Filter{Limit: 100}); got != want {
		t.Errorf("orders: %+v, want %+v", got, want)
	}
	if got, want := ask("GET", "/orders?limit=7&after="+id+"&status=refunded&buyer_id=u%3A1", "").filter, (order.Filter{Buyer: "u:1", Status: order.Refunded, After: testID, Limit: 7}); got != want {
		t.Errorf("orders: %+v, want %+v", got, want)
	}
	if got, want := ask("GET", "/payments?after=", "").due, (order.PaymentFilter{Limit: 100}); got != want {
		t.Errorf("payments: %+v, want %+v", got, want)
	}
	if got, want := ask("GET", "/payments?limit=1000&after=p-1&status=refund-due", "").due, (order.PaymentFilter{Status: order.PaymentRefundDue, After: "p-1", Limit: 1000}); got != want {
		t.Errorf("payments: %+v, want %+v", got, want)
	}
	if got := ask("GET", "/stock", ""); got.sku != "" || got.limit != 100 {
		t.Errorf("stock: after %q, limit %d", got.sku, got.limit)
	}
	if got := ask("GET", "/stock?limit=1000&after=a%3Ab", ""); got.sku != "a:b" || got.limit != 1000 {
		t.Errorf("stock: after %q, limit %d", got.sku, got.limit)
	}
}

func TestOpenAPIIsServed(t *testing.T) {
	rec := do(newAPI(t, new(fakeOrders)), call{method: "GET", path: "/openapi.yaml"})
	if rec.Code != 200 || !bytes.Equal(rec.Body.Bytes(), openAPI) || rec.Header().Get("Content-Type") != "application/yaml" {
		t.Errorf("%d %v, %d bytes", rec.Code, rec.Header(), rec.Body.Len())
	}
}
