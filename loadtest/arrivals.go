package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/holdfast-stock/holdfast/internal/assembly"
	"github.com/holdfast-stock/holdfast/internal/lab/load"
	"github.com/holdfast-stock/holdfast/internal/lab/measure"
	"github.com/holdfast-stock/holdfast/internal/lab/table"
	"github.com/holdfast-stock/holdfast/loadtest/results"
)

const (
	// lateBy is the delay after which an arrival counts as late.
	lateBy = 10 * time.Millisecond
	// grace is how long after the end of the load its last arrivals may be sent.
	grace = 100 * time.Millisecond
	// maxUnderWay bounds the requests under way. Further arrivals wait, and are dropped
	// if the load ends before they could be sent.
	maxUnderWay = 2048
)

// arrivalsText describes an open load in figures.
func arrivalsText(r *results.Result) string { return fmt.Sprintf(arrivalsFormat, arrivalsArgs(r)...) }

const (
	arrivalsFormat        = "%d a second: p99 %s ms, %d failed, %d late, %d dropped"
	arrivalsFormatChinese = "每秒 %d 单：p99 %s 毫秒，失败 %d，迟发 %d，未发 %d"
)

func arrivalsArgs(r *results.Result) []any {
	return []any{r.Rate, table.Optional("%.2f", r.P99), r.Failed, r.Late, r.Dropped}
}

// holds reports whether an open load met the limit: the p99 is at most the limit, and at most 0.1 %
// of the arrivals failed or were dropped.
func holds(r *results.Result, limit time.Duration) bool {
	sent := r.Accepted + r.TurnedDown + r.Refused + r.Failed
	return r.P99 != nil && *r.P99 <= measure.Millis(limit) && (r.Failed+r.Dropped)*1000 <= sent
}

// arrive is the open load: orders arrive at a constant rate, however long the answers take, so that
// a slow service does not slow its own load. The load shows how long buyers wait at that rate.
func (l *lab) arrive(ctx context.Context, spec assembly.Spec, f *fleet, rate int) (*results.Result, error) {
	stock := max(l.Stock, 2*int64(rate)*int64(l.Duration/time.Second+1)) // more than all orders
	x, err := l.begin(ctx, spec, f, fmt.Sprintf("r%d-%d", rate, len(l.created)), stock)
	if err != nil {
		return nil, err
	}
	watch := x.startWatch(ctx, x.sku)
	defer watch.end()
	cost := x.startMeter(ctx)
	x.rec.start = time.Now() // of the orders
	due := int64(l.Duration) * int64(rate) / int64(time.Second)
	stop := x.showProgress(spec.Name)
	late, repeated := x.attack(ctx, rate, due)
	stop()
	cost.stop(ctx)
	x.repeatAll(ctx, repeated)
	x.follow(ctx)
	result := x.newResult(stock)
	result.Describe("%d arrivals a second for %v", "每秒到达 %d 单，持续 %v", rate, l.Duration)
	result.Rate, result.Late = rate, late
	end := interrupted
	if ctx.Err() == nil {
		end = soldOut
		result.Dropped = due - int64(len(x.rec.answers))
	}
	addTimes(result, x.rec)
	cost.addTo(result)
	ctx = context.WithoutCancel(ctx) // audit an interrupted load too
	if err := x.audit(ctx, result, settledAfterLoad(spec)); err != nil {
		return result, err
	}
	watch.addTo(ctx, result)
	result.Undersold = 0 // the load was not meant to sell the stock out
	judge(result, l.terms(spec, end))
	return result, nil
}

// attack sends the orders that are due and records the answers. The time of an order
// begins when it is due, even if it is sent late. The caller must repeat the orders in
// repeated after the load: during it, repeats would add to the rate.
func (l *loading) attack(ctx context.Context, rate int, due int64) (late int64, repeated []sent) {
	var (
		buyer    = buyers(l.Seed, uint64(rate))
		arrivals = load.Arrivals{Rate: rate, Count: int(due), Limit: l.Duration + grace, MaxUnderWay: maxUnderWay}
		samples  sync.WaitGroup
		mu       sync.Mutex // guards late and repeated
	)
	sending := context.WithoutCancel(ctx) // an interrupted load still waits for its last answers
	arrivals.Drive(ctx, l.rec.start, func(n int) func(time.Duration) {
		name := buyer()
		return func(due time.Duration) {
			behind := time.Since(l.rec.start) - due
			p := planOf(name, l.sku)
			s := l.try(sending, n, oneUnit(name, l.sku), plan{key: p.key})
			s.plan, s.at, s.Took = p, due+behind+s.Took, behind+s.Took
			mu.Lock()
			if behind > lateBy {
				late++
			}
			if p.repeat != never && len(repeated) < maxAllDue {
				repeated = append(repeated, s)
			}
			mu.Unlock()
			if n%sampleEvery == 0 {
				samples.Go(func() { // this request is not bounded by maxUnderWay
					l.sample(ctx, s.answer)
					l.sampleQueued(ctx, l.fleet.url(n+1), s.answer)
				})
			}
			l.rec.add(s.answer)
		}
	})
	samples.Wait()
	return late, repeated
}
