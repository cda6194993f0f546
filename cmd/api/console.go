package main

import (
	"context"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-stock/holdfast/internal/assembly"
	"github.com/holdfast-stock/holdfast/internal/console"
	rushes "github.com/holdfast-stock/holdfast/internal/console/rush"
	"github.com/holdfast-stock/holdfast/internal/store"
)

// consolePage is the console of this process, if --console is on.
type consolePage struct {
	*console.Console
	rush *rushes.Runner
}

// newConsole returns the console of an instance. Rushes stop when ctx ends.
func newConsole(ctx context.Context, c config, i *assembly.Instance, metrics prometheus.Gatherer, log *slog.Logger) consolePage {
	if !c.Console {
		return consolePage{}
	}
	runner := rushes.New(ctx, rushOptions(c, log))
	settings := console.Config{
		Service: describeService(c, i.Reconciler.Holder(), time.Now()),
		Ledger:  i.Ledger,
		Metrics: metrics,
		Rush:    runner,
		Log:     log,
	}
	if c.strategy.HasGate() {
		settings.Gate = i.Reconciler
	}
	page := console.New(settings)
	runner.Notify(func(p rushes.Progress) { page.Publish("rush", p) })
	return consolePage{page, runner}
}

// rushOptions returns whether this service runs rushes.
func rushOptions(c config, log *slog.Logger) rushes.Options {
	o := rushes.Options{Log: log}
	if !c.embedded() {
		o.Unavailable = "Only a service with embedded stores runs rushes."
	}
	return o
}

// handler returns the handler of /console/, or nil if there is no console.
func (p consolePage) handler() http.Handler {
	if p.Console == nil {
		return nil
	}
	return p.Console
}

// run samples for the console's streams in the background, also after ctx has ended, until stop is
// called. stop ends the streams and waits until they have ended. It may be called several times.
func (p consolePage) run(ctx context.Context) (stop func()) {
	if p.Console == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	running.Go(func() { p.Run(ctx) })
	return func() {
		cancel()
		running.Wait()
		p.rush.Close()
	}
}

// describeService returns the settings that the console shows.
func describeService(c config, holder string, started time.Time) console.Service {
	s := console.Service{
		Version: buildVersion(), StartedAt: started.UTC(), Instance: holder, Embedded: c.embedded(),
		Strategy: c.strategy.Name, Gate: c.strategy.Gate, Cutter: c.strategy.Cutter, Sound: c.strategy.Sound,
		Guard: c.Guard && c.strategy.HasGate(),
	}
	if c.strategy.NeedsLock {
		s.Lock, s.Lease, s.Fence = c.Locks.Backend, c.Locks.Lease.String(), c.Fence
	}
	if c.strategy.Segmented {
		s.Segments = c.Segments
	}
	if c.strategy.Slotted {
		s.Slots = c.Slots
	}
	if c.DB != "" {
		s.LedgerStore = store.Redact(c.DB)
	}
	if c.Redis != "" && c.strategy.HasGate() {
		s.GateStore = store.Redact(c.Redis)
	}
	return s
}
