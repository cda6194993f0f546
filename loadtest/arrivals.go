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
)

// arrivals is the open load: orders arrive at a constant rate, however slowly
// they are answered, so that a slow service cannot slow its own load. It says
// how long buyers wait at that rate.
func (l *lab) arrivals(ctx context.Context, spec strategy.Spec, f *fleet) (*Result, error) {
	if l.search {
		return l.highest(ctx, spec, f)
	}
	return l.arrive(ctx, spec, f, l.rate)
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
func (l *lab) arrive(ctx context.Context, spec strategy.Spec, f *fleet, rate int) (*Result, error) {
	stock := max(l.stock, 2*int64(rate)*int64(l.duration/time.Second+1)) // nothing is sold out on the way
	sku, err := l.lay(ctx, f, spec, fmt.Sprintf("r%d-%d", rate, len(l.laid)), stock)
	if err != nil {
		return nil, err
	}
	caught := l.guardCaught(ctx, spec, f)
	cost := l.meter(ctx, f.pids())
	rec := newRecord()
	due := int64(l.duration) * int64(rate) / int64(time.Second)
	stop := l.display.show(spec.Name, due, rec)
	late := l.attack(ctx, rec, f, sku, rate, due)
	stop()
	cost.stop(ctx)
	result := l.result(spec, rec, stock)
	result.Load, result.Rate = fmt.Sprintf("%d arrivals a second for %v", rate, l.duration), rate
	result.Late = late
	end := interrupted
	if ctx.Err() == nil {
		end = soldOut
		result.Dropped = due - result.Accepted - result.Refused - result.Failed
	}
	result.timed(rec)
	cost.into(result, rec.accepted.Load())
	ctx = context.WithoutCancel(ctx)
	result.Caught = since(caught, l.guardCaught(ctx, spec, f))
	if err := l.audit(ctx, result, rec, f, sku, restOf(spec)); err != nil {
		return result, err
	}
	result.Undersold = 0 // there is more stock than arrivals
	result.judge(l.terms(spec, end))
	return result, nil
}

// attack sends the orders that are due, and records the answers. Of an order that
// was sent late, the time counts since it was due.
func (l *lab) attack(ctx context.Context, rec *record, f *fleet, sku string, rate int, due int64) (late int64) {
	attacker := vegeta.NewAttacker(vegeta.Client(l.client), vegeta.MaxWorkers(mostWorkers))
	defer attacker.Stop()
	defer context.AfterFunc(ctx, func() { attacker.Stop() })()
	var samples sync.WaitGroup
	defer samples.Wait()
	pace := pacer{ConstantPacer: vegeta.ConstantPacer{Freq: rate, Per: time.Second}, hits: uint64(due), limit: l.duration + graceOfLast}
	interval := time.Second / time.Duration(rate)
	for hit := range attacker.Attack(l.orderTargets(f, sku, rate), pace, 0, "") {
		// The pacer sends the first arrival after one interval. Who is sent late
		// has waited since.
		sentAt := hit.Timestamp.Sub(rec.start)
		behind := max(0, sentAt-time.Duration(hit.Seq+1)*interval)
		if behind > lateBy {
			late++
		}
		_, buyer, _ := strings.Cut(hit.URL, "#")
		a := answer{at: sentAt + hit.Latency, took: behind + hit.Latency, asked: oneUnit(buyer, sku)}
		if status := int(hit.Code); status != 0 {
			a.read(status, hit.Body)
		} else {
			a.read(0, []byte(hit.Error))
		}
		if hit.Seq%sampleEvery == 0 {
			samples.Go(func() { l.sample(ctx, rec, a) })
		}
		rec.add(a)
	}
	return late
}

// orderTargets makes up an order for each arrival. The URL's fragment, which is not
// sent, tells its buyer to whoever reads the answer.
func (l *lab) orderTargets(f *fleet, sku string, rate int) vegeta.Targeter {
	var (
		buyer  = buyers(l.seed, uint64(rate))
		header = http.Header{"Content-Type": {"application/json"}}
		mu     sync.Mutex // the attacker's workers ask for targets at the same time
		sent   = 0
	)
	return func(t *vegeta.Target) error {
		mu.Lock()
		defer mu.Unlock()
		name := buyer()
		t.Method, t.Header = http.MethodPost, header
		t.URL = f.url(sent) + "/orders#" + name
		t.Body = oneUnit(name, sku).body()
		sent++
		return nil
	}
}
