package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/httpapi"
	"github.com/holdfast-stock/holdfast/internal/lock/backends"
	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/outage"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/stock/strategy"
	"github.com/holdfast-stock/holdfast/internal/store"
)

const (
	// watchEvery is how often the Redis masters are asked who they are.
	watchEvery = time.Second
	// stopTimeout bounds how long a service takes to stop, after --drain-delay:
	// answering what it accepted, flushing its queues and closing its stores.
	// The process has ended within 15 s.
	stopTimeout = 14500 * time.Millisecond
	// answerTimeout is the part of it that the requests have, which is more
	// than requestTimeout.
	answerTimeout = 12 * time.Second
)

// demoStock is what there is to buy in an embedded service.
var demoStock = []order.Setting{
	{SKU: "10001", Kind: stock.Product, Total: 1000},
	{SKU: "coupon-300", Kind: stock.Coupon, Total: 300},
}

// serve serves until ctx ends, and then finishes what it accepted. That takes
// at most --drain-delay and stopTimeout, even if a store does not answer; the
// error says if something was left to recovery.
func serve(ctx context.Context, c config, stdout io.Writer, log *slog.Logger) error {
	counting := outage.NewHandler(log.Handler())
	defer counting.Close()
	log = slog.New(httpapi.LogHandler(counting))
	return endWithin(ctx, c.drainDelay+stopTimeout, func() error { return serveAndStop(ctx, c, stdout, log) })
}

// endWithin runs f. It returns without f if f has not returned within limit
// of the end of ctx.
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

	// First of all, so that an address in use changes nothing in the stores.
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

	on := strategy.Backends{
		Redis: stores.redis, LedgerID: ledgerID, Guard: c.guard,
		LockName: c.locks.name, Fence: c.fence, Segments: c.segments,
	}
	if c.strategy.NeedsLock() {
		var closeLocks func() error
		if on.Locker, closeLocks, err = c.locks.open(ctx, stores.redis); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, closeLocks()) }()
		for _, warning := range c.lockWarnings() {
			log.Warn(warning)
		}
	}
	built, closeGate := c.strategy.Build(on)
	defer closeGate()
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	orders := order.NewService(stores.sql.DB(), ledgerID, built, c.takeDeadline, log, order.NewMetrics(registry))
	defer orders.Close()
	if err := orders.Start(ctx); err != nil {
		return err
	}
	if c.embedded() {
		for _, set := range demoStock {
			if _, _, err := orders.SetStock(ctx, set); err != nil {
				return fmt.Errorf("laying in the demo stock: %w", err)
			}
		}
	}

	var ready atomic.Bool
	handler := httpapi.New(httpapi.Config{
		Orders:         orders,
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

	// What mends the stock goes on until the last request is answered.
	mending, stopMending := context.WithCancel(context.WithoutCancel(ctx))
	var menders sync.WaitGroup
	defer func() { stopMending(); menders.Wait() }()
	menders.Go(func() { orders.Run(mending) })
	if built.Gate != nil {
		menders.Go(func() {
			store.WatchRedis(mending, stores.redis, watchEvery, func() {
				log.Warn("a Redis master was replaced or restarted; every count is filled anew")
				orders.StoreChanged()
			})
		})
	}

	ready.Store(true)
	log.Info("serving", "address", listener.Addr().String(), "strategy", c.strategy.Name, "guard", c.guard,
		"version", buildVersion())
	if _, err := io.WriteString(stdout, screen(c, listener.Addr())); err != nil {
		log.Debug("the screen could not be printed", "error", err)
	}

	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	ready.Store(false)
	if c.drainDelay > 0 {
		log.Info("draining: not ready, still accepting", "seconds", c.drainDelay.Seconds())
		select {
		case err := <-served:
			return err
		case <-time.After(c.drainDelay):
		}
	}
	log.Info("draining: finishing what was accepted")
	return drain(server, log)
}

// drain stops accepting and waits for the answers under way.
func drain(server *http.Server, log *slog.Logger) error {
	ctx, cancel := context.WithTimeout(context.Background(), answerTimeout)
	defer cancel()
	if err := server.Shutdown(ctx); err != nil {
		log.Warn("some requests were cut off", "seconds", answerTimeout.Seconds(), "error", err)
		return server.Close()
	}
	log.Info("drained")
	return nil
}

// stores are the open stores of one service.
type stores struct {
	sql   *store.SQL
	redis redis.UniversalClient // nil: none is needed
	close func() error
}

// openStores opens what the flags name, or the embedded pair.
func openStores(ctx context.Context, c config) (s stores, err error) {
	if c.embedded() {
		pair, err := store.OpenEmbedded(ctx)
		if err != nil {
			return stores{}, err
		}
		return stores{sql: pair.SQL(), redis: pair.Redis(), close: pair.Close}, nil
	}
	sql, err := store.OpenSQL(ctx, c.db)
	if err != nil {
		return stores{}, named("--db", err)
	}
	s = stores{sql: sql, close: sql.Close}
	switch {
	case !c.strategy.HasGate():
		return s, nil
	case c.redis == "":
		inProcess, err := store.OpenInProcessRedis(ctx)
		if err != nil {
			return stores{}, errors.Join(err, sql.Close())
		}
		s.redis = inProcess.Client()
		s.close = func() error { return errors.Join(inProcess.Close(), sql.Close()) }
		return s, nil
	}
	client, err := store.OpenRedis(ctx, c.redis)
	if err != nil {
		return stores{}, errors.Join(named("--redis", err), sql.Close())
	}
	s.redis = client
	s.close = func() error { return errors.Join(client.Close(), sql.Close()) }
	return s, nil
}

// named says which flag an error is about. A URL that cannot be used is a
// mistake in usage.
func named(flag string, err error) error {
	if errors.Is(err, store.ErrBadURL) {
		return usagef("%s: %w", flag, err)
	}
	return fmt.Errorf("%s: %w", flag, err)
}

// prepareSchema makes sure that the schema is the one this program knows.
func prepareSchema(ctx context.Context, c config, sql *store.SQL) error {
	if c.migrate {
		if err := sql.MigrateUp(ctx); err != nil {
			return err
		}
	}
	err := sql.CheckSchema(ctx)
	if errors.Is(err, store.ErrSchemaOld) {
		return fmt.Errorf("%w; run api migrate up with the same --db, or serve with --migrate", err)
	}
	return err
}

// lockWarnings say where the locks do not keep what the strategy promises.
func (c config) lockWarnings() (warnings []string) {
	backend, _ := backends.Find(c.locks.name)
	if backend.Flag == "" {
		warnings = append(warnings, "--lock local excludes within this process only: two instances oversell")
	}
	if !backend.Fences {
		warnings = append(warnings, "--lock "+backend.Name+" gives no fencing tokens: a lease that is outlived may oversell")
	} else if !c.fence {
		warnings = append(warnings, "--fence off: a lease that is outlived may oversell")
	}
	return warnings
}

func describe(c config) httpapi.Strategies {
	d := httpapi.Strategies{Running: c.strategy.Name, Guard: c.guard}
	for _, s := range strategy.Table() {
		d.All = append(d.All, httpapi.Strategy{Name: s.Name, Gate: s.Gate, Cutter: s.Cutter, Sound: s.Sound, Detail: s.Detail})
	}
	return d
}

// screen is what someone who starts the service sees.
func screen(c config, address net.Addr) string {
	url := "http://" + reachable(address)
	var b strings.Builder
	fmt.Fprintf(&b, "Holdfast listening on %s\n\n", url)
	fmt.Fprintf(&b, "  strategy  %s: %s\n", c.strategy.Name, c.strategy.Detail)
	if c.strategy.HasGate() {
		guard := onOff(c.guard)
		fmt.Fprintf(&b, "  guard     %s\n", guard.String())
	}
	if c.strategy.NeedsLock() {
		fence := onOff(c.fence)
		fmt.Fprintf(&b, "  lock      %s, lease %v, fence %s\n", c.locks.name, c.locks.lease, fence.String())
	}
	if c.strategy.Segmented() {
		fmt.Fprintf(&b, "  segments  %d\n", c.segments)
	}
	sku := "SKU"
	if c.embedded() {
		sku = string(demoStock[0].SKU)
		b.WriteString("  stores    embedded: an in-process Redis, and SQLite in a temporary folder.\n" +
			"            For trying out, not for keeping: both are gone when this ends.\n")
		for i, set := range demoStock {
			label := "          "
			if i == 0 {
				label = "stock     "
			}
			fmt.Fprintf(&b, "  %s%s %s, %d units\n", label, set.Kind, set.SKU, set.Total)
		}
	} else {
		fmt.Fprintf(&b, "  ledger    %s\n", store.Redact(c.db))
		switch {
		case c.redis != "":
			fmt.Fprintf(&b, "  gate      %s\n", store.Redact(c.redis))
		case c.strategy.HasGate():
			b.WriteString("  gate      an in-process Redis, refilled from the ledger at every start\n")
		}
	}
	b.WriteString("\nTry:\n\n")
	if !c.embedded() {
		auth := ""
		if c.adminToken != "" {
			auth = " -H 'Authorization: Bearer TOKEN'"
		}
		fmt.Fprintf(&b, "  curl -X PUT %s/stock/%s%s -H 'Content-Type: application/json' -d '{\"kind\":\"product\",\"total\":1000}'\n", url, sku, auth)
	}
	fmt.Fprintf(&b, "  curl %s/orders -H 'Content-Type: application/json' -d '{\"buyer_id\":\"u-1\",\"lines\":[{\"sku\":\"%s\",\"quantity\":1}]}'\n", url, sku)
	fmt.Fprintf(&b, "  curl %s/stock/%s/audit\n\n", url, sku)
	return b.String()
}

// reachable is the address as a client on this machine would write it.
func reachable(address net.Addr) string {
	host, port, err := net.SplitHostPort(address.String())
	if err != nil {
		return address.String()
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, port)
}
