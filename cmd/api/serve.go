package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/holdfast-stock/holdfast/internal/httpapi"
	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/outage"
	"github.com/holdfast-stock/holdfast/internal/service"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/store"
)

const (
	// watchPause is the pause between two checks of the Redis masters' identity.
	watchPause = time.Second
	// stopTimeout bounds the time that the service takes to stop after
	// --drain-delay: to answer accepted requests, flush its queues and close its
	// stores. The process ends within 15 s.
	stopTimeout = 14500 * time.Millisecond
	// answerTimeout is the part of stopTimeout for the requests. It is longer
	// than requestTimeout.
	answerTimeout = 12 * time.Second
)

// demoStock is the stock of an embedded service.
var demoStock = []stock.Setting{
	{SKU: "10001", Kind: stock.Product, Total: 1000},
	{SKU: "coupon-300", Kind: stock.Coupon, Total: 300},
}

// serve serves until ctx ends, and then finishes the accepted requests. That takes
// at most --drain-delay plus stopTimeout, even if a store does not answer. Then the
// error says that something was left to recovery.
func serve(ctx context.Context, c config, stdout io.Writer, log *slog.Logger) error {
	counting := outage.NewHandler(log.Handler())
	defer counting.Close()
	log = slog.New(httpapi.LogHandler(counting))
	return endWithin(ctx, c.drainDelay+stopTimeout, func() error { return serveAndStop(ctx, c, stdout, log) })
}

// endWithin runs f. It returns an error without waiting for f if f has not returned
// within limit after the end of ctx.
func endWithin(ctx context.Context, limit time.Duration, f func() error) error {
	ended := make(chan error, 1)
	go func() { ended <- f() }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-ended:
		return err
	case <-time.After(limit):
		return fmt.Errorf("stopping: not done after %v; recovery resolves what was under way", limit)
	}
}

// serveAndStop is serve without a bound on the time it takes to stop.
func serveAndStop(ctx context.Context, c config, stdout io.Writer, log *slog.Logger) (err error) {
	store.LogRedis(log)

	// Listen first, so that an address in use changes nothing in the stores.
	listener, err := net.Listen("tcp", c.listen)
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	defer listener.Close()

	stores, err := openStores(ctx, c)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stores.close()) }()
	stores.sql.LogTo(log)
	if stores.unseen != nil {
		log.Warn("queued orders cannot be seen or committed", "error", stores.unseen)
	}
	if err := prepareSchema(ctx, c, stores.sql); err != nil {
		return err
	}
	ledgerID, err := stores.sql.LedgerID(ctx)
	if err != nil {
		return err
	}
	if stores.redis != nil {
		for _, warning := range store.RedisWarnings(ctx, stores.redis) {
			log.Warn(warning)
		}
	}
	if c.queue {
		if warning := queueWarning(ctx, c, stores); warning != "" {
			log.Warn("--ack queued: " + warning)
		}
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	built, closeStrategy, err := openStrategy(ctx, c, stores, ledgerID, log, registry)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeStrategy()) }()
	instance := service.New(stores.sql.Ledger(), ledgerID, built, service.Options{
		TakeDeadline: c.takeDeadline, PaymentWindow: c.paymentWindow, LatePayments: order.Late(c.latePayment),
		Queue: c.queue, Log: log, Metrics: registry,
	})
	defer instance.Close()
	if err := start(ctx, instance, c); err != nil {
		return err
	}
	finishQueued(ctx, c, instance, built.Queued, log)

	var ready atomic.Bool
	handler := httpapi.New(httpapi.Config{
		Orders:         instance.Orders,
		Stock:          instance.Stock,
		Ready:          instance.Reconciler.Ready,
		Strategies:     describe(c),
		AdminToken:     c.adminToken,
		Loopback:       c.loopback(),
		Metrics:        promhttp.HandlerFor(registry, promhttp.HandlerOpts{Registry: registry}),
		Log:            log,
		Draining:       func() bool { return !ready.Load() },
		RequestTimeout: requestTimeout,
	})
	server := httpapi.NewServer(handler, requestTimeout, log)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()

	stopReconciling := reconcileBeside(ctx, instance, stores.redis, log)
	defer stopReconciling() // once the last request is answered

	ready.Store(true)
	log.Info("serving", "address", listener.Addr().String(), "strategy", c.strategy.Name, "guard", c.guard,
		"version", buildVersion())
	if _, err := io.WriteString(stdout, banner(c, listener.Addr())); err != nil {
		log.Debug("printing the banner failed", "error", err)
	}

	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	ready.Store(false)
	return drain(server, served, c.drainDelay, log)
}

// drain goes on serving for delay, so that load balancers notice that the instance
// is not ready. Then it stops accepting and waits for the answers under way.
func drain(server *http.Server, served <-chan error, delay time.Duration, log *slog.Logger) error {
	if delay > 0 {
		log.Info("draining: not ready, still accepting", "seconds", delay.Seconds())
		select {
		case err := <-served:
			return err
		case <-time.After(delay):
		}
	}
	log.Info("draining: finishing accepted requests")
	ctx, cancel := context.WithTimeout(context.Background(), answerTimeout)
	defer cancel()
	if err := server.Shutdown(ctx); err != nil {
		log.Warn("some requests were cut off", "seconds", answerTimeout.Seconds(), "error", err)
		return server.Close()
	}
	log.Info("drained")
	return nil
}
