package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/holdfast-stock/holdfast/client"
)

// serve starts the whole service in this process, with 10 units of product 10001. Replace its URL
// with the URL of your running service.
func serve(queue bool) (url string, stop func()) {
	s, err := open(queue)
	if err != nil {
		log.Fatal(err)
	}
	return s.server.URL, func() { _ = s.Close() }
}

// One buyer orders and pays. Another buyer asks for more units than are left.
func Example() {
	url, stop := serve(false)
	defer stop()
	ctx := context.Background()

	c, err := client.New(url)
	if err != nil {
		log.Fatal(err)
	}
	placed, err := c.Place(ctx, client.OrderRequest{
		BuyerID: "u-1",
		Lines:   []client.Line{{SKU: "10001", Quantity: 2}},
		Key:     "cart-7", // identifies the buyer's intent, for example a cart
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(placed.Status, placed.Lines[0].Quantity, "units")

	paid, err := c.Pay(ctx, placed.ID, "payment-1")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(paid.Status)

	_, err = c.Place(ctx, client.OrderRequest{BuyerID: "u-2", Lines: []client.Line{{SKU: "10001", Quantity: 9}}})
	fmt.Println(errors.Is(err, client.SoldOut))
	if p, ok := errors.AsType[*client.Problem](err); ok {
		fmt.Println(p.Status, p.SKU, p.Detail)
	}
	// Output:
	// pending 2 units
	// paid
	// true
	// 409 10001 Fewer units are left than were asked for. Nothing was cut.
}

// An order with its own key can be placed again after any failure, even after a restart of the
// program that placed it. It stays one order.
func ExampleClient_Place() {
	url, stop := serve(false)
	defer stop()
	ctx := context.Background()
	c, err := client.New(url)
	if err != nil {
		log.Fatal(err)
	}
	order := client.OrderRequest{BuyerID: "u-1", Lines: []client.Line{{SKU: "10001", Quantity: 1}}, Key: "cart-7"}
	for range 2 {
		placed, err := c.Place(ctx, order)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(placed.Status, "replayed:", placed.Replayed)
	}
	s, err := c.Stock(ctx, "10001")
	fmt.Println(s.Sold, "sold", err)
	// Output:
	// pending replayed: false
	// pending replayed: true
	// 1 sold <nil>
}

// With --strategy async, an order is answered before the database has it.
func ExampleClient_Wait() {
	url, stop := serve(true)
	defer stop()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	c, err := client.New(url, client.WithPoll(10*time.Millisecond))
	if err != nil {
		log.Fatal(err)
	}
	placed, err := c.Place(ctx, client.OrderRequest{BuyerID: "u-1", Lines: []client.Line{{SKU: "10001", Quantity: 1}}})
	if err != nil {
		log.Fatal(err)
	}
	order, err := c.Wait(ctx, placed.ID)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(placed.Status, "then", order.Status)
	// Output: queued then pending
}

// If it is unknown whether an order was placed, keep its key and try again later.
func ExampleUnknownOutcome() {
	s, err := open(false)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	ctx := context.Background()
	c, err := client.New(s.server.URL, client.WithTries(2))
	if err != nil {
		log.Fatal(err)
	}

	s.fail(answerLost, answerLost) // the network breaks after the service has placed the order
	order := client.OrderRequest{BuyerID: "u-1", Lines: []client.Line{{SKU: "10001", Quantity: 1}}}
	_, err = c.Place(ctx, order)
	unknown, ok := errors.AsType[*client.UnknownOutcome](err)
	fmt.Println("unknown:", ok)

	order.Key = unknown.Key
	placed, err := c.Place(ctx, order)
	fmt.Println(placed.Status, "replayed:", placed.Replayed, err)
	// Output:
	// unknown: true
	// pending replayed: true <nil>
}

// An administrator adds stock, limits the units of a buyer, and lists all stock.
func ExampleClient_SetStock() {
	url, stop := serve(false)
	defer stop()
	ctx := context.Background()
	admin, err := client.New(url, client.WithToken(adminToken))
	if err != nil {
		log.Fatal(err)
	}
	_, created, err := admin.SetStock(ctx, "coupon-9", client.Setting{Kind: client.Coupon, Total: 300, BuyerLimit: new(int64(1))})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("created:", created)
	for s, err := range admin.AllStock(ctx, client.StockFilter{}) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(s.Kind, s.SKU, s.Available)
	}
	// Output:
	// created: true
	// product 10001 10
	// coupon coupon-9 300
}

// A shop that serves many buyers sends the token of each buyer with that buyer's calls.
func ExampleWithTokenFrom() {
	url, stop := serve(false)
	defer stop()
	type session struct{}
	c, err := client.New(url, client.WithTokenFrom(func(ctx context.Context) (string, error) {
		token, _ := ctx.Value(session{}).(string)
		return token, nil
	}))
	if err != nil {
		log.Fatal(err)
	}
	for _, token := range []string{"a-buyers-token", adminToken} {
		_, err := c.ListPayments(context.WithValue(context.Background(), session{}, token), client.PaymentFilter{})
		fmt.Println("refused:", errors.Is(err, client.Unauthorized))
	}
	// Output:
	// refused: true
	// refused: false
}
