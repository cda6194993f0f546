package rush

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-stock/holdfast/internal/assembly"
	"github.com/holdfast-stock/holdfast/internal/assembly/backends"
	"github.com/holdfast-stock/holdfast/internal/httpapi"
	"github.com/holdfast-stock/holdfast/internal/retry"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

const (
	// sku is what the clients order.
	sku stock.SKU = "rush"
	// segments is the number of the SKU's segments, for strategies with segments.
	segments = 8
	// slots is the number of the SKU's slots, for strategies with slots.
	slots = 8
	// takeDeadline and requestTimeout are shorter than those of the service: the stores
	// are in this process.
	takeDeadline, requestTimeout = 30 * time.Second, 5 * time.Second
)

// shop is a separate service for one run: fresh embedded stores, one strategy without a guard, one
// SKU.
type shop struct {
	instance *assembly.Instance
	stop     func() // ends the instance's background work
	server   *http.Server
	url      string
}

// openShop opens a service that has this many units.
func openShop(ctx context.Context, spec assembly.Spec, units int64) (*shop, error) {
	log := slog.New(slog.DiscardHandler) // the run reports failures itself
	metrics := prometheus.NewRegistry()  // these metrics are not served
	instance, err := assembly.Open(ctx, assembly.Parts{
		Strategy: spec, Locks: backends.Flags{Backend: backends.Default}, Fence: true, Segments: segments, Slots: slots,
	}, assembly.Options{TakeDeadline: takeDeadline, Log: log, Metrics: metrics})
	if err != nil {
		return nil, err
	}
	s := &shop{instance: instance, stop: func() {}}
	if err = s.start(ctx, units); err == nil {
		err = s.serve(httpapi.New(httpapi.Config{
			Orders:         instance.Orders,
			Stock:          instance.Stock,
			Metrics:        http.NotFoundHandler(),
			Registry:       metrics,
			Log:            log,
			Ready:          instance.Ready,
			Draining:       func() bool { return false },
			RequestTimeout: requestTimeout,
		}))
	}
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// serve serves on a free port of this machine until endOrders is called.
func (s *shop) serve(handler http.Handler) error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	s.url = "http://" + listener.Addr().String()
	// Others on this machine may call it too. A slow one must not keep the run from ending.
	s.server = httpapi.NewServer(handler, requestTimeout, slog.New(slog.DiscardHandler))
	go func() { _ = s.server.Serve(listener) }() // the clients report a server that fails
	return nil
}

// endOrders refuses further orders, and waits for those under way.
func (s *shop) endOrders(ctx context.Context) error { return s.server.Shutdown(ctx) }

// start takes over the stock, and puts the units into it.
func (s *shop) start(ctx context.Context, units int64) error {
	if err := s.instance.Start(ctx); err != nil {
		return err
	}
	if _, _, err := s.instance.Stock.SetStock(ctx, stock.Setting{SKU: sku, Kind: stock.Product, Total: units}); err != nil {
		return fmt.Errorf("setting the stock of the rush: %w", err)
	}
	s.stop = s.instance.RunBeside(ctx)
	return nil
}

// sold recounts the units that are sold, once no order is queued any more. No request may be under
// way.
func (s *shop) sold(ctx context.Context) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, queueLimit)
	defer cancel()
	for s.instance.Consumer != nil {
		queued, err := s.instance.Consumer.Queued(ctx)
		if err != nil {
			return 0, err
		}
		if queued == 0 {
			break
		}
		if err := retry.Sleep(ctx, queuePause); err != nil {
			return 0, fmt.Errorf("waiting for %d queued orders: %w", queued, err)
		}
	}
	counts, err := s.instance.Ledger.Recount(ctx, []stock.SKU{sku})
	if err != nil {
		return 0, err
	}
	return counts[0].Held, nil
}

// queuePause is the pause between two reads of the queued orders, queueLimit bounds the wait
// for them.
const queuePause, queueLimit = 20 * time.Millisecond, time.Minute

// close ends the service and removes its stores. No request may be under way.
func (s *shop) close() error {
	s.stop()
	return s.instance.Close()
}
