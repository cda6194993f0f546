package httpapi_test

import (
	"fmt"
	"log"
	"net/http"
	"strings"
)

// The calls of a shop on a placed order. The payment provider reports the first payment twice, and
// then a second one by mistake.
func ExampleNew_lifecycle() {
	url, stop := serve(1)
	defer stop()
	var order struct {
		ID, Status string
		History    []struct{ Status string }
	}
	var problem struct{ Type string }
	call("POST", url+"/orders", `{"buyer_id":"u-1","lines":[{"sku":"10001","quantity":1}]}`, &order)
	path := url + "/orders/" + order.ID
	for range 2 {
		status := call("POST", path+"/pay", `{"payment_id":"p-1"}`, &order)
		fmt.Println("p-1:", status, order.Status)
	}
	status := call("POST", path+"/pay", `{"payment_id":"p-2"}`, &problem)
	fmt.Println("p-2:", status, problem.Type)
	call("POST", path+"/refund", `{"restock":true}`, &order)
	call("GET", path, "", &order)
	for _, step := range order.History {
		fmt.Println(step.Status)
	}
	var due struct {
		Payments []struct{ ID string }
	}
	call("GET", url+"/payments?status=refund-due", "", &due)
	fmt.Println("to pay back:", due.Payments)
	// Output:
	// p-1: 200 OK paid
	// p-1: 200 OK paid
	// p-2: 409 Conflict /problems/refund-due
	// pending
	// paid
	// refunded
	// to pay back: [{p-1} {p-2}]
}

// call sends a request, decodes the answer and returns its status.
func call(method, url, body string, value any) (status string) {
	r, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		log.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		log.Fatal(err)
	}
	decode(answer.Body, value)
	return answer.Status
}
