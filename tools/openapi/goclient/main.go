// Command goclient uses the client that oapi-codegen generates from the OpenAPI
// document against the service at HOLDFAST_URL. make openapi-clients generates it.
package main

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"os"
	"time"

	"github.com/google/uuid"

	// The generated file needs this import. Without it here, go mod tidy does not see the
	// dependency.
	_ "github.com/oapi-codegen/runtime"
	_ "go.yaml.in/yaml/v3"
)

func main() {
	log.SetFlags(0)
	if err := run(); err != nil {
		log.Fatal("the generated Go client: ", err)
	}
	fmt.Println("the generated Go client: ok")
}

func run() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := NewClientWithResponses(os.Getenv("HOLDFAST_URL"))
	if err != nil {
		return err
	}
	sku := fmt.Sprintf("go-%d", os.Getpid())
	stock, err := c.SetStockWithResponse(ctx, sku, nil, Setting{Kind: "product", Total: 2})
	if err != nil {
		return err
	}
	if stock.JSON201 == nil || stock.JSON201.Available != 2 {
		return fmt.Errorf("setting stock: %s", stock.Body)
	}
	place := func(quantity int, key string) (*PlaceOrderResponse, error) {
		return c.PlaceOrderWithResponse(ctx, &PlaceOrderParams{IdempotencyKey: &key},
			OrderRequest{BuyerId: "u-1", Lines: []Line{{Sku: sku, Quantity: quantity}}})
	}
	placed, err := place(1, sku+"-1")
	if err != nil {
		return err
	}
	if placed.JSON201 == nil || placed.JSON201.Status != "pending" {
		return fmt.Errorf("placing an order: %s", placed.Body)
	}
	id, err := uuid.Parse(fmt.Sprint(placed.JSON201.Id))
	if err != nil {
		return err
	}
	again, err := place(1, sku+"-1")
	if err != nil {
		return err
	}
	if again.JSON201 == nil || again.JSON201.Id != placed.JSON201.Id {
		return fmt.Errorf("placing it again: %s", again.Body)
	}
	paid, err := c.PayOrderWithResponse(ctx, id, nil, PaymentRequest{PaymentId: sku + "-p"})
	if err != nil {
		return err
	}
	if paid.JSON200 == nil || paid.JSON200.Status != "paid" {
		return fmt.Errorf("paying: %s", paid.Body)
	}
	shown, err := c.ShowOrderWithResponse(ctx, id, nil)
	if err != nil {
		return err
	}
	if shown.JSON200 == nil || len(shown.JSON200.History) != 2 {
		return fmt.Errorf("reading the order: %s", shown.Body)
	}
	refused, err := place(2, sku+"-2")
	if err != nil {
		return err
	}
	if refused.StatusCode() != http.StatusConflict || refused.ApplicationproblemJSON409 == nil {
		return fmt.Errorf("ordering too much: %s", refused.Body)
	}
	audit, err := c.ShowAuditWithResponse(ctx, sku, nil)
	if err != nil {
		return err
	}
	if audit.JSON200 == nil || audit.JSON200.Sold != 1 || audit.JSON200.Drift != 0 {
		return fmt.Errorf("auditing: %s", audit.Body)
	}
	return nil
}
