package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-stock/holdfast/internal/stock/strategy"
)

// Outcomes of one request.
const (
	accepted = "accepted"
	refused  = "refused" // sold out is a correct answer
	failed   = "failed"
)

// answer is the harness's own record of one request.
type answer struct {
	at      time.Duration // since the load began
	took    time.Duration
	outcome string
	order   string // its ID, if it was accepted
	status  int    // 0: none came
}

// mostAnswers bounds the record of one load.
const mostAnswers = 2_000_000

// record collects answers. It is safe for concurrent use.
type record struct {
	start    time.Time
	mu       sync.Mutex
	answers  []answer
	accepted atomic.Int64
	refused  atomic.Int64
	failed   atomic.Int64
}

func newRecord() *record { return &record{start: time.Now()} }

func (r *record) add(a answer) {
	switch a.outcome {
	case accepted:
		r.accepted.Add(1)
	case refused:
		r.refused.Add(1)
	default:
		r.failed.Add(1)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.answers) < mostAnswers {
		r.answers = append(r.answers, a)
	}
}

// outcomeOf judges a status.
func outcomeOf(status int) string {
	switch status {
	case http.StatusCreated:
		return accepted
	case http.StatusConflict:
		return refused
	}
	return failed
}

// order posts an order for one unit, and returns the record of it.
func (l *lab) order(ctx context.Context, url, sku, buyer string) (a answer) {
	body := fmt.Sprintf(`{"buyer_id":%q,"lines":[{"sku":%q,"quantity":1}]}`, buyer, sku)
	start := time.Now()
	defer func() { a.took = time.Since(start) }()
	a.outcome = failed
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/orders", bytes.NewReader([]byte(body)))
	if err != nil {
		return a
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := l.client.Do(request)
	if err != nil {
		return a
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return a
	}
	a.status, a.outcome = response.StatusCode, outcomeOf(response.StatusCode)
	if a.outcome == accepted {
		var placed struct {
			ID string `json:"id"`
		}
		if json.Unmarshal(text, &placed) != nil || placed.ID == "" {
			a.outcome = failed
		}
		a.order = placed.ID
	}
	return a
}

// buyers names the buyers of one client, or of one rate. Who they are depends on
// the seed and on nothing else.
func buyers(seed, stream uint64) func() string {
	random := rand.New(rand.NewPCG(seed, stream))
	return func() string { return fmt.Sprintf("buyer-%016x", random.Uint64()) }
}

// failurePause is how long a client waits after a failure before it asks again.
const failurePause = 10 * time.Millisecond

// rush is the closed load: each client orders one unit after the other until it
// hears that all are sold. It says how fast a strategy sells and whether it
// oversells, not how long one would wait at a given rate.
func (l *lab) rush(ctx context.Context, spec strategy.Spec, urls []string, pids []int, try int) (*Result, error) {
	sku := fmt.Sprintf("lt-%s-%s-%d", l.runID, spec.Name, try)
	if err := l.lay(ctx, urls[0], sku, l.stock); err != nil {
		return nil, err
	}
	caught := l.guardCaught(ctx, spec, urls)
	cost := l.meter(ctx, pids)
	rec := newRecord()
	stop := l.display.show(spec.Name, l.stock, rec)
	limited, cancel := context.WithTimeout(ctx, l.limit)
	defer cancel()
	var clients sync.WaitGroup
	for i := range l.clients {
		buyer := buyers(l.seed, uint64(i))
		clients.Go(func() {
			for n := 0; limited.Err() == nil; n++ {
				a := l.order(ctx, urls[(i+n)%len(urls)], sku, buyer())
				if ctx.Err() != nil {
					return // cut short: its outcome is nobody's
				}
				a.at = time.Since(rec.start)
				rec.add(a)
				switch a.outcome {
				case refused:
					return
				case failed:
					time.Sleep(failurePause)
				}
			}
		})
	}
	clients.Wait()
	expired := limited.Err() != nil
	stop()
	cost.stop(ctx)
	result := l.result(spec, rec, l.stock)
	result.Load = fmt.Sprintf("rush, %d clients", l.clients)
	result.timed(rec)
	cost.into(result, rec.accepted.Load())
	result.Caught = since(caught, l.guardCaught(context.WithoutCancel(ctx), spec, urls))
	// What was cut short is audited all the same.
	if err := l.audit(context.WithoutCancel(ctx), result, rec, urls[0], sku); err != nil {
		return result, err
	}
	end := soldOut
	switch {
	case ctx.Err() != nil:
		end = interrupted
	case expired:
		end = atLimit
	}
	result.judge(spec, end, l.guarded(spec))
	l.display.done(*result)
	return result, nil
}

func millisEach(cpu time.Duration, orders int64) *float64 {
	each := cpu.Seconds() * 1000 / float64(orders)
	return &each
}

// timed fills in throughput and latency. Both count correct answers only.
func (r *Result) timed(rec *record) {
	var (
		last  time.Duration
		times []time.Duration
	)
	for _, a := range rec.answers {
		if a.outcome == failed {
			continue
		}
		times = append(times, a.took)
		if a.outcome == accepted {
			last = max(last, a.at)
			r.Sales = append(r.Sales, a.at.Seconds())
		}
	}
	slices.Sort(r.Sales)
	if last > 0 {
		r.PerSecond = float64(rec.accepted.Load()) / last.Seconds()
	}
	slices.Sort(times)
	r.Percentiles = percentiles(times)
	r.P50, r.P99 = at(times, 0.50), at(times, 0.99)
}

// at is a quantile of sorted times in milliseconds, nil if there are none.
func at(times []time.Duration, quantile float64) *float64 {
	if len(times) == 0 {
		return nil
	}
	i := min(int(quantile*float64(len(times))), len(times)-1)
	millis := times[i].Seconds() * 1000
	return &millis
}

// curve is where the latency curve is drawn.
var curve = []float64{0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 0.999, 1}

// Percentile is one point of a latency curve.
type Percentile struct {
	Quantile float64 `json:"quantile"`
	Millis   float64 `json:"millis"`
}

func percentiles(times []time.Duration) (points []Percentile) {
	for _, quantile := range curve {
		if millis := at(times, quantile); millis != nil {
			points = append(points, Percentile{quantile, *millis})
		}
	}
	return points
}
