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
	// graceOfLast is how long after the load's end its last arrivals may be sent.
	graceOfLast = 100 * time.Millisecond
	// mostWorkers bounds the requests under way. Arrivals beyond it are late, and
	// dropped where the load ends before they could be sent.
	mostWorkers = 2048
	// lowestRate and highestRate are where a search begins and ends.
	lowestRate, highestRate = 50, 200_000
	// searchSteps bounds the halvings of a search.
	searchSteps = 6
)

// arrivals is the open load: orders arrive at a constant rate, however slowly
// they are answered, so that a slow service cannot slow its own load. It says
// how long buyers wait at that rate.
func (l *lab) arrivals(ctx context.Context, spec strategy.Spec, urls []string, pids []int) (*Result, error) {
	if l.search {
		return l.highest(ctx, spec, urls, pids)
	}
	result, err := l.arrive(ctx, spec, urls, pids, l.rate)
	if result != nil {
		l.display.done(*result)
	}
	return result, err
}

// highest searches the highest rate that holds the limit: it doubles the rate
// until one does not, and halves what is between.
func (l *lab) highest(ctx context.Context, spec strategy.Spec, urls []string, pids []int) (*Result, error) {
	var held, failed *Result
	rate := lowestRate
	for step := 0; step <= searchSteps; {
		result, err := l.arrive(ctx, spec, urls, pids, rate)
		if ctx.Err() != nil && held != nil {
			break
		}
		if err != nil || ctx.Err() != nil {
			return result, err
		}
		fmt.Fprintf(l.display.w, "%-13s %s\n", spec.Name, result.borne())
		switch {
		case result.Verdict == promise:
			return result, nil
		case result.holds(l.p99):
			held = result
		default:
			failed = result
		}
		switch {
		case held == nil || failed == nil && rate == highestRate:
			step = searchSteps + 1
		case failed == nil:
			rate = min(rate*2, highestRate)
		case failed.Rate-held.Rate <= max(held.Rate/20, 1):
			step = searchSteps + 1
		default:
			step++
			rate = (held.Rate + failed.Rate) / 2
		}
	}
	answer, highest := held, 0
	if held == nil {
		answer = failed
		answer.Load += fmt.Sprintf("; not even this holds a p99 of %v: %s", l.p99, failed.borne())
	} else {
		highest = held.Rate
		answer.Load += fmt.Sprintf("; the highest rate found that holds a p99 of %v", l.p99)
		if failed != nil {
			answer.Load += "; the lowest that does not: " + failed.borne()
		}
	}
	answer.Highest = &highest
	if ctx.Err() != nil {
		answer.Load += "; the search was cut short"
		answer.Verdict = undecided
	}
	l.display.done(*answer)
	return answer, nil
}

// borne says how a rate was borne.
func (r *Result) borne() string {
	return fmt.Sprintf("%d a second: p99 %s ms, %d failed, %d late, %d dropped",
		r.Rate, figure(r.P99).text, r.Failed, r.Late, r.Dropped)
}

// holds reports whether the rate was borne: answers in time, counted from when
// they were due, and hardly any arrival without one.
func (r *Result) holds(p99 time.Duration) bool {
	sent := r.Accepted + r.Refused + r.Failed
	return r.P99 != nil && *r.P99 <= p99.Seconds()*1000 && (r.Failed+r.Dropped)*1000 <= sent
}

// pacer ends a constant rate after so many hits, or at the limit. (A duration of
// vegeta's own would drop the last hits at any pause of the machine.)
type pacer struct {
	vegeta.ConstantPacer
	hits  uint64
	limit time.Duration
}

func (p pacer) Pace(elapsed time.Duration, hits uint64) (wait time.Duration, stop bool) {
	if hits >= p.hits || elapsed > p.limit {
		return 0, true
	}
	return p.ConstantPacer.Pace(elapsed, hits)
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
	attacker := vegeta.NewAttacker(vegeta.Client(l.client), vegeta.MaxWorkers(mostWorkers))
	defer attacker.Stop()
	caught := l.guardCaught(ctx, spec, urls)
	cost := l.meter(ctx, pids)
	rec := newRecord()
	due := int64(l.duration) * int64(rate) / int64(time.Second)
	stop := l.display.show(spec.Name, due, rec)
	var late int64
	pace := pacer{ConstantPacer: vegeta.ConstantPacer{Freq: rate, Per: time.Second}, hits: uint64(due), limit: l.duration + graceOfLast}
	interval := time.Second / time.Duration(rate)
	for hit := range attacker.Attack(next, pace, 0, spec.Name) {
		if ctx.Err() != nil {
			attacker.Stop()
			continue
		}
		// The pacer sends the first arrival after one interval. Who is sent late
		// has waited since.
		sentAt := hit.Timestamp.Sub(rec.start)
		behind := max(0, sentAt-time.Duration(hit.Seq+1)*interval)
		if behind > lateBy {
			late++
		}
		a := answer{at: sentAt + hit.Latency, took: behind + hit.Latency, status: int(hit.Code), outcome: outcomeOf(int(hit.Code))}
		if a.outcome == accepted {
			a.order = strings.TrimPrefix(hit.Headers.Get("Location"), "/orders/")
		}
		rec.add(a)
	}
	stop()
	cost.stop(ctx)
	result := l.result(spec, rec, stock)
	result.Load, result.Rate = fmt.Sprintf("%d arrivals a second for %v", rate, l.duration), rate
	result.Late = late
	if ctx.Err() == nil {
		result.Dropped = due - result.Accepted - result.Refused - result.Failed
	}
	result.timed(rec)
	cost.into(result, rec.accepted.Load())
	result.Caught = since(caught, l.guardCaught(context.WithoutCancel(ctx), spec, urls))
	if err := l.audit(context.WithoutCancel(ctx), result, rec, urls[0], sku); err != nil {
		return result, err
	}
	result.Undersold = 0 // there is more stock than arrivals
	end := soldOut
	if ctx.Err() != nil {
		end = interrupted
	}
	result.judge(spec, end, false)
	return result, nil
}
