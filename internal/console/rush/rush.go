// Package rush runs a rush that a visitor of the console starts: N clients order M
// units, one each, until they are told that the units are sold out. Each run has a
// service of its own on fresh embedded stores, with the chosen strategy and without a
// guard. Its clients order over HTTP, at a port of its own.
package rush

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-stock/holdfast/internal/assembly"
	"github.com/holdfast-stock/holdfast/internal/console"
)

// Bounds of a run. All runs of a process together are bounded too, because there is
// one at a time.
const (
	MaxClients = 256
	MaxUnits   = 10_000
	// MaxDuration bounds the time during which the clients order.
	MaxDuration = 30 * time.Second
	// maxOrders bounds the requests of a run. It matters for strategies that oversell: they
	// go on accepting orders after the stock is sold.
	maxOrders = 100_000
)

// Settings are what the visitor chooses.
type Settings struct {
	Strategy string `json:"strategy"`
	Clients  int    `json:"clients"` // each client has one order under way
	Units    int64  `json:"units"`   // the stock
}

// Defaults returns the settings that are used where the visitor chooses nothing. They show an
// oversell.
func Defaults() Settings { return Settings{Strategy: "none", Clients: 32, Units: 100} }

// State is the phase of a run.
type State string

// The states of a run. Ended, Failed and Stopped are final.
const (
	Preparing State = "preparing" // the stores are being opened
	Running   State = "running"   // the clients order, or their orders are being counted
	Ended     State = "ended"     // the counts are final
	Failed    State = "failed"    // Detail says why
	Stopped   State = "stopped"   // stopped by the visitor, or because the process stops
)

// final reports whether the run is over.
func (s State) final() bool { return s == Ended || s == Failed || s == Stopped }

// Progress is the state of a run with its counts.
type Progress struct {
	ID string `json:"id"`
	Settings
	State State `json:"state"`
	// Detail says why the run has failed, why it ended before all units were sold, or
	// which requests failed. It is empty if there is nothing to say.
	Detail    string `json:"detail"`
	ElapsedMS int64  `json:"elapsed_ms"` // time since the first order; it ends with the last order

	Accepted int64 `json:"accepted"` // orders answered 201 or 202
	Refused  int64 `json:"refused"`  // orders answered 409 sold-out
	Failed   int64 `json:"failed"`   // all other answers, and requests without one
	// Sold is the number of units sold. At the end it is recounted from the order lines in the
	// database; until then it equals Accepted.
	Sold int64 `json:"sold"`
	// Available is Units less Sold. It is negative if units were sold twice.
	Available int64 `json:"available"`
	Oversold  int64 `json:"oversold"` // units sold beyond Units

	OrdersPerSecond float64 `json:"orders_per_second"` // accepted orders per second
	P50MS           float64 `json:"p50_ms"`            // median time to an answer
	P99MS           float64 `json:"p99_ms"`
}

// strategies returns the names of the strategies that a rush can run.
func strategies() (names []string) {
	for _, spec := range assembly.EmbeddedStrategies() {
		names = append(names, spec.Name)
	}
	return names
}

// check returns what is wrong with the settings.
func (s Settings) check() (assembly.Spec, *problem) {
	var wrong []console.FieldError
	spec, ok := assembly.FindStrategy(s.Strategy)
	if !ok || spec.NeedsRowLocks { // a rush has embedded stores
		wrong = append(wrong, console.FieldError{Field: "strategy", Detail: "must be one of " + strings.Join(strategies(), ", ")})
	}
	if s.Clients < 1 || s.Clients > MaxClients {
		wrong = append(wrong, console.FieldError{Field: "clients", Detail: fmt.Sprintf("must be between 1 and %d", MaxClients)})
	}
	if s.Units < 1 || s.Units > MaxUnits {
		wrong = append(wrong, console.FieldError{Field: "units", Detail: fmt.Sprintf("must be between 1 and %d", MaxUnits)})
	}
	if wrong != nil {
		return spec, invalid(wrong...)
	}
	return spec, nil
}

// Options configure a Runner.
type Options struct {
	// Unavailable says why this service runs no rushes. If it is empty, the service runs rushes.
	Unavailable string
	Log         *slog.Logger
}

// Runner runs one rush at a time. It is an http.Handler, see ServeHTTP. It is safe for
// concurrent use.
type Runner struct {
	o      Options
	notify func(Progress)
	ctx    context.Context // ends with the Runner
	end    context.CancelFunc
	mu     sync.Mutex
	last   *run // nil: no run was started
}

// New returns a Runner. A run stops when ctx ends. Call Close after that.
func New(ctx context.Context, o Options) *Runner {
	r := &Runner{o: o, notify: func(Progress) {}}
	r.ctx, r.end = context.WithCancel(ctx)
	return r
}

// Notify makes the Runner call f with the progress of each run: at its start and end, and several
// times a second in between. Calls do not overlap. f must not block or call the Runner. Call Notify
// once, before the first run.
func (r *Runner) Notify(f func(Progress)) { r.notify = f }

// begin starts a run and returns its progress.
func (r *Runner) begin(s Settings) (Progress, *problem) {
	if r.o.Unavailable != "" {
		return Progress{}, unavailable(r.o.Unavailable)
	}
	spec, err := s.check()
	if err != nil {
		return Progress{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.ctx.Err() != nil:
		return Progress{}, unavailable("the service is stopping")
	case r.last != nil && !r.last.over():
		return Progress{}, running
	case r.last != nil && r.last.over():
		<-r.last.done // its last notification may be under way
	}
	started := newRun(r.ctx, r.o, r.notify, spec, s)
	r.last = started
	go started.do()
	return started.progress(), nil
}

// current returns the last run, or nil.
func (r *Runner) current() *run {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last
}

// progress returns the progress of the run that was started last. It may be over. ok is
// false if none was started.
func (r *Runner) progress() (p Progress, ok bool) {
	last := r.current()
	if last == nil {
		return p, false
	}
	return last.progress(), true
}

// stop stops the run that is under way, waits until it is over or ctx ends, and returns
// its progress. It does nothing to a run that is over.
func (r *Runner) stop(ctx context.Context) (Progress, *problem) {
	last := r.current()
	if last == nil {
		return Progress{}, noRun
	}
	last.cancel()
	select {
	case <-last.done:
	case <-ctx.Done():
	}
	return last.progress(), nil
}

// Close stops the run that is under way and waits until its stores are removed.
func (r *Runner) Close() {
	r.mu.Lock()
	r.end()
	last := r.last // Start starts no more runs
	r.mu.Unlock()
	if last != nil {
		<-last.done
	}
}
