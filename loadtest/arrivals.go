package main

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	vegeta "github.com/tsenart/vegeta/v12/lib"

	"github.com/holdfast-stock/holdfast/internal/stock/strategy"
)

const (
	// lateBy is how much after its time an arrival may be sent.
	lateBy = 10 * time.Millisecond
	// mostWorkers bounds the requests under way. Arrivals beyond it are late.
	mostWorkers = 2048
	// lowestRate and highestRate are where a search begins and ends.
	lowestRate, highestRate = 50, 200_000
	// searchSteps bounds a search after the first rate that did not hold.
	searchSteps = 6
)

// arrivals is the open load: orders arrive at a constant rate, however slowly
// they are answered, so that a slow service cannot slow its own load. It says
// how long buyers wait at that rate.
func (l *lab) arrivals(ctx context.Context, spec strategy.Spec, urls []string, pids []int) (*Result, error) {
	if !l.search {
		result, err := l.arrive(ctx, spec, urls, pids, l.rate)
		if result != nil {
			l.display.done(*result)
		}
		return result, err
	}
	var best *Result
	low, high := 0, 0
	for rate, step := lowestRate, 0; ctx.Err() == nil; {
		result, err := l.arrive(ctx, spec, urls, pids, rate)
		if err != nil || ctx.Err() != nil {
			return best, err
		}
		holds := result.holds(l.p99)
		fmt.Fprintf(l.display.w, "%-13s %d a second: p99 %s ms, %d late, %d failed\n",
			spec.Name, rate, figure(result.P99).text, result.Late, result.Failed)
		if result.Verdict == promise {
			return result, nil
		}
		if holds {
			low, best = rate, result
		} else {
			high = rate
		}
		switch {
		case high == 0 && rate < highestRate:
			rate = min(rate*2, highestRate)
			continue
		case step == searchSteps || high-low <= max(low/20, 1):
			return l.found(best, result), nil
		}
		step++
		rate = (low + high) / 2
	}
	return best, nil
}

// found is the answer of a search: the highest rate that held, or that none did.
func (l *lab) found(best, last *Result) *Result {
	if best == nil {
		best = last
		best.Load += fmt.Sprintf("; not even %d a second hold a p99 of %v", lowestRate, l.p99)
	} else {
		best.Load += fmt.Sprintf("; the highest rate that holds a p99 of %v", l.p99)
	}
	l.display.done(*best)
	return best
}

// holds reports whether the rate was borne: answers in time, and hardly any
// arrival late or without one.
func (r *Result) holds(p99 time.Duration) bool {
	all := r.Accepted + r.Refused + r.Failed
	return r.P99 != nil && *r.P99 <= p99.Seconds()*1000 && r.Failed*1000 <= all && r.Late*100 <= all
}

// arrive sends orders at one rate for the duration.
func (l *lab) arrive(ctx context.Context, spec strategy.Spec, urls []string, pids []int, rate int) (*Result, error) {
	stock := max(l.stock, 2*int64(rate)*int64(l.duration/time.Second+1)) // nothing is sold out on the way
	sku := fmt.Sprintf("lt-%s-%s-r%d-%d", l.runID, spec.Name, rate, time.Now().UnixMilli()%1e6)
	if err := l.lay(ctx, urls[0], sku, stock); err != nil {
		return nil, err
	}
	var (
		buyer  = buyers(l.seed, uint64(rate))
		header = http.Header{"Content-Type": {"application/json"}}
		mu     sync.Mutex // the attacker's workers ask for targets at the same time
		sent   = 0
	)
	next := func(t *vegeta.Target) error {
		mu.Lock()
		defer mu.Unlock()
		t.Method, t.Header = http.MethodPost, header
		t.URL = urls[sent%len(urls)] + "/orders"
		t.Body = fmt.Appendf(nil, `{"buyer_id":%q,"lines":[{"sku":%q,"quantity":1}]}`, buyer(), sku)
		sent++
		return nil
	}
	attacker := vegeta.NewAttacker(vegeta.Timeout(30*time.Second), vegeta.MaxWorkers(mostWorkers),
		vegeta.Connections(mostWorkers), vegeta.MaxConnections(mostWorkers), vegeta.KeepAlive(true))
	defer attacker.Stop()
	caught := l.caught(ctx, urls)
	cost := l.meter(ctx, pids)
	rec := newRecord()
	stop := l.display.show(spec.Name, int64(rate)*int64(l.duration/time.Second), rec)
	var late, dropped int64
	pace := vegeta.Rate{Freq: rate, Per: time.Second}
	for hit := range attacker.Attack(next, pace, l.duration, spec.Name) {
		if ctx.Err() != nil {
			attacker.Stop()
			continue
		}
		due := rec.start.Add(time.Duration(hit.Seq) * time.Second / time.Duration(rate))
		if hit.Timestamp.Sub(due) > lateBy {
			late++
		}
		a := answer{at: hit.Timestamp.Sub(rec.start) + hit.Latency, took: hit.Latency, status: int(hit.Code), outcome: outcomeOf(int(hit.Code))}
		if hit.Code == 0 {
			dropped++
		}
		if a.outcome == accepted {
			a.order = strings.TrimPrefix(hit.Headers.Get("Location"), "/orders/")
		}
		rec.add(a)
	}
	stop()
	cost.stop(ctx)
	result := l.result(spec, rec, stock)
	result.Load, result.Rate = fmt.Sprintf("%d arrivals a second for %v", rate, l.duration), rate
	result.Late, result.Dropped = late, dropped
	result.timed(rec)
	cost.into(result, rec.accepted.Load())
	result.Caught = l.caught(context.WithoutCancel(ctx), urls) - caught
	if err := l.audit(context.WithoutCancel(ctx), result, rec, urls[0], sku); err != nil {
		return result, err
	}
	result.Undersold = 0 // there is more stock than arrivals
	// With stock in plenty nobody can oversell: only losses are judged.
	sound := spec
	sound.Sound = true
	end := soldOut
	if ctx.Err() != nil {
		end = interrupted
	}
	result.judge(sound, end, l.guard == "on")
	if !spec.Sound {
		result.Faults, result.Verdict = nil, asPromised // lost updates are what it shows
	}
	return result, nil
}
