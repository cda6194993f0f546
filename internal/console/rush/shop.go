package rush

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-stock/holdfast/internal/assembly"
	"github.com/holdfast-stock/holdfast/internal/assembly/backends"
	"github.com/holdfast-stock/holdfast/internal/httpapi"
	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/retry"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/store"
)

const (
	// sku is what the clients order.
	sku stock.SKU = "rush"
	// segments divide it, for strategies with segments.
	segments = 8
	// takeDeadline and requestTimeout are shorter than those of the service: the stores
	// are in this process.
	takeDeadline, requestTimeout = 30 * time.Second, 5 * time.Second
)

// shop is a service of its own for one run: fresh embedded stores, one strategy without
// a guard, one SKU.
type shop struct {
	handler  http.Handler
	instance *assembly.Instance
	closers  []func() error // in the order of opening
}

// openShop opens a service that has this many units.
func openShop(ctx context.Context, spec assembly.Spec, units int64) (*shop, error) {
	s := new(shop)
	if err := s.open(ctx, spec, units); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

func (s *shop) open(ctx context.Context, spec assembly.Spec, units int64) error {
	log := slog.New(slog.DiscardHandler) // the run reports what fails; what it mends is not of interest
	stores, err := store.OpenEmbedded(ctx)
	if err != nil {
		return err
	}
	s.closers = append(s.closers, stores.Close)
	stores.SQL().LogTo(log)
	ledgerID, err := stores.SQL().LedgerID(ctx)
	if err != nil {
		return err
	}
	on := assembly.Backends{LedgerID: ledgerID, LockName: backends.Default, Fence: true, Segments: segments}
	if spec.HasGate() {
		on.Redis = stores.Redis()
	}
	if spec.NeedsLock() {
		if on.Locker, err = s.openLocks(ctx, stores); err != nil {
			return err
		}
	}
	built, closeGate := spec.Build(on)
	s.closers = append(s.closers, func() error { closeGate(); return nil })
	metrics := prometheus.NewRegistry() // nobody reads it
	s.instance = assembly.New(stores.SQL().Ledger(), ledgerID, built, assembly.Options{
		TakeDeadline: takeDeadline, Log: log, Metrics: metrics,
	})
	s.closers = append(s.closers, func() error { s.instance.Close(); return nil })
	if err := s.instance.Start(ctx); err != nil {
		return err
	}
	if _, _, err := s.instance.Stock.SetStock(ctx, stock.Setting{SKU: sku, Kind: stock.Product, Total: units}); err != nil {
		return fmt.Errorf("setting the stock of the rush: %w", err)
	}
	s.reconcileBeside(ctx)
	s.handler = httpapi.New(httpapi.Config{
		Orders:         s.instance.Orders,
		Stock:          s.instance.Stock,
		Metrics:        http.NotFoundHandler(),
		Registry:       metrics,
		Log:            log,
		Ready:          s.instance.Reconciler.Ready,
		Draining:       func() bool { return false },
		RequestTimeout: requestTimeout,
	})
	return nil
}

func (s *shop) openLocks(ctx context.Context, stores *store.Embedded) (lock.Locker, error) {
	backend, _ := backends.Find(backends.Default)
	locker, closeLocks, err := backend.Open(ctx, backends.Servers{Redis: stores.Redis()})
	if err != nil {
		return nil, err
	}
	s.closers = append(s.closers, closeLocks)
	return locker, nil
}

// reconcileBeside runs the loops of the instance until the shop is closed.
func (s *shop) reconcileBeside(ctx context.Context) {
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	var loops sync.WaitGroup
	loops.Go(func() { s.instance.Run(ctx) })
	s.closers = append(s.closers, func() error {
		stop()
		loops.Wait()
		return nil
	})
}

// sold recounts the units that are sold, once no order is queued any more.
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
	return s.instance.Ledger.Sold(ctx, sku)
}

// queuePause is the pause between two looks for queued orders, queueLimit bounds the wait
// for them.
const queuePause, queueLimit = 20 * time.Millisecond, time.Minute

// close closes the service and removes its stores. No request may be under way.
func (s *shop) close() error {
	var errs []error
	for _, closer := range slices.Backward(s.closers) {
		errs = append(errs, closer())
	}
	return errors.Join(errs...)
}
