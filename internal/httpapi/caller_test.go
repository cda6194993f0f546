package httpapi

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/holdfast-stock/holdfast/internal/buyertoken"
	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

const jwtSecret = "0123456789abcdef0123456789abcdef"

// tokenOf returns a buyer's token that is valid for the given time.
func tokenOf(t testing.TB, buyer string, lasts time.Duration) string {
	t.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.HS256, Key: []byte(jwtSecret)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	text, err := jwt.Signed(signer).Claims(map[string]any{"sub": buyer, "exp": time.Now().Add(lasts).Unix()}).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func withTokens(c *Config) {
	c.AdminToken, c.Tokens = adminToken, buyertoken.WithSecret(jwtSecret, buyertoken.Rules{})
}

// TestBuyers checks what a buyer may do with and without a token, and that other buyers' orders do
// not exist for them. The orders of the service belong to u-1.
func TestBuyers(t *testing.T) {
	own := order.Order{
		ID: testID, Buyer: "u-1", Status: order.Pending, Strategy: "lua", CreatedAt: testTime,
		Lines: []stock.Line{{SKU: "10001", Quantity: 1}}, History: []order.Step{{Status: order.Pending, At: testTime}},
	}
	one := "/orders/" + testID.String()
	place := call{method: "POST", path: "/orders", body: oneLine}
	show := call{method: "GET", path: one}
	cancel := call{method: "POST", path: one + "/cancel"}
	pay := call{method: "POST", path: one + "/pay", body: goodPayment}
	list := call{method: "GET", path: "/orders"}
	listOne := call{method: "GET", path: "/orders?buyer_id=u-1"}
	setStock := call{method: "PUT", path: "/stock/10001", body: goodStock}
	callers := map[string]http.Header{
		"u-1":     {"Authorization": {"Bearer " + tokenOf(t, "u-1", time.Hour)}},
		"u-2":     {"Authorization": {"bearer " + tokenOf(t, "u-2", time.Hour)}},
		"expired": {"Authorization": {"Bearer " + tokenOf(t, "u-1", -time.Hour)}},
		"admin":   {"Authorization": {"Bearer " + adminToken}},
		"basic":   {"Authorization": {"Basic " + tokenOf(t, "u-1", time.Hour)}},
		"twice":   {"Authorization": {"Bearer " + tokenOf(t, "u-1", time.Hour), "Bearer " + tokenOf(t, "u-1", time.Hour)}},
		"nobody":  {},
	}
	type answer struct {
		status  int
		problem problem
		asked   int // number of calls that reach the service
	}
	done := func(asked int) answer { return answer{200, "", asked} }
	refused := func(p problem, asked int) answer { return answer{definitions[p].status, p, asked} }
	for _, tt := range []struct {
		name   string
		call   call
		caller string
		want   answer
	}{
		{"place", place, "u-1", answer{201, "", 1}},
		{"place", place, "admin", answer{201, "", 1}},
		{"place", place, "u-2", refused(otherBuyer, 0)},
		{"place", place, "nobody", refused(unauthorized, 0)},
		{"place", place, "expired", refused(unauthorized, 0)},
		{"place", place, "basic", refused(unauthorized, 0)},
		{"place", place, "twice", refused(unauthorized, 0)},
		{"show", show, "u-1", done(1)},
		{"show", show, "admin", done(1)},
		{"show", show, "u-2", refused(unknownOrder, 1)},
		{"show", show, "nobody", refused(unauthorized, 0)},
		{"cancel", cancel, "u-1", done(1)},
		{"cancel", cancel, "admin", done(1)},
		{"cancel", cancel, "u-2", refused(unknownOrder, 1)},
		{"cancel", cancel, "nobody", refused(unauthorized, 0)},
		{"list", list, "u-1", done(1)},
		{"list", list, "admin", done(1)},
		{"list", list, "nobody", refused(unauthorized, 0)},
		{"list one buyer's", listOne, "u-1", done(1)},
		{"list one buyer's", listOne, "admin", done(1)},
		{"list one buyer's", listOne, "u-2", refused(otherBuyer, 0)},
		{"pay", pay, "admin", done(1)},
		{"pay", pay, "u-1", refused(unauthorized, 0)},
		{"pay", pay, "nobody", refused(unauthorized, 0)},
		{"set stock", setStock, "admin", done(1)},
		{"set stock", setStock, "u-1", refused(unauthorized, 0)},
		{"set stock", setStock, "nobody", refused(unauthorized, 0)},
		{"read stock", call{method: "GET", path: "/stock/10001"}, "nobody", done(1)},
		{"read stock", call{method: "GET", path: "/stock/10001"}, "expired", done(1)},
	} {
		t.Run(tt.name+" as "+tt.caller, func(t *testing.T) {
			orders := &fakeOrders{order: own}
			c := tt.call
			c.header = callers[tt.caller]
			rec := do(newAPI(t, orders, withTokens), c)
			if rec.Code != tt.want.status || orders.asked != tt.want.asked || !strings.Contains(rec.Body.String(), string(tt.want.problem)) {
				t.Errorf("%d %s, %d calls, want %+v", rec.Code, rec.Body, orders.asked, tt.want)
			}
			if tt.caller == "u-1" && tt.call.path == "/orders" && tt.call.method == "GET" && orders.filter.Buyer != "u-1" {
				t.Errorf("lists the orders of %q", orders.filter.Buyer)
			}
			if strings.Contains(rec.Body.String(), adminToken) {
				t.Errorf("the answer contains the token: %s", rec.Body)
			}
		})
	}
	t.Run("AnotherBuyersOrderIsLikeNone", func(t *testing.T) {
		for _, c := range []call{show, cancel} {
			c.header = callers["u-2"]
			another := do(newAPI(t, &fakeOrders{order: own}, withTokens), c)
			none := do(newAPI(t, &fakeOrders{err: order.ErrUnknownOrder}, withTokens), c)
			if another.Body.String() != none.Body.String() || fmt.Sprint(another.Header()) != fmt.Sprint(none.Header()) {
				t.Errorf("%s %s:\n%v %s\n%v %s", c.method, c.path, another.Header(), another.Body, none.Header(), none.Body)
			}
		}
	})
	t.Run("Challenge", func(t *testing.T) {
		for who, want := range map[string]string{"nobody": "Bearer", "expired": `Bearer error="invalid_token"`} {
			c := show
			c.header = callers[who]
			if rec := do(newAPI(t, new(fakeOrders), withTokens), c); rec.Header().Get("WWW-Authenticate") != want {
				t.Errorf("%s: %v", who, rec.Header())
			}
		}
	})
}

// silentIssuer is a Tokens without keys. It calls ask, if that is not nil, with each context.
type silentIssuer struct{ ask func(ctx context.Context) }

func (s silentIssuer) Subject(ctx context.Context, _ string) (string, error) {
	if s.ask != nil {
		s.ask(ctx)
	}
	return "", fmt.Errorf("%w: no keys", stock.ErrBusy)
}

// TestSilentIssuer checks that a token that cannot be verified is answered 503. Administrators and
// open calls must not be affected. Nothing must wait for the keys once the client has disconnected.
func TestSilentIssuer(t *testing.T) {
	silent := func(c *Config) { c.AdminToken, c.Tokens = adminToken, silentIssuer{} }
	buyer, admin := http.Header{"Authorization": {"Bearer x.y.z"}}, http.Header{"Authorization": {"Bearer " + adminToken}}
	for _, tt := range []struct {
		call   call
		status int
	}{
		{call{"POST", "/orders", buyer, oneLine}, 503},
		{call{"POST", "/orders", nil, oneLine}, 401},
		{call{"POST", "/orders", admin, oneLine}, 201},
		{call{"GET", "/stock", buyer, ""}, 200},
	} {
		if rec := do(newAPI(t, new(fakeOrders), silent), tt.call); rec.Code != tt.status {
			t.Errorf("%s %s: %d %s", tt.call.method, tt.call.path, rec.Code, rec.Body)
		}
	}
	ctx, disconnect := context.WithCancel(t.Context())
	disconnect()
	asked := 0
	h := newAPI(t, new(fakeOrders), func(c *Config) {
		c.AdminToken, c.Tokens = adminToken, silentIssuer{func(ctx context.Context) {
			if asked++; ctx.Err() == nil {
				t.Error("the token is verified after the client has disconnected")
			}
		}}
	})
	h.ServeHTTP(httptest.NewRecorder(), call{"GET", "/orders/" + testID.String(), buyer, ""}.request().WithContext(ctx))
	if asked != 1 {
		t.Errorf("verified %d tokens", asked)
	}
}
