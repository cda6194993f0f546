package rush

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-stock/holdfast/client"
	"github.com/holdfast-stock/holdfast/internal/assembly"
	"github.com/holdfast-stock/holdfast/internal/lab/load"
	"github.com/holdfast-stock/holdfast/internal/lab/measure"
)

const (
	// notifyEvery is the time between two notifications of a run's progress.
	notifyEvery = 200 * time.Millisecond
	// lastAnswers is how long a run that stops waits for answers under way. An order whose answer
	// comes later counts in Sold but not in Accepted.
	lastAnswers = 2 * time.Second
)

// run is one rush. It is safe for concurrent use.
type run struct {
	o      Options
	tell   func(Progress)
	spec   assembly.Spec
	ctx    context.Context
	cancel context.CancelFunc
	done   chan struct{} // closed when the run is over

	mu       sync.Mutex
	p        Progress
	requests int             // number of requests started
	answers  []time.Duration // how long each answer took
	failures map[string]int  // number of failures by answer
	start    time.Time       // start of the first order; zero while preparing
}

func newRun(ctx context.Context, o Options, tell func(Progress), spec assembly.Spec, s Settings) *run {
	r := &run{o: o, tell: tell, spec: spec, done: make(chan struct{}), failures: make(map[string]int)}
	r.ctx, r.cancel = context.WithCancel(ctx)
	r.p = Progress{ID: rand.Text(), Settings: s, State: Preparing, Available: s.Units}
	return r
}

// over reports whether the run is over and its stores are removed.
func (r *run) over() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.p.State.final()
}

// do does the whole run.
func (r *run) do() {
	defer close(r.done)
	defer r.cancel()
	r.notify()
	opened, err := openShop(r.ctx, r.spec, r.p.Units)
	if err != nil {
		r.finish(0, err)
		return
	}
	r.rush(opened.url)
	ctx := context.WithoutCancel(r.ctx) // count the orders of a stopped run too
	err = opened.endOrders(ctx)
	sold, uncounted := opened.sold(ctx)
	// The state becomes final only now, because then the next run may start.
	r.finish(sold, errors.Join(err, uncounted, opened.close()))
}

// rush lets the clients order at the URL until all are refused, or the run stops.
func (r *run) rush(url string) {
	transport := &http.Transport{MaxIdleConnsPerHost: r.p.Clients, MaxConnsPerHost: r.p.Clients} // without a proxy: the server is in this process
	defer transport.CloseIdleConnections()
	c := load.NewClient(transport, client.WithTryTimeout(requestTimeout+lastAnswers))
	r.begin()
	defer r.end()
	ordering, stop := context.WithTimeout(r.ctx, MaxDuration)
	defer stop()
	answered, giveUp := context.WithCancel(context.WithoutCancel(r.ctx))
	defer giveUp()
	finished := load.Crowd(ordering, r.p.Clients, func(i, n int) (pause time.Duration, more bool) {
		if !r.next() {
			return 0, false
		}
		a := c.Place(answered, url, client.OrderRequest{
			BuyerID: fmt.Sprintf("client-%d-%d", i, n), Lines: []client.Line{{SKU: string(sku), Quantity: 1}},
		})
		r.record(a)
		if a.Outcome() == load.Failed {
			pause = load.FailurePause
		}
		return pause, a.Outcome() != load.Refused
	})
	r.follow(ordering, finished)
	select {
	case <-finished:
	case <-time.After(lastAnswers):
		giveUp()
		<-finished
	}
}

// follow notifies about the progress until the clients have finished or ctx ends.
func (r *run) follow(ctx context.Context, finished <-chan struct{}) {
	ticker := time.NewTicker(notifyEvery)
	defer ticker.Stop()
	for {
		select {
		case <-finished:
			return
		case <-ctx.Done():
			return
		case <-ticker.C:
			r.notify()
		}
	}
}

// next reports whether the run may send another order.
func (r *run) next() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.requests >= maxOrders {
		return false
	}
	r.requests++
	return true
}

// record counts an answer.
func (r *run) record(a load.Answer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answers = append(r.answers, a.Took)
	switch a.Outcome() {
	case load.Accepted, load.Queued:
		r.p.Accepted++
	case load.Refused:
		r.p.Refused++
	default:
		r.p.Failed++
		r.failures[a.Failure()]++
	}
}

// begin begins to measure the time of the orders.
func (r *run) begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.start, r.p.State = time.Now(), Running
}

// end ends that time.
func (r *run) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.p.ElapsedMS = time.Since(r.start).Milliseconds()
}

// finish sets the final state and notifies about it.
func (r *run) finish(sold int64, err error) {
	r.mu.Lock()
	r.p.Sold = sold
	switch {
	case r.ctx.Err() != nil:
		r.p.State, r.p.Detail = Stopped, r.failureDetail()
	case err != nil:
		r.p.State, r.p.Detail = Failed, err.Error()
		r.o.Log.Error("a rush failed", "strategy", r.p.Strategy, "error", err)
	default:
		r.p.State, r.p.Detail = Ended, r.endDetail()
	}
	r.mu.Unlock()
	r.notify()
}

// endDetail says why a run ended although not all clients were refused, and what failed.
func (r *run) endDetail() string {
	var parts []string
	switch {
	case r.p.Refused == int64(r.p.Clients):
	case r.requests >= maxOrders:
		parts = append(parts, fmt.Sprintf("the limit of %d orders was reached", maxOrders))
	default:
		parts = append(parts, fmt.Sprintf("the limit of %v was reached", MaxDuration))
	}
	if failures := r.failureDetail(); failures != "" {
		parts = append(parts, failures)
	}
	return strings.Join(parts, "; ")
}

// failureDetail lists the failures.
func (r *run) failureDetail() string {
	var parts []string
	for _, what := range slices.Sorted(maps.Keys(r.failures)) {
		parts = append(parts, fmt.Sprintf("%s: %d", what, r.failures[what]))
	}
	return strings.Join(parts, ", ")
}

// progress returns the state of the run.
func (r *run) progress() Progress {
	r.mu.Lock()
	p, start, times := r.p, r.start, slices.Clone(r.answers)
	r.mu.Unlock()
	elapsed := time.Duration(p.ElapsedMS) * time.Millisecond
	if p.State == Running && elapsed == 0 {
		elapsed = time.Since(start)
		p.ElapsedMS = elapsed.Milliseconds()
	}
	if !p.State.final() {
		p.Sold = p.Accepted // a queued order may still be refused; sold is recounted at the end
	}
	p.Available, p.Oversold = p.Units-p.Sold, max(0, p.Sold-p.Units)
	if elapsed > 0 {
		p.OrdersPerSecond = float64(p.Accepted) / elapsed.Seconds()
	}
	slices.Sort(times)
	p.P50MS, p.P99MS = measure.Millis(measure.Quantile(times, 0.5)), measure.Millis(measure.Quantile(times, 0.99))
	return p
}

func (r *run) notify() { r.tell(r.progress()) }
