package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/holdfast-stock/holdfast/internal/assembly"
	"github.com/holdfast-stock/holdfast/internal/httpapi"
	"github.com/holdfast-stock/holdfast/internal/loglimit"
	"github.com/holdfast-stock/holdfast/internal/retry"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/store"
	"github.com/holdfast-stock/holdfast/internal/tracing/otlp"
)

const (
	// stopTimeout bounds the time that the service takes to stop after
	// --drain-delay: to answer accepted requests, flush its queues and close its
	// stores. The process ends within 15 s.
	stopTimeout = 14500 * time.Millisecond
	// answerTimeout is the part of stopTimeout for the requests. It is longer
	// than requestTimeout.
	answerTimeout = 12 * time.Second
	// lastRequests is how long the service answers what arrives on open connections after it has
	// stopped accepting new ones. Requests that clients sent before they learned of the stop arrive
	// within that time.
	lastRequests = 250 * time.Millisecond
)

// demoStock is the stock of an embedded service.
var demoStock = []stock.Setting{
	{SKU: "10001", Kind: stock.Product, Total: 1000},
	{SKU: "coupon-300", Kind: stock.Coupon, Total: 300},
}

// serve serves until ctx ends, and then finishes the accepted requests. That takes at most
// --drain-delay plus stopTimeout, even if a store does not answer. If that time runs out, the error
// says that something was left to recovery.
func serve(ctx context.Context, c config, stdout io.Writer, log *slog.Logger) error {
	counting := loglimit.NewHandler(log.Handler())
	defer counting.Close()
	log = slog.New(httpapi.LogHandler(counting))
	return endWithin(ctx, c.DrainDelay+stopTimeout, func() error { return serveAndStop(ctx, c, stdout, log) })
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
	traces := otlp.Open(ctx, buildVersion(), log)
	defer traces.Close() // after the last group

	// Listen first, so that an address in use changes nothing in the stores.
	listeners, err := openListeners(ctx, c.serverFlags, log)
	defer listeners.close()
	if err != nil {
		return err
	}

	registry := newRegistry()
	options := c.options(log, registry)
	options.Tracer = traces.Tracer()
	instance, err := assembly.Open(ctx, c.parts(), options)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, instance.Close()) }()
	registerPools(registry, instance.Stores)
	logStores(ctx, c, instance.Stores, log)
	if err := start(ctx, instance, c); err != nil {
		return err
	}
	defer instance.RunBeside(ctx)() // until the last request is answered

	var ready atomic.Bool
	page := newConsole(ctx, c, instance, registry, log)
	settings := httpapi.Config{
		Orders: instance.Orders,
		Stock:  instance.Stock,
		Ready: func(ctx context.Context) error {
			return cmp.Or(listeners.ready(), instance.Ready(ctx))
		},
		Strategies:     describe(c),
		AdminToken:     c.AdminToken,
		Loopback:       onLoopback(c.Listen),
		Tokens:         listeners.tokens,
		RateLimit:      float64(c.RateLimit),
		RateBurst:      c.burst(),
		TrustedProxies: c.TrustedProxies,
		SeparateOps:    listeners.ops != nil,
		Metrics:        metricsHandler(registry),
		Registry:       registry,
		Console:        page.handler(),
		Log:            log,
		Draining:       func() bool { return !ready.Load() },
		RequestTimeout: requestTimeout,
		Tracer:         traces.Tracer(),
	}
	defer listeners.refresh()()
	served := make(chan error, 2)
	defer listeners.serveOps(settings, c.serverFlags, served)()
	server := httpapi.NewServer(httpapi.New(settings), requestTimeout, log)
	endStreams := page.run(ctx)
	defer endStreams()
	server.RegisterOnShutdown(endStreams)
	go func() { served <- listeners.serve(server, listeners.api) }()

	ready.Store(true)
	announce(ctx, c, listeners, log)
	if isTerminal(stdout) { // elsewhere the log is all that is printed, so that a collector can parse each line
		if _, err := io.WriteString(stdout, startupBanner(c, listeners)); err != nil {
			log.Debug("printing the banner failed", "error", err)
		}
	}

	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	ready.Store(false)
	return finishRequests(server, listeners.api, served, c.DrainDelay, log)
}

// start takes over the stock, and sets the demo stock of an embedded service.
func start(ctx context.Context, i *assembly.Instance, c config) error {
	if err := i.Start(ctx); err != nil {
		return err
	}
	if !c.embedded() {
		return nil
	}
	for _, set := range demoStock {
		if _, _, err := i.Stock.SetStock(ctx, set); err != nil {
			return fmt.Errorf("setting the demo stock: %w", err)
		}
	}
	return nil
}

// describe returns the table of strategies as GET /strategies shows it.
func describe(c config) httpapi.Strategies {
	d := httpapi.Strategies{Running: c.strategy.Name, Guard: c.Guard}
	for _, s := range assembly.Strategies() {
		one := httpapi.Strategy{Name: s.Name, Cutter: s.Cutter, Sound: s.Sound, Detail: s.Detail, Promise: s.Promise}
		if s.HasGate() {
			one.Gate = &s.Gate
		}
		d.All = append(d.All, one)
	}
	return d
}

// announce logs that the service serves, at every --log-level. Without the banner, only this line
// has the address.
func announce(ctx context.Context, c config, l listeners, log *slog.Logger) {
	serving := slog.NewRecord(time.Now(), slog.LevelInfo, "serving", 0)
	serving.Add("address", l.api.Addr().String(), "url", c.scheme()+"://"+reachable(l.api.Addr()),
		"strategy", c.strategy.Name, "guard", c.Guard, "version", buildVersion())
	_ = log.Handler().Handle(ctx, serving) // as the logger does
}

// logStores logs each store in a line, with what it cannot do or may lose.
func logStores(ctx context.Context, c config, stores assembly.Stores, log *slog.Logger) {
	found := func(name string, e store.Engine) {
		log.Info("found a store", append([]any{"store", name}, e.Attrs()...)...)
	}
	found("ledger", stores.SQL.Engine(ctx))
	switch {
	case stores.Redis == nil:
	case c.Redis == "":
		found("gate", store.Engine{Name: "in-process Redis", Replication: "none"})
	default:
		found("gate", store.RedisEngine(ctx, stores.Redis))
	}
	if c.embedded() {
		log.Warn("the stores are embedded: all orders are deleted when the process ends; set --redis and --db")
	}
	if stores.Redis != nil {
		for _, warning := range store.RedisWarnings(ctx, stores.Redis) {
			log.Warn(warning)
		}
	}
	if c.strategy.Queues {
		if warning := queueWarning(ctx, c, stores); warning != "" {
			log.Warn("--strategy " + c.strategy.Name + ": " + warning)
		}
	}
}

// queueWarning says which queued orders may be lost. It is empty if none are.
func queueWarning(ctx context.Context, c config, s assembly.Stores) string {
	if c.Redis == "" {
		return "a 202 is as durable as the in-process Redis: the end of this process loses every order that is still queued"
	}
	return store.QueueWarning(ctx, s.Redis)
}

// errCutOff means that the process ends although not all requests were answered.
var errCutOff = errors.New("stopping: some requests were cut off")

// finishRequests continues to serve for delay, so that load balancers notice that the instance is
// not ready. Then it accepts no more connections, and waits for the answers under way. Shutting
// down a server closes idle connections at once, which resets requests on their way. So the server
// first answers on open connections for lastRequests.
func finishRequests(server *http.Server, listener net.Listener, served <-chan error, delay time.Duration, log *slog.Logger) error {
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
	_ = listener.Close() // open connections stay
	log.Debug("accepting no more connections", "reason", <-served)
	_ = retry.Sleep(ctx, lastRequests)
	if err := server.Shutdown(ctx); err != nil {
		log.Warn("some requests were cut off", "seconds", answerTimeout.Seconds(), "error", err)
		return errors.Join(errCutOff, server.Close())
	}
	log.Info("drained")
	return nil
}
