package httpapi_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/holdfast-stock/holdfast/internal/assembly"
	"github.com/holdfast-stock/holdfast/internal/httpapi"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// The whole service runs in this process: SQLite in a temporary folder, an in-process Redis, the
// default strategy and the HTTP API. The first buyer gets two of three units, and the second is
// told that too few are left.
func ExampleNew() {
	url, stop := serve(3)
	defer stop()
	for _, buyer := range []string{"u-1", "u-2"} {
		answer, err := http.Post(url+"/orders", "application/json",
			strings.NewReader(`{"buyer_id":"`+buyer+`","lines":[{"sku":"10001","quantity":2}]}`))
		if err != nil {
			log.Fatal(err)
		}
		if answer.StatusCode == http.StatusCreated {
			var placed struct {
				Status string
				Lines  []stock.Line
			}
			decode(answer.Body, &placed)
			fmt.Printf("%s: %s, %d of %s\n", answer.Status, placed.Status, placed.Lines[0].Quantity, placed.Lines[0].SKU)
		} else {
			var problem struct{ Type, SKU string }
			decode(answer.Body, &problem)
			fmt.Printf("%s: %s, %s\n", answer.Status, problem.Type, problem.SKU)
		}
	}
	// Output:
	// 201 Created: pending, 2 of 10001
	// 409 Conflict: /problems/sold-out, 10001
}

// decode reads a JSON value and closes body.
func decode(body io.ReadCloser, value any) {
	if err := errors.Join(json.NewDecoder(body).Decode(value), body.Close()); err != nil {
		log.Fatal(err)
	}
}

// serve starts the service on embedded stores, with units of product 10001. stop
// stops the service and removes the stores.
func serve(units int64) (url string, stop func()) {
	ctx := context.Background()
	config, closeInstance, err := embeddedConfig(ctx, false)
	if err != nil {
		log.Fatal(err)
	}
	if _, _, err := config.Stock.SetStock(ctx, stock.Setting{SKU: "10001", Kind: stock.Product, Total: units}); err != nil {
		log.Fatal(err)
	}
	server := httptest.NewServer(httpapi.New(config))
	return server.URL, func() {
		server.Close()
		closeInstance()
	}
}

// embeddedConfig starts an instance on embedded stores. If queue is set, it queues
// orders and commits them. close stops it and removes the stores.
func embeddedConfig(ctx context.Context, queue bool) (c httpapi.Config, close func(), err error) {
	instance, close, err := embedded(ctx, queue)
	if err != nil {
		return c, nil, err
	}
	return httpapi.Config{
		Strategies:     httpapi.Strategies{Running: assembly.DefaultStrategy, Guard: true, All: []httpapi.Strategy{}},
		Orders:         instance.Orders,
		Stock:          instance.Stock,
		Ready:          instance.Reconciler.Ready,
		Loopback:       true,
		Metrics:        promhttp.Handler(),
		Registry:       prometheus.NewRegistry(),
		Log:            slog.New(slog.DiscardHandler),
		Draining:       func() bool { return false },
		RequestTimeout: 10 * time.Second,
	}, close, nil
}

// embedded starts an instance on embedded stores. close stops it and removes the
// stores.
func embedded(ctx context.Context, queue bool) (instance *assembly.Instance, close func(), err error) {
	spec, _ := assembly.FindStrategy(assembly.DefaultStrategy)
	if queue {
		spec = assembly.Queueing()
	}
	instance, err = assembly.Open(ctx, assembly.Parts{Strategy: spec, Guard: true}, assembly.Options{
		TakeDeadline: time.Minute, Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
	})
	if err != nil {
		return nil, nil, err
	}
	if err := instance.Start(ctx); err != nil {
		return nil, nil, errors.Join(err, instance.Close())
	}
	stop := instance.RunBeside(ctx)
	return instance, func() {
		stop()
		_ = instance.Close()
	}, nil
}
