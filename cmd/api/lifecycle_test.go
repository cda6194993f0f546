package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// placed is an order as returned in answers.
type placed struct {
	ID        string
	Buyer     string `json:"buyer_id"`
	Status    string
	CreatedAt string  `json:"created_at"`
	PaymentID *string `json:"payment_id"`
	History   []struct {
		Status string
		At     time.Time
	}
}

// decoded decodes an answer.
func decoded[T any](t *testing.T, answer []byte) (v T) {
	t.Helper()
	if err := json.Unmarshal(answer, &v); err != nil {
		t.Fatalf("%s: %v", answer, err)
	}
	return v
}

// checkLifecycle makes all calls on placed orders. The instance has no admin token.
func checkLifecycle(t *testing.T, url string) {
	t.Helper()
	orders := url + "/orders"
	setStock(t, url, "life", 9)
	place := func(buyer string, quantity int) string {
		t.Helper()
		return decoded[placed](t, mustCall(t, 201, "POST", orders, orderBody(buyer, "life", quantity))).ID
	}
	must := func(want int, method, path, body string) string {
		t.Helper()
		return string(mustCall(t, want, method, path, body))
	}
	sold := func(want int64) {
		t.Helper()
		if a := waitAtRest(t, url, "life"); a.Sold != want {
			t.Errorf("%d units are sold, want %d", a.Sold, want)
		}
	}
	bought, dropped, kept := place("life-1", 2), place("life-1", 3), place("life-2", 1)
	sold(6)

	// One payment pays the order. The same payment gets the same answer, and another one is due
	// back.
	paid := must(200, "POST", orders+"/"+bought+"/pay", `{"payment_id":"life-p1"}`)
	if o := decoded[placed](t, []byte(paid)); o.ID != bought || o.Status != "paid" || strings.Contains(paid, "history") || strings.Contains(paid, "payment_id") {
		t.Errorf("paid: %s", paid)
	}
	if again := must(200, "POST", orders+"/"+bought+"/pay", `{"payment_id":"life-p1"}`); again != paid {
		t.Errorf("paid %s, then %s", paid, again)
	}
	for range 2 {
		due := must(409, "POST", orders+"/"+bought+"/pay", `{"payment_id":"life-p2"}`)
		if !strings.Contains(due, `/problems/refund-due"`) || !strings.Contains(due, `"payment_id":"life-p2","order_status":"paid"`) {
			t.Errorf("the second payment: %s", due)
		}
	}
	if reused := must(422, "POST", orders+"/"+kept+"/pay", `{"payment_id":"life-p1"}`); !strings.Contains(reused, `"field":"payment_id"`) {
		t.Errorf("the payment of another order: %s", reused)
	}
	if wrong := must(409, "POST", orders+"/"+bought+"/cancel", ""); !strings.Contains(wrong, `/problems/wrong-status"`) || !strings.Contains(wrong, `"order_status":"paid"`) {
		t.Errorf("cancelling a paid order: %s", wrong)
	}

	// A cancelled order returns its units and cannot be paid.
	cancelled := must(200, "POST", orders+"/"+dropped+"/cancel", "")
	if again := must(200, "POST", orders+"/"+dropped+"/cancel", "{}"); again != cancelled || decoded[placed](t, []byte(again)).Status != "cancelled" {
		t.Errorf("cancelled %s, then %s", cancelled, again)
	}
	sold(3)
	if due := must(409, "POST", orders+"/"+dropped+"/pay", `{"payment_id":"life-p3"}`); !strings.Contains(due, `"order_status":"cancelled"`) {
		t.Errorf("paying a cancelled order: %s", due)
	}
	if wrong := must(409, "POST", orders+"/"+dropped+"/refund", `{"restock":true}`); !strings.Contains(wrong, `"order_status":"cancelled"`) {
		t.Errorf("refunding a cancelled order: %s", wrong)
	}

	// A refund returns the units or not, as its first call says.
	refunded := must(200, "POST", orders+"/"+bought+"/refund", `{"restock":true}`)
	if again := must(200, "POST", orders+"/"+bought+"/refund", `{"restock":false}`); again != refunded || decoded[placed](t, []byte(again)).Status != "refunded" {
		t.Errorf("refunded %s, then %s", refunded, again)
	}
	sold(1)
	if again := must(200, "POST", orders+"/"+bought+"/pay", `{"payment_id":"life-p1"}`); again != refunded {
		t.Errorf("paid again after the refund: %s", again)
	}
	must(200, "POST", orders+"/"+kept+"/pay", `{"payment_id":"life-p4"}`)
	must(200, "POST", orders+"/"+kept+"/refund", `{"restock":false}`)
	sold(1)

	shown := decoded[placed](t, mustCall(t, 200, "GET", orders+"/"+bought, ""))
	var history []string
	for i, step := range shown.History {
		history = append(history, step.Status)
		if i > 1 && step.At.Before(shown.History[i-1].At) { // the first time is the instance's estimate of the database's clock
			t.Errorf("the history goes back in time: %+v", shown.History)
		}
	}
	if fmt.Sprint(history) != "[pending paid refunded]" || shown.PaymentID == nil || *shown.PaymentID != "life-p1" {
		t.Errorf("%+v", shown)
	}

	for id, want := range map[string]int{bought: 200, "1": 404, "00000000-0000-0000-0000-000000000000": 404} {
		must(want, "GET", orders+"/"+id, "")
	}
	for _, call := range []string{"/pay", "/cancel", "/refund"} {
		body := map[string]string{"/pay": `{"payment_id":"life-p9"}`, "/refund": `{"restock":true}`}[call]
		must(404, "POST", orders+"/00000000-0000-0000-0000-000000000000"+call, body)
	}
	checkLists(t, url, bought, dropped, kept)
}

// checkLists checks the lists of orders and payments. Buyer life-1 has a refunded and a cancelled
// order, and life-2 a refunded one. The payments life-p1 to life-p4 are due back, and no other
// payment has been reported.
func checkLists(t *testing.T, url, bought, dropped, kept string) {
	t.Helper()
	for range 2 {
		if p := string(mustCall(t, 200, "POST", url+"/payments/life-p2/refunded", "")); !strings.Contains(p, `"id":"life-p2"`) || !strings.Contains(p, `"status":"refunded"`) {
			t.Errorf("a refunded payment: %s", p)
		}
	}
	mustCall(t, 404, "POST", url+"/payments/life-p9/refunded", "")
	mustCall(t, 404, "POST", url+"/payments/-/refunded", "")
	for query, want := range map[string]string{ // IDs of orders without a key are in ascending order
		"/orders?buyer_id=life-1":                   bought + " refunded;" + dropped + " cancelled;",
		"/orders?buyer_id=life-1&limit=1":           bought + " refunded;next " + bought,
		"/orders?buyer_id=life-1&after=" + bought:   dropped + " cancelled;",
		"/orders?buyer_id=life-1&status=cancelled":  dropped + " cancelled;",
		"/orders?status=refunded":                   bought + " refunded;" + kept + " refunded;",
		"/orders?status=void":                       "", // void orders are not listed
		"/payments":                                 "life-p1 refund-due;life-p2 refunded;life-p3 refund-due;life-p4 refund-due;",
		"/payments?status=refund-due&limit=1":       "life-p1 refund-due;next life-p1",
		"/payments?status=refund-due&after=life-p1": "life-p3 refund-due;life-p4 refund-due;",
		"/payments?status=paid":                     "",
	} {
		page := decoded[struct {
			Orders, Payments []struct{ ID, Status string }
			Next             *string
		}](t, mustCall(t, 200, "GET", url+query, ""))
		got := ""
		for _, listed := range append(page.Orders, page.Payments...) {
			got += listed.ID + " " + listed.Status + ";"
		}
		if page.Next != nil {
			got += "next " + *page.Next
		}
		if got != want {
			t.Errorf("GET %s: %s, want %s", query, got, want)
		}
	}
	for path, want := range map[string]int{"/orders": 422, "/payments": 401} {
		if status, answer, err := call(t.Context(), "GET", url+path, "", "X-Forwarded-For", "10.0.0.7"); status != want || err != nil {
			t.Errorf("a forwarded request lists everybody's %s: %d %s %v", path, status, answer, err)
		}
	}
}

// TestLatePayment pays expired orders with --late-payment refuse. Each payment must be due back,
// whether the unit was sold again or not. TestLifecycle of loadtest revives orders.
func TestLatePayment(t *testing.T) {
	t.Parallel()
	args := append(migrated(t, postgresAndRedis.flags(t)), "--late-payment", "refuse")
	url := serveHere(t, append(args, "--payment-window", "2s")...).URL()
	patient := serveHere(t, append(args, "--payment-window", "1h")...).URL() // used for an order that must not expire
	// place buys the only unit of a new SKU, or the returned unit.
	place := func(instance, buyer, sku string) (path string) {
		t.Helper()
		return url + "/orders/" + decoded[placed](t, mustCall(t, 201, "POST", instance+"/orders", orderBody(buyer, sku, 1))).ID
	}
	expired := func(path, sku string) {
		t.Helper()
		testenv.Await(t, "the order has expired and its unit is back", func() bool {
			a, err := audited(t.Context(), url, sku)
			return err == nil && a.atRest() && a.Sold == 0 &&
				decoded[placed](t, mustCall(t, 200, "GET", path, "")).Status == "expired"
		})
	}
	setStock(t, url, "left", 1)
	setStock(t, url, "resold", 1)
	left, resold := place(url, "late-1", "left"), place(url, "late-1", "resold")
	expired(left, "left")
	expired(resold, "resold")
	mustCall(t, 200, "POST", place(patient, "late-2", "resold")+"/pay", `{"payment_id":"late-p1"}`)
	lost := string(mustCall(t, 409, "POST", resold+"/pay", `{"payment_id":"late-p2"}`))
	if !strings.Contains(lost, `"payment_id":"late-p2","order_status":"expired"`) {
		t.Errorf("the payment for a unit that was sold again: %s", lost)
	}

	for range 2 {
		mustCall(t, 409, "POST", left+"/pay", `{"payment_id":"late-p3"}`)
	}
	shown := decoded[struct{ History []struct{ Status string } }](t, mustCall(t, 200, "GET", left, ""))
	if got := fmt.Sprint(shown.History); got != "[{pending} {expired}]" {
		t.Errorf("the history is %s", got)
	}
	due := string(mustCall(t, 200, "GET", url+"/payments?status=refund-due", ""))
	if strings.Contains(due, "late-p1") || !strings.Contains(due, "late-p2") || !strings.Contains(due, "late-p3") {
		t.Errorf("the payments that are due: %s", due)
	}
}
